"""``__consumer_offsets``: where a group's records go, how they are written, and what is read back at a start.

The last record of a key counts, whether the log was compacted or not. Source: ``GroupMetadataManager``, ``Utils.abs``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.java_hash import string_hash
from kbroker.protocol.records import Record, RecordBatch, build_batch, columns, iter_batches

logger = logging.getLogger(__name__)

BATCH_BYTES = 512 * 1024  # below message.max.bytes; more goes into several batches of one append
READ_BYTES = 4 * 1024 * 1024

# what a coordinator answers for what its log says
_ANSWERS = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.REQUEST_TIMED_OUT: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.MESSAGE_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.RECORD_LIST_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
}


class OffsetsTopic(Protocol):
    """The topic as the server keeps it."""

    def ensure(self) -> int:
        """Create it if it does not exist; return the number of its partitions. Raises: KafkaError."""

    @property
    def partition_count(self) -> int:
        """Its number of partitions, 0 while it does not exist."""

    def partition(self, index: int) -> Any:
        """The log of one partition, None if it cannot be used."""


class Written(NamedTuple):
    """What was appended, and how far the disk must have it before it may be acknowledged (0: nothing to wait for)."""

    log: Any
    flush_offset: int

    def await_disk(self) -> None:
        """Wait for the disk if the topic's settings ask for it; hold no lock. Raises: KafkaError NOT_COORDINATOR."""
        if self.flush_offset > 0 and self.log.flushed_offset < self.flush_offset:
            try:
                self.log.flush(self.flush_offset)
            except (OSError, ValueError) as error:
                raise KafkaError(Errors.NOT_COORDINATOR, f"cannot flush: {error}") from error


def partition_of(group_id: str, partition_count: int) -> int:
    """The partition a group's records are in: Java's string hash, as every Kafka tool computes it."""
    value = string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


class OffsetsLog:
    """Writes and reads the records of groups.

    Threads: any. The order of one group's records is that of the calls, so the caller holds the group's lock.
    """

    def __init__(self, topic: OffsetsTopic, clock: BaseClock) -> None:
        self._topic = topic
        self._clock = clock

    def prepare(self) -> None:
        """See to the topic. Raises: KafkaError with the code a client of the coordinator is to see."""
        try:
            self._topic.ensure()
        except KafkaError as error:
            raise _for_client(error.error, error.message) from error

    def append(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]]) -> Written:
        """Append key and value (None: a tombstone); what comes back is to be waited for before it is acknowledged.

        Raises: KafkaError with the code a client of the coordinator is to see; then nothing was written.
        """
        if not self._topic.partition_count:
            self.prepare()
        log = self._topic.partition(partition_of(group_id, self._topic.partition_count or 1))
        if log is None:
            raise _for_client(Errors.KAFKA_STORAGE_ERROR, "the partition cannot be used")
        now_ms = self._clock.wall_ms()
        data = b"".join(_batches(records, now_ms))
        try:
            info = log.append(data, acks=-1, is_client=False)
        except ValueError as error:  # closed: the topic was deleted, or the broker stops
            raise KafkaError(Errors.NOT_COORDINATOR, str(error)) from error
        if info.error:
            raise _for_client(Errors.of(info.error), info.message)
        return Written(log, info.flush_offset)

    def replay(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Every key with its last value. What is damaged is told in the log and left out."""
        for index in range(self._topic.partition_count):
            log = self._topic.partition(index)
            if log is None:
                logger.error("__consumer_offsets-%d cannot be read: its groups have no offsets", index)
                continue
            yield from _last_values(index, log).items()


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


def _last_values(index: int, log: Any) -> dict[bytes, bytes | None]:
    values: dict[bytes, bytes | None] = {}
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        try:
            found = log.read(offset, READ_BYTES)
        except OSError as error:
            logger.error("__consumer_offsets-%d: reading from offset %d failed: %s", index, offset, error)
            break
        if found.error or not found.records:
            if found.error:
                name = Errors.of(found.error).name
                logger.error("__consumer_offsets-%d: reading from offset %d failed: %s", index, offset, name)
            break
        next_offset = _take(index, found.records, offset, values)
        if next_offset <= offset:
            break
        offset = next_offset
    return values


def _take(index: int, data: bytes, offset: int, values: dict[bytes, bytes | None]) -> int:
    """Read batches into ``values``; return where to read on. A batch that cannot be read is passed over."""
    try:
        table = columns(data, min_offset=offset, allow_truncated=True)
        for row in range(len(table.keys)):
            key = table.keys[row]
            if key is not None:
                values[key] = table.values[row]
        return table.next_offset
    except ProtocolError:
        pass  # one of them: take them one by one
    next_offset = -1
    try:
        for batch in iter_batches(data, allow_truncated=True):
            next_offset = batch.last_offset + 1
            if not batch.is_control:
                _take_batch(index, batch, offset, values)
    except ProtocolError as error:
        logger.error("__consumer_offsets-%d: no batch can be found behind offset %d: %s", index, next_offset, error)
    return next_offset


def _take_batch(index: int, batch: RecordBatch, offset: int, values: dict[bytes, bytes | None]) -> None:
    try:
        values.update((row[2], row[3]) for row in batch.records() if row[2] is not None and row[0] >= offset)
    except ProtocolError as error:
        logger.error("__consumer_offsets-%d: the batch at offset %d is damaged: %s", index, batch.base_offset, error)


def _for_client(error: Errors, message: str | None) -> KafkaError:
    return KafkaError(_ANSWERS.get(error, error), message)
