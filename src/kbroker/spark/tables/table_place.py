"""Where a table, a log or a checkpoint lies: a folder, or a URI of a store, and how files are read and written there.

One set of options serves all: delta-rs takes them for the table's log, and through its file system pyarrow reads and
writes the data files with them. Needs pyarrow and deltalake, and neither Spark nor jars.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.spark.errors import PipelineError
from kbroker.spark.locations import is_elsewhere, local_path, spark_path

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_S3 = ("s3", "s3a", "s3n")
#: Where delta-rs keeps tables, beside folders.
STORES = (*_S3, "gs", "abfs", "abfss", "az", "adl", "hdfs")
#: The commit of a version is a file that must not be there yet; S3 can say so since 2024.
_CONDITIONAL_PUT = {"aws_conditional_put": "etag"}
_LOCKING = ("aws_conditional_put", "aws_s3_locking_provider")
#: What is written at once: of less than its buffer a stream makes bytes, all that delta-rs' streams take.
PIECE_BYTES = 1 << 20
#: A version, or a time.
AsOf = int | str | datetime
ASKED_AT_ONCE = 16  # requests to an object store


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The root of a table: an absolute path, or a URI; `options` of its store as delta-rs names them; which version.

    `as_of`: a version or a time, None for the newest.
    """

    uri: str
    options: tuple[tuple[str, str], ...] = ()
    as_of: AsOf | None = None

    @classmethod
    def of(cls, table: TableName, options: Mapping[str, str] | None = None, as_of: AsOf | None = None) -> TablePlace:
        """The place that a user names: a path, file://, s3:// or s3a://, gs://, abfss://, hdfs://.

        Args: `options`: of the store; those that are not named come from the environment, such as AWS_ENDPOINT_URL.
        `as_of`: a version, or a time in ISO 8601, of which UTC is meant if it names no zone.
        Raises: PipelineError for a URI of a store that delta-rs does not know.
        """
        if isinstance(table, TablePlace):
            return table
        place = cls._of(os.fspath(table), dict(options or {}))
        return place if as_of is None else replace(place, as_of=as_of)

    @classmethod
    def _of(cls, text: str, given: dict[str, str]) -> TablePlace:
        scheme = _SCHEME.match(text)
        if scheme is None or scheme[1].lower() not in STORES:
            if is_elsewhere(text):
                raise PipelineError(
                    f"{text} is in no file system that kbroker's pipeline knows: expected the path of a folder, or a "
                    f"URI that begins with {', '.join(f'{name}://' for name in ('s3', 'gs', 'abfss', 'hdfs'))}"
                )
            return cls(os.path.abspath(local_path(text)), tuple(sorted(given.items())))
        rest = text[scheme.end() :]
        if not rest.strip("/") or (rest.startswith("/") and scheme[1].lower() != "hdfs"):
            raise PipelineError(f"{text} names no bucket or host: expected {scheme[1]}://NAME/PATH")
        if scheme[1].lower() in _S3:
            text = f"s3://{rest}"
            if not any(name in map(str.lower, (*given, *os.environ)) for name in _LOCKING):
                given |= _CONDITIONAL_PUT
        return cls(text.rstrip("/"), tuple(sorted(given.items())))

    def __str__(self) -> str:
        return self.uri

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine's file systems."""
        return _SCHEME.match(self.uri) is None

    @property
    def spark_uri(self) -> str:
        """The same place as Spark and its Hadoop client must be given it."""
        if self.is_local:
            return spark_path(self.uri)
        return re.sub("^s3:", "s3a:", self.uri)

    def within(self, path: str) -> TablePlace:
        """A folder or file inside, as another place."""
        return replace(self, uri=self.file(path), as_of=None)

    def above(self) -> tuple[TablePlace, str]:
        """The folder that holds it, and its name there; a store's root is its own folder, without a name."""
        folder, slash, name = self.uri.rpartition("/")
        if not slash or folder.endswith(":/"):
            return self, ""
        return replace(self, uri=folder or "/"), name

    @property
    def storage_options(self) -> dict[str, str]:
        """For delta-rs."""
        return dict(self.options)

    def file(self, path: str) -> str:
        """The absolute name of a file of the table, as messages and readers want it."""
        return path if _SCHEME.match(path) or os.path.isabs(path) else f"{self.uri}/{path}"

    def filesystem(self) -> FileSystem:
        """A file system of pyarrow whose root is the table."""
        from pyarrow import fs

        if self.is_local:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.uri, self.storage_options))

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """How many bytes files of the table have; None for one that is not there."""
        files = self.filesystem()

        def asked(some: Sequence[str]) -> list[int | None]:
            return [found.size if found.is_file else None for found in files.get_file_info(list(some))]

        if self.is_local:
            return asked(paths)
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            return [size for found in pool.map(asked, [[path] for path in paths]) for size in found]

    def files(self, folder: str = "") -> list[Any]:
        """What pyarrow knows of each file in a folder: path, size, mtime; none of a folder that is not there.

        Empty objects with the folder's own name, by which Hadoop and others mark it on S3, are no files of it.
        """
        from pyarrow import fs

        found = self.filesystem().get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return [info for info in found if info.is_file and info.path.strip("/") not in ("", folder.strip("/"))]

    def listed(self, folder: str) -> list[tuple[str, float]]:
        """The names of the files in a folder of the table, and when each was written (seconds since 1970)."""
        return [(info.path, info.mtime.timestamp() if info.mtime else 0.0) for info in self.files(folder)]

    def read(self, path: str) -> bytes:
        """The content of a small file."""
        with self.filesystem().open_input_stream(path) as file:
            return bytes(file.read())

    def write(self, path: str, content: bytes) -> None:
        """Write or replace a small file; where it is local, onto the disk."""
        with self.output(path) as file:
            write_bytes(file, content)
        self.sync(path)

    def delete(self, path: str) -> None:
        """Delete a file that is there."""
        self.filesystem().delete_file(path)

    def output(self, path: str) -> Any:
        """A stream into a new file."""
        if self.is_local:
            (Path(self.uri) / path).parent.mkdir(parents=True, exist_ok=True)
        import pyarrow as pa

        stream = self.filesystem().open_output_stream(path)
        return stream if self.is_local else pa.BufferedOutputStream(stream, 2 * PIECE_BYTES)

    def sync(self, path: str) -> None:
        """Put a file and the folders down to it onto the disk; object stores do so by themselves."""
        if not self.is_local:
            return
        file = Path(self.uri) / path
        _sync(file)
        for folder in file.parents:
            _sync(folder)
            if str(folder) == self.uri:
                break


#: What functions take for a table.
TableName = str | os.PathLike[str] | TablePlace


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_bytes(stream: Any, content: bytes) -> None:
    """Write to a stream of `TablePlace.output`."""
    for start in range(0, len(content), PIECE_BYTES):
        stream.write(content[start : start + PIECE_BYTES])


def missing_files(place: TablePlace, files: Iterable[tuple[str, int]]) -> list[str]:
    """Of files and their sizes in bytes, those that the table's store does not have, or has with another size."""
    wanted = list(files)
    sizes = place.sizes([path for path, _ in wanted])
    return [path for (path, size), found in zip(wanted, sizes, strict=True) if found != size]
