"""Metrics of transactions by Kafka's names, before the first transaction and in each state."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.transaction.add_partitions_to_txn import TransactionPartitions
from kbroker.coordinator.transaction.transaction_log import StatePartition
from kbroker.metrics.families import Buckets
from kbroker.observe.broker_metrics import LOGS, TRANSACTIONS
from kbroker.observe.metric_table import families
from tests.support.fixtures import fixture_of
from tests.support.groups import MemoryTopic
from tests.support.transactions import T0, T1, FakeMarkers, service_of

NAMES = {
    "kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate": 0,
    "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=UnknownDestinationQueueSize": 0,
    "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=LogAppendRetryQueueSize": 0,
    "kbroker_transactions_transactional_ids": 0,
    "kbroker_transactions_open_transactions": 0,
    "kbroker_transactions_failed_partitions": 0,
}
LOAD_TIMES = (
    "transaction-coordinator-metrics:partition-load-time-max",
    "transaction-coordinator-metrics:partition-load-time-avg",
)
TIMES = "kafka.server:type=AddPartitionsToTxnManager,name=VerificationTimeMs"


class Scene:
    """Transaction service over a topic in memory, with markers that can be refused; its threads do not run."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.topic, self.markers = MemoryTopic(self.clock), FakeMarkers()
        self.service = service_of(self.topic, self.markers, self.clock)
        self.is_started = False

    def start(self) -> None:
        self.service.coordinator.start()
        self.is_started = True

    def shown(self) -> dict[str, Any]:
        """Return the values by Kafka's name, or by the Prometheus name of kbroker's own metrics."""
        service = self.service if self.is_started else None
        parts: Any = SimpleNamespace(ctx=SimpleNamespace(transaction_service=SimpleNamespace(started=service)))
        found = {}
        for family in families(TRANSACTIONS, parts):
            ((labels, value),) = family.collect()
            assert labels == ()
            found[family.kafka_name or family.prometheus_name] = value
        return found


scene = fixture_of(Scene)


def test_before_the_first_transaction_all_are_there(scene: Scene) -> None:
    """All names are shown before the first transaction; the load times are NaN."""
    shown = scene.shown()
    times = shown.pop(TIMES)
    assert (sum(times.counts), times.sum) == (0, 0.0)
    assert all(math.isnan(shown.pop(name)) for name in LOAD_TIMES)
    assert shown == NAMES


def test_each_state_of_a_transaction_shows(scene: Scene) -> None:
    """A transaction is counted while it is open, while its markers are refused, and while its end cannot be logged."""
    scene.start()
    coordinator = scene.service.coordinator
    mine = coordinator.init_producer_id("x", 60_000)
    other = coordinator.init_producer_id("y", 60_000)
    assert coordinator.add_partitions("x", *mine, [T0, T1])[T0] is Errors.NONE
    shown = scene.shown()
    assert shown["kbroker_transactions_transactional_ids"] == 2
    assert shown["kbroker_transactions_open_transactions"] == 1
    assert all(shown[name] >= 0 for name in LOAD_TIMES)
    scene.markers.errors = {T0: Errors.KAFKA_STORAGE_ERROR, T1: Errors.KAFKA_STORAGE_ERROR}
    coordinator.end_transaction("x", *mine, True)
    queue = "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name="
    assert scene.shown()[queue + "UnknownDestinationQueueSize"] == 2
    assert scene.shown()[queue + "LogAppendRetryQueueSize"] == 0
    assert scene.shown()["kbroker_transactions_open_transactions"] == 0
    scene.markers.errors.clear()

    def refuse(*args: Any) -> None:
        args[1].cancel()
        raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StatePartition, "append_move", refuse)
        coordinator._sender.retry()
    shown = scene.shown()
    assert (shown[queue + "UnknownDestinationQueueSize"], shown[queue + "LogAppendRetryQueueSize"]) == (0, 1)
    coordinator._sender.retry()
    shown = scene.shown()
    assert (shown[queue + "UnknownDestinationQueueSize"], shown[queue + "LogAppendRetryQueueSize"]) == (0, 0)
    assert other.producer_epoch == 0


def test_a_partition_that_cannot_be_read_shows(scene: Scene) -> None:
    """Transactional ids in an unreadable partition are not served until an operator repairs it."""
    scene.topic.logs[0] = None
    scene.start()
    assert scene.shown()["kbroker_transactions_failed_partitions"] == 1


def test_questions_show(scene: Scene) -> None:
    """Verifications are shown with their times and the number of refused partitions."""
    scene.start()
    mine = scene.service.coordinator.init_producer_id("x", 60_000)
    scene.service.partitions.add(TransactionPartitions("x", *mine, [T0]), lambda found: None)
    scene.service.partitions.verify(TransactionPartitions("x", *mine, [T0, T1]))
    shown = scene.shown()
    assert shown["kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate"] == 1
    assert isinstance(shown[TIMES], Buckets)
    assert sum(shown[TIMES].counts) == 2


def test_producer_ids_are_counted_by_partition() -> None:
    """The sum covers all open partitions; a closed partition has no producer ids."""
    logs = [SimpleNamespace(producer_count=count) for count in (2, 0, 5)]
    views = [
        SimpleNamespace(name="t", partitions=[logs[0], None, logs[1]]),
        SimpleNamespace(name="u", partitions=logs[2:]),
    ]
    ctx = SimpleNamespace(topics=SimpleNamespace(all=lambda: views), logs=SimpleNamespace(lost_offsets=3))
    parts: Any = SimpleNamespace(ctx=ctx, logs=ctx.logs)
    by_name = {family.kafka_name: family for family in families(LOGS, parts)}
    ((_, value),) = by_name["kafka.server:type=ReplicaManager,name=ProducerIdCount"].collect()
    assert value == 7
    (lost,) = [family for family in families(LOGS, parts) if family.prometheus_name == "kbroker_logs_lost_offsets"]
    assert list(lost.collect()) == [((), 3)]
