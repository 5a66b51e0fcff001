"""The transaction coordinator in its broker: settings, ``__transaction_state``, markers, its thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from kbroker.coordinator.internal_topic import EndMarker, InternalTopic, append_end_marker
from kbroker.coordinator.transaction.add_partitions_to_txn import AddPartitionsToTxnManager
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator, TransactionSettings
from kbroker.log.scheduler import Scheduler
from kbroker.metadata.topics import TopicRegistry

if TYPE_CHECKING:
    from kbroker.coordinator.group_coordinator import GroupCoordinator

#: Retriable errors of the group coordinator: the transaction coordinator repeats the request, as for partitions.
_NOT_NOW = frozenset({Errors.COORDINATOR_NOT_AVAILABLE, Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.NOT_COORDINATOR})


class TransactionService:
    """Service around a TransactionCoordinator.

    ``markers`` writes end markers to this broker's partitions, ``partitions`` verifies the requests of Produce and
    TxnOffsetCommit at the coordinator of their transactional id, which ``coordinator_of`` returns.

    Start the service when the topics are loaded and before clients are served; close it when no handler runs any
    more. Its thread ``TxnMarkerSender`` runs retries and timers, and its thread ``AddPartitionsToTxnSenderThread``
    the retries of ``partitions``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: BaseClock,
        topics: TopicRegistry,
        new_producer_id: Callable[[], int],
        groups: Callable[[int], GroupCoordinator],
        coordinator_of: Callable[[str], TransactionCoordinator],
    ) -> None:
        self._topics = topics
        self._scheduler = Scheduler(clock, f"TxnMarkerSender-{config.node_id}")
        self.markers = PartitionMarkers(topics, groups)
        self.coordinator = TransactionCoordinator(
            clock,
            InternalTopic(topics, config, TRANSACTION_STATE_TOPIC),
            new_producer_id,
            self.markers,
            self._scheduler,
            transaction_settings(config),
        )
        self._retries = Scheduler(clock, f"AddPartitionsToTxnSenderThread-{config.node_id}")
        self.partitions = AddPartitionsToTxnManager(
            coordinator_of,
            clock,
            self._retries,
            retry_ms=config.integer("add.partitions.to.txn.retry.backoff.ms"),
            retry_max_ms=min(
                config.integer("add.partitions.to.txn.retry.backoff.max.ms"), config.integer("request.timeout.ms")
            ),
        )

    def start(self) -> None:
        """Load the state from the log, then start its timers. If that fails, the service is closed."""
        try:
            self.coordinator.start()
            self._topics.on_deleted.append(self._topic_deleted)
            self._scheduler.start()
            self._retries.start()
        except BaseException:  # no thread may remain: another service will write to the same log
            self.close(0)
            raise

    def close(self, timeout_s: float) -> bool:
        """Stop serving transactional ids; return False if a thread did not end in time. Idempotent."""
        self.coordinator.runtime.close()
        retries_ended = self._retries.close(timeout_s)
        self._topics.forget(self._topic_deleted)
        return self._scheduler.close(timeout_s) and retries_ended

    @property
    def is_idle(self) -> bool:
        """True if no task is due or running."""
        return self._scheduler.is_idle and self._retries.is_idle

    def _topic_deleted(self, name: str) -> None:
        if name == TRANSACTION_STATE_TOPIC:
            self.coordinator.runtime.topic_deleted()


class PartitionMarkers:
    """Writer of markers to partitions; those of ``__consumer_offsets`` are written through the groups.

    Args: ``groups``: returns the coordinator of the groups in a partition of ``__consumer_offsets``. Threads: any.
    """

    def __init__(self, topics: TopicRegistry, groups: Callable[[int], GroupCoordinator]) -> None:
        self._topics = topics
        self._groups = groups
        #: Returns whether the marker of a partition is delayed, to be retried; None: no marker is delayed. For tests.
        self.is_held: Callable[[TopicPartition], bool] | None = None

    def write(self, place: TopicPartition, marker: EndMarker) -> Errors:
        """Write one marker, on disk if the topic's settings require it; return the error."""
        if self.is_held is not None and self.is_held(place):
            return Errors.NOT_LEADER_OR_FOLLOWER
        topic, index = place
        view = self._topics.get(topic)
        if view is None or not 0 <= index < len(view.partitions):
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        log = view.partitions[index]
        if log is None:
            return Errors.KAFKA_STORAGE_ERROR
        try:
            if topic == OFFSETS_TOPIC:
                self._groups(index).offsets.complete_transaction(index, marker)
            else:
                append_end_marker(log, marker).await_disk()
            return Errors.NONE
        except KafkaError as error:
            return Errors.NOT_LEADER_OR_FOLLOWER if error.error in _NOT_NOW else error.error


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """Return the coordinator's settings from those of the broker."""
    return TransactionSettings(
        max_timeout_ms=config.integer("transaction.max.timeout.ms"),
        id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        abort_interval_ms=config.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        expiration_interval_ms=config.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
        two_phase_commit=config.boolean("transaction.two.phase.commit.enable"),
        load_buffer_bytes=config.integer("transaction.state.log.load.buffer.size"),
    )
