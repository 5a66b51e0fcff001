"""Administration of transactions of any Kafka cluster: list, describe and abort them.

Source: ``TransactionsCommand``, KIP-664, KIP-890 (forced termination).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kbroker.client.cluster import Cluster, check, retried
from kbroker.client.connection import Body
from kbroker.client.coordinators import TRANSACTION, find_coordinator
from kbroker.client.partitions import by_leader, partition_rows, topic_rows
from kbroker.common.errors import Errors, KafkaError, ignoring
from kbroker.common.topic_names import TopicPartition

INIT_PRODUCER_ID, WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 22, 27, 61, 65, 66
FIRST_WITH_DURATION, FIRST_WITH_PATTERN = 1, 2  # versions of ListTransactions
FIRST_WITH_TRANSACTION_VERSION = 2  # version of WriteTxnMarkers
PARTITIONS_PER_REQUEST = 500
FENCING_TIMEOUT_MS = 60_000  # transaction time-out of the id until its producer returns


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id and the broker that coordinates it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id. ``start_time_ms``: since 1970, None outside a transaction; ``partitions``: partitions with
    records of the transaction, or waiting for its end marker.
    """

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """State of a producer in a partition; -1 for unknown values.

    ``start_offset``: first offset of its open transaction, None without one.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None


class Transactions:
    """Requests about transactions over a `Cluster`, which the caller owns.

    Raises (all methods): KafkaError with the request and the broker's message; BrokerConnectionError.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @retried
    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Return the transactional ids of all brokers, sorted by id.

        Args:
            states: only ids in these states, by Kafka's names; empty: all.
            producer_ids: only ids with one of these producer ids; empty: all.
            duration_ms: only transactions that have been open for longer; negative: all.
            pattern: only ids that match this regular expression (RE2).

        Raises: KafkaError UNSUPPORTED_VERSION for a filter that a broker does not support.
        """

        def body(version: int) -> Body:
            fields: Body = {"StateFilters": [*states], "ProducerIdFilters": [*producer_ids]}
            for name, first, given, default in (
                ("DurationFilter", FIRST_WITH_DURATION, duration_ms, -1),
                ("TransactionalIdPattern", FIRST_WITH_PATTERN, pattern, None),
            ):
                if version >= first:
                    fields[name] = given
                elif given != default:
                    text = f"ListTransactions: expected version {first} or higher for {name}, the broker has {version}"
                    raise KafkaError(Errors.UNSUPPORTED_VERSION, text)
            return fields

        def one_broker(node_id: int) -> list[ListedTransaction]:
            response = self.cluster.ask(LIST_TRANSACTIONS, body, "listing transactions", node_id=node_id)
            if response["UnknownStateFilters"]:
                unknown = ", ".join(response["UnknownStateFilters"])
                text = f"expected states such as Ongoing or CompleteCommit, which broker {node_id} has, got {unknown}"
                raise KafkaError(Errors.INVALID_REQUEST, text)
            return [
                ListedTransaction(row["TransactionalId"], node_id, row["ProducerId"], row["TransactionState"])
                for row in response["TransactionStates"]
            ]

        self.cluster.fetch_metadata([])
        found = [row for node_id in sorted(self.cluster.nodes) for row in one_broker(node_id)]
        return sorted(found, key=lambda row: (row.transactional_id, row.coordinator))

    @retried
    def describe(self, transactional_id: str) -> TransactionDescription:
        """Return one transactional id. Raises: KafkaError TRANSACTIONAL_ID_NOT_FOUND."""
        node_id = find_coordinator(self.cluster, TRANSACTION, transactional_id)
        response = self.cluster.request(
            DESCRIBE_TRANSACTIONS, {"TransactionalIds": [transactional_id]}, node_id=node_id
        )
        (row,) = response["TransactionStates"]
        check(row["ErrorCode"], f"transactional id {transactional_id!r}")
        start_ms = row["TransactionStartTimeMs"]
        places = sorted((topic["Topic"], index) for topic in row["Topics"] for index in topic["Partitions"])
        return TransactionDescription(
            transactional_id,
            node_id,
            row["ProducerId"],
            row["ProducerEpoch"],
            row["TransactionState"],
            row["TransactionTimeoutMs"],
            start_ms if start_ms >= 0 else None,
            tuple(places),
        )

    def describe_producers(
        self, places: Iterable[TopicPartition], broker_id: int | None = None
    ) -> Mapping[TopicPartition, Sequence[ActiveProducer]]:
        """Return the producers in the state of each partition, by producer id.

        Args: ``broker_id``: query this replica; None: the leaders.
        """
        found: dict[TopicPartition, Sequence[ActiveProducer]] = {}
        wanted = list(places)
        if broker_id is not None and wanted:
            self.cluster.check_node(broker_id)
        for place in wanted:
            self.cluster.leader(*place)  # a missing partition is not looked up again
        for start in range(0, len(wanted), PARTITIONS_PER_REQUEST):
            part = wanted[start : start + PARTITIONS_PER_REQUEST]
            found.update(self.cluster.retry(lambda part=part: self._described(part, broker_id)))  # type: ignore[misc]
        return found

    def _described(
        self, places: Sequence[TopicPartition], broker_id: int | None
    ) -> Mapping[TopicPartition, Sequence[ActiveProducer]]:
        found: dict[TopicPartition, Sequence[ActiveProducer]] = {}
        by_node = by_leader(self.cluster, places) if broker_id is None else {broker_id: places}
        for node_id, some in by_node.items():
            topics = topic_rows(some, partitions="PartitionIndexes")
            response = self.cluster.request(DESCRIBE_PRODUCERS, {"Topics": topics}, node_id=node_id)
            for place, row in partition_rows(response["Topics"]):
                check(row["ErrorCode"], f"partition {place[0]}-{place[1]}", row["ErrorMessage"])
                producers = [_producer(one) for one in row["ActiveProducers"]]
                found[place] = sorted(producers, key=lambda one: one.producer_id)
        return found

    def find_hanging(
        self, places: Iterable[TopicPartition], *, now_ms: int, max_timeout_ms: int, broker_id: int | None = None
    ) -> list[tuple[TopicPartition, ActiveProducer]]:
        """Return open transactions that no coordinator will end: none lists them with that partition.

        Args:
            places: the partitions.
            now_ms: current time since 1970.
            max_timeout_ms: age up to which transactions are left out.
            broker_id: query this replica; None: the leaders.
        """
        open_ones = [
            (place, producer)
            for place, producers in sorted(self.describe_producers(places, broker_id).items())
            for producer in producers
            if producer.start_offset is not None and now_ms - producer.last_timestamp_ms > max_timeout_ms
        ]
        if not open_ones:
            return []
        producer_ids = {producer.producer_id for _, producer in open_ones}
        listed = {row.producer_id: row.transactional_id for row in self.list_transactions(producer_ids=producer_ids)}
        awaited: dict[int, Collection[TopicPartition]] = {}
        for producer_id, transactional_id in listed.items():
            with ignoring(Errors.TRANSACTIONAL_ID_NOT_FOUND):
                awaited[producer_id] = self.describe(transactional_id).partitions
        return [(place, one) for place, one in open_ones if place not in awaited.get(one.producer_id, ())]

    def abort(self, place: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """Write an abort marker to one partition, bypassing the coordinator."""

        def body(version: int) -> Body:
            marker: Body = {
                "ProducerId": producer_id,
                "ProducerEpoch": producer_epoch,
                "TransactionResult": False,
                "Topics": [{"Name": place[0], "PartitionIndexes": [place[1]]}],
                "CoordinatorEpoch": max(0, coordinator_epoch),  # -1 from a partition without a marker
            }
            if version >= FIRST_WITH_TRANSACTION_VERSION:
                marker["TransactionVersion"] = 0
            return {"Markers": [marker]}

        self.cluster.leader(*place)  # a missing partition is not looked up again

        def attempt() -> None:
            node_id = self.cluster.leader(*place)
            response = self.cluster.request(WRITE_TXN_MARKERS, body, node_id=node_id)
            for marker in response["Markers"]:
                for _, row in partition_rows(marker["Topics"]):
                    check(row["ErrorCode"], f"aborting producer {producer_id} in {place[0]}-{place[1]}")

        self.cluster.retry(attempt)

    def abort_at(self, place: TopicPartition, start_offset: int) -> ActiveProducer:
        """Abort the transaction that begins at an offset of a partition; return its producer.

        Raises: KafkaError INVALID_TXN_STATE if no open transaction begins there.
        """
        for producer in self.describe_producers([place])[place]:
            if producer.start_offset == start_offset:
                self.abort(place, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
                return producer
        text = f"no transaction that is open in {place[0]}-{place[1]} starts at offset {start_offset}"
        raise KafkaError(Errors.INVALID_TXN_STATE, text)

    def force_terminate(self, transactional_id: str) -> None:
        """Abort the open transaction of a transactional id, and fence its producer.

        Raises: KafkaError TRANSACTIONAL_ID_NOT_FOUND.
        """
        self.describe(transactional_id)  # InitProducerId would create an id that does not exist
        fields: Body = {"TransactionalId": transactional_id, "TransactionTimeoutMs": FENCING_TIMEOUT_MS}

        def attempt() -> None:
            node_id = find_coordinator(self.cluster, TRANSACTION, transactional_id)
            self.cluster.ask(INIT_PRODUCER_ID, fields, f"transactional id {transactional_id!r}", node_id=node_id)

        self.cluster.retry(attempt)


def _producer(row: Body) -> ActiveProducer:
    start_offset = row["CurrentTxnStartOffset"]
    return ActiveProducer(
        row["ProducerId"],
        row["ProducerEpoch"],
        row["CoordinatorEpoch"],
        row["LastSequence"],
        row["LastTimestamp"],
        start_offset if start_offset >= 0 else None,
    )
