"""Requests to the transaction coordinator: retries, and counted errors and times."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.transaction.add_partitions_to_txn import (
    AddPartitionsToTxnManager,
    PartitionErrors,
    TransactionPartitions,
)
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.log.scheduler import Scheduler
from tests.support.errors import raising
from tests.support.fixtures import fixture_of

PLACES = [("t", 0), ("t", 1), ("u", 0)]
QUESTION = TransactionPartitions("x", 1000, 3, PLACES)
BUSY = Errors.CONCURRENT_TRANSACTIONS


@dataclass
class FakeCoordinator:
    """Coordinator that refuses the first partition with each of ``errors`` in turn, and then refuses nothing."""

    clock: VirtualClock
    errors: list[Errors] = field(default_factory=list)
    failure: Exception | None = None
    took_ms: int = 0
    asked: list[tuple[str, str, int, int, list[TopicPartition]]] = field(default_factory=list)

    def _answer(
        self,
        kind: str,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        places: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, Errors]:
        self.asked.append((kind, transactional_id, producer_id, producer_epoch, list(places)))
        self.clock.advance_ms(self.took_ms)
        if self.failure is not None:
            raise self.failure
        error = self.errors.pop(0) if self.errors else Errors.NONE
        return {place: error if place == PLACES[0] else Errors.NONE for place in places}

    def add_partitions(self, *about: object) -> PartitionErrors:
        return self._answer("add", *about)  # type: ignore[arg-type]

    def verify_partitions(self, *about: object) -> PartitionErrors:
        return self._answer("verify", *about)  # type: ignore[arg-type]


class Bench:
    """Manager that retries every 20 ms for 100 ms."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.coordinator = FakeCoordinator(self.clock)
        self.scheduler = Scheduler(self.clock)
        self.manager = AddPartitionsToTxnManager(
            lambda _: cast(TransactionCoordinator, self.coordinator),
            self.clock,
            self.scheduler,
            retry_ms=20,
            retry_max_ms=100,
        )
        self.done: list[PartitionErrors] = []

    def add(self, again: Callable[[], TransactionPartitions] | None = None) -> None:
        self.manager.add(QUESTION, self.done.append, again)

    def after(self, ms: int) -> None:
        self.clock.advance_ms(ms)
        self.scheduler.run_due()


bench = fixture_of(Bench)


def test_what_is_asked_is_what_the_request_says(bench: Bench) -> None:
    """The coordinator gets the id, producer, epoch and partitions, and its result is returned."""
    bench.coordinator.errors = [Errors.TRANSACTION_ABORTABLE]
    found = bench.manager.verify(QUESTION)
    assert found == dict.fromkeys(PLACES, Errors.NONE) | {PLACES[0]: Errors.TRANSACTION_ABORTABLE}
    bench.add()
    assert bench.done == [dict.fromkeys(PLACES, Errors.NONE)]
    assert bench.coordinator.asked == [("verify", "x", 1000, 3, PLACES), ("add", "x", 1000, 3, PLACES)]


def test_a_transaction_that_is_ending_is_asked_about_again(bench: Bench) -> None:
    """The request is retried every 20 ms until the previous transaction has ended, and ``done`` is called once."""
    bench.coordinator.errors = [BUSY, BUSY]
    bench.add()
    bench.after(19)
    assert (len(bench.coordinator.asked), bench.done) == (1, [])
    bench.after(1)
    assert (len(bench.coordinator.asked), bench.done) == (2, [])
    bench.after(20)
    assert bench.done == [dict.fromkeys(PLACES, Errors.NONE)]
    bench.after(1000)
    assert (len(bench.coordinator.asked), len(bench.done)) == (3, 1)


def test_it_is_asked_about_for_so_long_and_no_longer(bench: Bench) -> None:
    """The last attempt is the first one that ends 100 ms after the begin, as in Kafka."""
    bench.coordinator.errors = [BUSY] * 100
    bench.add()
    for _ in range(10):
        bench.after(20)
    assert len(bench.coordinator.asked) == 6
    assert [found[PLACES[0]] for found in bench.done] == [BUSY]


@pytest.mark.parametrize("error", [Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.NOT_COORDINATOR, Errors.PRODUCER_FENCED])
def test_only_a_busy_transaction_is_asked_about_again(bench: Bench, error: Errors) -> None:
    """Other errors are passed to the client."""
    bench.coordinator.errors = [error]
    bench.add()
    assert bench.done[0][PLACES[0]] is error


def test_a_question_may_be_another_one_the_next_time(bench: Bench) -> None:
    """A retried Produce restarts its verification, and omits partitions that are verified meanwhile."""
    left = [TransactionPartitions("x", 1000, 3, PLACES[:1]), TransactionPartitions("x", 1000, 3, [])]
    bench.coordinator.errors = [BUSY, BUSY]
    bench.add(lambda: left.pop(0))
    bench.after(20)
    assert bench.coordinator.asked[1:] == [("add", "x", 1000, 3, PLACES[:1])]
    bench.after(20)
    assert bench.done == [{}]
    assert len(bench.coordinator.asked) == 2, "nothing is left to ask"


def test_a_question_that_cannot_be_made_again_ends_the_wait(bench: Bench) -> None:
    """The request gets UNKNOWN_SERVER_ERROR; otherwise only its closed connection would inform the client."""
    bench.coordinator.errors = [BUSY]
    bench.add(raising(MemoryError))
    bench.after(20)
    assert bench.done == [dict.fromkeys(PLACES, Errors.UNKNOWN_SERVER_ERROR)]


def test_a_stop_ends_the_wait(bench: Bench) -> None:
    """The response is CONCURRENT_TRANSACTIONS, so that the client retries with the next broker."""
    bench.coordinator.errors = [BUSY]
    bench.scheduler.close()
    bench.add()
    assert bench.done[0][PLACES[0]] is BUSY


@pytest.mark.parametrize(
    ("failure", "error"),
    [(KafkaError(Errors.NOT_COORDINATOR), Errors.NOT_COORDINATOR), (OSError("x"), Errors.UNKNOWN_SERVER_ERROR)],
)
def test_a_failure_is_an_error_of_each_partition(bench: Bench, failure: Exception, error: Errors) -> None:
    """A failed call becomes the error of each partition in the response."""
    bench.coordinator.failure = failure
    assert bench.manager.verify(QUESTION) == dict.fromkeys(PLACES, error)
    bench.add()
    assert bench.done == [dict.fromkeys(PLACES, error)]


def test_each_question_is_timed_and_each_refusal_counted(bench: Bench) -> None:
    """Each attempt is timed and counted as in Kafka; a request without partitions is not."""
    bench.coordinator.errors = [BUSY, BUSY, Errors.NONE, Errors.TRANSACTION_ABORTABLE]
    bench.coordinator.took_ms = 3
    bench.add()
    bench.after(30)
    bench.after(30)
    assert len(bench.done) == 1
    bench.manager.verify(QUESTION)
    bench.manager.verify(TransactionPartitions("x", 1, 1, []))
    bench.coordinator.failure = KafkaError(Errors.NOT_COORDINATOR)
    bench.manager.verify(QUESTION)
    times = bench.manager.verification_time_ms
    assert (sum(times.buckets().counts), times.buckets().sum) == (5, 15.0)
    (bucket,) = [place for place, count in enumerate(times.buckets().counts) if count]
    assert times.bounds[bucket - 1] < 3.0 <= times.bounds[bucket]
    assert bench.manager.verification_failures == 2 + 1 + 3
