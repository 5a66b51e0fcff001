"""The place of a table, a log or a checkpoint, a folder or a URI of a store, and its files.

One set of options serves all: delta-rs uses them for the table's log, and pyarrow reads and writes the data files
through delta-rs's file system. Options that are not named come from the environment of the process that names the
place, so that tasks on other machines use the same store with the same credentials. Needs pyarrow and deltalake, and
neither Spark nor jars.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.common.printable import printable
from kbroker.spark.errors import PipelineError
from kbroker.spark.locations import is_elsewhere, local_path, spark_path

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_S3, _GCS, _AZURE = ("s3", "s3a", "s3n"), ("gs",), ("abfs", "abfss", "az", "adl")
#: Stores of delta-rs, besides folders.
STORES = (*_S3, *_GCS, *_AZURE, "hdfs")
#: Variables of the environment that are sent to tasks, by store: their prefix, credentials, and the others. Names of
#: files are left out, because other machines have other files.
_SENT = {
    _S3: (
        re.compile("aws_", re.IGNORECASE),
        ("access_key_id", "secret_access_key", "session_token"),
        (
            *("region", "default_region", "endpoint_url", "endpoint_url_s3", "endpoint", "allow_http"),
            *("virtual_hosted_style_request", "skip_signature", "conditional_put", "s3_locking_provider"),
        ),
    ),
    _GCS: (re.compile("google_", re.IGNORECASE), ("service_account_key",), ()),
    _AZURE: (
        re.compile("azure_(storage_)?", re.IGNORECASE),
        ("account_key", "sas_token", "client_id", "client_secret", "tenant_id", "token"),
        ("account_name", "use_emulator", "endpoint"),
    ),
}
#: A commit creates the file of a version unless it exists; S3 has had such a request since 2024.
_CONDITIONAL_PUT = {"aws_conditional_put": "etag"}
_LOCKING = ("aws_conditional_put", "aws_s3_locking_provider")
#: Size of a write: a piece smaller than the stream's buffer becomes `bytes`, the only type that delta-rs' streams take.
PIECE_BYTES = 1 << 20
#: A version, or a time.
AsOf = int | str | datetime
ASKED_AT_ONCE = 16  # concurrent requests to an object store


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The root of a table: an absolute path or a URI, the options of its store as delta-rs names them, and a version.

    `options` may hold secrets and are not shown. `as_of`: a version or a time, None for the newest.
    """

    uri: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    as_of: AsOf | None = None

    @classmethod
    def of(cls, table: TableName, options: Mapping[str, str] | None = None, as_of: AsOf | None = None) -> TablePlace:
        """Return the place that a user names: a path, file://, s3:// or s3a://, gs://, abfss://, hdfs://.

        Args: `options` of the store; others are taken from the environment, such as AWS_ENDPOINT_URL, credentials only
        if none is given. `as_of`: a version, or a time in ISO 8601, in UTC unless it names a zone.
        Raises: PipelineError for a URI of a store that delta-rs does not support.
        """
        if isinstance(table, TablePlace):
            return table
        place = cls._of(os.fspath(table), dict(options or {}))
        if place.uri != place.uri.encode(errors="replace").decode():
            raise PipelineError(f"{printable(place.uri)} is not UTF-8: expected a path or a URI that is")
        return place if as_of is None else replace(place, as_of=as_of)

    @classmethod
    def _of(cls, text: str, given: dict[str, str]) -> TablePlace:
        scheme = _SCHEME.match(text)
        if scheme is None or scheme[1].lower() not in STORES:
            if is_elsewhere(text):
                raise PipelineError(
                    f"{text} is in no file system that kbroker's pipeline supports: expected the path of a folder, or "
                    f"a URI that begins with {', '.join(f'{name}://' for name in ('s3', 'gs', 'abfss', 'hdfs'))}"
                )
            return cls(os.path.abspath(local_path(text)), tuple(sorted(given.items())))
        rest = text[scheme.end() :]
        if not rest.strip("/") or (rest.startswith("/") and scheme[1].lower() != "hdfs"):
            raise PipelineError(f"{text} names no bucket or host: expected {scheme[1]}://NAME/PATH")
        if scheme[1].lower() in _S3:
            text = f"s3://{rest}"
            if not any(name in map(str.lower, (*given, *os.environ)) for name in _LOCKING):
                given |= _CONDITIONAL_PUT
        given = {**_from_environment(scheme[1].lower(), given), **given}
        return cls(text.rstrip("/"), tuple(sorted(given.items())))

    def __str__(self) -> str:
        return self.uri

    @property
    def is_local(self) -> bool:
        """Return whether the place is a folder on a file system of this machine."""
        return _SCHEME.match(self.uri) is None

    @property
    def spark_uri(self) -> str:
        """URI of the place for Spark and its Hadoop client."""
        if self.is_local:
            return spark_path(self.uri)
        return re.sub("^s3:", "s3a:", self.uri)

    def within(self, path: str) -> TablePlace:
        """Return a folder or file inside as a place."""
        return replace(self, uri=self.file(path), as_of=None)

    def above(self) -> tuple[TablePlace, str]:
        """Return the parent folder and the name in it; the root of a store is its own parent, with an empty name."""
        folder, slash, name = self.uri.rpartition("/")
        if not slash or folder.endswith(":/"):
            return self, ""
        return replace(self, uri=folder or "/"), name

    @property
    def storage_options(self) -> dict[str, str]:
        """The options as delta-rs takes them."""
        return dict(self.options)

    def file(self, path: str) -> str:
        """Return the absolute name of a file of the table, for messages and readers."""
        return path if _SCHEME.match(path) or os.path.isabs(path) else f"{self.uri}/{path}"

    def filesystem(self) -> FileSystem:
        """Return a file system of pyarrow whose root is the table."""
        from pyarrow import fs

        if self.is_local:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.uri, self.storage_options))

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the sizes of files of the table in bytes, None for a missing one."""
        files = self.filesystem()

        def asked(some: Sequence[str]) -> list[int | None]:
            return [found.size if found.is_file else None for found in files.get_file_info(list(some))]

        if self.is_local:
            return asked(paths)
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            return [size for found in pool.map(asked, [[path] for path in paths]) for size in found]

    def files(self, folder: str = "") -> list[Any]:
        """Return pyarrow's information on each file in a folder: path, size, mtime; nothing for a missing folder.

        Empty objects with the name of the folder, with which Hadoop and others mark it on S3, are left out.
        """
        from pyarrow import fs

        found = self.filesystem().get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return [info for info in found if info.is_file and info.path.strip("/") not in ("", folder.strip("/"))]

    def listed(self, folder: str) -> list[tuple[str, float]]:
        """Return the names of the files in a folder of the table, and their times in seconds since 1970."""
        return [(info.path, info.mtime.timestamp() if info.mtime else 0.0) for info in self.files(folder)]

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""
        with self.filesystem().open_input_stream(path) as file:
            return bytes(file.read())

    def write(self, path: str, content: bytes) -> None:
        """Write or replace a small file as a whole; a local one is flushed to the disk."""
        new = f"{path}.new" if self.is_local else path
        with self.output(new) as file:
            write_bytes(file, content)
        self.sync(new)
        if self.is_local:
            os.replace(self.file(new), self.file(path))
            self.sync(path)

    def delete(self, path: str) -> None:
        """Delete an existing file."""
        self.filesystem().delete_file(path)

    def output(self, path: str) -> Any:
        """Return a stream into a new file."""
        if self.is_local:
            (Path(self.uri) / path).parent.mkdir(parents=True, exist_ok=True)
        import pyarrow as pa

        stream = self.filesystem().open_output_stream(path)
        return stream if self.is_local else pa.BufferedOutputStream(stream, 2 * PIECE_BYTES)

    def sync(self, path: str) -> None:
        """Flush a file and its parent folders to the disk; object stores do so on their own."""
        if not self.is_local:
            return
        file = Path(self.uri) / path
        _sync(file)
        for folder in file.parents:
            _sync(folder)
            if str(folder) == self.uri:
                break


def _from_environment(scheme: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a store that this process has in its environment and that are not given."""
    found = next((sent for schemes, sent in _SENT.items() if scheme in schemes), None)
    if found is None:
        return {}
    prefix, secrets, others = found
    named = {prefix.sub("", name, count=1).lower() for name in given}
    # credentials from two sources do not belong together
    wanted = {name for name in (*others, *(() if named & set(secrets) else secrets)) if name not in named}
    return {
        name: value
        for name, value in os.environ.items()
        if value and prefix.match(name) and prefix.sub("", name, count=1).lower() in wanted
    }


#: A table, in the forms that functions accept.
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
