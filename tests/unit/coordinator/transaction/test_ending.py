"""Results of EndTxn in every state, classic and with transaction.version 2, by Kafka's table."""

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.transaction import ending
from kbroker.coordinator.transaction.transaction_metadata import (
    EXHAUSTED_EPOCH,
    TV_2,
    TransactionMetadata,
    TransactionState,
)

S = TransactionState
FENCED, INVALID, BUSY = Errors.PRODUCER_FENCED, Errors.INVALID_TXN_STATE, Errors.CONCURRENT_TRANSACTIONS
BEGINS, DONE = "begins", "done before"


def metadata(state: TransactionState, epoch: int = 5) -> TransactionMetadata:
    one = TransactionMetadata("x", 7, timeout_ms=100, now_ms=1, producer_epoch=epoch)
    one.state = state
    return one


def outcome(one: TransactionMetadata, *, commit: bool, epoch: int, version: int, producer_id: int = 7) -> object:
    try:
        move = ending.prepare_end(one, producer_id, epoch, version, 9, lambda: 8, commit=commit)
    except KafkaError as error:
        return error.error
    return DONE if move is None else BEGINS


#: Results by state: retry of an abort, abort, retry of a commit, commit.
VERSION_2 = {
    S.EMPTY: (FENCED, BEGINS, FENCED, INVALID),
    S.ONGOING: (FENCED, BEGINS, FENCED, BEGINS),
    S.PREPARE_COMMIT: (INVALID, FENCED, BUSY, FENCED),
    S.PREPARE_ABORT: (BUSY, FENCED, INVALID, FENCED),
    S.COMPLETE_COMMIT: (INVALID, BEGINS, DONE, INVALID),
    S.COMPLETE_ABORT: (DONE, BEGINS, INVALID, INVALID),
}


@pytest.mark.parametrize("state", list(VERSION_2))
def test_version_2(state: TransactionState) -> None:
    """A retry has the previous epoch."""
    found = [
        outcome(metadata(state), commit=commit, epoch=epoch, version=TV_2)
        for commit in (False, True)
        for epoch in (4, 5)
    ]
    assert tuple(found) == VERSION_2[state]


#: Results by state: abort, commit.
CLASSIC = {
    S.EMPTY: (INVALID, INVALID),
    S.ONGOING: (BEGINS, BEGINS),
    S.PREPARE_COMMIT: (INVALID, BUSY),
    S.PREPARE_ABORT: (BUSY, INVALID),
    S.COMPLETE_COMMIT: (INVALID, DONE),
    S.COMPLETE_ABORT: (DONE, INVALID),
}


@pytest.mark.parametrize("state", list(CLASSIC))
def test_classic(state: TransactionState) -> None:
    found = [outcome(metadata(state), commit=commit, epoch=5, version=0) for commit in (False, True)]
    assert tuple(found) == CLASSIC[state]
    assert outcome(metadata(state), commit=True, epoch=4, version=0) is FENCED


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", list(CLASSIC))
def test_another_producer(state: TransactionState, version: int) -> None:
    """The id of another producer is refused in every state."""
    one = metadata(state)
    assert outcome(one, commit=True, epoch=5, version=version, producer_id=6) is Errors.INVALID_PRODUCER_ID_MAPPING


def test_a_pending_move_goes_first() -> None:
    """With version 2 the pending move is checked before the producer id, which the move may change."""
    one = metadata(S.ONGOING)
    one.pending = S.ONGOING
    assert outcome(one, commit=True, epoch=5, version=2, producer_id=6) is BUSY
    assert outcome(one, commit=True, epoch=5, version=0) is BUSY
    assert outcome(one, commit=True, epoch=4, version=0) is FENCED


@pytest.mark.parametrize("state", [S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_a_retry_over_a_new_producer_id(state: TransactionState) -> None:
    """The retry has the last epoch of the previous producer id."""
    one = metadata(state, epoch=0)
    one.producer_id, one.prev_producer_id = 8, 7
    assert outcome(one, commit=state is S.COMPLETE_COMMIT, epoch=EXHAUSTED_EPOCH, version=2) is DONE
    assert outcome(one, commit=state is not S.COMPLETE_COMMIT, epoch=EXHAUSTED_EPOCH, version=2) is INVALID
    assert outcome(one, commit=True, epoch=3, version=2) is Errors.INVALID_PRODUCER_ID_MAPPING
    one.producer_epoch = 1  # the new id has ended another transaction
    assert outcome(one, commit=True, epoch=EXHAUSTED_EPOCH, version=2) is Errors.INVALID_PRODUCER_ID_MAPPING


def test_a_new_producer_id_is_asked_for_only_when_epochs_are_exhausted() -> None:
    for epoch, expected in ((5, -1), (EXHAUSTED_EPOCH, 8)):
        one = metadata(S.ONGOING, epoch)
        move = ending.prepare_end(one, 7, epoch, TV_2, 9, lambda: 8, commit=True)
        assert move is not None
        assert move.next_producer_id == expected


def test_an_end_of_nothing_begins_now() -> None:
    """A start time, which Kafka requires, is set for a transaction without partitions; others keep theirs."""
    one = metadata(S.COMPLETE_COMMIT)
    move = ending.prepare_end(one, 7, 5, TV_2, 9, lambda: 8, commit=False)
    assert move is not None
    assert move.start_ms == 9
