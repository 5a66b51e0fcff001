"""The share coordinator in its broker: settings, ``__share_group_state``, periodic work."""

from __future__ import annotations

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.topic_names import SHARE_STATE_TOPIC
from kbroker.coordinator.internal_topic import InternalTopic
from kbroker.coordinator.share.share_coordinator import (
    PRUNE_INTERVAL_MS,
    SNAPSHOT_INTERVAL_MS,
    ShareCoordinator,
    ShareSettings,
)
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.log.scheduler import Scheduler
from kbroker.metadata.topics import TopicRegistry


class ShareService:
    """Service around a ShareCoordinator. Start it when the topics are loaded and before clients are served."""

    def __init__(self, config: BrokerConfig, clock: BaseClock, topics: TopicRegistry, scheduler: Scheduler) -> None:
        self._topics = topics
        self._scheduler = scheduler
        self.coordinator = ShareCoordinator(
            clock,
            InternalTopic(topics, config, SHARE_STATE_TOPIC),
            self._exists,
            ShareSettings(
                updates_per_snapshot=config.integer("share.coordinator.snapshot.update.records.per.snapshot"),
                load_buffer_bytes=config.integer("share.coordinator.load.buffer.size"),
            ),
        )

    def start(self) -> None:
        """Load the share partitions, then start the periodic work."""
        self.coordinator.runtime.load_all()
        self._topics.on_deleted.append(self.coordinator.topic_deleted)
        for name, run, period_ms in (
            ("share-state-prune", self._prune, PRUNE_INTERVAL_MS),
            ("share-state-snapshot", self.coordinator.snapshot_idle, SNAPSHOT_INTERVAL_MS),
        ):
            self._scheduler.schedule(name, run, delay_ms=period_ms, period_ms=period_ms)

    def close(self) -> None:
        """Refuse requests from now on. Idempotent."""
        self._topics.forget(self.coordinator.topic_deleted)
        self.coordinator.runtime.close()

    def _prune(self) -> None:
        if self.coordinator.prune():
            shards = self.coordinator.runtime.shards
            self._topics.write_log_starts((SHARE_STATE_TOPIC, shard.index) for shard in shards)

    def _exists(self, key: SharePartitionKey) -> bool:
        view = self._topics.get_by_id(key.topic_id)
        return view is not None and key.partition < len(view.partitions)
