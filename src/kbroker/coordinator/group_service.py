"""The group coordinator in its broker: settings, the offsets topic, threads, the periodic expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.loggers import get_logger
from kbroker.common.threads import have_ended, new_thread
from kbroker.common.topic_names import OFFSETS_TOPIC
from kbroker.common.units import counted
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.group_coordinator import GroupCoordinator, GroupSettings
from kbroker.coordinator.internal_topic import InternalTopic
from kbroker.coordinator.modern_group.settings import INT32_MAX, GroupConfigs, Limits
from kbroker.coordinator.modern_group.topics_image import TopicsImage
from kbroker.coordinator.share_group.settings import ShareGroupSettings
from kbroker.coordinator.streams_group.settings import StreamsGroupSettings
from kbroker.log.scheduler import Scheduler
from kbroker.metadata.controller import Controller
from kbroker.metadata.topics import TopicRegistry
from kbroker.metrics.registry import Metrics

if TYPE_CHECKING:
    from kbroker.coordinator.share_groups import CoordinatorOf

logger = get_logger(__name__)

DELETION_RETRY_MS = 30_000


class GroupService:
    """Service around a GroupCoordinator.

    Start it when the topics are loaded and before clients are served; close it when no handler runs any more but
    responses can still be sent.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: BaseClock,
        topics: TopicRegistry,
        scheduler: Scheduler,
        controller: Controller,
        metrics: Metrics,
        share_coordinator_of: CoordinatorOf,
    ) -> None:
        self.coordinator = GroupCoordinator(
            clock,
            InternalTopic(topics, config, OFFSETS_TOPIC),
            group_settings(config, configs_of_groups(controller)),
            TopicsImage(topics, clock, config.text("broker.rack") or None),
            metrics,
            share_coordinator_of,
        )
        self._topics = topics
        self._controller = controller
        self._scheduler = scheduler
        self._check_ms = config.integer("offsets.retention.check.interval.ms")
        node_id = config.node_id
        self._threads = [
            new_thread(f"ExpirationReaper-{node_id}-{name}", run, f"group-{name.lower()}")
            for name, run in (
                ("Rebalance", self.coordinator.joins.run_reaper),
                ("Heartbeat", self.coordinator.run_heartbeat_reaper),
            )
        ]

    def start(self) -> None:
        """Load the groups, then start the reapers and the periodic expiry. If that fails, the service is closed."""
        try:
            self.coordinator.start()
            self._topics.on_deleted.append(self.coordinator.topic_deleted)
            for thread in self._threads:
                thread.start()
            self._scheduler.schedule(
                "offset-expiration", self.coordinator.offsets.expire, delay_ms=self._check_ms, period_ms=self._check_ms
            )
            self._scheduler.schedule("offsets-of-deleted-topics", self._delete_offsets, period_ms=DELETION_RETRY_MS)
        except BaseException:  # no thread may remain: another service will write to the same log
            self.close(0)
            raise

    def _delete_offsets(self) -> None:
        """Delete the offsets of deleted topics that a full disk or a crash has left."""
        deletions = self._topics.deletions
        topic_ids = deletions.remembered().difference(self._controller.image.topics_by_id)
        if topic_ids and self.coordinator.offsets.delete_topics(topic_ids):
            deletions.forget(topic_ids)
            logger.info("no offset of %s is left", counted(len(topic_ids), "deleted topic"))

    def close(self, timeout_s: float) -> None:
        """Complete delayed requests, and end the reapers; expiry has no effect afterwards. Idempotent."""
        self._topics.forget(self.coordinator.topic_deleted)
        self.coordinator.close()
        have_ended(self._threads, timeout_s)


def configs_of_groups(controller: Controller) -> GroupConfigs:
    """Return the function that returns the current configs of a group itself. Threads: any."""
    return lambda group_id: controller.image.configs.get((ConfigResourceType.GROUP, group_id), {})


def group_settings(config: BrokerConfig, group_configs: GroupConfigs) -> GroupSettings:
    """Return the coordinator's settings. ``group_configs`` returns the current configs of a group itself."""

    def common(kind: str) -> dict[str, Any]:
        """Return the settings that the kinds of groups of the newer protocols have in common."""
        found: dict[str, Any] = {
            name: Limits(
                *(config.integer(f"group.{kind}.{bound}{name.replace('_', '.')}.ms") for bound in ("", "min.", "max."))
            )
            for name in ("session_timeout", "heartbeat_interval", "assignment_interval")
        }
        return {
            **found,
            "max_size": config.integer(f"group.{kind}.max.size"),
            "group_configs": group_configs,
            "current_assignment_interval_ms": lambda: config.integer(f"group.{kind}.assignment.interval.ms"),
        }

    protocols = config.words("group.coordinator.rebalance.protocols")
    return GroupSettings(
        min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        max_size=config.integer("group.max.size"),
        offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
        consumer=ConsumerGroupSettings(
            **common("consumer"),
            assignors=config.words("group.consumer.assignors"),
            migration_policy=config.text("group.consumer.migration.policy"),
            regex_refresh_interval_ms=config.integer("group.consumer.regex.refresh.interval.ms"),
            is_enabled="consumer" in protocols,
        ),
        streams=StreamsGroupSettings(
            **common("streams"),
            initial_rebalance_delay=Limits(config.integer("group.streams.initial.rebalance.delay.ms"), 0, INT32_MAX),
            standby_replicas=Limits(
                config.integer("group.streams.num.standby.replicas"),
                0,
                config.integer("group.streams.max.standby.replicas"),
            ),
            is_enabled="streams" in protocols,
        ),
        share=ShareGroupSettings(**common("share")),
    )
