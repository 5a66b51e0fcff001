"""The group coordinator in its broker: settings, the offsets topic, threads, the periodic expiry."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_coordinator import GroupCoordinator, GroupSettings
from kbroker.server.topic_rules import OFFSETS_TOPIC
from kbroker.server.topics import TopicRegistry


class Schedule(Protocol):
    """What runs the expiry now and then."""

    def schedule(self, name: str, run: Callable[[], object], *, delay_ms: int = 0, period_ms: int = 0) -> Any: ...


class RegisteredOffsetsTopic:
    """``__consumer_offsets`` among the broker's topics; created at the first need."""

    def __init__(self, topics: TopicRegistry, config: BrokerConfig) -> None:
        self._topics = topics
        self._log_dir = config.log_dir

    def ensure(self) -> int:
        if not self.partition_count:
            self._topics.auto_create([OFFSETS_TOPIC])
        count = self.partition_count
        if not count:
            raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} cannot be created")
        return count

    @property
    def partition_count(self) -> int:
        view = self._topics.get(OFFSETS_TOPIC)
        return 0 if view is None else len(view.partitions)

    def partition(self, index: int) -> Any:
        return self._topics.partition(OFFSETS_TOPIC, index)

    def folder(self, index: int) -> str:
        return os.path.join(self._log_dir, f"{OFFSETS_TOPIC}-{index}")


class GroupService:
    """Runs a GroupCoordinator.

    Start it when the topics are loaded and before clients are served; close it when no handler runs any more and
    responses can still be sent.
    """

    def __init__(self, config: BrokerConfig, clock: BaseClock, topics: TopicRegistry, schedule: Schedule) -> None:
        self.coordinator = GroupCoordinator(clock, RegisteredOffsetsTopic(topics, config), group_settings(config))
        self._topics = topics
        self._schedule = schedule
        self._check_ms = config.integer("offsets.retention.check.interval.ms")
        node_id = config.node_id
        self._threads = [
            threading.Thread(target=run, name=f"ExpirationReaper-{node_id}-{name}", daemon=True)
            for name, run in (
                ("Rebalance", self.coordinator.run_join_reaper),
                ("Heartbeat", self.coordinator.run_heartbeat_reaper),
            )
        ]

    def start(self) -> None:
        """Load the groups, then let time run for them."""
        self.coordinator.start()
        self._topics.on_deleted = self.coordinator.topic_deleted
        for thread in self._threads:
            thread.start()
        self._schedule.schedule(
            "offset-expiration", self.coordinator.expire_offsets, delay_ms=self._check_ms, period_ms=self._check_ms
        )

    def close(self, timeout_s: float) -> None:
        """PendingResponse what waits; nothing runs afterwards. Idempotent."""
        self.coordinator.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)


def group_settings(config: BrokerConfig) -> GroupSettings:
    """The coordinator's settings out of the broker's."""
    return GroupSettings(
        min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        max_size=config.integer("group.max.size"),
        offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
    )
