"""Synchronous producer: it batches records by partition; `flush` sends one request per leader and waits."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kbroker.client.cluster import Cluster, failure_of
from kbroker.client.connection import Body
from kbroker.client.partitions import by_leader, partition_rows, topic_rows
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.common.units import counted
from kbroker.protocol._arrow_rows import ArrowRows, partition_of_key
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import RecordBatchBuilder

PRODUCE, INIT_PRODUCER_ID = 0, 22
MAX_PRODUCE_VERSION = 12  # v13 and later identify topics by id, which needs Metadata v10
ACKS_ALL = -1
CODECS = {codec.name.lower(): codec.value for codec in CompressionType}

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch that the leader has accepted; `base_offset` is -1 with acks=0 and for a duplicate of unknown offset."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class StickyPartitions:
    """Partitions of records without a key: one per topic until `rotate`, so that batches fill.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._turns: dict[str, Iterator[int]] = {}
        self._current: dict[str, int] = {}

    def partition(self, topic: str, partition_count: int) -> int:
        """Return the current partition of a topic, after choosing one if it has none."""
        if topic not in self._current:
            self._current[topic] = next(self._turns.setdefault(topic, itertools.count()))
        return self._current[topic] % partition_count

    def rotate(self) -> None:
        """Move every topic on to its next partition; called when a batch has been sent."""
        self._current.clear()


@dataclass(slots=True)
class _Batch:
    topic: str
    partition: int
    data: bytes
    record_count: int


class Producer:
    """Producer for any Kafka cluster, with one batch per partition in flight, in order.

    Args:
        cluster: owned by the caller.
        acks: wait for nothing (0), the leader's write (1), or all in-sync replicas (-1).
        codec: none, gzip, snappy, lz4 or zstd.
        batch_size_bytes: pending bytes at which `send` flushes.
        idempotent: let the broker drop duplicates of a retried batch (acks=-1 only). Without it, a batch whose
            response was lost is sent again and may be stored twice.
        timeout_ms: time that the leader may wait for its replicas.
        on_delivery: called for each accepted batch.
        wall_clock: seconds since the epoch, for records without a timestamp.

    Raises: ValueError for incompatible arguments.

    Threads: as its Cluster.
    """

    transactional_id: str | None = None
    max_produce_version = MAX_PRODUCE_VERSION

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ACKS_ALL,
        codec: str = "none",
        batch_size_bytes: int = 256 * 1024,
        idempotent: bool = False,
        timeout_ms: int = 30_000,
        on_delivery: Callable[[Delivery], None] | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if acks not in (-1, 0, 1):
            raise ValueError(f"acks must be -1, 0 or 1, got {acks}")
        if idempotent and acks != ACKS_ALL:
            raise ValueError("an idempotent producer needs acks=-1")
        if codec not in CODECS:
            raise ValueError(f"codec must be one of {', '.join(CODECS)}, got {codec!r}")
        if batch_size_bytes < 1:
            raise ValueError(f"batch_size_bytes must be >= 1, got {batch_size_bytes}")
        self.cluster = cluster
        self.acks = acks
        self.codec = codec
        self.batch_size_bytes = batch_size_bytes
        self.idempotent = idempotent
        self.timeout_ms = timeout_ms
        self.on_delivery = on_delivery
        self._wall_clock = wall_clock
        self._pending: dict[TopicPartition, RecordBatchBuilder] = {}
        self._pending_bytes = 0  # size of the pending records before compression
        self._sticky = StickyPartitions()
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[TopicPartition, int] = {}

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: object, *failure: object) -> None:
        if kind is None:
            self.flush()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[Header] = (),
    ) -> None:
        """Add a record to the batch of its partition; flush when ``batch_size_bytes`` are pending.

        Args:
            topic: the topic, which the broker may create.
            value: None for a tombstone.
            key: determines the partition unless one is given.
            partition: the partition; None: by key, else sticky.
            timestamp_ms: create time since the epoch; now when None.
            headers: names and values.

        Raises: KafkaError, BrokerConnectionError as `flush`; ValueError for a partition that does not exist.
        """
        count = len(self.cluster.topic(topic, allow_auto_topic_creation=True).partitions)
        if partition is None:
            partition = self._sticky.partition(topic, count) if key is None else partition_of_key(key, count)
        elif not 0 <= partition < count:
            raise ValueError(f"topic {topic!r}: expected a partition from 0 to {count - 1}, got {partition}")
        if timestamp_ms is None:
            timestamp_ms = int(self._wall_clock() * 1000)
        if self._pending_bytes and self._pending_bytes + len(key or b"") + len(value or b"") > self.batch_size_bytes:
            self.flush()
        batch = self._builder(topic, partition)
        before = batch.size_bytes
        batch.append(key, value, timestamp_ms, headers)
        self._pending[topic, partition] = batch
        self._pending_bytes += batch.size_bytes - before

    def send_rows(self, topic: str, rows: ArrowRows) -> None:
        """Add the rows of an Arrow batch, each as `send` does, with one time for all rows.

        Args:
            topic: as for `send`.
            rows: the rows; partitions and keys have the same meaning as for `send`.

        Raises: KafkaError, BrokerConnectionError as `flush`; ValueError for a partition that does not exist, and for
            a header without a key.
        """
        count = len(self.cluster.topic(topic, allow_auto_topic_creation=True).partitions)
        try:
            used = rows.assign(count)
        except ValueError as error:
            raise ValueError(f"topic {topic!r}: {error}") from None
        done = 0
        while done < len(rows):
            sticky = self._sticky.partition(topic, count) if -1 in used else -1
            builders = {p: self._builder(topic, p) for p in (sticky if p < 0 else p for p in used)}
            before = sum(builder.size_bytes for builder in builders.values())
            now_ms = int(self._wall_clock() * 1000)
            done = rows.append(builders, sticky, done, now_ms, self._pending_bytes, self.batch_size_bytes)
            self._pending_bytes += sum(builder.size_bytes for builder in builders.values()) - before
            self._pending.update({(topic, p): builder for p, builder in builders.items() if len(builder)})
            if done < len(rows):
                self.flush()

    def flush(self) -> None:
        """Send all pending batches and wait until every batch is accepted.

        Raises: KafkaError with the code of the first batch that failed permanently, or of the last retry;
            BrokerConnectionError. Batches that were not accepted are then dropped.
        """
        if not self._pending:
            return
        waiting = [
            _Batch(topic, partition, batch.build(), len(batch)) for (topic, partition), batch in self._pending.items()
        ]
        for batch in waiting if self.idempotent else ():
            tp = (batch.topic, batch.partition)
            self._sequences[tp] = (self._sequences.get(tp, 0) + batch.record_count) & 0x7FFFFFFF
        self._pending, self._pending_bytes = {}, 0
        self._sticky.rotate()
        try:
            self.cluster.retry(lambda: self._send_all(waiting))
        except BaseException:
            self._producer_id = -1  # the fate of lost batches is unknown: a new id starts at sequence 0
            raise

    def _builder(self, topic: str, partition: int) -> RecordBatchBuilder:
        """Return the batch that is being filled for a partition; a new one is not pending yet."""
        return self._pending.get((topic, partition)) or self._new_batch(topic, partition)

    def _new_batch(self, topic: str, partition: int) -> RecordBatchBuilder:
        if self.idempotent and self._producer_id < 0:
            self.init_producer_id()
        return RecordBatchBuilder(
            CODECS[self.codec],
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._sequences.get((topic, partition), 0) if self.idempotent else -1,
            transactional=self.transactional_id is not None,
        )

    def init_producer_id(self) -> None:
        """Get a new producer id, with which sequences begin at 0; called automatically when an id is first needed.

        Raises: KafkaError, CLUSTER_AUTHORIZATION_FAILED and UNSUPPORTED_VERSION among them; BrokerConnectionError.
        """
        body: Body = {"TransactionalId": None, "TransactionTimeoutMs": 60_000}
        response = self.cluster.retry(lambda: self.cluster.ask(INIT_PRODUCER_ID, body, "producer id"))
        self._producer_id, self._producer_epoch = response["ProducerId"], response["ProducerEpoch"]
        self._sequences.clear()

    def _send_all(self, waiting: list[_Batch]) -> None:
        """Send one request per leader; remove delivered batches from `waiting`, then raise the first failure."""
        by_place = {(batch.topic, batch.partition): batch for batch in waiting}
        failure: KafkaError | None = None
        for node_id, places in by_leader(self.cluster, by_place).items():
            batches = [by_place[place] for place in places]
            responses = self._send_to(node_id, batches)
            for batch in batches:
                code, base_offset, message = responses.get(
                    (batch.topic, batch.partition), (int(Errors.UNKNOWN_SERVER_ERROR), -1, None)
                )
                if code == Errors.DUPLICATE_SEQUENCE_NUMBER:
                    code, base_offset = 0, -1
                if code == Errors.MESSAGE_TOO_LARGE:
                    message = (
                        f"expected a batch of at most max.message.bytes of the topic, found {len(batch.data):,} bytes "
                        f"with {counted(batch.record_count, 'record')}; send smaller ones, or raise that config"
                    )
                error = failure_of(code, f"partition {batch.topic}-{batch.partition}", message)
                if error is None:
                    waiting.remove(batch)
                    if self.on_delivery is not None:
                        self.on_delivery(Delivery(batch.topic, batch.partition, base_offset, batch.record_count))
                    continue
                if failure is None or (failure.error.retriable and not error.error.retriable):
                    failure = error
        if failure is not None:
            raise failure

    def _send_to(self, node_id: int, batches: list[_Batch]) -> dict[TopicPartition, tuple[int, int, str | None]]:
        rows = ((batch.topic, {"Index": batch.partition, "Records": batch.data}) for batch in batches)
        body: Body = {
            "TransactionalId": self.transactional_id,
            "Acks": self.acks,
            "TimeoutMs": self.timeout_ms,
            "TopicData": topic_rows(rows, partitions="PartitionData"),
        }
        response = self.cluster.request(
            PRODUCE,
            body,
            node_id=node_id,
            max_version=self.max_produce_version,
            timeout_s=self.timeout_ms / 1000 + self.cluster.request_timeout_s,
            expect_response=self.acks != 0,
        )
        if self.acks == 0:
            return {(b.topic, b.partition): (0, -1, None) for b in batches}
        return {
            tp: (p["ErrorCode"], p["BaseOffset"], p.get("ErrorMessage"))
            for tp, p in partition_rows(response["Responses"], partitions="PartitionResponses", index="Index")
        }
