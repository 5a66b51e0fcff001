"""Service around the transaction coordinator: settings, its topic, and partitions added to transactions."""

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.common.topic_names import TRANSACTION_STATE_TOPIC, TopicPartition
from kbroker.coordinator.transaction.add_partitions_to_txn import TransactionPartitions
from kbroker.coordinator.transaction.transaction_coordinator import Producer, TransactionSettings
from kbroker.coordinator.transaction_service import TransactionService, transaction_settings
from tests.support.errors import error_of
from tests.support.fixtures import fixture_of
from tests.support.groups import MemoryTopic
from tests.support.server import make_bench
from tests.support.thread_starts import allow_threads
from tests.support.transactions import T0, FakeMarkers, service_of

clock = fixture_of(VirtualClock)


@pytest.fixture
def service(clock: VirtualClock) -> TransactionService:
    service = service_of(MemoryTopic(clock), FakeMarkers(), clock)
    service.coordinator.start()
    return service


def begun(service: TransactionService) -> Producer:
    mine = service.coordinator.init_producer_id("x", 60_000)
    assert service.coordinator.add_partitions("x", *mine, [T0]) == {T0: Errors.NONE}
    return mine


def test_the_settings_are_kafkas() -> None:
    assert transaction_settings(make_bench().ctx.config) == TransactionSettings(load_buffer_bytes=5 * 1024 * 1024)


def test_a_service_without_threads_is_closed(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without threads closes its coordinator, which would abort transactions beside the next coordinator."""
    service = service_of(MemoryTopic(clock), FakeMarkers(), clock)
    started = allow_threads(monkeypatch, 1)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        service.start()
    assert service.coordinator.runtime.is_closed
    assert service._topics.on_deleted == []
    started[0].join(10)
    assert not started[0].is_alive()


def test_the_topic_is_made_as_kafka_makes_it() -> None:
    """The topic is compacted and uncompressed by its own configs."""
    bench = make_bench(transaction_state_log_num_partitions=3, transaction_state_log_segment_bytes=2 << 20)
    bench.ctx.topics.auto_create([TRANSACTION_STATE_TOPIC])
    view = bench.ctx.topics.get(TRANSACTION_STATE_TOPIC)
    assert view is not None
    assert (len(view.partitions), view.is_internal) == (3, True)
    assert dict(view.configs) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": str(2 << 20),
        "unclean.leader.election.enable": "false",
    }


def ending(service: TransactionService) -> Producer:
    """End a transaction, whose marker cannot be written for now; return the producer's next id and epoch."""
    service.coordinator._sender._markers.errors[T0] = Errors.KAFKA_STORAGE_ERROR  # type: ignore[attr-defined]
    return service.coordinator.end_transaction("x", *begun(service), True)


def asked(
    service: TransactionService, mine: Producer, partition: TopicPartition = T0
) -> list[dict[TopicPartition, Errors]]:
    """Add a partition to a transaction; return the results, including later ones."""
    found: list[dict[TopicPartition, Errors]] = []
    service.partitions.add(TransactionPartitions("x", *mine, [partition]), found.append)  # type: ignore[arg-type]
    return found


def test_partitions_join_at_once(service: TransactionService) -> None:
    assert asked(service, begun(service), ("u", 0)) == [{("u", 0): Errors.NONE}]


def test_partitions_join_when_the_transaction_before_is_complete(
    service: TransactionService, clock: VirtualClock
) -> None:
    """A waiting request is retried every 20 ms."""
    found = asked(service, ending(service))
    assert found == []
    service.coordinator._sender._markers.errors.clear()  # type: ignore[attr-defined]
    service.coordinator._sender.retry()
    clock.advance_ms(20)
    service._retries.run_due()
    assert found == [{T0: Errors.NONE}]


def test_partitions_that_wait_too_long(service: TransactionService, clock: VirtualClock) -> None:
    """After 100 ms the client gets CONCURRENT_TRANSACTIONS and may retry."""
    found = asked(service, ending(service))
    for _ in range(4):
        clock.advance_ms(20)
        service._retries.run_due()
    assert found == []
    clock.advance_ms(20)
    service._retries.run_due()
    assert found == [{T0: Errors.CONCURRENT_TRANSACTIONS}]


def test_a_stop_ends_the_wait(service: TransactionService) -> None:
    bumped = ending(service)
    service._retries.close()
    assert asked(service, bumped) == [{T0: Errors.CONCURRENT_TRANSACTIONS}]
    assert service.close(1)
    assert error_of(service.coordinator.runtime.find, "x") is Errors.COORDINATOR_NOT_AVAILABLE
