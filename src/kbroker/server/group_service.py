"""The group coordinator in its broker: settings, the offsets topic, threads, the periodic expiry."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.light_typing import Any, Protocol
from kbroker.coordinator.group_coordinator import GroupCoordinator, GroupSettings
from kbroker.server.registered_topic import RegisteredTopic
from kbroker.server.topic_rules import OFFSETS_TOPIC
from kbroker.server.topics import TopicRegistry


class Schedule(Protocol):
    """What runs the expiry now and then."""

    def schedule(self, name: str, run: Callable[[], object], *, delay_ms: int = 0, period_ms: int = 0) -> Any: ...


class GroupService:
    """Runs a GroupCoordinator.

    Start it when the topics are loaded and before clients are served; close it when no handler runs any more and
    responses can still be sent.
    """

    def __init__(self, config: BrokerConfig, clock: BaseClock, topics: TopicRegistry, schedule: Schedule) -> None:
        self.coordinator = GroupCoordinator(
            clock, RegisteredTopic(topics, config, OFFSETS_TOPIC), group_settings(config)
        )
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
        self._topics.on_deleted.append(self.coordinator.topic_deleted)
        for thread in self._threads:
            thread.start()
        self._schedule.schedule(
            "offset-expiration", self.coordinator.expire_offsets, delay_ms=self._check_ms, period_ms=self._check_ms
        )

    def close(self, timeout_s: float) -> None:
        """Complete what waits; nothing runs afterwards. Idempotent."""
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
