"""Reading of a table's files as Arrow by pyarrow in the executors, which needs no jar for any store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from kbroker.common.printable import printable
from kbroker.spark.errors import reason_of_delta
from kbroker.spark.failures import AGAIN, DAMAGED, MISSING, RESTORE, STORE_FAILED, UnreadableFileError
from kbroker.spark.tables.arrow_log import fit
from kbroker.spark.tables.table_place import TablePlace

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ROWS_AT_ONCE = 65_536
#: Messages of Arrow's Parquet reader about unsupported features, also in errors of other classes.
_LACKING = re.compile(r"not (yet )?implemented|not supported", re.IGNORECASE)


def read_columns(
    place: TablePlace,
    files: Sequence[str],
    columns: Sequence[str] | None,
    chosen: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    names: Sequence[str] = (),
) -> pa.Table:
    """Read some or all columns of a table's files; a column that an older file lacks is null, or absent if all do.

    Args: `chosen`: filters the rows of each file, so that other rows are not kept in memory. `names`: text columns, by
    Parquet's names, to be read as dictionaries.
    Raises: UnreadableFileError.
    """
    opened = _opened(place, files, columns, names)
    parts = [chosen(pa.Table.from_batches(list(batches), schema)) for schema, batches in opened]
    return pa.concat_tables(parts, promote_options="permissive")


def read_rows(place: TablePlace, schema: StructType, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files for Spark. Args: `tasks`: path, date, hour and bucket of each file."""
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    for batch in tasks:
        for task in batch.to_pylist():
            names = [name for name in wanted.names if name not in task]
            for _, batches in _opened(place, [task["path"]], names or ["time", "timestamp"]):
                for rows in batches:
                    columns = [_column(rows, one, task) for one in wanted]
                    yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _column(rows: pa.RecordBatch, field: pa.Field, task: dict[str, Any]) -> Any:
    if field.name in task:
        return pa.array([task[field.name]] * rows.num_rows, field.type)
    has = field.name in rows.schema.names
    return fit(rows.column(field.name) if has else None, field.type, rows.num_rows)


def _read(file: pq.ParquetFile, columns: Sequence[str]) -> pa.Table:
    """Read columns of a file, one row group after the other.

    Each row group has its own dictionaries, which Arrow 26 cannot combine within lists ("Nested data conversions not
    implemented for chunked array outputs").
    """
    if file.num_row_groups == 0:
        return file.read(columns=columns)
    # a task has one core
    return pa.concat_tables(
        file.read_row_group(group, columns=columns, use_threads=False) for group in range(file.num_row_groups)
    )


def _opened(
    place: TablePlace, files: Sequence[str], columns: Sequence[str] | None, dictionaries: Sequence[str] = ()
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Yield the schema of each file, and batches of the requested columns that it has. Raises: UnreadableFileError."""
    for name in files:
        try:
            with _source(place, name) as source, pq.ParquetFile(source, read_dictionary=list(dictionaries)) as file:
                has = file.schema_arrow.names
                known = has if columns is None else [column for column in columns if column in has]
                rows = _read(file, known)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UnreadableFileError(place.file(name), _cause(error)) from error
        yield rows.schema, iter(rows.to_batches(max_chunksize=ROWS_AT_ONCE))


def _cause(error: Exception) -> str:
    """Return the reason that Arrow cannot read a file, and the remedy, in one line."""
    if isinstance(error, FileNotFoundError):
        return f"{MISSING}; {RESTORE}"
    if isinstance(error, _StoreError):
        return f"{STORE_FAILED}{error}{AGAIN}"
    if isinstance(error, MemoryError):
        return "it needs more memory than a task has; give each task more"
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or f"error {error.errno} of the operating system"
    reason = printable(" ".join(str(error).split())[:200])
    if isinstance(error, pa.ArrowNotImplementedError) or _LACKING.search(reason):
        return (
            f"pyarrow {pa.__version__} lacks a feature that it needs ({reason}); use a newer pyarrow, or have the file "
            "written without that"
        )
    return f"{DAMAGED} ({reason}); {RESTORE}"


def _source(place: TablePlace, name: str) -> Any:
    if place.is_local:
        return pa.OSFile(place.file(name))
    with _store_errors():
        return pa.PythonFile(_StoreFile(place.filesystem().open_input_file(name)), "r")


class _StoreError(OSError):
    """Failure of the store of a file, independent of the file's content."""


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _StoreError(reason_of_delta(error)) from error


class _StoreFile:
    """File of a store that raises _StoreError for the store's failures, which differ from Arrow's for damaged files."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file

    def read(self, size_bytes: int = -1) -> bytes:
        with _store_errors():
            return bytes(self._file.read(None if size_bytes < 0 else size_bytes))

    def seek(self, offset: int, whence: int = 0) -> int:
        with _store_errors():
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:  # words: ok
        return int(self._file.tell())  # words: ok

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)
