"""What the coordinators share about their internal topics: the partition of a key, appending, reading to the end.

The last record of a key counts, whether the log was compacted or not.
Source: ``CoordinatorLoaderImpl``, ``CoordinatorRuntime``, ``TransactionStateManager``, ``Utils.abs``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.java.java_hash import string_hash
from kbroker.common.loggers import get_logger
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

KeyValue = tuple[bytes, bytes | None]  # None: a tombstone


class InternalTopic(Protocol):
    """An internal topic of a coordinator, as the server implements it."""

    def ensure(self) -> int:
        """Create it if it does not exist; return the number of its partitions. Raises: KafkaError."""

    @property
    def partition_count(self) -> int:
        """Its number of partitions, 0 while it does not exist."""

    def partition(self, index: int) -> Any:
        """The log of one partition, None if it cannot be used."""

    def folder(self, index: int) -> str:
        """The folder of a partition's files, for messages."""


class TransactionalProducer(NamedTuple):
    """The producer whose transaction records belong to. ``verification_guard``: see ``PartitionLog``; -1: none."""

    producer_id: int
    producer_epoch: int
    verification_guard: int = -1


class Written(NamedTuple):
    """An append, and the offset up to which it must be on disk before it is acknowledged (0: none).

    ``base_offset``: of the first record; the others follow it without a gap.
    """

    log: Any
    flush_offset: int
    base_offset: int = -1

    def await_disk(self) -> None:
        """Flush if the topic's settings require it; hold no lock. Raises: KafkaError NOT_COORDINATOR."""
        if self.flush_offset > 0 and self.log.flushed_offset < self.flush_offset:
            try:
                self.log.flush(self.flush_offset)
            except (OSError, ValueError) as error:
                raise KafkaError(Errors.NOT_COORDINATOR, f"cannot flush: {error}") from error


class UnreadableError(Exception):
    """A partition cannot be read to its end; the message names the offset and the reason.

    ``way_out``: what to do; "": run the repair, which reports what is lost.
    """

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.way_out = way_out


def report_unreadable(topic: InternalTopic, name: str, index: int, what: str, error: UnreadableError) -> str:
    """Log that a partition cannot be read, and what to do; return the reason for clients.

    Args: ``name``: of the topic; ``what``: is not served, "groups".
    """
    folder = topic.folder(index)
    logger.error(
        "%s-%d in %s cannot be read: %s. Its %s are not served (NOT_COORDINATOR) and nothing is written to it; %s, "
        "then start it again",
        name,
        index,
        folder,
        error,
        what,
        error.way_out or f"stop the broker and run: kbroker log verify --repair {folder}",
    )
    return f"{name}-{index} cannot be read: {error}"


def partition_of(key: str, partition_count: int) -> int:
    """The partition a key's records are in: Java's string hash, as every Kafka tool computes it."""
    value = string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


def error_for_client(error: Errors, message: str | None) -> KafkaError:
    """The coordinator's error for an error of its log."""
    return KafkaError(_CLIENT_ERRORS.get(error, error), message)


def prepare(topic: InternalTopic) -> int:
    """Create the topic if it does not exist; return the number of its partitions.

    Raises: KafkaError with the coordinator's code for the client.
    """
    try:
        return topic.ensure()
    except KafkaError as error:
        raise error_for_client(error.error, error.message) from error


def append(
    log: Any, records: Sequence[KeyValue], now_ms: int, producer: TransactionalProducer | None = None
) -> Written:
    """Append records to a partition; call ``await_disk`` of the result before acknowledging.

    Args: ``producer``: the records belong to its transaction.
    Raises: KafkaError with the coordinator's code for the client; then nothing was written.
    """
    data = b"".join(batches(records, now_ms, producer))
    guard = -1 if producer is None else producer.verification_guard
    try:
        info = log.append(data, acks=-1, is_client=False, verification_guard=guard)
    except ValueError as error:  # closed: the topic was deleted, or the broker stops
        raise KafkaError(Errors.NOT_COORDINATOR, str(error)) from error
    if info.error:
        raise error_for_client(Errors.of(info.error), info.message)
    return Written(log, info.flush_offset, info.base_offset)


def batches(records: Sequence[KeyValue], now_ms: int, producer: TransactionalProducer | None = None) -> Iterator[bytes]:
    """Record batches of these records, none much larger than ``BATCH_BYTES``."""
    part: list[Record] = []
    size_bytes = 0
    for key, value in records:
        length = len(key) + len(value or b"") + 32
        if part and size_bytes + length > BATCH_BYTES:
            yield _batch(part, producer)
            part, size_bytes = [], 0
        part.append(Record(key, value, now_ms))
        size_bytes += length
    if part:
        yield _batch(part, producer)


def _batch(records: Sequence[Record], producer: TransactionalProducer | None) -> bytes:
    if producer is None:
        return build_batch(records)
    return build_batch(
        records, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
    )


def last_values(log: Any, read_bytes: int = READ_BYTES) -> dict[bytes, bytes | None]:
    """Each key of a partition with its last value, control records left out. Raises: UnreadableError."""
    values: dict[bytes, bytes | None] = {}
    read_to_end(log, lambda data, offset: _take(data, offset, values), read_bytes)
    return values


def read_to_end(log: Any, take: Callable[[bytes, int], int], read_bytes: int = READ_BYTES) -> None:
    """Give all batches of a partition to ``take``, in the order of their offsets, some at a time.

    Args: ``take(data, offset)`` reads the batches in ``data`` from ``offset`` on, of which the last may be cut, and
    returns the next offset to read; ``read_bytes``: how many of them at once, but always a whole batch.
    Raises: UnreadableError.
    """
    if log is None:
        raise UnreadableError("the partition is offline")
    if log.damage is not None:
        raise UnreadableError(log.damage)
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        try:
            found = log.read(offset, read_bytes)
        except OSError as error:
            raise UnreadableError(f"reading from offset {offset} failed: {error}") from error
        if found.error:
            raise UnreadableError(f"reading from offset {offset} failed: {Errors.of(found.error).name}")
        if not found.records:
            break  # compaction removed the rest
        next_offset = take(found.records, offset)
        if next_offset <= offset:
            raise UnreadableError(f"no batch can be read at offset {offset}")
        offset = next_offset


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
