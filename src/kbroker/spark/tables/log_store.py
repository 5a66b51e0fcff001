"""The files of a log, on this machine's disks or in a store that delta-rs knows: found, and opened to be read in parts.

Needs pyarrow and deltalake for stores only.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbroker.spark.tables.table_place import TablePlace

_PATTERN = "*?["
_STREAM_BYTES = 1 << 20  # asked for at once, of a stream of small parts in a store

#: Of the store, as delta-rs names them.
Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file as it was when it was looked for. `path`: absolute, or a URI; `modified_s`: seconds since 1970.

    One that was not looked for has neither.
    """

    path: str
    options: Options = ()
    size_bytes: int = 0
    modified_s: float = 0.0

    @property
    def name(self) -> str:
        """Without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The last ending of its name, with the dot."""
        return Path(self.name).suffix

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is in a store, not on this machine's file systems."""
        return not TablePlace.of(self.path).is_local

    def open(self) -> Any:
        """A stream with `read` and `seek`, as a context manager. Raises: FileNotFoundError, OSError."""
        place = TablePlace.of(self.path, dict(self.options))
        if place.is_local:
            return open(place.uri, "rb")
        folder, name = place.above()
        return folder.filesystem().open_input_file(name)

    def open_arrow(self) -> Any:
        """What pyarrow reads a stream of batches from. Raises: FileNotFoundError, OSError."""
        import pyarrow as pa

        place = TablePlace.of(self.path, dict(self.options))
        if place.is_local:
            return pa.memory_map(place.uri) if os.stat(place.uri).st_size else pa.BufferReader(b"")
        return pa.BufferedInputStream(self.open(), _STREAM_BYTES)


def found_files(paths: Iterable[str], options: Mapping[str, str]) -> list[LogFile]:
    """The files behind some files, folders and patterns of names, the oldest first; hidden ones are left out.

    Args: `paths`: absolute, or URIs, of which the name only may be a pattern; `options`: of their stores.
    Returns: each file once, under its own name if that and a symbolic link to it are there.
    """
    found: dict[str, LogFile] = {}
    for path in paths:
        place = TablePlace.of(path, options)
        for file in _on_disk(place) if place.is_local else _in_store(place):
            name = os.path.realpath(file.path) if place.is_local else file.path
            if not file.name.startswith((".", "_")) and (name not in found or file.path == name):
                found[name] = file
    return sorted(found.values(), key=lambda file: (file.modified_s, file.name))


def is_there(path: str, options: Mapping[str, str]) -> bool:
    """Whether there is a file, a folder or a match of a pattern."""
    place = TablePlace.of(path, options)
    if place.is_local:
        return bool(glob.glob(place.uri)) or os.path.exists(place.uri)
    folder, name = place.above()
    return bool(_in_store(place)) or (not _is_pattern(name) and _is_folder(folder, name))


def _on_disk(place: TablePlace) -> Iterable[LogFile]:
    named = Path(place.uri)
    files = named.iterdir() if named.is_dir() else [named] if named.exists() else map(Path, glob.glob(place.uri))
    for file in files:
        with suppress(FileNotFoundError):  # one that was deleted since the folder was read
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
    from pyarrow import fs

    (info,) = folder.filesystem().get_file_info([name])
    return bool(info.type == fs.FileType.Directory)


def _log_file(folder: TablePlace, info: Any) -> LogFile:
    name = info.path.rpartition("/")[2]
    return LogFile(folder.file(name), folder.options, info.size, info.mtime.timestamp() if info.mtime else 0.0)
