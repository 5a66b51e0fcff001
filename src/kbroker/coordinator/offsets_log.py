"""``__consumer_offsets``: partition of a group, writing its records, and loading them at a start.

The last record of a key counts, whether the log was compacted or not. As in Kafka, a partition that cannot be read to
its end serves no groups: a client that got "no committed offset" would start elsewhere, and records written after the
damage would not be read at the next start.
Source: ``CoordinatorLoaderImpl``, ``CoordinatorRuntime``, ``Utils.abs``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.java.java_hash import string_hash
from kbroker.common.loggers import get_logger
from kbroker.coordinator import group_records
from kbroker.coordinator.group_records import CommittedOffset, GroupKey, OffsetKey, StoredGroup
from kbroker.protocol.records import Record, build_batch, columns, iter_batches

logger = get_logger(__name__)

BATCH_BYTES = 512 * 1024  # below message.max.bytes; more goes into several batches of one append
READ_BYTES = 4 * 1024 * 1024

# the coordinator's error code for an error of its log
_CLIENT_ERRORS = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.REQUEST_TIMED_OUT: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.MESSAGE_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.RECORD_LIST_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
}


Remembered = tuple[OffsetKey, CommittedOffset] | tuple[GroupKey, StoredGroup]


class OffsetsTopic(Protocol):
    """The offsets topic, as the server implements it."""

    def ensure(self) -> int:
        """Create it if it does not exist; return the number of its partitions. Raises: KafkaError."""

    @property
    def partition_count(self) -> int:
        """Its number of partitions, 0 while it does not exist."""

    def partition(self, index: int) -> Any:
        """The log of one partition, None if it cannot be used."""

    def folder(self, index: int) -> str:
        """The folder of a partition's files, for messages."""


class Written(NamedTuple):
    """An append, and the offset up to which it must be on disk before it is acknowledged (0: none)."""

    log: Any
    flush_offset: int

    def await_disk(self) -> None:
        """Flush if the topic's settings require it; hold no lock. Raises: KafkaError NOT_COORDINATOR."""
        if self.flush_offset > 0 and self.log.flushed_offset < self.flush_offset:
            try:
                self.log.flush(self.flush_offset)
            except (OSError, ValueError) as error:
                raise KafkaError(Errors.NOT_COORDINATOR, f"cannot flush: {error}") from error


def partition_of(group_id: str, partition_count: int) -> int:
    """The partition a group's records are in: Java's string hash, as every Kafka tool computes it."""
    value = string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


class UnreadableError(Exception):
    """A partition cannot be read to its end; the message names the offset and the reason.

    ``way_out``: what to do; "": run the repair, which reports what is lost.
    """

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.way_out = way_out


class OffsetsLog:
    """Writes and reads the records of groups.

    Threads: any. The order of one group's records is that of the calls, so the caller holds the group's lock.
    """

    def __init__(self, topic: OffsetsTopic, clock: BaseClock) -> None:
        self._topic = topic
        self._clock = clock
        self._unreadable: Mapping[int, str] = {}  # partition and reason; swapped whole, under the lock
        self._loaded_count = 0  # partitions at the start
        self._lock = threading.Lock()

    @property
    def unreadable(self) -> Mapping[int, str]:
        """Partitions whose groups are not known, with the reason."""
        return self._unreadable

    @property
    def partition_count(self) -> int:
        """Partitions of the topic, 0 while it does not exist."""
        return self._topic.partition_count

    def check(self, group_id: str) -> None:
        """Raises: KafkaError NOT_COORDINATOR if the group's partition could not be read."""
        if self._unreadable:  # also of the partition it had at the start: the topic may have grown since
            reason = self._unreadable.get(partition_of(group_id, self._topic.partition_count or 1))
            reason = reason or self._unreadable.get(partition_of(group_id, self._loaded_count or 1))
            if reason is not None:
                raise KafkaError(Errors.NOT_COORDINATOR, reason)

    def forget_damage(self) -> None:
        """The topic was deleted: a new one starts undamaged."""
        with self._lock:
            self._unreadable = {}

    def prepare(self) -> None:
        """Create the topic if it does not exist. Raises: KafkaError with the coordinator's code for the client."""
        try:
            self._topic.ensure()
        except KafkaError as error:
            raise _for_client(error.error, error.message) from error

    def append(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]]) -> Written:
        """Append key and value (None: a tombstone); call ``await_disk`` of the result before acknowledging.

        Raises: KafkaError with the coordinator's code for the client; then nothing was written.
        """
        self.check(group_id)
        if not self._topic.partition_count:
            self.prepare()
        log = self._topic.partition(partition_of(group_id, self._topic.partition_count or 1))
        if log is None:
            raise _for_client(Errors.KAFKA_STORAGE_ERROR, "the partition of __consumer_offsets is offline")
        now_ms = self._clock.wall_ms()
        data = b"".join(_batches(records, now_ms))
        try:
            info = log.append(data, acks=-1, is_client=False)
        except ValueError as error:  # closed: the topic was deleted, or the broker stops
            raise KafkaError(Errors.NOT_COORDINATOR, str(error)) from error
        if info.error:
            raise _for_client(Errors.of(info.error), info.message)
        return Written(log, info.flush_offset)

    def replay(self) -> Iterator[Remembered]:
        """Yield the last record of each offset and group of the partitions that can be read to their end.

        The groups of the others are not served: an error is logged, and ``unreadable`` lists the partitions.
        """
        count = self._loaded_count = self._topic.partition_count
        homes: dict[str, int] = {}
        moved: dict[OffsetKey | GroupKey, Remembered] = {}
        for index in range(count):
            try:
                remembered = _remembered(index, _last_values(self._topic.partition(index)))
            except UnreadableError as error:
                self._fence(index, error)
                continue
            for one in remembered:
                group_id = one[0].group_id
                home = homes.get(group_id)
                if home is None:
                    home = homes[group_id] = partition_of(group_id, count)
                if home == index:
                    yield one
                elif one[0] not in moved or _time_of(moved[one[0]]) <= _time_of(one):
                    moved[one[0]] = one
        yield from self._not_written_again(moved, homes)

    def _not_written_again(
        self, moved: Mapping[OffsetKey | GroupKey, Remembered], homes: Mapping[str, int]
    ) -> Iterator[Remembered]:
        """Yield records from when the topic had fewer partitions, unless their key was written again since."""
        for index in {homes[key.group_id] for key in moved}:
            if index in self._unreadable:
                continue
            try:
                since = _last_values(self._topic.partition(index))
            except UnreadableError as error:
                self._fence(index, error)
                continue
            yield from (one for key, one in moved.items() if homes[key.group_id] == index and _raw(key) not in since)

    def _fence(self, index: int, error: UnreadableError) -> None:
        with self._lock:
            self._unreadable = {**self._unreadable, index: f"__consumer_offsets-{index} cannot be read: {error}"}
        folder = self._topic.folder(index)
        logger.error(
            "__consumer_offsets-%d in %s cannot be read: %s. Its groups are not served (NOT_COORDINATOR) and nothing "
            "is written to it; %s, then start it again",
            index,
            folder,
            error,
            error.way_out or f"stop the broker and run: kbroker log verify --repair {folder}",
        )


def _batches(records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> Iterator[bytes]:
    part: list[Record] = []
    size_bytes = 0
    for key, value in records:
        length = len(key) + len(value or b"") + 32
        if part and size_bytes + length > BATCH_BYTES:
            yield build_batch(part)
            part, size_bytes = [], 0
        part.append(Record(key, value, now_ms))
        size_bytes += length
    if part:
        yield build_batch(part)


def _last_values(log: Any) -> dict[bytes, bytes | None]:
    """Each key of a partition with its last value. Raises: UnreadableError."""
    if log is None:
        raise UnreadableError("the partition is offline")
    if log.damage is not None:
        raise UnreadableError(log.damage)
    values: dict[bytes, bytes | None] = {}
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        try:
            found = log.read(offset, READ_BYTES)
        except OSError as error:
            raise UnreadableError(f"reading from offset {offset} failed: {error}") from error
        if found.error:
            raise UnreadableError(f"reading from offset {offset} failed: {Errors.of(found.error).name}")
        if not found.records:
            break  # compaction removed the rest
        next_offset = _take(found.records, offset, values)
        if next_offset <= offset:
            raise UnreadableError(f"no batch can be read at offset {offset}")
        offset = next_offset
    return values


def _take(data: bytes, offset: int, values: dict[bytes, bytes | None]) -> int:
    """Read batches into ``values``; return the next offset to read. Raises: UnreadableError."""
    try:
        table = columns(data, min_offset=offset, allow_truncated=True)
        for row in range(len(table.keys)):
            key = table.keys[row]
            if key is not None:
                values[key] = table.values[row]
        return table.next_offset
    except ProtocolError:
        pass  # one of them is damaged, or together they are too large: read them one by one
    next_offset = offset
    try:
        for batch in iter_batches(data, allow_truncated=True):
            if batch.last_offset >= offset:
                next_offset = max(offset, batch.base_offset)
                rows = batch.records()  # also of a control batch: that bit is only true if the checksum is
                if not batch.is_control:
                    values.update((row[2], row[3]) for row in rows if row[2] is not None and row[0] >= offset)
            next_offset = batch.last_offset + 1
    except ProtocolError as error:
        raise UnreadableError(f"the batch at offset {next_offset} is damaged: {error}") from error
    return next_offset


def _remembered(index: int, values: Mapping[bytes, bytes | None]) -> list[Remembered]:
    """Decode what is not deleted. Raises: UnreadableError for an offset: its consumer would start elsewhere."""
    found: list[Remembered] = []
    for raw_key, raw_value in values.items():
        if raw_value is None:
            continue
        key = None
        try:
            key = group_records.decode_key(raw_key)
            if isinstance(key, OffsetKey):
                found.append((key, group_records.decode_offset(raw_value)))
            elif isinstance(key, GroupKey):
                found.append((key, group_records.decode_group(raw_value)))
        except ProtocolError as error:
            if isinstance(key, OffsetKey):
                what = f"the offset of group {key.group_id} for {key.topic}-{key.partition} is malformed: {error}"
                raise UnreadableError(what, "stop the broker, install the release that wrote this record") from error
            # no coordinator writes such a key; members of an unknown group join again
            logger.error("__consumer_offsets-%d: skipped a record that cannot be decoded: %s", index, error)
    return found


def _raw(key: OffsetKey | GroupKey) -> bytes:
    if isinstance(key, OffsetKey):
        return group_records.offset_key(key.group_id, key.topic, key.partition)
    return group_records.group_key(key.group_id)


def _time_of(one: Remembered) -> int:
    value = one[1]
    return value.state_timestamp_ms if isinstance(value, StoredGroup) else value.commit_timestamp_ms


def _for_client(error: Errors, message: str | None) -> KafkaError:
    return KafkaError(_CLIENT_ERRORS.get(error, error), message)
