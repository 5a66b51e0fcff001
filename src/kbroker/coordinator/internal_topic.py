"""Access to the internal topic of a coordinator: the partition of a key, appending, reading to the end.

Source: ``CoordinatorLoaderImpl``, ``CoordinatorRuntime``, ``TransactionStateManager``, ``Utils.abs``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java._string_hash import string_hash
from kbroker.common.loggers import get_logger
from kbroker.metadata.topics import TopicRegistry
from kbroker.protocol._batch_builder import key_value_batch
from kbroker.protocol.batch_format import BATCH_HEADER_BYTES

logger = get_logger(__name__)

BATCH_BYTES = 512 * 1024  # more records, or more than max.message.bytes, make several batches of one append
MAX_RECORD_OVERHEAD = 32  # bytes of a record without headers, besides its key and value
READ_BYTES = 4 * 1024 * 1024

# error of the log -> error of the coordinator
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


class InternalTopic:
    """The internal topic of a coordinator among the broker's topics, created on first use. Threads: any."""

    def __init__(self, topics: TopicRegistry, config: BrokerConfig, name: str) -> None:
        self._topics = topics
        self._log_dirs = config.log_dirs
        self._node_id = config.node_id
        self._name = name

    def ensure(self) -> None:
        """Create the topic if it does not exist. Raises: KafkaError with the coordinator's code for the client."""
        if not self.partition_count:
            try:
                self._topics.auto_create([self._name])
            except KafkaError as error:
                raise error_for_client(error.error, error.message) from error
        if not self.partition_count:
            raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE, f"{self._name} cannot be created")

    @property
    def partition_count(self) -> int:
        """Number of partitions of the topic, 0 while it does not exist."""
        view = self._topics.get(self._name)
        return 0 if view is None else len(view.partitions)

    def partition(self, index: int) -> Any:
        """Return the log of one partition, None if it cannot be used."""
        return self._topics.partition(self._name, index)

    def led_epoch(self, index: int) -> int | None:
        """Return the leader epoch with which this node leads a partition, None if it does not lead it."""
        view = self._topics.get(self._name)
        if view is None or not 0 <= index < len(view.registrations):
            return None
        found = view.registrations[index]
        return found.leader_epoch if found.leader == self._node_id else None

    def folder(self, index: int) -> str:
        """Return the folder of a partition's files, for messages."""
        paths = [os.path.join(log_dir, f"{self._name}-{index}") for log_dir in self._log_dirs]
        return next(filter(os.path.isdir, paths), paths[0])


class TransactionalProducer(NamedTuple):
    """The producer of a transaction that records belong to. ``verification_guard``: see ``PartitionLog``; -1: none."""

    producer_id: int
    producer_epoch: int
    verification_guard: int = -1


class EndMarker(NamedTuple):
    """The marker that ends a producer's transaction on a partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class Written(NamedTuple):
    """Result of an append, with the offset up to which the log must be on disk before it is acknowledged (0: none).

    ``base_offset``: offset of the first record; the other records follow without a gap.
    """

    log: Any
    flush_offset: int
    base_offset: int = -1

    def await_disk(self) -> None:
        """Flush if the topic's settings require it; call it without a lock. Raises: KafkaError NOT_COORDINATOR."""
        if self.flush_offset > 0 and self.log.flushed_offset < self.flush_offset:
            try:
                self.log.flush(self.flush_offset)
            except (OSError, ValueError) as error:
                raise KafkaError(Errors.NOT_COORDINATOR, f"cannot flush: {error}") from error


NOTHING_WRITTEN = Written(None, 0)


class UnreadableError(Exception):
    """Error of a partition that cannot be read to its end; the message names the offset and the reason.

    ``way_out``: the remedy; "": run the repair, which reports the records that are lost.
    """

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.way_out = way_out


def report_unreadable(topic: InternalTopic, name: str, index: int, noun: str, error: UnreadableError) -> str:
    """Log that a partition cannot be read, with the remedy; return the reason for clients.

    Args: ``name`` of the topic; ``noun`` for the things that are not served, such as "groups".
    """
    folder = topic.folder(index)
    logger.error(
        "%s-%d in %s cannot be read: %s. Its %s are not served (NOT_COORDINATOR) and nothing is written to it; %s, "
        "then start it again",
        name,
        index,
        folder,
        error,
        noun,
        error.way_out or f"stop the broker and run: kbroker log verify --repair {folder}",
    )
    return f"{name}-{index} cannot be read: {error}"


def report_strangers(name: str, index: int, noun: str, keys: Collection[str]) -> None:
    """Log that a partition has records of keys that belong to other partitions, if there are any."""
    if keys:
        logger.error(
            "%s-%d has records of %d %s that belong to other partitions, as %r: the topic had another number of "
            "partitions when they were written. They are not served from here",
            name,
            index,
            len(keys),
            noun,
            min(keys),
        )


def partition_of(key: str, partition_count: int) -> int:
    """Return the partition of a key: Java's string hash, as every Kafka tool computes it."""
    value = string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


def error_for_client(error: Errors, message: str | None) -> KafkaError:
    """Return the coordinator's error for an error of its log."""
    return KafkaError(_CLIENT_ERRORS.get(error, error), message)


def append(
    log: Any, records: Sequence[KeyValue], now_ms: int, producer: TransactionalProducer | None = None
) -> Written:
    """Append records to a partition; call ``await_disk`` of the result before acknowledging.

    Args: ``producer``: the records belong to its transaction.
    Raises: KafkaError with the coordinator's code for the client; then nothing was written.
    """
    owner = (-1, -1) if producer is None else (producer.producer_id, producer.producer_epoch)
    data = b"".join(key_value_batch(part, now_ms, *owner) for part in parts(log, records))
    guard = -1 if producer is None else producer.verification_guard
    info = log.append(data, acks=-1, is_client=False, verification_guard=guard)
    if info.error:
        raise error_for_client(Errors.of(info.error), info.message)
    return Written(log, info.flush_offset, info.base_offset)


def append_end_marker(log: Any, marker: EndMarker) -> Written:
    """Append the marker that ends a transaction on a partition; call ``await_disk`` before acknowledging it.

    Raises: KafkaError with the log's code; then nothing was written.
    """
    info = log.append_end_marker(*marker[:4], transaction_version=marker.transaction_version)
    if info.error:
        raise KafkaError(Errors.of(info.error), info.message)
    return Written(log, info.flush_offset, info.base_offset)


def parts(log: Any, records: Sequence[KeyValue]) -> Iterator[list[KeyValue]]:
    """Yield the records in parts, one batch each, which the log accepts unless a single record is too large for it."""
    if len(records) == 1:
        yield list(records)  # most appends; reading the limit releases the GIL
        return
    limit = min(BATCH_BYTES, log.max_message_bytes)
    part: list[KeyValue] = []
    size_bytes = BATCH_HEADER_BYTES
    for record in records:
        key, value = record
        length = len(key) + len(value or b"") + MAX_RECORD_OVERHEAD
        if part and size_bytes + length > limit:
            yield part
            part, size_bytes = [], BATCH_HEADER_BYTES
        part.append(record)
        size_bytes += length
    if part:
        yield part


def read_to_end(log: Any, take: Callable[[bytes, int], int], read_bytes: int = READ_BYTES) -> None:
    """Pass all batches of a partition to ``take``, in the order of their offsets, several at a time.

    Args: ``take(data, offset)`` reads the batches in ``data`` from ``offset`` on, the last of which may be cut, and
    returns the next offset to read; ``read_bytes``: size of one read, which returns at least one batch.
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
