"""The files of a log, on the disks of this machine or in a store of delta-rs: find and open them.

Needs pyarrow, and deltalake for stores only.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.table_place import TablePlace

_PATTERN = "*?["
_STREAM_BYTES = 1 << 20  # size of a request to a store, because streams are read in small parts

#: Options of a store, as delta-rs names them.
Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file as a listing found it. `path`: absolute, or a URI; `modified_s`: seconds since 1970.

    A file that comes from no listing has neither size nor time.
    """

    path: str
    options: Options = field(default=(), repr=False)  # may hold secrets
    size_bytes: int = 0
    modified_s: float = 0.0

    @property
    def name(self) -> str:
        """The name without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The last extension of the name, with the dot."""
        return Path(self.name).suffix

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the log is in a store, not on a file system of this machine."""
        return not TablePlace.of(self.path).is_local

    def open(self) -> Any:
        """Return a stream with `read` and `seek`, a context manager. Raises: FileNotFoundError, OSError."""
        place = TablePlace.of(self.path, dict(self.options))
        if place.is_local:
            return open(place.uri, "rb")
        folder, name = place.above()
        return folder.filesystem().open_input_file(name)

    def open_arrow(self) -> Any:
        """Return a source from which pyarrow reads a stream of batches. Raises: FileNotFoundError, OSError."""
        place = TablePlace.of(self.path, dict(self.options))
        if place.is_local:
            return pa.memory_map(place.uri) if os.stat(place.uri).st_size else pa.BufferReader(b"")
        return pa.BufferedInputStream(self.open(), _STREAM_BYTES)


def found_files(paths: Iterable[str], options: Mapping[str, str]) -> list[LogFile]:
    """Return the files that some files, folders and patterns name, the oldest first, without hidden ones.

    Args: `paths`: absolute, or URIs in which only the name may be a pattern; `options` of their stores.
    Returns: each file once, under its own name where a symbolic link names it too.
    """
    found: dict[str, LogFile] = {}
    for path in paths:
        place = TablePlace.of(path, options)
        for file in _on_disk(place) if place.is_local else _in_store(place):
            name = os.path.realpath(file.path) if place.is_local else file.path
            if not file.name.startswith((".", "_")) and (name not in found or file.path == name):
                found[name] = file
    return sorted(found.values(), key=lambda file: (file.modified_s, file.name))


def require_logs(places: Iterable[TablePlace]) -> None:
    """Check that each place is a file, a folder or a pattern with a match. Raises: PipelineError."""
    for place in places:
        if not exists(place):
            raise PipelineError(
                f"expected a log at {place}, found none; name files, folders of files, or patterns of file names"
            )


def exists(place: TablePlace) -> bool:
    """Return whether a file, a folder or a match of a pattern exists."""
    if place.is_local:
        return bool(glob.glob(place.uri)) or os.path.exists(place.uri)
    folder, name = place.above()
    return bool(_in_store(place)) or (not _is_pattern(name) and _is_folder(folder, name))


def _on_disk(place: TablePlace) -> Iterable[LogFile]:
    named = Path(place.uri)
    files = named.iterdir() if named.is_dir() else [named] if named.exists() else map(Path, glob.glob(place.uri))
    for file in files:
        with suppress(FileNotFoundError):  # deleted since the folder was listed
            known = file.stat()
            if stat.S_ISREG(known.st_mode):
                yield LogFile(str(file), (), known.st_size, known.st_mtime)


def _in_store(place: TablePlace) -> list[LogFile]:
    folder, name = place.above()
    if name and not _is_pattern(name) and not _is_folder(folder, name):
        (only,) = folder.filesystem().get_file_info([name])
        return [_log_file(folder, only)] if only.is_file else []
    inside = folder if _is_pattern(name) or not name else place
    files = [_log_file(inside, info) for info in inside.files()]
    return [file for file in files if fnmatch.fnmatchcase(file.name, name)] if _is_pattern(name) else files


def _is_pattern(name: str) -> bool:
    return any(character in name for character in _PATTERN)


def _is_folder(folder: TablePlace, name: str) -> bool:
    (info,) = folder.filesystem().get_file_info([name])
    return bool(info.type == fs.FileType.Directory)


def _log_file(folder: TablePlace, info: Any) -> LogFile:
    name = info.path.rpartition("/")[2]
    return LogFile(folder.file(name), folder.options, info.size, info.mtime.timestamp() if info.mtime else 0.0)
