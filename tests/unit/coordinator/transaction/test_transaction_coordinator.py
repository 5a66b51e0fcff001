"""Transaction coordinator on a virtual clock: fencing, partitions, ends, timeouts, expiration and restarts."""

from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator import internal_topic
from kbroker.coordinator.transaction.transaction_coordinator import Producer, TransactionSettings
from kbroker.coordinator.transaction.transaction_metadata import EXHAUSTED_EPOCH, MAX_EPOCH, TransactionState
from tests.support.errors import error_of, raising
from tests.support.fixtures import fixture_of
from tests.support.transactions import T0, T1, T2, Transactions

tx = fixture_of(Transactions)


# ---- InitProducerId


def test_a_producer_gets_the_next_epoch(tx: Transactions) -> None:
    """Each initialization has the same producer id; another transactional id has another one."""
    assert tx.init() == Producer(1000, 0)
    assert tx.init() == Producer(1000, 1)
    assert tx.init("y") == Producer(1001, 0)
    assert tx.state() == "Empty"


@pytest.mark.parametrize(
    ("name", "timeout_ms", "error"),
    [("x", 0, Errors.INVALID_TRANSACTION_TIMEOUT), ("x" * 32_768, 1, Errors.UNKNOWN_SERVER_ERROR)],
)
def test_bad_inits(tx: Transactions, name: str, timeout_ms: int, error: Errors) -> None:
    """A refused transactional id, such as one too long for a record, is not stored."""
    assert error_of(tx.init, name, None, timeout_ms) is error
    assert tx.coordinator.counts() == (0, 0)
    assert tx.records() == []


def test_the_longest_name_and_timeout_are_taken(tx: Transactions) -> None:
    name = "é" * 16_383 + "x"
    assert tx.init(name, timeout_ms=900_000) == Producer(1000, 0)
    assert tx.restart().init(name) == Producer(1000, 1)


def test_two_phase_commit_needs_its_setting(tx: Transactions) -> None:
    """Two-phase commit (KIP-939) needs its config, has no timeout, and does not support kept transactions."""
    ask = tx.coordinator.init_producer_id
    assert error_of(ask, "x", 1, enable_two_phase_commit=True) is Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert error_of(ask, "x", 1, keep_prepared=True) is Errors.UNSUPPORTED_VERSION
    tx = Transactions(TransactionSettings(two_phase_commit=True))
    producer = tx.coordinator.init_producer_id("x", -5, enable_two_phase_commit=True)
    tx.add(producer)
    tx.after(10 * 900_000)
    assert tx.state() == "Ongoing"
    assert tx.see().timeout_ms == 2**31 - 1


def test_a_producer_goes_on_after_an_error(tx: Transactions) -> None:
    """The epoch is bumped, a retry gets the same response, and an older epoch or another id is fenced (KIP-360)."""
    mine = tx.init()
    assert tx.init(expected=mine) == Producer(1000, 1)
    assert tx.init(expected=mine) == Producer(1000, 1)
    assert error_of(tx.init, expected=Producer(1001, 1)) is Errors.PRODUCER_FENCED
    assert tx.init() == Producer(1000, 2)
    assert error_of(tx.init, expected=mine) is Errors.PRODUCER_FENCED
    assert error_of(tx.init, expected=Producer(1000, 1)) is Errors.PRODUCER_FENCED


def test_an_unknown_id_takes_any_producer(tx: Transactions) -> None:
    """A producer whose transactional id has expired gets a new producer id."""
    assert tx.init(expected=Producer(7, 7)) == Producer(1000, 0)


def test_an_exhausted_epoch_brings_another_producer_id(tx: Transactions) -> None:
    """A producer that states its id gets a new id too, and its retry is recognized by the previous id."""
    tx.init()
    tx.metadata().producer_epoch = EXHAUSTED_EPOCH - 1
    assert tx.init() == Producer(1000, EXHAUSTED_EPOCH)
    mine = Producer(1000, EXHAUSTED_EPOCH)
    assert tx.init(expected=mine) == Producer(1001, 0)
    assert tx.init(expected=mine) == Producer(1001, 0)
    assert tx.init() == Producer(1001, 1)
    assert error_of(tx.init, expected=mine) is Errors.PRODUCER_FENCED


def test_an_open_transaction_is_aborted_first(tx: Transactions) -> None:
    """A new producer gets CONCURRENT_TRANSACTIONS, the old one is fenced, and abort markers have the bumped epoch."""
    old = tx.init()
    assert tx.add(old, T0, T1) is Errors.NONE
    assert error_of(tx.init) is Errors.CONCURRENT_TRANSACTIONS
    assert tx.state() == "CompleteAbort"
    assert tx.markers.written == [(T0, 1000, 1, 0, False, 2), (T1, 1000, 1, 0, False, 2)]
    assert error_of(tx.end, old, version=0) is Errors.PRODUCER_FENCED
    assert tx.add(old) is Errors.PRODUCER_FENCED
    assert tx.init() == Producer(1000, 2)


def test_fencing_the_last_epoch(tx: Transactions) -> None:
    """The coordinator fences with an epoch above those of clients, and the next producer has a new id."""
    tx.init()
    tx.metadata().producer_epoch = EXHAUSTED_EPOCH
    assert tx.add(Producer(1000, EXHAUSTED_EPOCH)) is Errors.NONE
    assert error_of(tx.init) is Errors.CONCURRENT_TRANSACTIONS
    assert tx.markers.written == [(T0, 1000, MAX_EPOCH, 0, False, 2)]
    assert tx.init() == Producer(1001, 0)


def test_after_the_last_fence(tx: Transactions) -> None:
    """The fencing epoch belongs to no producer; a producer with the previous epoch gets another producer id."""
    tx.init(timeout_ms=15_000)
    tx.metadata().producer_epoch = EXHAUSTED_EPOCH
    last = Producer(1000, EXHAUSTED_EPOCH)
    tx.add(last)
    tx.after(30_000)
    assert tx.see().producer_epoch == MAX_EPOCH
    forged = Producer(1000, MAX_EPOCH)
    assert tx.add(forged) is Errors.PRODUCER_FENCED
    assert error_of(tx.end, forged, True) is Errors.PRODUCER_FENCED
    assert error_of(tx.end, forged, False) is Errors.PRODUCER_FENCED
    assert tx.init(expected=last) == Producer(1001, 0)
    assert tx.init(expected=last) == Producer(1001, 0)


def test_a_retry_at_the_last_epoch(tx: Transactions) -> None:
    """The retry of a lost response gets the last epoch again."""
    tx.init()
    tx.metadata().producer_epoch = EXHAUSTED_EPOCH - 1
    before = Producer(1000, EXHAUSTED_EPOCH - 1)
    assert tx.init(expected=before) == Producer(1000, EXHAUSTED_EPOCH)
    assert tx.init(expected=before) == Producer(1000, EXHAUSTED_EPOCH)
    assert error_of(tx.init, expected=Producer(1000, 3)) is Errors.PRODUCER_FENCED


# ---- partitions


def test_partitions_join(tx: Transactions) -> None:
    """The transaction begins with its first partitions, and a partition that was added is not written again."""
    mine = tx.init()
    tx.after(500)
    assert tx.add(mine, T0) is Errors.NONE
    began_ms = tx.clock.wall_ms()
    count = len(tx.records())
    tx.after(500)
    assert tx.add(mine, T0) is Errors.NONE
    assert len(tx.records()) == count
    assert tx.add(mine, T1, T2) is Errors.NONE
    seen = tx.see()
    assert (seen.state, seen.start_ms) == (TransactionState.ONGOING, began_ms)
    assert seen.partitions == {T0, T1, T2}
    assert tx.coordinator.counts() == (1, 1)


def test_verification(tx: Transactions) -> None:
    """Partitions of the transaction are verified; others, and other producers, get errors."""
    mine = tx.init()
    verify = tx.coordinator.verify_partitions
    assert verify("x", *mine, [T0]) == {T0: Errors.TRANSACTION_ABORTABLE}
    tx.add(mine, T0)
    assert verify("x", *mine, [T0, T1]) == {T0: Errors.NONE, T1: Errors.TRANSACTION_ABORTABLE}
    assert verify("x", 1000, 5, [T0]) == {T0: Errors.PRODUCER_FENCED}
    assert verify("x", 1, 0, [T0]) == {T0: Errors.INVALID_PRODUCER_ID_MAPPING}
    assert verify("y", *mine, [T0]) == {T0: Errors.INVALID_PRODUCER_ID_MAPPING}
    assert verify("", *mine, [T0]) == {T0: Errors.INVALID_REQUEST}


# ---- ends


@pytest.mark.parametrize("commit", [True, False])
def test_a_classic_end(tx: Transactions, commit: bool) -> None:
    """The epoch stays; the same end again is a retry, and the opposite end is refused."""
    mine = tx.init()
    tx.add(mine, T1, T0, version=0)
    assert tx.end(mine, commit, version=0) == Producer(-1, -1)
    assert tx.markers.written == [(T0, 1000, 0, 0, commit, 0), (T1, 1000, 0, 0, commit, 0)]
    assert tx.state() == ("CompleteCommit" if commit else "CompleteAbort")
    assert tx.see().partitions == frozenset()
    assert tx.end(mine, commit, version=0) == Producer(-1, -1)
    assert error_of(tx.end, mine, not commit, version=0) is Errors.INVALID_TXN_STATE
    assert len(tx.markers.written) == 2


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_with_version_2_bumps_the_epoch(tx: Transactions, commit: bool) -> None:
    """Markers and later requests have the new epoch; a retry with the old epoch gets the same response."""
    mine = tx.init()
    tx.add(mine)
    bumped = tx.end(mine, commit)
    assert bumped == Producer(1000, 1)
    assert tx.markers.written == [(T0, 1000, 1, 0, commit, 2)]
    assert tx.end(mine, commit) == bumped
    assert error_of(tx.end, mine, not commit) is Errors.INVALID_TXN_STATE
    assert error_of(tx.end, bumped, True) is Errors.INVALID_TXN_STATE
    assert error_of(tx.end, Producer(1000, 2), commit) is Errors.PRODUCER_FENCED
    assert tx.add(mine) is Errors.PRODUCER_FENCED
    assert tx.add(bumped) is Errors.NONE


def test_the_abort_of_nothing_bumps_the_epoch(tx: Transactions) -> None:
    """An abort without a transaction is accepted in each idle state, and refused by the classic protocol."""
    mine = tx.init()
    assert error_of(tx.end, mine, False, version=0) is Errors.INVALID_TXN_STATE
    assert error_of(tx.end, mine, True) is Errors.INVALID_TXN_STATE
    one = tx.end(mine, False)
    assert one == Producer(1000, 1)
    assert tx.end(one, False) == Producer(1000, 2)
    tx.add(Producer(1000, 2))
    tx.end(Producer(1000, 2), True)
    assert tx.end(Producer(1000, 3), False) == Producer(1000, 4)
    assert tx.state() == "CompleteAbort"


def test_the_end_of_the_last_epoch_brings_another_producer_id(tx: Transactions) -> None:
    """The marker has the coordinator's epoch, and a retry is recognized by the previous producer id."""
    tx.init()
    tx.metadata().producer_epoch = EXHAUSTED_EPOCH
    last = Producer(1000, EXHAUSTED_EPOCH)
    tx.add(last)
    assert tx.end(last) == Producer(1001, 0)
    assert tx.markers.written == [(T0, 1000, MAX_EPOCH, 0, True, 2)]
    assert tx.end(last) == Producer(1001, 0)
    assert error_of(tx.end, last, False) is Errors.INVALID_TXN_STATE
    assert tx.add(Producer(1001, 0)) is Errors.NONE


# ---- markers that cannot be written


def test_a_marker_that_waits(tx: Transactions) -> None:
    """EndTxn succeeds; the transactional id is busy until the marker is written, and then complete."""
    tx.markers.errors[T1] = Errors.KAFKA_STORAGE_ERROR
    mine = tx.init()
    tx.add(mine, T0, T1)
    bumped = tx.end(mine)
    assert bumped == Producer(1000, 1)
    assert tx.state() == "PrepareCommit"
    assert tx.see().partitions == {T1}
    assert tx.coordinator.queue_sizes == (1, 0)
    assert error_of(tx.init) is Errors.CONCURRENT_TRANSACTIONS
    assert tx.add(bumped) is Errors.CONCURRENT_TRANSACTIONS
    assert error_of(tx.end, mine) is Errors.CONCURRENT_TRANSACTIONS
    tx.after(1000)
    assert tx.state() == "PrepareCommit"
    del tx.markers.errors[T1]
    tx.after(5000)
    assert tx.state() == "CompleteCommit"
    assert [row[0] for row in tx.markers.written] == [T0, T1]
    assert tx.coordinator.queue_sizes == (0, 0)
    assert tx.add(bumped) is Errors.NONE


@pytest.mark.parametrize(
    "error", [Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.INVALID_PRODUCER_EPOCH, Errors.TRANSACTION_COORDINATOR_FENCED]
)
def test_a_marker_that_is_not_needed(tx: Transactions, error: Errors) -> None:
    """A deleted topic, or a newer epoch that has ended the transaction, completes it without a marker."""
    tx.markers.errors[T0] = error
    mine = tx.init()
    tx.add(mine, T0, T1)
    tx.end(mine)
    assert tx.state() == "CompleteCommit"


def test_a_record_that_waits(tx: Transactions) -> None:
    """The transactional id is busy until the log accepts the last record."""
    mine = tx.init()
    tx.add(mine, T1)
    index = tx.coordinator.runtime.index_of("x")
    log = tx.topic.logs[index]
    tx.markers.write = lambda *row: (log._inject_fault(write_errno=28), Errors.NONE)[1]  # type: ignore[method-assign]
    tx.end(mine)
    assert tx.state() == "PrepareCommit"
    assert tx.coordinator.queue_sizes == (0, 1)
    assert error_of(tx.init) is Errors.CONCURRENT_TRANSACTIONS


def test_a_kill_between_the_decision_and_the_markers(tx: Transactions) -> None:
    """A prepared transaction is completed by the next start with the epochs of the log."""
    for name, commit in (("x", True), ("y", False)):
        mine = tx.init(name)
        tx.add(mine, T0, T1, name=name)
        tx.markers.errors[T1] = Errors.KAFKA_STORAGE_ERROR
        tx.end(mine, commit, name=name)
    tx.markers.written.clear()
    tx.markers.errors.clear()
    again = tx.restart()
    assert sorted(tx.markers.written) == [
        (T0, 1000, 1, 0, True, 2),
        (T0, 1001, 1, 0, False, 2),
        (T1, 1000, 1, 0, True, 2),
        (T1, 1001, 1, 0, False, 2),
    ]
    assert (again.state("x"), again.state("y")) == ("CompleteCommit", "CompleteAbort")
    assert again.add(Producer(1000, 1)) is Errors.NONE


# ---- time


def test_a_transaction_times_out(tx: Transactions) -> None:
    """A check every ten seconds aborts the transaction and fences its producer."""
    mine = tx.init(timeout_ms=15_000)
    tx.after(5_000)
    tx.add(mine)
    tx.after(14_999)
    assert tx.state() == "Ongoing"
    tx.after(10_001)
    assert tx.state() == "CompleteAbort"
    assert tx.markers.written == [(T0, 1000, 1, 0, False, 2)]
    assert error_of(tx.end, mine, version=0) is Errors.PRODUCER_FENCED
    assert tx.add(mine) is Errors.PRODUCER_FENCED
    assert tx.init(expected=mine) == Producer(1000, 1)  # its last epoch, since it has begun no transaction


def test_a_transaction_may_last_as_long_as_its_timeout(tx: Transactions) -> None:
    """At exactly its timeout the transaction is still open, as in Kafka."""
    tx.add(tx.init(timeout_ms=15_000))
    tx.clock.advance_ms(15_000)
    assert (tx.coordinator.abort_timed_out(), tx.state()) == (0, "Ongoing")
    tx.clock.advance_ms(1)
    assert (tx.coordinator.abort_timed_out(), tx.state()) == (1, "CompleteAbort")


def test_a_transaction_open_at_the_kill_times_out(tx: Transactions) -> None:
    mine = tx.init(timeout_ms=15_000)
    tx.add(mine)
    again = tx.restart()
    assert again.state() == "Ongoing"
    again.after(30_000)
    assert again.state() == "CompleteAbort"


def test_ids_expire() -> None:
    """An hourly check deletes unused ids with a tombstone."""
    tx = Transactions(TransactionSettings(id_expiration_ms=7_200_000, max_timeout_ms=2**31 - 2))
    for name in ("x", "y"):
        tx.init(name, timeout_ms=2**31 - 2)
    tx.add(Producer(1001, 0), name="y")
    tx.after(3_600_000)
    assert tx.state() == "Empty"
    tx.after(3_600_000)
    assert error_of(tx.see) is Errors.TRANSACTIONAL_ID_NOT_FOUND
    assert tx.state("y") == "Ongoing"
    assert ("x", None) in tx.records()
    again = tx.restart()
    assert again.coordinator.counts() == (1, 1)
    assert again.init() == Producer(1002, 0)
    assert again.coordinator.end_transaction("y", 1001, 0, True) == Producer(1001, 1)


# ---- the topic


def test_a_restart_remembers(tx: Transactions) -> None:
    """All fields of the log survive, which do not include the epoch before the last, as in Kafka."""
    mine = tx.init()
    tx.add(mine, T0, T2)
    before = tx.metadata()
    after = tx.restart().metadata()
    for name in before.__slots__:
        if name != "last_producer_epoch":
            assert getattr(before, name) == getattr(after, name), name


def test_partitions_are_dropped_and_loaded(tx: Transactions) -> None:
    """An unloaded partition gets NOT_COORDINATOR, and other partitions are served throughout."""
    tx.init()
    home = tx.coordinator.runtime.index_of("x")
    other = next(name for name in "abcdefgh" if tx.coordinator.runtime.index_of(name) != home)
    tx.coordinator.runtime.unload(home, 1)
    assert error_of(tx.init) is Errors.NOT_COORDINATOR
    assert error_of(tx.coordinator.runtime.find, "x") is Errors.NOT_COORDINATOR
    assert tx.init(other).producer_epoch == 0
    tx.coordinator.runtime.load(home, 2)
    assert tx.init() == Producer(1000, 1)


def test_nothing_is_served_before_the_topic_exists() -> None:
    """FindCoordinator creates the topic."""
    tx = Transactions()
    assert tx.topic is not None
    fresh = Transactions(topic=type(tx.topic)(tx.clock), clock=tx.clock)
    assert error_of(fresh.init) is Errors.NOT_COORDINATOR
    fresh.coordinator.runtime.prepare()
    assert fresh.init() == Producer(1000, 0)


def test_the_topic_is_deleted(tx: Transactions) -> None:
    """All transactional ids are deleted with the topic, and a new topic begins empty."""
    tx.init()
    assert tx.topic is not None
    tx.topic.created = False
    tx.coordinator.runtime.topic_deleted()
    assert error_of(tx.init) is Errors.NOT_COORDINATOR
    assert tx.coordinator.counts() == (0, 0)


def test_a_closed_coordinator_serves_nothing(tx: Transactions) -> None:
    tx.coordinator.runtime.close()
    assert error_of(tx.init) is Errors.COORDINATOR_NOT_AVAILABLE
    assert tx.add(Producer(1000, 0)) is Errors.COORDINATOR_NOT_AVAILABLE


# ---- lists and descriptions


def test_lists(tx: Transactions) -> None:
    """Transactions are listed by state, producer id, age and name; an id without a transaction matches any age."""
    tx.init("a")
    mine = tx.init("b")
    tx.add(mine, name="b")
    tx.after(5_000)
    ask = tx.coordinator.list_transactions

    def names(**filters: Any) -> list[str]:
        return sorted(one.transactional_id for one in ask(**filters))

    assert names() == ["a", "b"]
    assert names(states={TransactionState.ONGOING}) == ["b"]
    assert names(states=set()) == []
    assert names(producer_ids={1000}) == ["a"]
    assert names(duration_ms=5_000) == ["a"]
    assert names(duration_ms=4_999) == ["a", "b"]
    assert names(matches=lambda name: name > "a") == ["b"]


def test_descriptions(tx: Transactions) -> None:
    assert error_of(tx.see, "") is Errors.INVALID_REQUEST
    assert error_of(tx.see, "unknown") is Errors.TRANSACTIONAL_ID_NOT_FOUND
    tx.init(timeout_ms=1234)
    seen = tx.see()
    assert (seen.timeout_ms, seen.start_ms, seen.producer_id, seen.producer_epoch) == (1234, -1, 1000, 0)


def test_a_disk_that_fails_does_not_fill_the_log(
    tx: Transactions, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated failure of many transactions is logged once a minute with its count."""
    ending = [tx.init(f"ending-{number}", timeout_ms=900_000) for number in range(5)]
    for number in range(20):
        tx.add(tx.init(f"open-{number}", timeout_ms=15_000), name=f"open-{number}")
    for number, producer in enumerate(ending):
        tx.add(producer, name=f"ending-{number}")
    tx.markers.errors[T0] = Errors.KAFKA_STORAGE_ERROR
    for number, producer in enumerate(ending):
        tx.end(producer, name=f"ending-{number}")
    tx.markers.errors.clear()
    error = KafkaError(Errors.NOT_COORDINATOR, "no append until the broker restarts")
    with monkeypatch.context() as broken:
        broken.setattr(internal_topic, "append", raising(error))
        tx.after(30_000)
        first = [record.getMessage() for record in caplog.records]
        assert len(first) == 2
        assert "could not log the end of transactions (times: 1, the last: CompleteCommit of ending-0)" in first[0]
        assert "no append until the broker restarts" in first[1]
        tx.after(300_000)
    assert 8 <= len(caplog.records) <= 12
    assert "could not abort transactions that timed out (times: 120, " in caplog.text
    tx.after(30_000)
    states = {one.state.label for one in tx.coordinator.list_transactions()}
    assert states == {"CompleteAbort", "CompleteCommit"}
