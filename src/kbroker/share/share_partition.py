"""A partition of a share group: deliveries, acknowledgements, acquisition locks, and the state at the persister.

The response to an acknowledgement is sent when the persister has stored it. Writes reach the persister in the order in
which the states changed.

Source: ``SharePartition``.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from kbroker._core.clock import BaseClock
from kbroker._core.timer.timing_wheel import Timer
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.common.printable import printable
from kbroker.coordinator.share.persister import UNINITIALIZED_OFFSET, StateBatch, StateChange
from kbroker.coordinator.share.share_coordinator import ShareStatePersister
from kbroker.share.acquisition import AcquireLimits, AcquireMode, acquire
from kbroker.share.fetched import AcquiredRecords, Fetched, without
from kbroker.share.group_configs import ShareGroupConfigs
from kbroker.share.in_flight import (
    TERMINAL,
    AcknowledgeType,
    AcquisitionLock,
    InFlightBatch,
    InFlightRun,
    RecordState,
    Transition,
)
from kbroker.share.share_sensors import ShareSensors
from kbroker.share.window import InFlightWindow

logger = get_logger(__name__)

#: Called once, with None or the error.
Done = Callable[[KafkaError | None], None]

_STATE_OF_TYPE = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}
_BATCH_NOT_ACQUIRED = "The batch cannot be acknowledged. The batch is not in the acquired state."
_SERVER_ERROR = "Unable to complete operation due to server error."


class SharePartitionKey(NamedTuple):
    """A group and a partition."""

    group_id: str
    topic_id: UUID
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{printable(self.group_id)}-{self.topic}-{self.partition}"


class AcknowledgementBatch(NamedTuple):
    """Acknowledgement of a range of offsets: one type for all of them, or one for each."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class SharePartitionState(enum.Enum):
    """States of a share partition. A failed or fenced one is replaced by a new share partition."""

    EMPTY = "empty"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


class SharePartition:
    """A share partition.

    Args: ``initial_offset`` returns the start offset by ``share.auto.offset.reset``; ``wake`` is called without the
    lock, after records may have become available.
    Attributes: ``record_bytes``: average size of the records that were read last.
    Threads: any. ``lock`` guards the state; neither the persister nor ``wake`` nor a ``done`` is called under it.
    """

    def __init__(
        self,
        key: SharePartitionKey,
        leader_epoch: int,
        configs: ShareGroupConfigs,
        timer: Timer,
        clock: BaseClock,
        persister: ShareStatePersister,
        initial_offset: Callable[[], int],
        wake: Callable[[], object],
        sensors: ShareSensors,
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.configs = configs
        self.window = InFlightWindow()
        self.state = SharePartitionState.EMPTY
        self.record_bytes = 1024.0
        self.lock = threading.Lock()
        self._state_epoch = 0
        self._timer = timer
        self._clock = clock
        self._persister = persister
        self._initial_offset = initial_offset
        self._wake = wake
        self._sensors = sensors
        self._fetch_holder: object | None = None
        self._writes: deque[_Write] = deque()
        self._write_turn = threading.Lock()

    # ------------------------------------------------------------ states

    def initialize(self) -> None:
        """Read the state from the persister, unless that has begun before.

        Raises: KafkaError: LEADER_NOT_AVAILABLE while another thread reads the state and after ``fence``; the error of
        the persister or of ``initial_offset``, and UNKNOWN_SERVER_ERROR at each later call.
        """
        with self.lock:
            state = self.state
            if state is SharePartitionState.EMPTY:
                self.state = SharePartitionState.INITIALIZING
        if state is SharePartitionState.EMPTY:
            self._load()
        elif state is SharePartitionState.FAILED:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, f"Share partition failed to load {self.key}")
        elif state is not SharePartitionState.ACTIVE:
            reason = "already initializing" if state is SharePartitionState.INITIALIZING else "fenced"
            raise KafkaError(Errors.LEADER_NOT_AVAILABLE, f"Share partition is {reason} {self.key}")

    def _load(self) -> None:
        key, failure = self.key, None
        try:
            try:
                stored = self._persister.read_state(key.group_id, key.topic_id, key.partition, self.leader_epoch)
            except KafkaError as error:
                raise persister_error(error) from error
            is_new = stored.start_offset == UNINITIALIZED_OFFSET
            start_offset = self._initial_offset() if is_new else stored.start_offset
            with self.lock:
                self._state_epoch = stored.state_epoch
                self.window.load(start_offset, stored.batches)
                for batch in self.window.batches:
                    self._sensors.in_flight_batch(batch.count)
                if self.state is SharePartitionState.INITIALIZING:
                    self.state = SharePartitionState.ACTIVE
        except Exception as error:
            failure = _reported(error, "failed to load", key)
        if failure is not None:
            # other errors: the state does not exist, or not yet
            write = logger.warning if failure.error is Errors.UNKNOWN_SERVER_ERROR else logger.debug
            write("failed to load the share partition %s: %s", key, failure)
            with self.lock:
                self.state = SharePartitionState.FAILED
            raise failure

    def fence(self) -> None:
        """Stop deliveries: the partition was replaced or deleted, or its state belongs to a later epoch.

        Locks end without a write, which could overwrite the state of a successor.
        """
        with self.lock:
            self.state = SharePartitionState.FENCED
            for batch in self.window.batches:
                for run in batch.runs:
                    run.drop_lock()

    @property
    def is_active(self) -> bool:
        """Return whether the state is loaded and not fenced."""
        return self.state is SharePartitionState.ACTIVE

    # ------------------------------------------------------------ fetches

    def acquire_fetch_lock(self, holder: object) -> bool:
        """Acquire the right to read for this partition. Returns: False if it is held or the partition is not active."""
        with self.lock:
            if self._fetch_holder is not None or not self.is_active:
                return False
            self._fetch_holder = holder
            return True

    def release_fetch_lock(self, holder: object) -> None:
        """Release the right to read; no effect if another holder has it."""
        with self.lock:
            if self._fetch_holder is holder:
                self._fetch_holder = None

    def next_fetch_offset(self) -> int | None:
        """Return the first offset that a member may acquire; None while the window is full."""
        with self.lock:
            window = self.window
            offset = window.next_fetch_offset()
            is_full = window.record_count >= self.configs.max_record_locks
            return None if is_full and offset == window.end_offset + 1 else offset

    def free_records(self) -> int:
        """Return the number of records that may be added to the window."""
        with self.lock:
            return self.configs.max_record_locks - self.window.record_count

    def acquire(
        self,
        member_id: str,
        mode: AcquireMode,
        batch_size: int,
        max_records: int,
        fetch_offset: int,
        fetched: Fetched,
    ) -> list[AcquiredRecords]:
        """Acquire records for a member, and return them; archive those of the aborted transactions of ``fetched``.

        None are acquired once the partition is not active.
        """
        with self.lock:
            if not self.is_active or max_records <= 0 or not fetched.batches:
                return []
            configs = self.configs
            limits = AcquireLimits(
                mode, batch_size, max_records, configs.max_record_locks, configs.delivery_count_limit
            )
            known = len(self.window.batches)
            acquired = acquire(self.window, member_id, limits, fetch_offset, fetched, self._lock_records)
            for batch in self.window.batches[known:]:
                self._sensors.in_flight_batch(batch.count)
            if not acquired or not fetched.aborted:
                return acquired
            aborted = fetched.aborted_batches()
            for one in aborted:
                self.window.archive(one.base_offset, one.last_offset, RecordState.ACQUIRED, is_counted=True)
            self.window.move_start()  # otherwise aborted records alone would fill the window
            return without(acquired, aborted)

    def move_log_start(self, log_start: int) -> None:
        """Move the start offset to the start of the log, if that is later."""
        with self.lock:
            self.window.move_log_start(log_start)

    # ------------------------------------------------------------ acknowledgements

    def acknowledge(self, member_id: str, batches: Iterable[AcknowledgementBatch], done: Done) -> None:
        """Acknowledge records of a member: all of the batches, or none if there is an error."""
        with self.lock:
            transition = Transition(self.configs.delivery_count_limit)
            failure = None
            try:
                for batch in batches:
                    self._acknowledge(member_id, batch, transition)
            except Exception as error:
                failure = _reported(error, "cannot acknowledge records of", self.key)
            self._finish(transition, failure, done)
        self._drain_writes(failure, done, transition)

    def release_member(self, member_id: str, done: Done) -> None:
        """Make the records of a member available; those before the start offset are archived."""
        with self.lock:
            transition = Transition(self.configs.delivery_count_limit)
            for batch in self.window.batches:
                for run in self._acquired(batch, lambda run: run.member_id == member_id):
                    is_before = run.last_offset < self.window.start_offset
                    self._begin(run, transition, RecordState.ARCHIVED if is_before else RecordState.AVAILABLE)
            self._finish(transition, None, done)
        self._drain_writes(None, done, transition)

    def _acquired(self, batch: InFlightBatch, is_chosen: Callable[[InFlightRun], bool]) -> list[InFlightRun]:
        """Return the chosen acquired runs of a batch, cut at the start offset."""

        def chosen() -> list[InFlightRun]:
            return [run for run in batch.runs if run.state is RecordState.ACQUIRED and is_chosen(run)]

        found = chosen()
        return chosen() if found and batch.cut(self.window.start_offset) else found

    def _acknowledge(self, member_id: str, ack: AcknowledgementBatch, transition: Transition) -> None:
        """Begin the changes of one batch of acknowledgements. Raises: KafkaError for a record that cannot change."""
        window = self.window
        if ack.last_offset < window.start_offset:
            return  # archived
        for batch in self._acknowledged_batches(ack):
            if batch.last_offset < window.start_offset:
                continue
            is_whole = ack.first_offset <= batch.first_offset and batch.last_offset <= ack.last_offset
            starts_within = batch.first_offset < window.start_offset <= batch.last_offset
            if not batch.is_split:
                _check_owner(batch.whole, member_id)
                if not is_whole or len(ack.types) > 1 or starts_within:
                    batch.is_split = True
            if batch.is_split:
                self._acknowledge_part(member_id, ack, batch, transition)
            else:
                self._change(batch.whole, ack.types[0], transition)

    def _acknowledged_batches(self, ack: AcknowledgementBatch) -> list[InFlightBatch]:
        """Return the batches in flight that an acknowledgement concerns, up to its end. Raises: KafkaError."""
        window = self.window
        floor = window.floor(ack.first_offset)
        if floor is None and ack.first_offset < window.start_offset <= ack.last_offset:
            floor = window.floor(window.start_offset)
        if floor is None:
            text = "Batch record not found. The request batch offsets are not found in the cache."
            raise KafkaError(Errors.INVALID_RECORD_STATE, text)
        batches = window.between(floor.first_offset, ack.last_offset)
        for offset, name in ((ack.first_offset, "first"), (ack.last_offset, "last")):
            if batches[-1].last_offset < offset:
                text = f"Batch record not found. The {name} offset in request is past acquired records."
                raise KafkaError(Errors.INVALID_REQUEST, text)
        return batches

    def _acknowledge_part(
        self, member_id: str, ack: AcknowledgementBatch, batch: InFlightBatch, transition: Transition
    ) -> None:
        first = max(ack.first_offset, self.window.start_offset)
        for run in batch.between(first, ack.last_offset):
            if run.state is not RecordState.ACQUIRED:
                text = "The offset cannot be acknowledged. The offset is not acquired."
                raise KafkaError(Errors.INVALID_RECORD_STATE, text)
            if run.member_id != member_id:
                raise KafkaError(Errors.INVALID_RECORD_STATE, "Member is not the owner of offset")
            start, end = max(first, run.first_offset), min(ack.last_offset, run.last_offset)
            for type_, from_offset, to_offset in _same_types(ack, start, end):
                piece = batch.part(batch.run_at(from_offset), from_offset, to_offset)
                self._change(piece, type_, transition)

    def _change(self, run: InFlightRun, type_: int, transition: Transition) -> None:
        """Begin the change of acquired records that an acknowledgement requests. Raises: KafkaError."""
        if type_ == AcknowledgeType.RENEW:
            if not self.configs.is_renew_enabled:
                text = "Renewing acquisition locks is not enabled for the group."
                raise KafkaError(Errors.INVALID_RECORD_STATE, text)
            run.hold(self._lock_records(run.member_id, run.first_offset, run.last_offset))
            return
        try:
            state = _STATE_OF_TYPE[AcknowledgeType(type_)]
        except ValueError:
            raise KafkaError(Errors.INVALID_REQUEST, f"Invalid acknowledge type: {type_}") from None
        self._begin(run, transition, state)

    def _begin(self, run: InFlightRun, transition: Transition, state: RecordState) -> None:
        run.begin(transition, state)
        if run.state in TERMINAL:
            self.window.complete_count += self.window.count_from_start(run.first_offset, run.last_offset)

    def _finish(self, transition: Transition, failure: KafkaError | None, done: Done) -> None:
        """Undo a failed transition, or queue the write that stores it. The lock is held."""
        if failure is not None:
            self._end(transition, is_stored=False)
        elif transition.runs:
            self._store(transition.runs, partial(self._stored, transition, done))

    def _end(self, transition: Transition, *, is_stored: bool) -> bool:
        """End a transition. Returns: whether records became available."""
        window = self.window
        are_available = False
        for run in transition.runs:
            was_terminal = run.state in TERMINAL
            run.end(is_stored)
            if run.state is RecordState.AVAILABLE:
                are_available = window.is_next_unknown = True
            if not is_stored and was_terminal and run.state not in TERMINAL:
                window.complete_count -= window.count_from_start(run.first_offset, run.last_offset)
        if are_available:  # the log may begin later than before the transition
            window.archive(0, window.start_offset - 1, RecordState.AVAILABLE, is_counted=False)
        if is_stored:
            for run in transition.runs:
                batch = window.floor(run.first_offset)
                if batch is not None and batch.is_split and len(batch.runs) > 1:
                    batch.merge(run)
        return are_available

    def _stored(self, transition: Transition, done: Done, failure: KafkaError | None) -> None:
        with self.lock:
            is_due = self._end(transition, is_stored=failure is None)
            if failure is None:
                is_due = self.window.move_start() or is_due
        done(None if failure is None else persister_error(failure))
        if is_due:
            self._wake()

    # ------------------------------------------------------------ writes

    def _store(self, runs: Iterable[InFlightRun], stored: Done) -> None:
        """Queue a write of the state of runs. The lock is held."""
        batches = [StateBatch(run.first_offset, run.last_offset, run.state, run.delivery_count) for run in runs]
        window = self.window
        self._writes.append(_Write(window.start_offset, window.complete_count, batches, stored))

    def _drain_writes(self, failure: KafkaError | None, done: Done, transition: Transition) -> None:
        """Pass queued writes on; complete an acknowledgement that has nothing to store."""
        self._write_out()
        if failure is not None or not transition.runs:
            done(failure)

    def _write_out(self) -> None:
        """Pass the queued writes to the persister, one thread at a time and in order."""
        while self._writes and self._write_turn.acquire(blocking=False):
            try:
                while self._writes:
                    self._write(self._writes.popleft())
            finally:
                self._write_turn.release()

    def _write(self, write: _Write) -> None:
        key = self.key
        change = StateChange(
            self._state_epoch, self.leader_epoch, write.start_offset, write.complete_count, write.batches
        )
        failure = None
        try:
            self._persister.write_state(key.group_id, key.topic_id, key.partition, change)
        except Exception as error:
            failure = _reported(error, "cannot write the state of", key)
        try:
            write.stored(failure)
        except Exception:  # the next writes must continue
            logger.exception("cannot end a write of the state of the share partition %s", key)

    # ------------------------------------------------------------ acquisition locks

    def _lock_records(self, member_id: str, first_offset: int, last_offset: int) -> AcquisitionLock:
        """Return a new lock, and start its time-out."""
        duration_ms = self.configs.record_lock_duration_ms
        lock = AcquisitionLock(member_id, first_offset, last_offset, self._clock.now_ms() + duration_ms)
        lock.task = self._timer.add(duration_ms, partial(self._expire, lock))
        return lock

    def _expire(self, lock: AcquisitionLock) -> None:
        """Release the records of an expired lock, and store their state."""
        with self.lock:
            lock.has_expired = True
            lock.task = None
            window = self.window
            released: list[InFlightRun] = []
            floor = window.floor(lock.first_offset)
            for batch in window.between(floor.first_offset if floor else lock.first_offset, lock.last_offset):
                released.extend(self._acquired(batch, lambda run: run.lock is lock))
            for run in released:
                run.drop_lock()
                run.release(0 if run.last_offset < window.start_offset else self.configs.delivery_count_limit)
                if run.state is RecordState.ARCHIVED:
                    window.complete_count += window.count_from_start(run.first_offset, run.last_offset)
                else:
                    window.is_next_unknown = True
            if not released:
                return
            self._sensors.lock_timeout(sum(run.last_offset - run.first_offset + 1 for run in released))
            self._store(released, self._expiry_stored)
        self._write_out()
        self._wake()

    def _expiry_stored(self, failure: KafkaError | None) -> None:
        if failure is not None:
            logger.debug("cannot store released locks of %s: error %d, %s", self.key, failure.error, failure.message)
        with self.lock:
            self.window.move_start()


class _Write(NamedTuple):
    start_offset: int
    complete_count: int
    batches: Sequence[StateBatch]
    stored: Done


def _check_owner(run: InFlightRun, member_id: str) -> None:
    """Check that a member has acquired a batch, and that no change of it is in progress. Raises: KafkaError."""
    if not run.member_id:
        raise KafkaError(Errors.INVALID_RECORD_STATE, _BATCH_NOT_ACQUIRED)
    if run.member_id != member_id:
        raise KafkaError(Errors.INVALID_RECORD_STATE, "Member is not the owner of batch record")


def _same_types(ack: AcknowledgementBatch, first: int, last: int) -> Iterable[tuple[int, int, int]]:
    """Yield each type of acknowledgement with the first and last offset of a range that has it."""
    types = ack.types
    if len(types) == 1:
        yield types[0], first, last
        return
    start = first
    for offset in range(first + 1, last + 2):
        if offset > last or types[offset - ack.first_offset] != types[start - ack.first_offset]:
            yield types[start - ack.first_offset], start, offset - 1
            start = offset


#: The error that clients get for an error of the persister; UNKNOWN_SERVER_ERROR for any other.
_ERROR_FOR_CLIENTS = {
    Errors.NOT_COORDINATOR: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.COORDINATOR_NOT_AVAILABLE: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.COORDINATOR_LOAD_IN_PROGRESS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.GROUP_ID_NOT_FOUND: Errors.GROUP_ID_NOT_FOUND,
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.UNKNOWN_TOPIC_OR_PARTITION,
    Errors.FENCED_LEADER_EPOCH: Errors.NOT_LEADER_OR_FOLLOWER,
    Errors.FENCED_STATE_EPOCH: Errors.NOT_LEADER_OR_FOLLOWER,
}


def _reported(error: Exception, words: str, key: SharePartitionKey) -> KafkaError:
    """Return an error; any other than KafkaError is logged and becomes UNKNOWN_SERVER_ERROR."""
    if isinstance(error, KafkaError):
        return error
    logger.exception("%s the share partition %s", words, key)
    return KafkaError(Errors.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}")


def persister_error(failure: KafkaError) -> KafkaError:
    """Return the error that clients get for an error of the persister. Source: ``fetchPersisterError``."""
    is_hidden = failure.error in (Errors.SASL_AUTHENTICATION_FAILED, Errors.UNSUPPORTED_VERSION)
    error = _ERROR_FOR_CLIENTS.get(failure.error, Errors.UNKNOWN_SERVER_ERROR)
    return KafkaError(error, _SERVER_ERROR if is_hidden else failure.message)
