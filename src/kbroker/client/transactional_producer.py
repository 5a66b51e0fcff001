"""Transactional producer: commits records and consumer offsets atomically.

It uses the classic transaction protocol, which Kafka supports since 0.11.
Source: KIP-98, KIP-360.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from kbroker.client.cluster import Cluster, check
from kbroker.client.connection import Body
from kbroker.client.coordinators import GROUP, TRANSACTION, find_coordinator
from kbroker.client.partitions import partition_rows, topic_rows
from kbroker.client.producer import INIT_PRODUCER_ID, Delivery, Producer
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.protocol.records import RecordBatchBuilder

ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
# last versions of the classic protocol: in later ones Produce adds the partitions (KIP-890)
MAX_VERSIONS = {ADD_PARTITIONS: 3, ADD_OFFSETS: 3, END_TXN: 4, TXN_OFFSET_COMMIT: 4}
MAX_CLASSIC_PRODUCE_VERSION = 11


class State(Enum):
    """State of a transactional producer; the value names the calls that it allows."""

    NEW = "init_transactions"
    READY = "begin_transaction"
    IN_TRANSACTION = "send, send_offsets, commit_transaction or abort_transaction"
    FAILED = "abort_transaction"


class TransactionalProducer(Producer):
    """Producer of consecutive transactions.

    Args:
        cluster: owned by the caller.
        transactional_id: a newer producer with the same id fences this one.
        transaction_timeout_ms: the broker aborts a transaction that is open for longer.
        codec, batch_size_bytes, timeout_ms, on_delivery: as for Producer.

    Raises: ValueError for an empty id or a call out of order; KafkaError PRODUCER_FENCED or INVALID_PRODUCER_EPOCH when
        a newer producer uses the id. After an error of ``send``, ``flush`` or ``send_offsets`` the transaction can only
        be aborted.

    Threads: as its Cluster.
    """

    max_produce_version = MAX_CLASSIC_PRODUCE_VERSION

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 60_000,
        codec: str = "none",
        batch_size_bytes: int = 256 * 1024,
        timeout_ms: int = 30_000,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        if not transactional_id:
            raise ValueError("transactional_id must not be empty")
        super().__init__(
            cluster,
            codec=codec,
            batch_size_bytes=batch_size_bytes,
            idempotent=True,
            timeout_ms=timeout_ms,
            on_delivery=on_delivery,
        )
        self.transactional_id: str = transactional_id
        self.transaction_timeout_ms = transaction_timeout_ms
        self._state = State.NEW
        self._added: set[TopicPartition] = set()
        self._has_offsets = False
        self._identity = (-1, -1)  # producer id and epoch; Producer resets its own after a failed flush

    def __enter__(self) -> TransactionalProducer:
        return self

    def init_transactions(self) -> None:
        """Fence older producers of this id, wait for the end of their transaction, and get an epoch.

        Raises: KafkaError, BrokerConnectionError.
        """
        self.init_producer_id()
        self._state = State.READY

    def init_producer_id(self) -> None:
        """Request a producer id for ``init_transactions``, or after an aborted failure.

        Raises: ValueError in a transaction, whose id cannot change: it must be aborted. KafkaError.
        """
        if self._state in (State.IN_TRANSACTION, State.FAILED):
            raise ValueError("a failed transaction must be aborted: call abort_transaction")
        body: Body = {"TransactionalId": self.transactional_id, "TransactionTimeoutMs": self.transaction_timeout_ms}
        response = self._ask(INIT_PRODUCER_ID, body)
        self._identity = self._producer_id, self._producer_epoch = response["ProducerId"], response["ProducerEpoch"]
        self._sequences.clear()

    @property
    def identity(self) -> tuple[int, int]:
        """The producer id and the epoch of ``init_transactions``."""
        return self._identity

    def take_over(self, producer_id: int, producer_epoch: int) -> None:
        """Continue the open transaction of another producer of this id, which has sent all its records and offsets.

        Args: its ``identity``.
        """
        self._expect(State.NEW)
        self._identity = producer_id, producer_epoch
        self._has_offsets = True
        self._state = State.IN_TRANSACTION

    def begin_transaction(self) -> None:
        """Begin a transaction; this sends no request, except for a new producer id after a failed transaction."""
        self._expect(State.READY)
        if self._producer_id < 0:  # the previous transaction failed: its sequences are unknown
            self.init_producer_id()
        self._added.clear()
        self._has_offsets = False
        self._state = State.IN_TRANSACTION

    def _builder(self, topic: str, partition: int) -> RecordBatchBuilder:
        self._expect(State.IN_TRANSACTION)
        return super()._builder(topic, partition)

    def flush(self) -> None:
        """Flush as a Producer does, after the partitions have been added to the transaction.

        Raises: KafkaError, BrokerConnectionError; then the transaction must be aborted.
        """
        if not self._pending:
            return
        self._expect(State.IN_TRANSACTION)
        try:
            self._add_partitions([place for place in self._pending if place not in self._added])
            super().flush()
        except BaseException:
            self._state = State.FAILED
            raise

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets of a group, each with its metadata, in this transaction.

        Raises: KafkaError, BrokerConnectionError; then the transaction must be aborted.
        """
        self._expect(State.IN_TRANSACTION)
        if not offsets:
            return
        rows = (
            (topic, {"PartitionIndex": partition, "CommittedOffset": offset, "CommittedMetadata": metadata})
            for (topic, partition), (offset, metadata) in sorted(offsets.items())
        )
        commit = {**self._ids(), "GroupId": group_id, "Topics": topic_rows(rows)}

        def attempt() -> None:
            response = self.cluster.request(
                TXN_OFFSET_COMMIT,
                commit,
                node_id=find_coordinator(self.cluster, GROUP, group_id),
                max_version=MAX_VERSIONS[TXN_OFFSET_COMMIT],
            )
            for (topic, partition), row in partition_rows(response["Topics"]):
                check(row["ErrorCode"], f"group {group_id!r}, partition {topic}-{partition}")

        try:
            self._ask(ADD_OFFSETS, {**self._ids(), "GroupId": group_id})
            self._has_offsets = True
            self.cluster.retry(attempt)
        except BaseException:
            self._state = State.FAILED
            raise

    def commit_transaction(self) -> None:
        """Flush, then commit the transaction.

        Raises: KafkaError, BrokerConnectionError. If the response was lost, the outcome is unknown.
        """
        self._expect(State.IN_TRANSACTION)
        self.flush()
        self._end(committed=True)

    def abort_transaction(self) -> None:
        """Abort the transaction, even after a failure.

        Raises: KafkaError, BrokerConnectionError.
        """
        if self._state is not State.FAILED:
            self._expect(State.IN_TRANSACTION)
        self._pending, self._pending_bytes = {}, 0
        self._end(committed=False)

    def _end(self, committed: bool) -> None:
        failed = self._state is State.FAILED
        try:
            if self._added or self._has_offsets:
                self._ask(END_TXN, {**self._ids(), "Committed": committed})
        except BaseException:
            self._state = State.FAILED
            raise
        if failed:
            self._producer_id = -1
        self._state = State.READY

    def _add_partitions(self, places: list[TopicPartition]) -> None:
        if not places:
            return
        fields: Body = {**self._ids(), "Topics": topic_rows(places)}
        body = {f"V3AndBelow{name}": value for name, value in fields.items()}

        def attempt() -> None:
            response = self.cluster.request(
                ADD_PARTITIONS, body, node_id=self._coordinator(), max_version=MAX_VERSIONS[ADD_PARTITIONS]
            )
            failure: tuple[int, str] | None = None
            for (topic, partition), row in partition_rows(
                response["ResultsByTopicV3AndBelow"], partitions="ResultsByPartition"
            ):
                code = row["PartitionErrorCode"]
                if code and (failure is None or failure[0] == Errors.OPERATION_NOT_ATTEMPTED):
                    failure = code, f"{topic}-{partition}"
            if failure is not None:
                check(failure[0], f"{self._what()}, partition {failure[1]}")

        self.cluster.retry(attempt)
        self._added.update(places)

    def _ask(self, api_key: int, body: Body) -> Body:
        """Send a request to the transaction coordinator; repeat it after retriable errors."""
        limit = MAX_VERSIONS.get(api_key)
        return self.cluster.retry(
            lambda: self.cluster.ask(api_key, body, self._what(), node_id=self._coordinator(), max_version=limit)
        )

    def _ids(self) -> Body:
        producer_id, producer_epoch = self._identity
        return {"TransactionalId": self.transactional_id, "ProducerId": producer_id, "ProducerEpoch": producer_epoch}

    def _coordinator(self) -> int:
        return find_coordinator(self.cluster, TRANSACTION, self.transactional_id)

    def _what(self) -> str:
        return f"transactional id {self.transactional_id!r}"

    def _expect(self, state: State) -> None:
        if self._state is not state:
            raise ValueError(f"expected a call of {self._state.value}")


def is_fenced(error: KafkaError) -> bool:
    """Return whether the error means that a newer producer of the same transactional id has fenced this one."""
    return error.error in (Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH)
