"""Delta Lake table that `ingest`, `archive` and `watch` write, accessed through delta-rs, without Spark.

    <table>/date=2026-01-02/hour=5/bucket=3/batch-00000017-4f0c2d.parquet
    <table>/_delta_log/00000000000000000017.json        the live files, one entry per version
    <table>/_streams/<id>.json                          the source of each stream into the table
    <table>/_checkpoint/ _rejected/                     offsets of Spark; unreadable records

Only files that the log names are part of the table. A batch is one entry of the log with the stream's id and the
batch's number as an application transaction: a batch that is repeated after a crash finds its number and is skipped.
On every store, the entry of a version is written only if it does not exist, so no lock is needed: any number of
streams, compactions and readers work at the same time.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbroker.spark.errors import PipelineError, reason_of_store
from kbroker.spark.shared_folder import settles
from kbroker.spark.tables.table_place import AsOf, TableName, TablePlace

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG, STREAMS, REJECTED, CHECKPOINT = "_delta_log", "_streams", "_rejected", "_checkpoint"
PLACE = ("date", "hour", "bucket")
DEFAULT_BUCKETS = 8
HOUR_US = 3_600_000_000
REQUEST_LOG, TOPIC, VIEWS = "request_log", "topic", "views"
TIME = {REQUEST_LOG: "time", TOPIC: "timestamp", VIEWS: "time"}
COMMIT_TRIES = 200  # attempts, each in conflict with another writer's commit
STORE_FAILURES = 4  # maximum number of commits with an unknown outcome before a batch fails
_KIND, _BUCKETS, _VERSION = "kbroker.kind", "kbroker.buckets", "kbroker.schemaVersion"
_READABLE = {"timestampNtz"}  # other reader features change which rows of a file count
#: In the path of a folder delta-rs takes %20 for a space and \\ for a slash, and refuses the others or panics (1.6.6).
_UNUSABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\\\[\]|^\x00-\x1f\x7f]")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TableError(PipelineError):
    """Place that is not a table, or not the expected one; the message is for users."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file. `path` is relative to the table; times are microseconds since 1970; None if unknown."""

    path: str
    date: str
    hour: int
    bucket: int
    rows: int
    size_bytes: int
    min_time_us: int | None = None
    max_time_us: int | None = None
    stats: str | None = None  # statistics in Delta's form, for a file that is not committed yet
    modified_ms: int = 0

    @property
    def end_us(self) -> int:
        """End of the file's hour, in microseconds since 1970."""
        start = datetime.fromisoformat(self.date).replace(tzinfo=timezone.utc)
        return int(start.timestamp()) * 1_000_000 + (self.hour + 1) * HOUR_US


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Properties of a whole table. `columns`: schema of its rows in Spark's JSON, without the partition columns."""

    kind: str = REQUEST_LOG
    buckets: int = DEFAULT_BUCKETS
    schema_version: int = 1
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """Source of a stream into a table: a topic of some brokers, or log files."""

    topic: str = ""
    bootstrap_servers: str = ""
    paths: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"topic {self.topic}" if self.topic else "files"

    def overlaps(self, other: Stream) -> bool:
        """Return whether both may read the same records: a topic of a common broker, or a file, folder or pattern."""
        if self.topic or other.topic:
            mine, others = (_addresses(one.bootstrap_servers) for one in (self, other))
            return self.topic == other.topic and bool(not mine or not others or mine & others)
        pairs = [(Path(a).parts, Path(b).parts) for a in self.paths for b in other.paths]
        return not pairs or any(all(map(_may_be_one, a, b)) for a, b in pairs)  # the common part of both

    def leaves_out(self, before: Stream) -> str | None:
        """Return the first place of an earlier run that this one does not cover; None without one."""
        return next((path for path in before.paths if not any(_covers(mine, path) for mine in self.paths)), None)


def _covers(place: str, path: str) -> bool:
    """Return whether a place covers all files of a path: the same path, its folder, or a matching pattern."""
    wide, narrow = Path(place).parts, Path(path).parts
    is_near = len(wide) <= len(narrow) <= len(wide) + 1  # subfolders are not read
    return is_near and all(
        one == other or fnmatch.fnmatchcase(other, one) for one, other in zip(wide, narrow, strict=False)
    )


def _addresses(servers: str) -> set[str]:
    """Return the normalized addresses of a list of bootstrap servers."""
    given = (one.strip().lower() for one in servers.split(","))
    return {re.sub(r"^(?:localhost|\[::1\])(?=:)", "127.0.0.1", one) for one in given if one}


def _may_be_one(name: str, other: str) -> bool:
    """Return whether two names or patterns may match the same file or folder."""
    if name == other or fnmatch.fnmatchcase(name, other) or fnmatch.fnmatchcase(other, name):
        return True
    ends = [(re.split(r"[*?[]", one)[0], re.split(r"[*?\]]", one)[-1]) for one in (name, other)]
    if any(head == one for (head, _), one in zip(ends, (name, other), strict=True)):
        return False  # one of the names is not a pattern
    (head, tail), (head2, tail2) = ends
    return (head.startswith(head2) or head2.startswith(head)) and (tail.endswith(tail2) or tail2.endswith(tail))


class Table:
    """A table at one version: the newest when it was opened, or the one that its place names.

    Threads: one at a time; any number of objects and processes at once.
    """

    def __init__(self, table: TableName) -> None:
        """Create the object of a table. Raises: PipelineError if delta-rs is not installed."""
        if importlib.util.find_spec("deltalake") is None:
            raise PipelineError('tables need deltalake, which is not installed: pip install "kbroker[spark]"')
        self.place = TablePlace.of(table)
        self._delta: DeltaTable | None = None

    def __str__(self) -> str:
        return str(self.place)

    def exists(self) -> bool:
        """Return whether the place is a table.

        Raises: TableError if a log exists, but delta-rs cannot read it because of the name of a folder.
        """
        from deltalake import DeltaTable

        if self.place.is_local and not (Path(self.place.uri) / LOG).is_dir():
            return False
        require_usable(self.place)
        return self._delta is not None or DeltaTable.is_deltatable(self.place.uri, self.place.storage_options)

    @property
    def delta(self) -> DeltaTable:
        """The delta-rs object of the table.

        Raises: TableError if the place is not a table, or names a version that does not exist.
        """
        if self._delta is None:
            self._delta = _open(self.place)
        return self._delta

    @property
    def version(self) -> int:
        """The version that this object has."""
        return int(self.delta.version())

    @property
    def at_version(self) -> TablePlace:
        """The place as of this version: repeated reads of it return the same rows while others write."""
        return replace(self.place, as_of=self.version)

    def refresh(self) -> None:
        """Move to the newest version.

        Raises: TableError if the place names an earlier one: changes must start from the newest.
        """
        if self.place.as_of is not None:
            raise TableError(f"{self} was opened as of {self.place.as_of}: an earlier version cannot be changed")
        self.delta.update_incremental()

    def info(self) -> TableInfo:
        """Return the properties of the whole table.

        Raises: TableError if kbroker did not create the table, or it uses unsupported reader features.
        """
        found = self.delta.metadata().configuration
        if _KIND not in found:
            raise TableError(f"{self} is a Delta table that kbroker has not made")
        protocol = self.delta.protocol()
        strange = set(protocol.reader_features or ()) - _READABLE
        if strange:
            raise TableError(f"{self} has {', '.join(sorted(strange))}, which another engine has turned on")
        columns = json.loads(self.delta.schema().to_json())
        columns["fields"] = [one for one in columns["fields"] if one["name"] not in PLACE]
        return TableInfo(found[_KIND], int(found[_BUCKETS]), int(found.get(_VERSION, 1)), columns)

    def open(self, wanted: TableInfo) -> TableInfo:
        """Return the description of the table, which is created if necessary and gets the columns that it lacks.

        Raises: TableError if it is of another kind, a topic's table would lose columns, or its store fails.
        """
        failures = 0
        for _ in range(COMMIT_TRIES):
            try:
                if not self.exists():
                    self.make(wanted)
                info = self.info()
                if info.kind != wanted.kind:
                    is_, asked = (one.kind.replace("_", " ") for one in (info, wanted))
                    raise TableError(f"{self} is a table of kind {is_}, not {asked}")
                new = self._new_columns(info, wanted)
                if not new and info.schema_version >= wanted.schema_version:
                    return info
                self._try(lambda new=new: self._widen(new, wanted))  # type: ignore[misc]
            except OSError as error:  # as in `commit`
                failures += 1
                if self.place.is_local or failures > STORE_FAILURES:
                    raise self._unwritable(error) from error
                self._delta = None
        raise TableError(f"{self} changes too often to be opened")

    def _unwritable(self, error: OSError) -> TableError:
        return TableError(f"{self} cannot be written: {reason_of_store(error)}")

    def make(self, wanted: TableInfo) -> None:
        """Create an empty table, unless another stream has done so."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        place = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in
                 zip(PLACE, ("string", "integer", "integer"), strict=True)]  # fmt: skip
        columns = {"type": "struct", "fields": [*wanted.columns["fields"], *place]}
        properties = {_KIND: wanted.kind, _BUCKETS: str(wanted.buckets), _VERSION: str(wanted.schema_version)}
        require_usable(self.place)
        if self.place.is_local:
            Path(self.place.uri).mkdir(parents=True, exist_ok=True)
        try:
            DeltaTable.create(
                self.place.uri,
                Schema.from_json(json.dumps(columns)),
                partition_by=list(PLACE),
                configuration=properties,
                storage_options=self.place.storage_options,
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(self.place.uri, self.place.storage_options):
                raise
        self._delta = _open(self.place)
        self._sync_log(-1)

    def _new_columns(self, info: TableInfo, wanted: TableInfo) -> list[Mapping[str, Any]]:
        """Return the fields that the table lacks, in whole or in part. Raises: TableError if it would lose some."""
        has = {one["name"]: one for one in info.columns["fields"]}
        fields = wanted.columns["fields"]
        both = {"type": "struct", "fields": [one for one in fields if one["name"] in has]}
        known = {"type": "struct", "fields": [has[one["name"]] for one in both["fields"]]}
        # the request log's columns may be those of a newer kbroker: rows of this one then have null there
        loss = first_loss(info.columns if wanted.kind == TOPIC else known, both)
        if loss is not None:
            raise TableError(f"{self}: columns can only be added, and {loss}")
        return [one for one in fields if one["name"] not in has or first_loss(one["type"], has[one["name"]]["type"])]

    def _widen(self, new: Sequence[Mapping[str, Any]], wanted: TableInfo) -> None:
        from deltalake.schema import Field

        if new:
            self.delta.alter.add_columns([Field.from_json(json.dumps(one)) for one in new])
        self.delta.alter.set_table_properties({_VERSION: str(wanted.schema_version)}, raise_if_not_exists=False)

    def _try(self, change: Callable[[], object]) -> bool:
        """Try to commit a change; return False after a conflict with another commit, which is then read."""
        from deltalake.exceptions import CommitFailedError

        before = self.version
        try:
            change()
        except CommitFailedError:
            self.refresh()
            return False
        self.refresh()
        self._sync_log(before)
        return True

    def committed(self, app: str) -> int:
        """Return the highest transaction number of an application; -1 before the first."""
        found = self.delta.transaction_version(app)
        return -1 if found is None else int(found)

    def commit(
        self,
        files: Sequence[DataFile],
        transaction: tuple[str, int] | None = None,
        *,
        replaced: Sequence[DataFile] = (),
        now_ms: int = 0,
    ) -> bool:
        """Make files part of the table atomically.

        Args: `transaction`: an application's name and an increasing number: an existing one changes nothing.
        `replaced`: live files with the same rows, which are removed from the table at `now_ms` by the system's clock.
        Returns: False if the transaction exists already, or not all of `replaced` are live any more.
        Raises: PipelineError if a file is missing from the table's store, the store fails, or others write too often.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        self.require((one.path, one.size_bytes) for one in files)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                one.path, one.size_bytes, _partition(one), one.modified_ms, not replaced,
                one.stats or json.dumps({"numRecords": one.rows}),
            )
            for one in files
        ]  # fmt: skip
        actions += [RemoveAction(one.path, False, now_ms, one.size_bytes, _partition(one)) for one in replaced]
        # Without a retry delta-rs writes the version after this one, or none: its conflict check during a retry
        # misses that two compactions remove the same file (1.6.6).
        properties = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(*transaction)] if transaction else None
        )
        unsure: OSError | None = None  # reason why it is unknown whether the previous attempt has written its version
        failures = before = 0
        for attempt in range(COMMIT_TRIES):
            self.refresh()
            if attempt == 0:
                before = self.version
            elif files and self._are_live(files[:1]):  # by an earlier attempt whose response was lost
                try:
                    self._sync_log(before)
                except OSError as error:
                    raise self._unwritable(error) from error
                return True
            if unsure is not None and failures > STORE_FAILURES:
                raise self._unwritable(unsure) from unsure
            if transaction is not None and transaction[1] <= self.committed(transaction[0]):
                return False
            if replaced and not self._are_live(replaced):
                return False
            try:
                if self._try(
                    lambda: self.delta.create_write_transaction(
                        actions, "append", self.delta.schema(), list(PLACE), commit_properties=properties
                    )
                ):
                    return True
            except OSError as error:
                # a store does not retry a request that must happen once: the table shows its outcome
                unsure, failures = error, failures + 1
        raise PipelineError(f"{self} is changed by too many other writers at once: the batch was not committed")

    def _are_live(self, files: Sequence[DataFile]) -> bool:
        """Return whether all files are part of the table."""
        live = pa.table(self.delta.get_add_actions(flatten=True))["path"]
        return bool(pc.all(pc.is_in(pa.array([one.path for one in files], live.type), live)).as_py())

    def require(self, files: Iterable[tuple[str, int]]) -> None:
        """Check that files of executors are in the table's store, where they may appear late.

        Args: `files`: their paths and sizes in bytes.
        Raises: PipelineError that names a file that is missing or has another size.
        """
        wanted = list(files)
        missing: list[str] = []

        def all_there() -> bool:
            sizes = self.place.sizes([path for path, _ in wanted])
            missing[:] = [path for (path, size), found in zip(wanted, sizes, strict=True) if found != size]
            return not missing

        if not settles(all_there):
            raise PipelineError(
                f"{self.place.file(missing[0])} was written by an executor, but is missing or has another size "
                f"({len(missing)} of the batch's files); nothing was committed: the driver and all executors must "
                "reach the same storage"
            )

    def _sync_log(self, before: int) -> None:
        """Flush the versions after `before` to disk."""
        for version in range(before + 1, self.version + 1):
            self.place.sync(f"{LOG}/{version:020}.json")

    def files(self, dates: Sequence[str] | None = None) -> list[DataFile]:
        """Return the live files by date, hour, bucket and name. Args: `dates`: only these days ("2026-01-02")."""
        kind = self.info().kind
        found = pa.table(self.delta.get_add_actions(flatten=True))
        names = [f"partition.{name}" for name in PLACE]
        ends = [f"{end}.{TIME[kind]}" for end in ("min", "max")]
        known = ["path", *names, "num_records", "size_bytes"]
        found = found.select([*known, *(name for name in ends if name in found.column_names)])
        if dates is not None:
            is_wanted = [str(date) in dates for date in found["partition.date"].to_pylist()]
            found = found.filter(pa.array(is_wanted, pa.bool_()))
        found = found.sort_by([(name, "ascending") for name in (*names, "path")])
        times = [_times(found, name) for name in ends]
        columns = [found[name].to_pylist() for name in known]
        return [
            DataFile(
                path, str(date), int(hour), int(bucket), self._rows(path) if rows is None else int(rows), int(size),
                low, high,
            )
            for path, date, hour, bucket, rows, size, low, high in zip(*columns, *times, strict=True)
        ]  # fmt: skip

    def _rows(self, path: str) -> int:
        """Return the number of rows of a file whose writer did not record it."""
        with self.place.filesystem().open_input_file(path) as file:
            return int(pq.ParquetFile(file).metadata.num_rows)

    def streams(self) -> dict[str, Stream]:
        """Return the streams into the table by id."""
        found = {}
        for path, _ in self.place.listed(STREAMS):
            if not path.endswith(".json"):  # an unfinished write
                continue
            known = json.loads(self.place.read(path))
            known["paths"] = tuple(known["paths"])
            found[Path(path).stem] = Stream(**known)
        return found

    def add_stream(self, name: str, stream: Stream) -> None:
        """Store the source of a stream; `name` is its id."""
        self.place.write(f"{STREAMS}/{name}.json", json.dumps(asdict(stream)).encode())


def bucket_of(principal: str | None, client_id: str | None, buckets: int) -> int:
    """Return the bucket of an entity's rows, the number that Spark computes on write."""
    return zlib.crc32(f"{principal or ''}\0{client_id or ''}".encode()) % buckets


def describe_table(table: TableName, dates: Sequence[str] | None = None) -> dict[str, Any]:
    """Describe a table: rows, hours, files, size_bytes, times of the oldest and the newest row, version.

    Raises: TableError if the place is not a table.
    """
    found = Table(table)
    files = found.files(dates)
    return {
        "rows": sum(one.rows for one in files),
        "hours": len({(one.date, one.hour) for one in files}),
        "files": len(files),
        "size_bytes": sum(one.size_bytes for one in files),
        "oldest": _utc(min((one.min_time_us for one in files if one.min_time_us is not None), default=None)),
        "youngest": _utc(max((one.max_time_us for one in files if one.max_time_us is not None), default=None)),
        "version": found.version,
    }


def _partition(file: DataFile) -> dict[str, str | None]:
    return {"date": file.date, "hour": str(file.hour), "bucket": str(file.bucket)}


def require_usable(place: TablePlace) -> None:
    """Check the path of a folder. Raises: TableError if delta-rs would take it for another path."""
    found = _UNUSABLE.search(place.uri) if place.is_local else None
    if found is not None:
        raise TableError(
            f"{place.uri!r} cannot be a table, because delta-rs reads {found[0]!r} in a folder's path as something "
            "else: expected a path without it"
        )


def _open(place: TablePlace) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    require_usable(place)
    try:
        found = DeltaTable(place.uri, storage_options=place.storage_options)
    except TableNotFoundError:
        raise TableError(f"{place} is not a table: it has no {LOG}") from None
    except (DeltaError, OSError) as error:
        raise TableError(f"{place} cannot be read: {reason_of_store(error)}") from error
    if place.as_of is None:
        return found
    newest = found.version()
    wanted = _version_or_time(place.as_of)
    if wanted == newest:
        return found
    try:
        found.load_as_version(wanted)
    except (DeltaError, ValueError, OSError):
        raise TableError(f"{place} has no version {place.as_of}: there are versions up to {newest}") from None
    if isinstance(wanted, datetime):
        entry = f"{LOG}/{found.version():020}.json"
        made = place.filesystem().get_file_info(entry).mtime  # the time by which delta-rs selects the version
        if made is not None and made > wanted:
            # delta-rs takes the first version for all earlier times
            at = _utc(int(made.timestamp() * 1_000_000))
            raise TableError(f"{place} has no version of {place.as_of}: its earliest is of {at} UTC")
    return found


def _version_or_time(as_of: AsOf) -> int | datetime:
    if isinstance(as_of, int):
        return as_of
    if isinstance(as_of, str):
        if as_of.isdecimal():
            return int(as_of)
        as_of = datetime.fromisoformat(as_of.replace("Z", "+00:00"))
    return as_of if as_of.tzinfo is not None else as_of.replace(tzinfo=timezone.utc)


def _times(files: pa.Table, name: str) -> list[int | None]:
    """Return a column of times as microseconds since 1970: numbers, because a table may have very many files."""
    if name not in files.column_names:
        return [None] * len(files)
    found: list[int | None] = files[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return found


def _utc(time_us: int | None) -> str | None:
    if time_us is None:
        return None
    return (EPOCH + timedelta(microseconds=time_us)).isoformat(sep=" ", timespec="milliseconds")[:-6]


def first_loss(old: Any, new: Any, at: str = "") -> str | None:
    """Return a clause about the first column of `old` that `new` lacks or has as another type; None without one.

    Args: `old`, `new`: schemas as Spark writes them (`StructType.jsonValue()`).
    """
    if not (isinstance(old, dict) and isinstance(new, dict)) or old.get("type") != new.get("type"):
        return None if old == new else f"{at or 'the schema'} was {_shown_type(old)} and would be {_shown_type(new)}"
    if old["type"] == "struct":
        fields = {field["name"]: field for field in new["fields"]}
        for field in old["fields"]:
            name = f"{at}.{field['name']}" if at else field["name"]
            if field["name"] not in fields:
                return f"{name} would be removed"
            loss = first_loss(field["type"], fields[field["name"]]["type"], name)
            if loss is not None:
                return loss
        return None
    parts = ("elementType", "keyType", "valueType")
    losses = (first_loss(old[part], new[part], at) for part in parts if part in old)
    return next((loss for loss in losses if loss is not None), None)


def _shown_type(kind: Any) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else str(kind)
