"""The share partitions in their broker: settings, threads, and the effects of changed topics and features."""

from __future__ import annotations

from kbroker._core.clock import BaseClock
from kbroker._core.timer.key_signal import KeySignal
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.feature_versions import SHARE_VERSION
from kbroker.common.threads import have_ended, new_thread
from kbroker.coordinator.share.share_coordinator import ShareStatePersister
from kbroker.metadata.controller import Controller
from kbroker.metadata.features import Features
from kbroker.metadata.topics import TopicRegistry
from kbroker.metrics.registry import Metrics
from kbroker.share.share_partition_manager import SharePartitionManager
from kbroker.share.share_sensors import ShareSensors


class SharePartitionService:
    """Service around a SharePartitionManager.

    Close it when no handler runs any more but responses can still be sent. Its threads: one expires acquisition locks,
    one expires share fetches, one completes them after appends and ends sessions of closed connections.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: BaseClock,
        topics: TopicRegistry,
        controller: Controller,
        features: Features,
        persister: ShareStatePersister,
        signal: KeySignal,
        metrics: Metrics,
    ) -> None:
        sensors = ShareSensors(metrics)
        self.manager = SharePartitionManager(config, clock, topics, controller, persister, signal, sensors)
        self._topics = topics
        self._features = features
        self._threads = [
            new_thread("share-group-lock-timeout-reaper", self.manager.run_lock_reaper, "share-locks"),
            new_thread(f"ExpirationReaper-{config.node_id}-ShareFetch", self.manager.run_reaper, "share-reaper"),
            new_thread(f"share-fetch-{config.node_id}", self.manager.run_waker, "share-fetch"),
        ]

    def start(self) -> None:
        """Start the threads, and follow topics and features. If a thread cannot start, the others end."""
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.manager.end_reapers()
            raise
        self._topics.on_deleted.append(self.manager.topic_deleted)
        self._topics.on_elected.append(self.manager.elected)
        self._features.on_change(self._features_changed)

    def close(self, timeout_s: float) -> None:
        """Complete the share fetches that wait, and end the threads. Idempotent."""
        self._topics.forget(self.manager.topic_deleted, self.manager.elected)
        self.manager.close()
        have_ended(self._threads, timeout_s)

    def _features_changed(self) -> None:
        if self._features.level(SHARE_VERSION) < 1:
            self.manager.disable()
