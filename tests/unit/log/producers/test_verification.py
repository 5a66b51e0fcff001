"""Verification of transactional batches (KIP-890): guards, order of sequences, and end markers."""

from tests.native.producer_state import ProducerStateManager
from tests.support.fixtures import fixture_of

OUT_OF_ORDER, BAD_EPOCH, BAD_TXN_STATE, COORDINATOR_FENCED = 45, 47, 48, 52
UNKNOWN_SERVER_ERROR = -1
PID = 7
state = fixture_of(ProducerStateManager)


def begin(state: ProducerStateManager, epoch: int = 0, sequence: int = 0, offset: int = 0) -> None:
    error, guard = state.verify(PID, epoch, sequence)
    assert error == 0
    assert state.append(PID, epoch, sequence, offset, transactional=True, guard=guard)[0] == 0


def test_batch_of_no_open_transaction_needs_a_guard(state: ProducerStateManager) -> None:
    """A transactional batch needs its own guard to open a transaction; later batches need none."""
    assert state.append(PID, 0, 0, 0, transactional=True, guard=0)[0] == BAD_TXN_STATE
    error, guard = state.verify(PID, 0, 0)
    assert error == 0
    assert guard > 0
    assert state.append(PID, 0, 0, 0, transactional=True, guard=0)[0] == BAD_TXN_STATE
    assert state.append(PID, 0, 0, 0, transactional=True, guard=guard + 1)[0] == BAD_TXN_STATE
    assert state.append(PID, 0, 0, 0, transactional=True, guard=guard) == (0, 0, 0)
    assert state.verify(PID, 0, 1) == (0, 0)
    assert state.append(PID, 0, 1, 1, transactional=True, guard=0) == (0, 1, 0)


def test_verification_off(state: ProducerStateManager) -> None:
    """A guard of -1 is accepted, as from a broker without verification."""
    assert state.append(PID, 0, 0, 0, transactional=True, guard=-1) == (0, 0, 0)


def test_guard_is_kept_while_it_is_verified(state: ProducerStateManager) -> None:
    """Verifications of a producer share a guard; other producers have other guards."""
    assert state.verify(PID, 0, 3) == state.verify(PID, 0, 4)
    assert state.verify(PID, 0, 3)[1] != state.verify(PID + 1, 0, 3)[1]
    assert state.verifications == 2


def test_marker_forgets_the_guard(state: ProducerStateManager) -> None:
    """A batch whose transaction ends during its verification is refused."""
    guard = state.verify(PID, 0, 0)[1]
    assert state.end_transaction(PID, 0, 5, commit=False) == (0, None)
    assert state.verifications == 0
    assert state.append(PID, 0, 0, 6, transactional=True, guard=guard)[0] == BAD_TXN_STATE


def test_marker_keeps_the_guard_of_the_next_transaction(state: ProducerStateManager) -> None:
    """With version 2 the next transaction may begin, with the marker's epoch, before the marker is written."""
    begin(state, epoch=3)
    guard = state.verify(PID, 4, 0, bumps_epochs=True)[1]
    assert state.end_transaction(PID, 4, 1, commit=True, transaction_version=2) == (0, None)
    assert state.verify(PID, 4, 0, bumps_epochs=True) == (0, guard)
    assert state.append(PID, 4, 0, 2, transactional=True, guard=guard) == (0, 2, 0)
    assert state.verifications == 0


def test_marker_keeps_the_lowest_sequence_of_a_refused_batch(state: ProducerStateManager) -> None:
    """As in Kafka, a batch that was verified and then refused blocks later sequences even after the marker."""
    state.verify(PID, 0, -1, bumps_epochs=True)
    assert state.end_transaction(PID, 0, 0, commit=False) == (0, None)
    guard = state.verify(PID, 0, 0)[1]
    assert state.append(PID, 0, 0, 1, transactional=True, guard=guard)[0] == OUT_OF_ORDER


def test_repeat_is_known_before_its_transaction_is_asked_for(state: ProducerStateManager) -> None:
    """A duplicate is detected before the verification, after the transaction's end too."""
    begin(state)
    state.end_transaction(PID, 0, 1, commit=True)
    assert state.append(PID, 0, 0, 2, transactional=True, guard=0) == (0, 0, 0)


def test_plain_batches_need_no_guard(state: ProducerStateManager) -> None:
    assert state.append(PID, 0, 0, 0, guard=0) == (0, 0, 0)


def test_older_epoch_is_refused_before_verification(state: ProducerStateManager) -> None:
    begin(state, epoch=3)
    assert state.verify(PID, 2, 0) == (BAD_EPOCH, 0)
    assert state.append(PID, 2, 0, 1, transactional=True, guard=0)[0] == BAD_EPOCH
    assert state.verifications == 0


def test_newer_epoch_is_verified_though_the_old_transaction_is_open(state: ProducerStateManager) -> None:
    begin(state, epoch=3)
    error, guard = state.verify(PID, 4, 0)
    assert error == 0
    assert guard > 0


def test_coordinators_append_is_judged_by_epoch_and_guard(state: ProducerStateManager) -> None:
    """Transactional offsets have no sequence; an older epoch and a missing guard are refused."""
    guard = state.verify(PID, 4, 0)[1]
    assert state.append(PID, 4, 9, 0, transactional=True, from_client=False, guard=0)[0] == BAD_TXN_STATE
    assert state.append(PID, 4, 9, 0, transactional=True, from_client=False, guard=guard) == (0, 0, 0)
    assert state.append(PID, 3, 9, 1, transactional=True, from_client=False)[0] == BAD_EPOCH


def test_higher_sequence_does_not_overtake(state: ProducerStateManager) -> None:
    """While the lowest sequence seen is not written, a higher one is out of order, and the lowest is accepted."""
    state.verify(PID, 0, 5)
    guard = state.verify(PID, 0, 3)[1]
    assert state.append(PID, 0, 5, 0, transactional=True, guard=guard)[0] == OUT_OF_ORDER
    assert state.append(PID, 0, 3, 0, transactional=True, guard=guard) == (0, 0, 0)
    assert state.verifications == 0


def test_newer_epoch_begins_with_its_own_lowest_sequence(state: ProducerStateManager) -> None:
    state.verify(PID, 0, 2)
    guard = state.verify(PID, 1, 4)[1]
    assert state.append(PID, 1, 4, 0, transactional=True, guard=guard) == (0, 0, 0)


def test_first_sequence_of_transaction_version_2(state: ProducerStateManager) -> None:
    """The first sequence of an unknown producer of version 2 must be 0; an older version accepts any."""
    guard = state.verify(PID, 0, 5, bumps_epochs=True)[1]
    assert state.append(PID, 0, 5, 0, transactional=True, guard=guard)[0] == OUT_OF_ORDER
    guard = state.verify(PID + 1, 0, 5)[1]
    assert state.append(PID + 1, 0, 5, 0, transactional=True, guard=guard) == (0, 0, 0)


def test_verifications_expire(state: ProducerStateManager) -> None:
    """A verification without a batch expires after producer.id.expiration.ms."""
    guard = state.verify(PID, 0, 0, now_ms=1000)[1]
    state.expire(1999, 1000)
    assert state.verify(PID, 0, 0, now_ms=1999) == (0, guard)
    state.expire(2000, 1000)
    assert state.verifications == 0
    assert state.verify(PID, 0, 0, now_ms=2000)[1] != guard


def test_many_verifications(state: ProducerStateManager) -> None:
    guards = {pid: state.verify(pid, 0, 0)[1] for pid in range(1000)}
    assert len(set(guards.values())) == 1000
    for pid in range(1000):
        assert state.append(pid, 0, 0, pid, transactional=True, guard=guards[pid])[0] == 0
    assert state.verifications == 0


# ---- end markers by transaction version


def test_marker_of_version_1_has_the_epoch_of_its_records(state: ProducerStateManager) -> None:
    begin(state, epoch=3)
    assert state.end_transaction(PID, 2, 1, commit=True, transaction_version=1)[0] == BAD_EPOCH
    assert state.end_transaction(PID, 3, 1, commit=True, transaction_version=1)[0] == 0


def test_marker_of_version_2_has_a_newer_epoch(state: ProducerStateManager) -> None:
    """A marker with the epoch of the open transaction is late, and belongs to the previous transaction."""
    begin(state, epoch=3)
    assert state.end_transaction(PID, 3, 1, commit=True, transaction_version=2)[0] == BAD_EPOCH
    assert state.end_transaction(PID, 4, 1, commit=False, transaction_version=2) == (0, (PID, 0, 1, 2))


def test_repeated_marker_of_version_2(state: ProducerStateManager) -> None:
    """A repeated marker, which follows an unknown outcome, is accepted without an open transaction."""
    begin(state, epoch=3)
    assert state.end_transaction(PID, 4, 1, commit=True, transaction_version=2)[0] == 0
    assert state.end_transaction(PID, 4, 2, commit=True, transaction_version=2) == (0, None)
    assert state.end_transaction(PID, 3, 3, commit=True, transaction_version=2)[0] == BAD_EPOCH


def test_transaction_of_the_largest_epoch_can_end(state: ProducerStateManager) -> None:
    """The epoch of the marker cannot be above the largest one, so that the same epoch is accepted."""
    begin(state, epoch=32767)
    assert state.end_transaction(PID, 32767, 1, commit=False, transaction_version=2) == (0, (PID, 0, 1, 2))


def test_marker_of_the_largest_epoch_ends_the_verification(state: ProducerStateManager) -> None:
    """No transaction of the producer id follows the marker; a verification belongs to the transaction that it ends."""
    for transaction_version in (1, 2):
        guard = state.verify(PID, 32767, 0, bumps_epochs=True)[1]
        found = state.end_transaction(PID, 32767, 1, commit=False, transaction_version=transaction_version)
        assert found == (0, None)
        assert state.verifications == 0
        assert state.append(PID, 32767, 0, 2, transactional=True, guard=guard)[0] == BAD_TXN_STATE


def test_marker_of_an_unknown_version(state: ProducerStateManager) -> None:
    """The error of an older epoch precedes that of the version, which precedes that of an older coordinator."""
    assert state.end_transaction(PID, -2, 0, commit=True, transaction_version=-1)[0] == UNKNOWN_SERVER_ERROR
    assert state.end_transaction(PID, -2, 0, commit=True)[0] == BAD_EPOCH
    begin(state, epoch=1)
    assert state.end_transaction(PID, 0, 1, commit=True, transaction_version=-1)[0] == BAD_EPOCH
    assert state.end_transaction(PID, 0, 1, commit=True, coordinator_epoch=-2)[0] == BAD_EPOCH
    found = state.end_transaction(PID, 1, 1, commit=True, coordinator_epoch=-2, transaction_version=-1)
    assert found == (UNKNOWN_SERVER_ERROR, None)


def test_marker_of_an_older_coordinator(state: ProducerStateManager) -> None:
    begin(state)
    assert state.end_transaction(PID, 0, 1, commit=True, coordinator_epoch=5)[0] == 0
    assert state.end_transaction(PID, 0, 2, commit=True, coordinator_epoch=4)[0] == COORDINATOR_FENCED
    assert state.end_transaction(PID + 1, 0, 2, commit=True, coordinator_epoch=-1)[0] == 0
    assert state.end_transaction(PID + 2, 0, 3, commit=True, coordinator_epoch=-2)[0] == COORDINATOR_FENCED


# ---- late transactions


def test_late_transaction(state: ProducerStateManager) -> None:
    """A transaction is late when it is open longer than the maximum timeout and five minutes since its last write."""
    assert not state.has_late_transaction(10**9, 900_000)
    state.append(PID, 0, 0, 0, transactional=True, timestamp_ms=1000)
    state.append(PID + 1, 0, 0, 1, transactional=True, timestamp_ms=10**9)
    assert not state.has_late_transaction(1000 + 900_000 + 300_000, 900_000)
    assert state.has_late_transaction(1000 + 900_000 + 300_001, 900_000)
    state.append(PID, 0, 1, 2, transactional=True, timestamp_ms=2000)
    assert not state.has_late_transaction(1000 + 900_000 + 300_001, 900_000)
    state.end_transaction(PID, 0, 3, commit=True)
    assert not state.has_late_transaction(10**9, 900_000)
