"""Permitted ends of a transaction in each state, classic and with transaction.version 2 (KIP-890).

With version 2 each end bumps the epoch, so that an epoch one below the current one is a retry:

| state          | abort, retry | abort, current | commit, retry | commit, current |
|----------------|--------------|----------------|---------------|-----------------|
| Empty          | fenced       | bump           | fenced        | invalid state   |
| CompleteAbort  | done before  | bump           | invalid state | invalid state   |
| CompleteCommit | invalid state| bump           | done before   | invalid state   |

Source: ``TransactionCoordinator.endTransaction``, ``endTransactionWithTV1``.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.transaction.transaction_metadata import (
    EXHAUSTED_EPOCH,
    IDLE,
    MAX_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TV_0,
    TV_2,
    Move,
    TransactionMetadata,
    TransactionState,
)

_S = TransactionState

#: Returns an unused producer id; raises an exception of the coordinator if none can be fetched now.
NewProducerId = Callable[[], int]


def prepare_end(
    metadata: TransactionMetadata,
    producer_id: int,
    producer_epoch: int,
    client_version: int,
    now_ms: int,
    new_producer_id: NewProducerId,
    *,
    commit: bool,
) -> Move | None:
    """Return the move that ends a transaction for its client; None for a retry of a completed end.

    Raises: KafkaError INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
    """
    if client_version < TV_2:
        return _prepare_classic_end(metadata, producer_id, producer_epoch, now_ms, commit=commit)
    if metadata.pending is not None:
        raise KafkaError(Errors.CONCURRENT_TRANSACTIONS)
    retry_after_rotation = (
        metadata.prev_producer_id == producer_id and producer_epoch == EXHAUSTED_EPOCH and metadata.producer_epoch == 0
    )
    retry_after_bump = metadata.producer_epoch == producer_epoch + 1
    if metadata.producer_id != producer_id and not retry_after_rotation:
        raise KafkaError(Errors.INVALID_PRODUCER_ID_MAPPING)
    is_current = metadata.producer_epoch == producer_epoch
    state = metadata.state
    if state in PREPARED:
        is_valid = retry_after_bump
    elif state in (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT):
        is_valid = retry_after_bump or retry_after_rotation or is_current
    else:
        is_valid = is_current
    if not is_valid or producer_epoch == MAX_EPOCH:  # no producer gets this epoch
        raise KafkaError(Errors.PRODUCER_FENCED)
    if state in PREPARED:
        if commit != (state is _S.PREPARE_COMMIT):
            raise _invalid(metadata, commit)
        raise KafkaError(Errors.CONCURRENT_TRANSACTIONS)
    if state in IDLE:
        if retry_after_bump or retry_after_rotation:
            if state is not (_S.COMPLETE_COMMIT if commit else _S.COMPLETE_ABORT):
                raise _invalid(metadata, commit)
            return None
        if commit:
            raise _invalid(metadata, commit)
    elif state is not _S.ONGOING:
        raise RuntimeError(f"transactional id {metadata.transactional_id!r} in state {state.label}")
    next_producer_id = new_producer_id() if metadata.is_epoch_exhausted else NO_PRODUCER_ID
    target = _S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT
    return metadata.prepare_end(target, client_version, next_producer_id, now_ms, is_empty=state in IDLE)


def prepare_fenced_abort(metadata: TransactionMetadata, now_ms: int) -> Move:
    """Return the move that aborts an open transaction, with an epoch that its producer does not have.

    The caller has checked that the transaction is open and that no move is pending.
    """
    metadata.prepare_fence()
    return metadata.prepare_end(_S.PREPARE_ABORT, TV_2, NO_PRODUCER_ID, now_ms, is_empty=False)


def _prepare_classic_end(
    metadata: TransactionMetadata, producer_id: int, producer_epoch: int, now_ms: int, *, commit: bool
) -> Move | None:
    if metadata.producer_id != producer_id:
        raise KafkaError(Errors.INVALID_PRODUCER_ID_MAPPING)
    if metadata.producer_epoch != producer_epoch:
        raise KafkaError(Errors.PRODUCER_FENCED)
    if metadata.pending is not None:
        raise KafkaError(Errors.CONCURRENT_TRANSACTIONS)
    state = metadata.state
    if state is _S.ONGOING:
        target = _S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT
        return metadata.prepare_end(target, TV_0, NO_PRODUCER_ID, now_ms, is_empty=False)
    if state is (_S.COMPLETE_COMMIT if commit else _S.COMPLETE_ABORT):
        return None
    if state is (_S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT):
        raise KafkaError(Errors.CONCURRENT_TRANSACTIONS)
    raise _invalid(metadata, commit)


def _invalid(metadata: TransactionMetadata, commit: bool) -> KafkaError:
    asked = "commit" if commit else "abort"
    return KafkaError(
        Errors.INVALID_TXN_STATE, f"{metadata.transactional_id}: cannot {asked} in state {metadata.state.label}"
    )
