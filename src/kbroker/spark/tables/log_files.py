"""Spark source of request-log files that are still being written: rolling JSON lines, Arrow streams, Kafka's log.

Spark's own file sources read a file once, when they first find it, and miss data that is appended later. Here the
offset of a stream has the position in each file, and only whole lines and whole Arrow batches are read.

The key of a file is its path; a file that is renamed when it is full (Apache Kafka's `kafka-request.log`) has a key
from its first line. Register `LogFiles` with a session before use; `kbroker.spark.tables.log_reader` does.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.log_store import LogFile, Options, found_files
from kbroker.spark.tables.table_place import TablePlace

NAME = "kbroker_log_files"
SCHEMA = "value binary, arrow boolean, source string, position bigint, stamp timestamp"
SPLIT_BYTES = 8 << 20  # about the largest piece of a task
CHUNK_BYTES = 1 << 20  # maximum size of one read
MAX_LINE_BYTES = 16 << 20
FIRST_LINE_BYTES = 4096  # maximum number of bytes of the first line that the key of a file covers
MAX_MISSING = 1000  # maximum number of renamed files that an offset keeps while they are not found
_ARROW, _LINES = ".arrows", ".jsonl"


@dataclass
class Piece(InputPartition):
    """A part of one file: bytes of lines, or numbers of Arrow batches.

    `options` of the file's store; `key` of its first line, if the file may be renamed.
    """

    path: str
    begin: int
    end: int
    options: Options = ()
    key: str = ""


class LogFiles(DataSource):
    """`format("kbroker_log_files")`. Options: `paths` (JSON list of files, folders, patterns), `maxBytesPerTrigger`,
    `storage` (JSON of the store's options, by delta-rs's names)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self._files())

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        limit = self.options.get("maxBytesPerTrigger")
        return _StreamReader(self._files(), int(limit) if limit else None)

    def _files(self) -> Files:
        return Files(self.options["paths"], json.loads(self.options.get("storage", "{}")))


class Files:
    """The files of some paths, each with its key in the offsets of a stream."""

    def __init__(self, paths: str, options: Mapping[str, str] | None = None) -> None:
        self.paths: list[str] = json.loads(paths)
        self.options = dict(options or {})

    def found(self) -> dict[str, LogFile]:
        """Return non-empty files by key, the oldest first; of two files with the same first line, the longer one."""
        keyed: dict[str, LogFile] = {}
        for file in found_files(self.paths, self.options):
            try:
                key = _key(file)
            except FileNotFoundError:  # renamed or deleted in the meantime
                continue
            if key is not None and (key not in keyed or file.size_bytes > keyed[key].size_bytes):
                keyed[key] = file
        return keyed

    def ends(self, start: dict[str, int], budget: int | None) -> dict[str, int]:
        """Return the current readable end of each file. `budget`: bytes beyond `start`, at least a line; None: all.

        A file with a key from its first line stays in the offset while it is not found, during a rename: otherwise it
        would be read twice.
        """
        found = self.found()
        missing = [key for key in start if key not in found and not _is_path(key)]
        ends = {key: start[key] for key in missing[-MAX_MISSING:]}
        whole = budget
        for key, file in found.items():
            begin = start.get(key, 0)
            ends[key] = begin
            if budget is not None and budget <= 0:
                continue
            try:
                if file.suffix == _ARROW:
                    ends[key], taken = _batches(file, begin, budget)
                else:
                    ends[key] = _line_end(file, begin, budget, key, force=budget == whole)
                    taken = ends[key] - begin
            except FileNotFoundError:  # renamed: the next batch finds the new name
                continue
            budget = None if budget is None else budget - taken
        return ends

    def pieces(self, start: dict[str, int], end: dict[str, int]) -> list[Piece]:
        """Return the tasks for the data between two offsets.

        Raises: PipelineError if a file with records in between no longer exists.
        """
        files = self.found()
        pieces: list[Piece] = []
        for key, last in end.items():
            first = start.get(key, 0)
            if last <= first:
                continue
            if key not in files:
                raise _deleted(key)
            file = files[key]
            if file.suffix == _ARROW:
                pieces.append(Piece(file.path, first, last, file.options))
                continue
            while first < last:
                cut = last if last - first <= SPLIT_BYTES else _line_end(file, first, SPLIT_BYTES, key, force=True)
                if cut == first:
                    raise PipelineError(f"{file.path} was renamed while a batch was planned: run it again")
                pieces.append(Piece(file.path, first, cut, file.options, "" if _is_path(key) else key))
                first = cut
        return pieces


def _key(file: LogFile) -> str | None:
    """Return the key of a file; None without a whole first line. Raises: FileNotFoundError."""
    if file.suffix in (_ARROW, _LINES):
        return file.path
    with file.open() as opened:
        return _key_of(opened)


def _key_of(opened: Any) -> str | None:
    """Return the key from the first line of an open file, which is at its beginning; None if the line is incomplete."""
    start = opened.read(FIRST_LINE_BYTES)
    newline = start.find(b"\n")
    if newline < 0 and len(start) < FIRST_LINE_BYTES:
        return None
    return hashlib.blake2b(start[: newline + 1] if newline >= 0 else start, digest_size=12).hexdigest()


def _is_path(key: str) -> bool:
    """Return whether the key of a file is its path, and not derived from its first line."""
    return "/" in key


def _opened(piece: Piece) -> Any:
    """Open the file of a piece of lines, under its planned or its current name.

    Raises: PipelineError if it is not found under any name; FileNotFoundError.
    """
    log = LogFile(piece.path, piece.options)
    if not piece.key:
        return log.open()
    folder, _ = TablePlace.of(piece.path, dict(piece.options)).above()
    for file in (log, *found_files([folder.uri], dict(piece.options))):
        if file.suffix in (_ARROW, _LINES):
            continue
        with suppress(FileNotFoundError):
            opened = file.open()
            if _key_of(opened) == piece.key:
                return opened
            opened.close()
    raise PipelineError(f"{piece.path} was renamed or deleted on {socket.gethostname()}, and its new name is not found")


def _line_end(file: LogFile, begin: int, budget: int | None, key: str, *, force: bool) -> int:
    """Return the end of the last whole line within `budget` bytes; `begin` if the name now refers to another file.

    Args: `key` of the file; `force`: include the first line regardless of its length.
    Raises: FileNotFoundError; PipelineError for a file that is shorter than `begin`.
    """
    size = file.size_bytes
    if size < begin:
        raise _shrunk(file, f"{size} bytes", f"byte {begin}")
    if size == begin:
        return begin
    end = size if budget is None else min(size, begin + budget)
    with file.open() as opened:
        if not _is_path(key) and _key_of(opened) != key:
            return begin
        at = end
        while at > begin:
            step = max(begin, at - 65_536)
            opened.seek(step)
            newline = int(opened.read(at - step).rfind(b"\n"))
            if newline >= 0:
                return step + newline + 1
            at = step
        opened.seek(end)
        while force and end < size and end - begin < MAX_LINE_BYTES:
            more = opened.read(min(65_536, size - end))
            if not more:
                break
            newline = int(more.find(b"\n"))
            if newline >= 0:
                return end + newline + 1
            end += len(more)
    return end if end - begin >= MAX_LINE_BYTES else begin


def _batches(file: LogFile, begin: int, budget: int | None) -> tuple[int, int]:
    """Return the number of a stream file's first batches, at least `begin`, and the bytes of those beyond `begin`.

    Args: `budget`: bytes after which no further batch is counted; None: no limit.
    Raises: PipelineError for fewer than `begin` batches.
    """
    number = taken = 0
    for number, (_, batch) in enumerate(_open_batches(file), 1):
        if number > begin:
            taken += batch.body.size
            if budget is not None and taken >= budget:
                break
    if number < begin:
        raise _shrunk(file, f"{number} Arrow batches", f"batch {begin}")
    return number, taken


def _deleted(key: str) -> PipelineError:
    return PipelineError(f"a log file ({key}) was deleted with records in it that were not read to the end")


def _shrunk(file: LogFile, has: str, read: str) -> PipelineError:
    return PipelineError(
        f"{file.path} has {has} and was read up to {read}: it was cut short, or another file has its name now. Give a "
        "new file a new name; the records read so far are in the table"
    )


def _open_batches(file: LogFile) -> Iterator[tuple[bytes, Any]]:
    """Yield the messages of the whole batches of a stream file, each with the schema and the dictionaries before it.

    It stops at a partially written one. The content of a batch is not read: it may be damaged, and Arrow ends the
    process if it uses such a batch without a validation.
    """
    with file.open_arrow() as opened:
        before = b""
        try:
            reader = pa.ipc.MessageReader.open_stream(opened)
            while True:
                message = reader.read_next_message()
                if message.type == "record batch":
                    yield before, message
                else:
                    before += message.serialize().to_pybytes()
        except (StopIteration, pa.ArrowInvalid):
            return
        except OSError:
            if file.is_elsewhere:
                raise  # a store that does not respond is not the end of the file
            return


class _Reader(DataSourceReader):
    def __init__(self, files: Files) -> None:
        self._files = files

    def partitions(self) -> Sequence[InputPartition]:
        return self._files.pieces({}, self._files.ends({}, None))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark creates one partition if a source has none
        return read_piece(partition) if isinstance(partition, Piece) else iter(())


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader, which Spark runs in a separate process of the driver."""

    def __init__(self, files: Files, max_bytes: int | None) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._last: dict[str, int] | None = None  # where to end, with the trigger availableNow

    def initialOffset(self) -> dict[str, int]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._max_bytes is None else ReadMaxBytes(self._max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._files.ends({}, None)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        budget = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        ends = self._files.ends(start, budget)
        if self._last is not None:
            for key, end in self._last.items():
                if key not in ends and start.get(key, 0) < end and _is_path(key):
                    raise _deleted(key)
            ends = {key: min(end, max(self._last.get(key, 0), start.get(key, 0))) for key, end in ends.items()}
        # entries of zero are left out: an offset must not change without data
        ends = {key: end for key, end in ends.items() if end}
        return start if all(start.get(key, 0) >= end for key, end in ends.items()) else ends

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._files.pieces(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return read_piece(partition)


def read_piece(piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the lines of a piece, or its Arrow batches as streams of one batch each; no Python object per line.

    Raises: PipelineError if the file is shorter than planned, or is not found.
    """
    log = LogFile(piece.path, piece.options)
    if log.suffix == _ARROW:
        yield from _read_arrow(log, piece)
        return
    with _opened(piece) as file:
        file.seek(piece.begin)
        at, rest = piece.begin, b""
        while at < piece.end:
            more = file.read(min(CHUNK_BYTES, piece.end - at - len(rest)))
            if not more:
                raise _too_short(log, f"byte {at + len(rest)}", f"byte {piece.end}")
            chunk = rest + more
            whole = chunk.rfind(b"\n") + 1 if at + len(chunk) < piece.end else len(chunk)
            if whole == 0 and at + len(chunk) < piece.end:
                rest = chunk
                continue
            block, rest = chunk[:whole], chunk[whole:]
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
            if not len(ends) or ends[-1] != len(block):
                ends = np.append(ends, len(block))
            yield _lines(block, np.concatenate([[0], ends]).astype(np.int32), log.name, at)
            at += whole


def _lines(block: bytes, offsets: Any, name: str, at: int) -> pa.RecordBatch:
    count = len(offsets) - 1
    value = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(block)])
    positions = pa.array(offsets[:-1].astype(np.int64) + at)
    return _batch(value, pa.repeat(False, count), pa.repeat(name, count), positions)


def _read_arrow(log: LogFile, piece: Piece) -> Iterator[pa.RecordBatch]:
    found = 0
    for number, (before, batch) in enumerate(_open_batches(log)):
        if number >= piece.end:
            return
        found = number + 1
        if number >= piece.begin:
            value = pa.array([before + batch.serialize().to_pybytes()], pa.binary())
            yield _batch(value, pa.array([True]), pa.array([log.name]), pa.array([number]))
    if found < piece.end:
        raise _too_short(log, f"batch {found}", f"batch {piece.end}")


def _too_short(log: LogFile, found: str, wanted: str) -> PipelineError:
    return PipelineError(
        f"{log.path} ends at {found} on {socket.gethostname()}, expected {wanted} as the driver has found it: check "
        "whether it was cut short, or this machine has another file of that name"
    )


def _batch(value: Any, arrow: Any, source: Any, position: Any) -> pa.RecordBatch:
    stamp = pa.nulls(len(value), pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(
        [value, arrow, source, position, stamp], ["value", "arrow", "source", "position", "stamp"]
    )
