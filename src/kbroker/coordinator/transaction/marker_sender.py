"""Completion of prepared transactions: their markers, then the record of completion, with retries.

The thread that ends a transaction tries first, since every partition is on this broker; markers that cannot be written
now are retried by the thread ``TxnMarkerSender``.
Source: ``TransactionMarkerChannelManager``, ``TransactionMarkerRequestCompletionHandler``.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors
from kbroker.common.limited_log import RepeatedFailures
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.internal_topic import EndMarker
from kbroker.coordinator.transaction.transaction_log import StatePartition
from kbroker.coordinator.transaction.transaction_metadata import (
    PREPARED,
    Move,
    TransactionMetadata,
    TransactionState,
)
from kbroker.log.scheduler import ScheduledTask, Scheduler

logger = get_logger(__name__)

RETRY_BACKOFF_MS = 100
RETRY_BACKOFF_MAX_MS = 5_000

#: Errors of partitions without an open transaction: deleted, or ended by a newer epoch.
_NOT_NEEDED = frozenset(
    {
        Errors.NONE,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        Errors.INVALID_PRODUCER_EPOCH,
        Errors.TRANSACTION_COORDINATOR_FENCED,
    }
)


class Markers(Protocol):
    """Writer of end markers."""

    def write(self, place: TopicPartition, marker: EndMarker) -> Errors:
        """Write one marker; return NONE once acknowledged, UNKNOWN_TOPIC_OR_PARTITION if the partition does not exist.

        Never raises for a fault of the partition.
        """


class Completion:
    """A prepared transaction to complete: the remaining markers, then the record.

    Threads: one at a time.
    """

    __slots__ = ("left", "marker", "metadata", "move", "partition")

    def __init__(self, partition: StatePartition, metadata: TransactionMetadata, now_ms: int) -> None:
        """Prepare the move of a prepared transaction; the caller holds the partition's lock."""
        self.partition = partition
        self.metadata = metadata
        self.marker = EndMarker(
            metadata.producer_id,
            metadata.producer_epoch,
            partition.epoch,
            metadata.state is TransactionState.PREPARE_COMMIT,
            metadata.client_version,
        )
        self.left = set(metadata.partitions)
        self.move: Move = metadata.prepare_complete(now_ms)


class QueueSizes(NamedTuple):
    """Numbers of markers that could not be written, and of completed transactions that could not be logged."""

    markers: int
    completions: int


class MarkerSender:
    """Completion of prepared transactions.

    Args: ``scheduler``: reserved for this sender, since other tasks could delay it. Threads: any; under ``_lock``
    only the locks of the scheduler are acquired.
    """

    def __init__(self, markers: Markers, clock: BaseClock, scheduler: Scheduler) -> None:
        self._markers = markers
        self._clock = clock
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._waiting: list[Completion] = []
        self._task: ScheduledTask | None = None
        self._due_ms = 0  # due time of the task
        self._backoff_ms = RETRY_BACKOFF_MS
        self._failures = RepeatedFailures(clock)

    @property
    def queue_sizes(self) -> QueueSizes:
        """Numbers of the waiting retries."""
        with self._lock:
            waiting = list(self._waiting)
        return QueueSizes(sum(len(one.left) for one in waiting), sum(not one.left for one in waiting))

    def finish(self, completion: Completion) -> bool:
        """Write the markers and the record; return False if some have to wait for a retry. Call it without a lock."""
        if self._try(completion):
            return True
        with self._lock:
            self._waiting.append(completion)
            self._schedule(RETRY_BACKOFF_MS)  # even if others have a backoff: this failure may be unrelated
        return False

    def resume(self, partition: StatePartition) -> int:
        """Complete the prepared transactions of a loaded partition, on the scheduler's thread; return their number."""
        now_ms = self._clock.wall_ms()
        with partition.lock:
            found = [
                Completion(partition, one, now_ms)
                for one in partition.transactions.values()
                if one.state in PREPARED and one.pending is None
            ]
        if found:
            with self._lock:
                self._waiting += found
                self._schedule(0)
        return len(found)

    def retry(self) -> None:
        """Retry the waiting completions, and schedule the next retry of those that fail."""
        with self._lock:
            if self._task is not None:  # this task, or one that was scheduled while it waited for the lock
                self._task.cancel()
                self._task = None
            waiting, self._waiting = self._waiting, []
        left = [one for one in waiting if not self._try(one)]
        self._failures.write_late()
        with self._lock:
            is_progress = len(left) < len(waiting)
            self._waiting += left
            self._backoff_ms = RETRY_BACKOFF_MS if is_progress else min(2 * self._backoff_ms, RETRY_BACKOFF_MAX_MS)
            if self._waiting:
                self._schedule(self._backoff_ms)

    def _schedule(self, delay_ms: int) -> None:
        """Schedule a retry, unless an earlier one is scheduled; the caller holds the lock."""
        due_ms = self._clock.now_ms() + delay_ms
        if self._task is not None:
            if self._due_ms <= due_ms:
                return
            self._task.cancel()
        try:
            self._task = self._scheduler.schedule("txn-markers", self.retry, delay_ms=delay_ms)
        except RuntimeError:
            return  # the broker stops; the next start completes the prepared transactions
        self._due_ms = due_ms

    def _try(self, completion: Completion) -> bool:
        """Return whether the completion succeeded. Never raises: a lost one would block its transactional id."""
        try:
            return self._complete(completion)
        except Exception:  # no memory, or a defect
            logger.exception("%s: cannot complete the transaction", completion.metadata.transactional_id)
            return False

    def _complete(self, completion: Completion) -> bool:
        """Write the markers and the record of completion; return False if some have to wait."""
        partition, metadata = completion.partition, completion.metadata
        if not partition.is_active:
            return True  # the next coordinator of the partition completes it
        if completion.left:
            written = [place for place in sorted(completion.left) if self._write(completion, place)]
            completion.left.difference_update(written)
            with partition.lock:
                metadata.remove_partitions(written)
            if completion.left:
                return False
        with partition.lock:
            try:
                partition.append_move(metadata, completion.move)
            except Exception as error:
                if partition.is_active:
                    label, reason = completion.move.state.label, str(error)
                    self._failures.note(
                        "complete",
                        lambda times: logger.warning(
                            "could not log the end of transactions (times: %d, the last: %s of %s): %s",
                            times,
                            label,
                            metadata.transactional_id,
                            reason,
                        ),
                    )
                    completion.move = metadata.prepare_complete(self._clock.wall_ms())  # no other move until the retry
                    return False
        return True

    def _write(self, completion: Completion, place: TopicPartition) -> bool:
        try:
            marker = completion.marker._replace(coordinator_epoch=completion.partition.epoch)  # which may have risen
            error = self._markers.write(place, marker)
        except Exception:  # no memory, or a defect: retried like an error of the partition
            logger.exception("%s: cannot write the marker to %s-%d", completion.metadata.transactional_id, *place)
            return False
        if error in _NOT_NEEDED:
            if error is not Errors.NONE:
                logger.info(
                    "%s: no marker is needed in %s-%d: %s", completion.metadata.transactional_id, *place, error.name
                )
            return True
        logger.debug(
            "%s: cannot write the marker to %s-%d: %s", completion.metadata.transactional_id, *place, error.name
        )
        return False
