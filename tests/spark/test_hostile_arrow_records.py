"""Arrow records of a request log topic that no broker has written, with any offsets: they are skipped."""

import struct
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kbroker.client.request_records import _rows_of, file_rows
from kbroker.console.request_tail import _NAMES, _TEXTS, _requests

NAME = "a-client-" + 4321 * "x"
TEXTS = ("api_name", *_TEXTS)
ROW: dict[str, Any] = {
    **dict.fromkeys(_NAMES, 1),
    **dict.fromkeys(TEXTS, NAME),
    "time": datetime(2026, 1, 2, tzinfo=timezone.utc),
}


def stream(row: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_pylist([row])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def read(value: bytes) -> tuple[int, int]:
    return len(list(_requests([value], is_arrow=True))), len(list(_rows_of(value, b"arrow")))


def read_file(folder: Path, *values: bytes) -> list[Any]:
    """Return the clients of the records of a file."""
    path = folder / "requests-1.arrows"
    path.write_bytes(b"".join(values))
    return [row["client_id"] for rows in file_rows([path], False, lambda seconds: None) for row in rows]


def test_a_record_of_a_broker() -> None:
    assert read(stream(ROW)) == (1, 1)


def with_offsets(first: int, behind: int) -> bytes:
    """Return a broker's record with other offsets of its texts."""
    value = stream(ROW)
    written = struct.pack("<ii", 0, len(NAME))
    assert value.count(written) == 2 * len(TEXTS), "in the metadata of the buffers, and in the buffers"
    at = 0
    for _ in TEXTS:
        at = value.index(written, at) + 1
    return value[:at] + value[at:].replace(written, struct.pack("<ii", first, behind))


def test_offsets_beyond_the_data() -> None:
    """Offsets beyond the data, which would read foreign memory and once crashed the broker, are rejected."""
    assert read(with_offsets(0, len(NAME))) == (1, 1)
    assert read(with_offsets(0, len(NAME) + 100)) == (0, 0)
    assert read(with_offsets(0x7FFF0000, 0x7FFFFFF0)) == (0, 0)


@pytest.mark.parametrize("cut", [0, 1, 8, 100, 400, -10, -200])
def test_what_is_torn(cut: int) -> None:
    assert read(stream(ROW)[:cut]) == (0, 0)


@pytest.mark.parametrize("name", ["time", "api_name", "throttle_time_ms"])
def test_values_of_other_types(name: str) -> None:
    """A value of another type makes the record invalid, or is left out."""
    for other in ("x", 5, 1.5, [1], {"a": 1}, b"\xff", True, float("inf")):
        read(stream({**ROW, name: other}))


def test_files_of_others(tmp_path: Path) -> None:
    """A file with other columns, values of other types, offsets beyond the data or no Arrow stream has no records."""
    assert read_file(tmp_path, stream(ROW)) == [NAME]
    for bad in (
        stream({"a": 1}),
        stream({**ROW, "time": 7}),
        stream({**ROW, "api_name": 5}),
        with_offsets(0, len(NAME) + 100),
        with_offsets(0x7FFF0000, 0x7FFFFFF0),
        b"",
        b"{}",
        stream(ROW)[:400],
    ):
        assert read_file(tmp_path, bad) == []


def test_a_damaged_batch_of_a_file_that_grows(tmp_path: Path) -> None:
    """The batches beside the damaged one are read once each, and an incomplete batch is read when it is complete."""
    batch = pa.RecordBatch.from_pylist([ROW])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(3):
            writer.write_batch(batch)
    whole = bytearray(sink.getvalue())
    written = struct.pack("<ii", 0, len(NAME))
    places = [at for at in range(len(whole)) if whole.startswith(written, at)]
    second = places[len(places) // 3 : 2 * len(places) // 3]  # in the metadata of the second batch, and in its data
    first_end = len(stream(ROW)) - 8  # without the end of the stream
    assert places[len(places) // 3 - 1] < first_end < second[0]
    at = second[-1]
    whole[at : at + 8] = struct.pack("<ii", 0, len(NAME) + 100)
    path = tmp_path / "requests-1.arrows"
    lengths = iter([first_end, first_end + 100, len(whole)])
    found: list[int] = []
    path.write_bytes(whole[: next(lengths)])
    for rows in file_rows([path], True, lambda seconds: None):
        found.append(len(rows))
        if not rows:
            length = next(lengths, None)
            if length is None:
                break
            path.write_bytes(whole[:length])
    assert found == [1, 0, 0, 1, 0]
