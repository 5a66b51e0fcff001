"""``__consumer_offsets``: which of its partitions are served, and writing the records of groups and end markers.

As in Kafka, a partition that cannot be read to its end serves no groups: a client that got "no committed offset" would
start elsewhere, and records written after the damage would not be read at the next start.
Source: ``CoordinatorRuntime``, ``CoordinatorPartitionWriter``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topics import OFFSETS_TOPIC
from kbroker.coordinator import internal_topic
from kbroker.coordinator.internal_topic import InternalTopic, KeyValue, TransactionalProducer, Written, partition_of


class Unserved(NamedTuple):
    """Why the groups of a partition are not served. ``is_unreadable``: only a repair helps."""

    error: Errors
    reason: str
    is_unreadable: bool = False


class OffsetsLog:
    """Writes the records of groups, and knows which partitions this broker serves.

    Threads: any. The order of one group's records is that of the calls, so the caller holds the group's lock.
    """

    def __init__(self, topic: InternalTopic, clock: BaseClock) -> None:
        self.topic = topic
        self._clock = clock
        self._unserved: Mapping[int, Unserved] = {}  # swapped whole, under the lock
        self._loaded_count = 0  # partitions at the start
        self._lock = threading.Lock()

    # ------------------------------------------------------------ partitions

    @property
    def partition_count(self) -> int:
        """Partitions of the topic, 0 while it does not exist."""
        return self.topic.partition_count

    @property
    def unserved(self) -> Mapping[int, Unserved]:
        """Partitions whose groups are not served, with the reason."""
        return self._unserved

    def partition_for(self, group_id: str) -> int:
        """The partition that a group's records are written to."""
        return partition_of(group_id, self.topic.partition_count or 1)

    def check(self, group_id: str) -> None:
        """Raises: KafkaError NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS if the group's partition is not served."""
        if self._unserved:  # also of the partition it had at the start: the topic may have grown since
            why = self._unserved.get(self.partition_for(group_id))
            if why is None and self._loaded_count:
                why = self._unserved.get(partition_of(group_id, self._loaded_count))
            if why is not None:
                raise KafkaError(why.error, why.reason)

    def check_partition(self, index: int) -> None:
        """Raises: KafkaError as ``check``, of one partition."""
        why = self._unserved.get(index)
        if why is not None:
            raise KafkaError(why.error, why.reason)

    def check_loaded(self) -> None:
        """Raises: KafkaError COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded."""
        for why in self._unserved.values():
            if why.error is Errors.COORDINATOR_LOAD_IN_PROGRESS:
                raise KafkaError(why.error, why.reason)

    def note_loaded_count(self) -> None:
        """Remember how many partitions there are at the start."""
        self._loaded_count = self.topic.partition_count

    def refuse(self, index: int, why: Unserved) -> None:
        """Serve the groups of a partition no longer."""
        with self._lock:
            self._unserved = {**self._unserved, index: why}

    def serve(self, index: int) -> None:
        """Serve the groups of a partition."""
        with self._lock:
            self._unserved = {other: why for other, why in self._unserved.items() if other != index}

    def serve_all(self) -> None:
        """The topic was deleted: a new one starts undamaged, with all of its partitions here."""
        with self._lock:
            self._unserved = {}

    def prepare(self) -> None:
        """Create the topic if it does not exist. Raises: KafkaError with the coordinator's code for the client."""
        internal_topic.prepare(self.topic)

    # ------------------------------------------------------------ writing

    def append(
        self, group_id: str, records: Sequence[KeyValue], producer: TransactionalProducer | None = None
    ) -> Written:
        """Append key and value (None: a tombstone); call ``await_disk`` of the result before acknowledging.

        Args: ``producer``: the records belong to its transaction.
        Raises: KafkaError with the coordinator's code for the client; then nothing was written.
        """
        self.check(group_id)
        if not self.topic.partition_count:
            self.prepare()
        log = self._log(self.partition_for(group_id))
        return internal_topic.append(log, records, self._clock.wall_ms(), producer)

    def start_verification(
        self, group_id: str, producer_id: int, producer_epoch: int, bumps_epochs: bool
    ) -> tuple[int, int]:
        """Before a transactional commit: the group's partition, and the guard that the commit needs.

        Args: ``bumps_epochs``: the client speaks transaction version 2.
        Returns: a guard of 0 if the transaction is open there; for any other ask the transaction coordinator.
        Raises: KafkaError INVALID_PRODUCER_EPOCH for an older one, or with the coordinator's code.
        """
        self.check(group_id)
        if not self.topic.partition_count:
            self.prepare()
        index = self.partition_for(group_id)
        error, guard = self._log(index).start_verification(producer_id, producer_epoch, -1, bumps_epochs=bumps_epochs)
        if error:
            raise internal_topic.error_for_client(Errors.of(error), None)
        return index, guard

    def append_end_marker(
        self,
        index: int,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> Written:
        """Append the marker that ends a transaction on one partition; call ``await_disk`` of the result.

        Raises: KafkaError with the log's code; then nothing was written.
        """
        self.check_partition(index)
        log = self._log(index)
        try:
            info = log.append_end_marker(
                producer_id, producer_epoch, coordinator_epoch, commit, transaction_version=transaction_version
            )
        except ValueError as error:  # closed: the topic was deleted, or the broker stops
            raise KafkaError(Errors.NOT_COORDINATOR, str(error)) from error
        if info.error:
            raise KafkaError(Errors.of(info.error), info.message)
        return Written(log, info.flush_offset, info.base_offset)

    def _log(self, index: int) -> Any:
        log = self.topic.partition(index)
        if log is None:
            raise KafkaError(Errors.NOT_COORDINATOR, f"the partition {OFFSETS_TOPIC}-{index} is offline")
        return log
