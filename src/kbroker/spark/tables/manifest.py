"""The table that `ingest` and `archive` write, without Spark: where its files lie and which of them count.

    <table>/date=2026-01-02/hour=05/bucket=03/batch-00000017-g0.parquet
    <table>/_manifest/date=2026-01-02-hour=05.json      the live files of that hour
    <table>/_manifest/table.json                        what holds for the whole table
    <table>/_staging/ _rejected/ _lock                  files in the making, what could not be read, the one writer

Only a file that a manifest names is part of the table. A manifest is replaced by a rename, so a reader sees an hour
before a batch or after it. One stream writes a table: its batches are numbered, a batch that is repeated after a
crash writes the same names, and `compacted_through` says up to which batch an hour has been rewritten.

Threads: one writer, guarded by the lock file (`kbroker.spark.tables.table_lock`); any number of readers.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kbroker.spark.errors import PipelineError
from kbroker.spark.locations import local_path

MANIFEST, STAGING, REJECTED, LOCK = "_manifest", "_staging", "_rejected", "_lock"
LAYOUT_VERSION = 1
DEFAULT_BUCKETS = 8
HOUR_US = 3_600_000_000
REQUEST_LOG, TOPIC = "request_log", "topic"
PARQUET, DELTA = "parquet", "delta"


class TableError(PipelineError):
    """A folder that is no table, or one that is not what was asked for; the text is for users."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One live Parquet file. `path` is relative to the table; times are UTC microseconds, None if it has no rows."""

    path: str
    bucket: int
    batch: int
    generation: int
    rows: int
    size_bytes: int
    min_time_us: int | None = None
    max_time_us: int | None = None


@dataclass(frozen=True, slots=True)
class Retired:
    """A file that a newer generation replaced at `since_ms` (since 1970): readers may still have it open."""

    path: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Hour:
    """The manifest of one hour. `generation` grows with each compaction, and with each batch that comes after one."""

    date: str
    hour: int
    generation: int = 0
    compacted_through: int = -1
    files: tuple[DataFile, ...] = ()
    retired: tuple[Retired, ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        """Date and hour, in the order of time."""
        return self.date, self.hour

    @property
    def rows(self) -> int:
        """Rows of all live files."""
        return sum(file.rows for file in self.files)

    @property
    def end_us(self) -> int:
        """Where the hour ends, microseconds since 1970."""
        from datetime import datetime, timezone

        start = datetime.fromisoformat(self.date).replace(tzinfo=timezone.utc)
        return int(start.timestamp()) * 1_000_000 + (self.hour + 1) * HOUR_US

    def generation_for(self, batch: int) -> int:
        """The generation of the files of `batch`: the one it has, or one above a compacted hour's."""
        for file in self.files:
            if file.batch == batch and batch > self.compacted_through:
                return file.generation
        return self.generation + 1 if self.compacted_through >= 0 else 0

    def with_batch(self, batch: int, files: Iterable[DataFile]) -> Hour:
        """This hour after `batch` has been written, again or for the first time."""
        kept = [file for file in self.files if file.batch != batch or batch <= self.compacted_through]
        added = list(files)
        generation = max([self.generation, *(file.generation for file in added)])
        return replace(self, generation=generation, files=(*kept, *added))


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What holds for a whole table.

    `stream` is the id of the one query that writes it (None: written by hand), `source` what that reads.
    """

    kind: str = REQUEST_LOG
    buckets: int = DEFAULT_BUCKETS
    schema_version: int = 1
    schema: dict[str, Any] | None = None  # of a topic's table, as Spark writes its own schemas
    stream: str | None = None
    source: str | None = None
    table_format: str = PARQUET
    layout_version: int = LAYOUT_VERSION


def bucket_of(principal: str | None, client_id: str | None, buckets: int) -> int:
    """Where an entity's rows lie: the same number that Spark computes when it writes."""
    return zlib.crc32(f"{principal or ''}\0{client_id or ''}".encode()) % buckets


def hour_folder(date: str, hour: int) -> str:
    """Of an hour's files, relative to the table."""
    return f"date={date}/hour={hour:02d}"


def file_name(batch: int, generation: int, part: int = 0) -> str:
    """`part` counts the files of one bucket that had too many rows for one."""
    return f"batch-{batch:08d}-g{generation}{f'-{part}' if part else ''}.parquet"


@dataclass(frozen=True)
class Table:
    """The folder of a table and its manifests."""

    path: Path
    manifests: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", local_path(self.path))
        object.__setattr__(self, "manifests", self.path / MANIFEST)

    def exists(self) -> bool:
        """Whether anything was written here."""
        return (self.manifests / "table.json").exists()

    def info(self) -> TableInfo:
        """What holds for the whole table.

        Raises: TableError when the folder is no table, or one of a newer layout.
        """
        try:
            found = json.loads((self.manifests / "table.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TableError(f"{self.path} is no table: it has no {MANIFEST}/table.json") from None
        except ValueError:
            raise _damaged(self.manifests / "table.json") from None
        try:
            layout = int(found["layout_version"])
            if layout > LAYOUT_VERSION:
                raise TableError(f"{self.path} has layout {layout}; this kbroker knows {LAYOUT_VERSION}")
            return TableInfo(**found)
        except (KeyError, TypeError, ValueError):
            raise _damaged(self.manifests / "table.json") from None

    def store_info(self, info: TableInfo) -> None:
        """Replace `table.json`."""
        replace_file(self.manifests / "table.json", asdict(info))

    def hour(self, date: str, hour: int) -> Hour:
        """The manifest of one hour, an empty one if it has none."""
        try:
            found = json.loads(self._manifest(date, hour).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Hour(date, hour)
        except ValueError:
            raise _damaged(self._manifest(date, hour)) from None
        try:
            found["files"] = tuple(DataFile(**file) for file in found["files"])
            found["retired"] = tuple(Retired(**file) for file in found["retired"])
            return Hour(**found)
        except (TypeError, KeyError):
            raise _damaged(self._manifest(date, hour)) from None

    def store(self, hour: Hour) -> None:
        """Replace an hour's manifest: from here on its files, and no others, are the hour."""
        replace_file(self._manifest(hour.date, hour.hour), asdict(hour))

    def hours(self, dates: Sequence[str] | None = None) -> Iterator[Hour]:
        """All hours, or those of some days, in order."""
        for file in sorted(self.manifests.glob("date=*-hour=*.json")):
            date, _, hour = file.stem.removeprefix("date=").partition("-hour=")
            if dates is None or date in dates:
                yield self.hour(date, int(hour))

    def _manifest(self, date: str, hour: int) -> Path:
        return self.manifests / f"date={date}-hour={hour:02d}.json"

    def next_batch(self) -> int:
        """A number that no batch has had."""
        return 1 + max(
            (max([h.compacted_through, *(file.batch for file in h.files)]) for h in self.hours()),
            default=-1,
        )

    def max_time_us(self) -> int | None:
        """Of the youngest row, microseconds since 1970."""
        times = [file.max_time_us for hour in self.hours() for file in hour.files if file.max_time_us is not None]
        return max(times, default=None)

    def live_files(self, dates: Sequence[str] | None = None) -> dict[tuple[str, int, int], list[Path]]:
        """Live files by (date, hour, bucket), in order; within one in the order they were written."""
        found: dict[tuple[str, int, int], list[Path]] = {}
        for hour in self.hours(dates):
            for file in sorted(hour.files, key=lambda f: (f.bucket, f.batch, f.path)):
                found.setdefault((hour.date, hour.hour, file.bucket), []).append(self.path / file.path)
        return found

    def drop_retired(self, hour: Hour, now_ms: int, grace_ms: int) -> Hour:
        """Delete what was replaced longer than `grace_ms` ago; store and return the manifest without it."""
        gone = [old for old in hour.retired if now_ms - old.since_ms >= grace_ms]
        if not gone:
            return hour
        for old in gone:
            (self.path / old.path).unlink(missing_ok=True)
        kept = replace(hour, retired=tuple(old for old in hour.retired if old not in gone))
        self.store(kept)
        return kept

    def drop_orphans(self) -> int:
        """Delete data files that no manifest names, as a killed writer leaves them; how many. Only under the lock."""
        dropped = 0
        for folder in sorted(self.path.glob("date=*/hour=*")):
            date, hour = (part.partition("=")[2] for part in folder.relative_to(self.path).parts)
            known = self.hour(date, int(hour))
            named = {file.path for file in known.files} | {old.path for old in known.retired}
            for file in folder.glob("bucket=*/*.parquet"):
                if file.relative_to(self.path).as_posix() not in named:
                    file.unlink()
                    dropped += 1
        return dropped


def live_files(
    path: str | os.PathLike[str], dates: Sequence[str] | None = None
) -> dict[tuple[str, int, int], list[Path]]:
    """The files of a table by (date, hour, bucket), for readers that need no Spark.

    Args: `dates`: only these days, as "2026-01-02".
    Raises: TableError when the folder is no table.
    """
    table = Table(Path(path))
    if table.info().table_format != PARQUET:
        raise TableError(f"{path} is kept by Delta: its files are Delta's own")
    return table.live_files(dates)


def describe_table(path: str | os.PathLike[str], dates: Sequence[str] | None = None) -> dict[str, Any]:
    """What is in a table: rows, hours, compacted hours, files, size_bytes, times of the oldest and the youngest row.

    Raises: TableError when the folder is no table. Of a table that Delta keeps nothing is counted.
    """
    table = Table(Path(path))
    table.info()
    hours = [hour for hour in table.hours(dates) if hour.files]
    files = [file for hour in hours for file in hour.files]
    return {
        "rows": sum(file.rows for file in files),
        "hours": len(hours),
        "compacted_hours": sum(hour.compacted_through >= 0 for hour in hours),
        "files": len(files),
        "size_bytes": sum(file.size_bytes for file in files),
        "oldest": _utc(min((file.min_time_us for file in files if file.min_time_us is not None), default=None)),
        "youngest": _utc(max((file.max_time_us for file in files if file.max_time_us is not None), default=None)),
    }


def _utc(time_us: int | None) -> str | None:
    from datetime import datetime, timedelta, timezone

    if time_us is None:
        return None
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=time_us)).isoformat(
        sep=" ", timespec="milliseconds"
    )[:-6]


def _damaged(manifest: Path) -> TableError:
    return TableError(f"{manifest} is damaged: restore it, or ingest the log again into a new table")


def replace_file(path: Path, value: dict[str, Any]) -> None:
    """Write JSON beside `path`, onto the disk, and rename it there: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.new")
    with staged.open("w", encoding="utf-8") as file:
        json.dump(value, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Put renames in a folder onto the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
