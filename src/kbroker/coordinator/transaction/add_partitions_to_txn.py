"""Verification and addition of partitions in a producer's transaction, by calls to the transaction coordinator.

Produce and TxnOffsetCommit verify before they write. The coordinator is in this broker, so a verification is a call;
this module decides when to repeat it, and counts the results.
Source: ``AddPartitionsToTxnManager``, ``ReplicaManager`` (its retries), KIP-890.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TopicPartition
from kbroker.log.scheduler import Scheduler
from kbroker.metrics.histogram import Histogram
from kbroker.network._request_metrics import BOUNDS_MS

if TYPE_CHECKING:  # a producer without transactions loads no coordinator
    from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator

logger = get_logger(__name__)

PartitionErrors = Mapping[TopicPartition, Errors]


class TransactionPartitions(NamedTuple):
    """Partitions of one request, to add or verify."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    places: Collection[TopicPartition]


class AddPartitionsToTxnManager:
    """Client of the transaction coordinator, which retries while the previous transaction is still ending.

    Args: ``coordinator_of``: returns the coordinator of a transactional id, or raises KafkaError. ``scheduler``: runs
    only the retries, since the work after a retry may wait for a disk or for capacity in the request queue.
    ``retry_ms``: delay between two attempts; ``retry_max_ms``: limit since the first attempt
    (``add.partitions.to.txn.retry.backoff.ms``, ``.max.ms``).
    Threads: any.
    """

    def __init__(
        self,
        coordinator_of: Callable[[str], TransactionCoordinator],
        clock: BaseClock,
        scheduler: Scheduler,
        *,
        retry_ms: int,
        retry_max_ms: int,
    ) -> None:
        self._coordinator_of = coordinator_of
        self._clock = clock
        self._scheduler = scheduler
        self._retry_ms = retry_ms
        self._retry_max_ms = retry_max_ms
        self.verification_time_ms = Histogram(BOUNDS_MS)
        self._lock = threading.Lock()  # a leaf
        self._verification_failures = 0

    @property
    def verification_failures(self) -> int:
        """Number of partitions refused so far, counted once for each verification."""
        return self._verification_failures

    def verify(self, partitions: TransactionPartitions) -> PartitionErrors:
        """Return NONE for each partition in the transaction, else the error. Never raises."""
        return self._call(partitions, adds=False)

    def add(
        self,
        partitions: TransactionPartitions,
        done: Callable[[PartitionErrors], None],
        again: Callable[[], TransactionPartitions] | None = None,
    ) -> None:
        """Add the partitions to the transaction, which the first addition begins.

        Args: ``done``: called once with each partition's error, here or later by the scheduler's thread; it never
        raises. ``again``: returns the partitions of a retry; None: the same partitions.
        """
        began_ms = self._clock.now_ms()

        def attempt(current: TransactionPartitions) -> None:
            found = self._call(current, adds=True)
            is_busy = Errors.CONCURRENT_TRANSACTIONS in found.values()
            if not is_busy or self._clock.now_ms() - began_ms >= self._retry_max_ms or not self._later(attempt_again):
                done(found)

        def attempt_again() -> None:
            try:
                current = partitions if again is None else again()
            except Exception:  # no memory, or a bug: the request must still get a response
                logger.exception("cannot verify the transaction of %r again", partitions.transactional_id)
                done(dict.fromkeys(partitions.places, Errors.UNKNOWN_SERVER_ERROR))
            else:
                attempt(current)

        attempt(partitions)

    def _later(self, run: Callable[[], None]) -> bool:
        """Schedule a retry; return False if the broker stops."""
        try:
            self._scheduler.schedule("retry-add-partitions-to-txn", run, delay_ms=self._retry_ms)
        except RuntimeError:
            return False
        return True

    def _call(self, partitions: TransactionPartitions, *, adds: bool) -> PartitionErrors:
        if not partitions.places:
            return {}
        began_ns = self._clock.now_ns()
        try:
            coordinator = self._coordinator_of(partitions.transactional_id)
            found = (coordinator.add_partitions if adds else coordinator.verify_partitions)(*partitions)
        except KafkaError as error:
            found = dict.fromkeys(partitions.places, error.error)
        except Exception:
            logger.exception("cannot verify the transaction of %r", partitions.transactional_id)
            found = dict.fromkeys(partitions.places, Errors.UNKNOWN_SERVER_ERROR)
        self.verification_time_ms.record((self._clock.now_ns() - began_ns) / 1e6)
        refused = sum(error is not Errors.NONE for error in found.values())
        if refused:
            with self._lock:
                self._verification_failures += refused
        return found
