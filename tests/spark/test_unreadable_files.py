"""Files of a table that Arrow cannot read: the one-line error distinguishes damage from other causes."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kbroker.spark.failures import RESTORE, UnreadableFileError, unreadable_file
from kbroker.spark.tables import file_reader
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.table_place import TablePlace

NESTED = pa.table({"names": [[{"name": "a"}]] * 100})
ROWS = pa.table({"client_id": ["a", "b", "c"] * 100})
CODEC_SNAPPY, CODEC_LZO = b"\x15\x02\x16", b"\x15\x06\x16"  # the field of a column's codec, before its number of values


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "a.parquet"
    pq.write_table(ROWS, found, compression="snappy")
    return found


def why(file: Path, place: Any = None) -> str:
    """Return the cause, after asserting that a failed job leads to the same error."""
    with pytest.raises(UnreadableFileError) as failed:
        read_columns(TablePlace.of(str(file.parent)) if place is None else place, [file.name], None)
    text = str(failed.value)
    trace = f"Traceback (most recent call last):\nkbroker.x.UnreadableFileError: {text}\n\n\tat org.apache.spark"
    assert str(unreadable_file(RuntimeError(trace))) == text
    name = file if place is None else f"{place.uri}/{file.name}"
    assert text.startswith(f"cannot read {name}: ")
    assert text.isprintable()
    return text.removeprefix(f"cannot read {name}: ")


def test_a_codec_that_arrow_lacks_is_no_damage(file: Path) -> None:
    """The message does not call the file damaged."""
    data = file.read_bytes()
    assert data.count(CODEC_SNAPPY) == 1
    file.write_bytes(data.replace(CODEC_SNAPPY, CODEC_LZO))
    found = why(file)
    assert found.startswith(f"pyarrow {pa.__version__} lacks a feature that it needs (While LZO compression is ")
    assert RESTORE not in found


def test_a_conversion_that_arrow_lacks_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dictionaries in lists cannot be converted where row groups are not read one by one."""
    monkeypatch.setattr(file_reader, "_read", lambda file, columns: file.read(columns=columns))
    pq.write_table(NESTED, tmp_path / "a.parquet", row_group_size=50)
    with pytest.raises(UnreadableFileError) as failed:
        read_columns(TablePlace.of(str(tmp_path)), ["a.parquet"], None, names=["names.list.element.name"])
    assert str(failed.value) == (
        f"cannot read {tmp_path / 'a.parquet'}: pyarrow {pa.__version__} lacks a feature that it needs (Nested data "
        "conversions not implemented for chunked array outputs); use a newer pyarrow, or have the file written without "
        "that"
    )


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not a Parquet file", b"PAR1" + bytes(50) + b"PAR1"])
def test_a_damaged_file(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    found = why(file)
    assert found.startswith("it is damaged, or no Parquet file (")
    assert found.endswith(f"); {RESTORE}")


def test_each_byte_of_the_footer(file: Path) -> None:
    """A damaged file is read or the error names it, and is never a UnicodeDecodeError."""
    data = file.read_bytes()
    place = TablePlace.of(str(file.parent))
    for at in range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data)):
        for byte in (0x00, 0x0E, 0xFF, data[at] ^ 0x80):
            file.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
            with suppress(UnreadableFileError):
                read_columns(place, [file.name], None)


def test_a_missing_file(file: Path) -> None:
    file.unlink()
    assert why(file) == f"it is missing; {RESTORE}"


def test_a_file_that_may_not_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pa, "OSFile", refuse)
    assert why(file) == "Permission denied"


def test_too_little_memory_is_no_damage(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 1 failed")

    monkeypatch.setattr(pq, "ParquetFile", fail)
    assert why(file) == "it needs more memory than a task has; give each task more"


class FailingStore:
    """Files of a folder, in a store that fails after some reads."""

    def __init__(self, folder: Path, reads: int) -> None:
        self._folder, self._reads = folder, reads

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(_File((self._folder / path).open("rb"), self._one_less), "r")

    def _one_less(self) -> None:
        self._reads -= 1
        if self._reads < 0:
            raise OSError("Generic S3 error\n  \x1b[31m\u21b3\x1b[0m 503 Service Unavailable")


class _File:
    closed = False

    def __init__(self, file: BinaryIO, before: Callable[[], None]) -> None:
        self._file, self._before = file, before
        self.seek, self.tell, self.close = file.seek, file.tell, file.close  # words: ok

    def read(self, size: int = -1) -> bytes:
        self._before()
        return self._file.read(size)


def place_that_fails(folder: Path, reads: int) -> Any:
    store = FailingStore(folder, reads)
    return SimpleNamespace(uri="s3://t", is_local=False, file=lambda name: f"s3://t/{name}", filesystem=lambda: store)


def test_a_store_that_fails_is_no_damage(file: Path) -> None:
    """A failure of the store at any request is not called damage of the file."""
    reads = 0
    while reads < 20:
        place = place_that_fails(file.parent, reads)
        try:
            assert read_columns(place, [file.name], None).equals(ROWS)
            break
        except UnreadableFileError:
            cause = why(file, place_that_fails(file.parent, reads))
            said = "Generic S3 error: 503 Service Unavailable"
            assert cause == f"its store failed: {said}; run this again when the store responds"
        reads += 1
    assert 1 < reads < 20, "it fails in the footer, and in the columns"


def test_a_damaged_file_in_a_store_that_does_not_fail(file: Path) -> None:
    file.write_bytes(b"not a Parquet file")
    assert why(file, place_that_fails(file.parent, 99)).startswith("it is damaged, or no Parquet file (")
