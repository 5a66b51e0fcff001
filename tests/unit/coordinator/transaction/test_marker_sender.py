"""Retries of markers: intervals, waiting transactions, and a closed broker."""

import itertools
from collections.abc import Callable

import pytest

from kbroker.common.errors import Errors
from kbroker.coordinator.transaction.marker_sender import RETRY_BACKOFF_MAX_MS, RETRY_BACKOFF_MS
from kbroker.coordinator.transaction.transaction_log import StatePartition
from kbroker.coordinator.transaction.transaction_metadata import Move, TransactionMetadata, TransactionState
from tests.support.errors import error_of, raising
from tests.support.fixtures import fixture_of
from tests.support.transactions import T0, T1, T2, Transactions

NOT_NOW = (
    Errors.KAFKA_STORAGE_ERROR,
    Errors.NOT_LEADER_OR_FOLLOWER,
    Errors.NOT_ENOUGH_REPLICAS,
    Errors.REQUEST_TIMED_OUT,
    Errors.UNKNOWN_SERVER_ERROR,
)

tx = fixture_of(Transactions)


def count_tries(tx: Transactions) -> list[int]:
    """Return the list to which the time of each attempt in ms is appended."""
    began_ms = tx.clock.now_ms()
    tries: list[int] = []
    write = tx.markers.write

    def counted(*row: object) -> Errors:
        tries.append(tx.clock.now_ms() - began_ms)
        return write(*row)  # type: ignore[arg-type]

    tx.markers.write = counted  # type: ignore[method-assign, assignment]
    return tries


def fails_later() -> Callable[..., None]:
    """Return a function that writes decisions and fails at completions."""
    append = StatePartition.append_move

    def append_move(partition: StatePartition, metadata: TransactionMetadata, move: Move) -> None:
        if move.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            metadata.cancel()
            raise MemoryError
        append(partition, metadata, move)

    return append_move


def test_tries_become_rarer(tx: Transactions) -> None:
    """Intervals grow from 100 ms to five seconds, and one thread retries for all transactions."""
    tx.markers.errors[T0] = Errors.KAFKA_STORAGE_ERROR
    mine = tx.init()
    tx.add(mine)
    tries = count_tries(tx)
    tx.end(mine)
    for _ in range(250):
        tx.after(100)
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert gaps[:4] == [RETRY_BACKOFF_MS, 200, 400, 800]
    assert max(gaps) == gaps[-1] == RETRY_BACKOFF_MAX_MS
    assert tx.scheduler.task_names.count("txn-markers") == 1


@pytest.mark.parametrize("error", NOT_NOW)
def test_what_is_tried_again(tx: Transactions, error: Errors) -> None:
    tx.markers.errors[T1] = error
    mine = tx.init()
    tx.add(mine, T0, T1, T2)
    tx.end(mine)
    assert tx.see().partitions == {T1}
    tx.markers.errors.clear()
    tx.after(RETRY_BACKOFF_MS)
    assert tx.state() == "CompleteCommit"
    assert sorted(row[0] for row in tx.markers.written) == [T0, T1, T2]


@pytest.mark.parametrize("at", ["marker", "partitions", "record"])
def test_a_mistake_loses_no_transaction(tx: Transactions, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """After a MemoryError or an unexpected error the prepared transaction and other waiting ones are retried."""
    tx.markers.errors[T1] = Errors.KAFKA_STORAGE_ERROR
    for name, place in (("x", T0), ("y", T1), ("z", T0)):
        mine = tx.init(name)
        tx.add(mine, place, name=name)
        with monkeypatch.context() as patch:
            if at == "marker":
                patch.setattr(tx.markers, "write", raising(MemoryError))
            elif at == "partitions":
                patch.setattr(TransactionMetadata, "remove_partitions", raising(MemoryError))
            else:
                patch.setattr(StatePartition, "append_move", fails_later())
            tx.end(mine, name=name)
            tx.after(RETRY_BACKOFF_MS)
    assert tx.state("x") == ("CompleteCommit" if at == "partitions" else "PrepareCommit")
    assert tx.state("y") == "PrepareCommit"
    tx.markers.errors.clear()
    tx.after(RETRY_BACKOFF_MAX_MS)
    assert {tx.state(name) for name in "xyz"} == {"CompleteCommit"}
    assert tx.coordinator.queue_sizes == (0, 0)


def test_one_that_waits_does_not_hold_up_others(tx: Transactions) -> None:
    tx.markers.errors[T1] = Errors.KAFKA_STORAGE_ERROR
    for name, place in (("x", T1), ("y", T0)):
        mine = tx.init(name)
        tx.add(mine, place, name=name)
        tx.end(mine, name=name)
    assert (tx.state("x"), tx.state("y")) == ("PrepareCommit", "CompleteCommit")


def test_one_that_waits_long_does_not_slow_down_others(tx: Transactions) -> None:
    """A marker that fails briefly is retried after 100 ms, although another partition is offline for long."""
    tx.markers.errors[T1] = Errors.KAFKA_STORAGE_ERROR
    mine = tx.init()
    tx.add(mine, T1)
    tx.end(mine)
    tx.after(60_000)
    tx.markers.errors[T0] = Errors.NOT_LEADER_OR_FOLLOWER
    other = tx.init("y")
    tx.add(other, T0, name="y")
    tx.end(other, name="y")
    del tx.markers.errors[T0]
    tx.after(RETRY_BACKOFF_MS)
    assert (tx.state("x"), tx.state("y")) == ("PrepareCommit", "CompleteCommit")
    assert tx.scheduler.task_names.count("txn-markers") == 1
    tries = count_tries(tx)
    tx.after(2 * RETRY_BACKOFF_MAX_MS)
    assert len(tries) <= 8


def test_a_partition_that_is_dropped_takes_its_markers_along(tx: Transactions) -> None:
    """The next coordinator of the id writes the markers, here the same coordinator after a load."""
    tx.markers.errors[T0] = Errors.KAFKA_STORAGE_ERROR
    mine = tx.init()
    tx.add(mine)
    tx.end(mine)
    index = tx.coordinator.runtime.index_of("x")
    tx.coordinator.runtime.unload(index, 1)
    tx.after(500)
    assert tx.coordinator.queue_sizes == (0, 0)
    tx.markers.errors.clear()
    tx.coordinator.runtime.load(index, 2)
    tx.after(RETRY_BACKOFF_MS)
    assert tx.state() == "CompleteCommit"
    assert [row[:5] for row in tx.markers.written] == [(T0, 1000, 1, 2, True)]


def test_a_closed_broker_waits_for_nothing(tx: Transactions) -> None:
    """The next start completes the prepared transaction."""
    tx.markers.errors[T0] = Errors.KAFKA_STORAGE_ERROR
    mine = tx.init()
    tx.add(mine)
    tx.scheduler.close()
    tx.end(mine)
    tx.markers.errors.clear()
    again = tx.restart()
    assert again.state() == "CompleteCommit"


def test_many_transactions_that_wait(tx: Transactions) -> None:
    """Waiting transactions have no thread and no timer each."""
    tx.markers.errors[T0] = Errors.KAFKA_STORAGE_ERROR
    for number in range(500):
        mine = tx.init(f"id-{number}")
        tx.add(mine, name=f"id-{number}")
        tx.end(mine, name=f"id-{number}")
    assert tx.coordinator.queue_sizes == (500, 0)
    assert len(tx.scheduler.task_names) == 3
    assert error_of(tx.init, "id-7") is Errors.CONCURRENT_TRANSACTIONS
    tx.markers.errors.clear()
    tx.after(RETRY_BACKOFF_MS)
    assert tx.coordinator.queue_sizes == (0, 0)
