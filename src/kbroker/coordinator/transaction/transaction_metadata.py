"""The state of one transactional id, and its moves. Pure: no clock, no log, no lock.

A move is prepared, written to the log, then completed; in between it is pending, and no other move begins.
Source: ``TransactionMetadata``, ``TransactionState``, KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from operator import attrgetter
from typing import Any, NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIME_MS = -1
MAX_EPOCH = 32_767
EXHAUSTED_EPOCH = MAX_EPOCH - 1  # last epoch for a client: the coordinator can always fence once more
UNLIMITED_TIMEOUT_MS = 2**31 - 1  # of a transaction that another coordinator commits (KIP-939): it never expires

TV_0, TV_2 = 0, 2  # levels of transaction.version: from 2 on each end of a transaction bumps the epoch

NO_PLACES: frozenset[TopicPartition] = frozenset()


class TransactionState(enum.IntEnum):
    """Kafka's states by their number in the log, with the name in responses."""

    label: str

    def __new__(cls, number: int, label: str) -> TransactionState:
        member = int.__new__(cls, number)
        member._value_ = number
        member.label = label
        return member

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"


_S = TransactionState

BY_LABEL = {state.label: state for state in TransactionState}

#: By state: the states in which a move to it may begin.
VALID_PREVIOUS: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset(
        {_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}
    ),  # with transaction.version 2 even without anything to abort
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}

IDLE = VALID_PREVIOUS[_S.DEAD]  # nothing is open, so that a producer may begin and an id may expire
PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})


class Move(NamedTuple):
    """State of an id after a move. ``start_ms``: start of the latest transaction, -1 before a producer's first one."""

    state: TransactionState
    producer_id: int
    prev_producer_id: int
    next_producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    timeout_ms: int
    partitions: frozenset[TopicPartition]
    start_ms: int
    last_update_ms: int
    client_version: int


_present = attrgetter(*Move._fields)


class TransactionMetadata:
    """One transactional id.

    ``prev_producer_id``: the producer id before the latest move; ``next_producer_id``: that after the end of the
    transaction, -1: the same; ``last_producer_epoch``: the epoch before the latest bump that the producer itself
    requested; ``pending``: the state after the pending move, None if there is none.
    Threads: guarded by the lock of its partition (``StatePartition.lock``).
    """

    __slots__ = (
        "client_version",
        "last_producer_epoch",
        "last_update_ms",
        "next_producer_id",
        "partitions",
        "pending",
        "prev_producer_id",
        "producer_epoch",
        "producer_id",
        "start_ms",
        "state",
        "timeout_ms",
        "transactional_id",
    )

    def __init__(
        self, transactional_id: str, producer_id: int, *, timeout_ms: int, now_ms: int, producer_epoch: int = -1
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.prev_producer_id = NO_PRODUCER_ID
        self.next_producer_id = NO_PRODUCER_ID
        self.producer_epoch = producer_epoch
        self.last_producer_epoch = NO_PRODUCER_EPOCH
        self.timeout_ms = timeout_ms
        self.state = TransactionState.EMPTY
        self.pending: TransactionState | None = None
        self.partitions = NO_PLACES
        self.start_ms = NO_TIME_MS
        self.last_update_ms = now_ms
        self.client_version = TV_0

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in sorted(self.__slots__))
        return f"TransactionMetadata({fields})"

    @property
    def is_epoch_exhausted(self) -> bool:
        """True if the producer needs another producer id before its epoch can be bumped."""
        return self.producer_epoch >= EXHAUSTED_EPOCH

    def needs_another_producer_id(self, expected_epoch: int | None) -> bool:
        """Return whether a producer that begins, or continues with this epoch, needs another producer id.

        The last epoch is reserved for a fence, so that producers only get epochs below it.
        """
        if self.producer_epoch == MAX_EPOCH and expected_epoch == self.last_producer_epoch:
            return True
        return self.is_epoch_exhausted and expected_epoch in (None, self.producer_epoch)

    @property
    def due_ms(self) -> int | None:
        """Time at which the open transaction is aborted, in wall milliseconds; None: never, or none is open."""
        if self.state is not _S.ONGOING or self.pending is not None or self.timeout_ms == UNLIMITED_TIMEOUT_MS:
            return None
        return self.start_ms + self.timeout_ms

    # ------------------------------------------------------------ moves

    def prepare_increment_epoch(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> Move:
        """Prepare the beginning of a producer, or its continuation after an error (``expected_epoch``).

        Raises: KafkaError PRODUCER_FENCED; RuntimeError if the epoch is exhausted or the state does not allow it.
        """
        bumped = self.producer_epoch + 1
        if expected_epoch is None:
            epoch, last_epoch = bumped, NO_PRODUCER_EPOCH
        elif self.producer_epoch in (NO_PRODUCER_EPOCH, expected_epoch):
            epoch, last_epoch = bumped, self.producer_epoch
        elif expected_epoch == self.last_producer_epoch:  # a retry: the response to the bump was lost
            epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        else:
            raise KafkaError(
                Errors.PRODUCER_FENCED,
                f"{self.transactional_id}: expected epoch {expected_epoch}, but it is {self.producer_epoch}",
            )
        if epoch > EXHAUSTED_EPOCH:
            raise self._illegal(f"no epoch is left for producer id {self.producer_id}")
        return self._prepare(
            _S.EMPTY,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=NO_PLACES,
            start_ms=NO_TIME_MS,
            last_update_ms=now_ms,
        )

    def prepare_producer_id_rotation(
        self, new_producer_id: int, timeout_ms: int, now_ms: int, expected_epoch: int | None
    ) -> Move:
        """Prepare the beginning of a producer with another producer id: the epochs of the current one are exhausted.

        Args: ``expected_epoch``: reported by the producer, to recognize a retry. Raises: RuntimeError in a transaction.
        """
        if self.state not in IDLE:
            raise self._illegal("a producer id cannot change inside a transaction")
        return self._prepare(
            _S.EMPTY,
            producer_id=new_producer_id,
            producer_epoch=0,
            last_producer_epoch=NO_PRODUCER_EPOCH if expected_epoch is None else expected_epoch,
            timeout_ms=timeout_ms,
            partitions=NO_PLACES,
            start_ms=NO_TIME_MS,
            last_update_ms=now_ms,
        )

    def prepare_add_partitions(self, added: Collection[TopicPartition], now_ms: int, client_version: int) -> Move:
        """Prepare the addition of partitions to the transaction, which the first one begins. Raises: RuntimeError."""
        return self._prepare(
            _S.ONGOING,
            partitions=self.partitions.union(added),
            start_ms=now_ms if self.state in IDLE else self.start_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepare_fence(self) -> None:
        """Prevent the producer from ending its transaction, which the coordinator is about to abort; never logged."""
        self._prepare(_S.PREPARE_EPOCH_FENCE, producer_epoch=min(self.producer_epoch + 1, MAX_EPOCH))

    def prepare_end(
        self, state: TransactionState, client_version: int, next_producer_id: int, now_ms: int, *, is_empty: bool
    ) -> Move:
        """Prepare the commit or abort of the transaction, before its markers. An abort ends a pending fence.

        Args: ``next_producer_id``: that of the producer after the end, -1 to keep it; ``is_empty``: no transaction was
        open. Raises: RuntimeError for a move that the state or the epoch does not allow.
        """
        if self.pending is _S.PREPARE_EPOCH_FENCE and state is _S.PREPARE_ABORT:
            self.pending = None
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if client_version >= TV_2:
            if epoch == MAX_EPOCH and state is not _S.PREPARE_ABORT:
                raise self._illegal("the epoch cannot be bumped any more")
            last_epoch = epoch
            epoch = min(epoch + 1, MAX_EPOCH)
        return self._prepare(
            state,
            next_producer_id=next_producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            start_ms=now_ms if is_empty else self.start_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepare_complete(self, now_ms: int) -> Move:
        """Prepare the completion, after all markers. Clients never get the last epoch of a replaced producer id.

        Raises: RuntimeError.
        """
        state = _S.COMPLETE_COMMIT if self.state is _S.PREPARE_COMMIT else _S.COMPLETE_ABORT
        producer_id, epoch = self.producer_id, self.producer_epoch
        if self.client_version >= TV_2 and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, 0
        return self._prepare(
            state,
            producer_id=producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=epoch,
            partitions=NO_PLACES,
            last_update_ms=now_ms,
        )

    def prepare_dead(self) -> None:
        """Prepare the expiry of the id; its record is a tombstone."""
        self._prepare(_S.DEAD, partitions=NO_PLACES)

    def complete(self, move: Move) -> None:
        """Apply a move that is in the log. Raises: RuntimeError if it is not the pending move."""
        if self.pending is not move.state or move.state in (_S.DEAD, _S.PREPARE_EPOCH_FENCE):
            raise self._illegal(f"cannot complete {move}")
        for name, value in zip(Move._fields, move, strict=True):
            setattr(self, name, value)
        self.pending = None

    def cancel(self) -> None:
        """Cancel a pending move that could not be written."""
        self.pending = None

    def remove_partitions(self, places: Collection[TopicPartition]) -> None:
        """Remove partitions whose markers are written. Raises: RuntimeError unless the transaction is prepared."""
        if self.state not in PREPARED:
            raise self._illegal("markers are written for prepared transactions only")
        self.partitions = self.partitions.difference(places)

    def _prepare(self, state: TransactionState, **changes: Any) -> Move:
        """Return a move with these changes, and mark its state as pending.

        Raises: RuntimeError while a move is pending, or for one that the state does not allow.
        """
        if self.pending is not None or self.state not in VALID_PREVIOUS[state]:
            raise self._illegal(f"cannot move to {state.label}")
        move = Move._make(_present(self))._replace(state=state, prev_producer_id=self.producer_id, **changes)
        if move.producer_id < 0 or (move.producer_epoch < 0 and state is not _S.DEAD):
            raise self._illegal(f"cannot move to producer id {move.producer_id} with epoch {move.producer_epoch}")
        self.pending = state
        return move

    def _illegal(self, reason: str) -> RuntimeError:
        pending = "" if self.pending is None else f" (pending {self.pending.label})"
        return RuntimeError(f"transactional id {self.transactional_id!r} in {self.state.label}{pending}: {reason}")
