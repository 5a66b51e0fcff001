"""States of a transactional id, and effects and refusals of its moves."""

import pytest

from kbroker.common.errors import Errors
from kbroker.coordinator.transaction.transaction_metadata import (
    EXHAUSTED_EPOCH,
    MAX_EPOCH,
    NO_PLACES,
    VALID_PREVIOUS,
    TransactionMetadata,
    TransactionState,
)
from tests.support.errors import error_of
from tests.support.transactions import T0, T1

S = TransactionState


def metadata(state: TransactionState = S.EMPTY, epoch: int = 0) -> TransactionMetadata:
    one = TransactionMetadata("x", 7, timeout_ms=100, now_ms=1, producer_epoch=epoch)
    one.state = state
    return one


def test_states_have_kafkas_numbers_and_names() -> None:
    assert [(state.value, state.label) for state in S] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]


@pytest.mark.parametrize("target", list(S))
@pytest.mark.parametrize("source", list(S))
def test_only_valid_moves_begin(source: TransactionState, target: TransactionState) -> None:
    """A transition in Kafka's table of previous states is allowed; another one raises an error without a change."""
    one = metadata(source)
    if source in VALID_PREVIOUS[target]:
        assert one._prepare(target).state is target
        assert one.pending is target
    else:
        with pytest.raises(RuntimeError, match=r"'x' in " + source.label):
            one._prepare(target)
        assert one.pending is None


def test_one_move_at_a_time() -> None:
    one = metadata()
    one.prepare_add_partitions([T0], 5, 2)
    with pytest.raises(RuntimeError, match=r"pending Ongoing"):
        one.prepare_add_partitions([T1], 5, 2)
    one.cancel()
    move = one.prepare_add_partitions([T1], 6, 2)
    one.complete(move)
    assert (one.state, set(one.partitions), one.start_ms, one.pending) == (S.ONGOING, {T1}, 6, None)


def test_a_move_that_is_not_the_pending_one_is_not_completed() -> None:
    one = metadata()
    move = one.prepare_add_partitions([T0], 5, 2)
    one.cancel()
    with pytest.raises(RuntimeError, match="cannot complete"):
        one.complete(move)


def test_the_transaction_begins_with_its_first_partition() -> None:
    """Later partitions do not change the start time."""
    one = metadata()
    for now_ms, place in ((5, T0), (9, T1)):
        one.complete(one.prepare_add_partitions([place], now_ms, 2))
    assert (one.start_ms, one.last_update_ms, set(one.partitions)) == (5, 9, {T0, T1})


@pytest.mark.parametrize(("version", "epochs"), [(0, (3, -1)), (2, (4, 3))])
def test_an_end(version: int, epochs: tuple[int, int]) -> None:
    """With version 2 the epoch is bumped before the markers, and the previous producer id is kept."""
    one = metadata(S.ONGOING, epoch=3)
    one.partitions = frozenset({T0})
    one.complete(one.prepare_end(S.PREPARE_COMMIT, version, -1, 8, is_empty=False))
    assert (one.producer_epoch, one.last_producer_epoch) == epochs
    assert one.prev_producer_id == 7
    one.remove_partitions([T0])
    one.complete(one.prepare_complete(9))
    assert (one.state, one.partitions, one.producer_id, one.producer_epoch) == (
        S.COMPLETE_COMMIT,
        NO_PLACES,
        7,
        epochs[0],
    )


def test_an_exhausted_epoch_ends_with_another_producer_id() -> None:
    one = metadata(S.ONGOING, epoch=EXHAUSTED_EPOCH)
    one.complete(one.prepare_end(S.PREPARE_COMMIT, 2, 8, 8, is_empty=False))
    assert (one.producer_epoch, one.next_producer_id) == (MAX_EPOCH, 8)
    one.complete(one.prepare_complete(9))
    assert (one.producer_id, one.prev_producer_id, one.producer_epoch) == (8, 7, 0)
    assert (one.last_producer_epoch, one.next_producer_id) == (EXHAUSTED_EPOCH, -1)


def test_an_abort_at_the_last_epoch_of_all() -> None:
    """An abort is possible and a commit is refused, so that the id can be recovered."""
    one = metadata(S.ONGOING, epoch=MAX_EPOCH)
    with pytest.raises(RuntimeError, match="cannot be bumped"):
        one.prepare_end(S.PREPARE_COMMIT, 2, -1, 8, is_empty=False)
    assert one.prepare_end(S.PREPARE_ABORT, 2, -1, 8, is_empty=False).producer_epoch == MAX_EPOCH


def test_a_fence_gives_way_to_the_abort() -> None:
    """The abort replaces the pending fence, which is never completed."""
    one = metadata(S.ONGOING)
    one.prepare_fence()
    assert one.pending is S.PREPARE_EPOCH_FENCE
    one.complete(one.prepare_end(S.PREPARE_ABORT, 2, -1, 8, is_empty=False))
    assert (one.state, one.producer_epoch) == (S.PREPARE_ABORT, 1)


def test_an_expected_epoch() -> None:
    """The current epoch is bumped and kept, the previous one is a retry, and others are fenced."""
    one = metadata(epoch=4)
    one.complete(one.prepare_increment_epoch(50, 4, 9))
    assert (one.producer_epoch, one.last_producer_epoch, one.timeout_ms) == (5, 4, 50)
    one.complete(one.prepare_increment_epoch(50, 4, 9))
    assert (one.producer_epoch, one.last_producer_epoch) == (5, 4)
    assert error_of(one.prepare_increment_epoch, 50, 3, 9) is Errors.PRODUCER_FENCED
    one.complete(one.prepare_increment_epoch(50, None, 9))
    assert (one.producer_epoch, one.last_producer_epoch) == (6, -1)


def test_when_a_transaction_is_over() -> None:
    """No timeout applies during a move, without an open transaction, and to two-phase commit."""
    one = metadata(S.ONGOING)
    one.start_ms = 40
    assert one.due_ms == 140
    one.pending = S.PREPARE_COMMIT
    assert one.due_ms is None
    assert metadata().due_ms is None
    one.pending, one.timeout_ms = None, 2**31 - 1
    assert one.due_ms is None


def test_markers_are_for_prepared_transactions() -> None:
    with pytest.raises(RuntimeError, match="prepared"):
        metadata(S.ONGOING).remove_partitions([T0])
