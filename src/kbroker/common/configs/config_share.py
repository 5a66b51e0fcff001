"""Broker keys of share groups (KIP-932) and of the share coordinator.

Source: ``GroupCoordinatorConfig``, ``ShareGroupConfig``, ``ShareCoordinatorConfig``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common.configs.config_broker import LEAST_SEGMENT_BYTES
from kbroker.common.configs.config_def import ConfigError, ConfigKey, between, key
from kbroker.common.configs.group_bounds import member_keys, with_bounds

if TYPE_CHECKING:
    from kbroker.common.configs.config import BrokerConfig

SIMPLE_ASSIGNOR = "simple"

SHARE_KEYS: tuple[ConfigKey, ...] = (
    *member_keys("share", assignment_importance="low"),
    key("group.share.max.size", "int", 200, "Maximum number of members of one share group.", between(1, 1000)),
    key("group.share.assignors", "list", (SIMPLE_ASSIGNOR,), "Assignor of share groups: simple."),
    *with_bounds(
        key("group.share.delivery.count.limit", "int", 5, "Maximum number of deliveries of a record to a share group.",
            between(2, 10)),
        2, 10, between(2, 5), between(5, 25)),
    *with_bounds(
        key("group.share.record.lock.duration.ms", "int", 30_000,
            "Milliseconds for which a member of a share group locks a record.", between(1000, 3_600_000)),
        15_000, 60_000, between(1000, 30_000), between(30_000, 3_600_000)),
    *with_bounds(
        key("group.share.partition.max.record.locks", "int", 2000,
            "Maximum number of records of a share partition that are locked at once.", between(100, 10_000)),
        100, 4000, between(100, 2000), between(2000, 10_000)),
    key("group.share.max.share.sessions", "int", 2000, "Maximum number of share sessions.", between(1)),
    key("share.fetch.purgatory.purge.interval.requests", "int", 1000,
        "Completed delayed share fetches after which watch lists are purged."),
    key("share.coordinator.state.topic.num.partitions", "int", 50, "Partitions of __share_group_state.", between(1),
        importance="high"),
    key("share.coordinator.state.topic.replication.factor", "short", 1,
        "Replication factor of __share_group_state when it is created: at most the number of kbroker.brokers; with "
        "process.roles=broker, as set, by default 3.", between(1), importance="high"),
    key("share.coordinator.state.topic.min.isr", "short", 1,
        "min.insync.replicas of __share_group_state when it is created.", between(1), importance="high"),
    key("share.coordinator.state.topic.segment.bytes", "int", 104_857_600, "Segment size of __share_group_state.",
        between(LEAST_SEGMENT_BYTES), importance="high"),
    key("share.coordinator.snapshot.update.records.per.snapshot", "int", 500,
        "Number of update records of a share partition between two snapshot records.", between(0, 500)),
    key("share.coordinator.load.buffer.size", "int", 5 * 1024 * 1024,
        "Bytes of __share_group_state that are read at once during its loading.", between(1), importance="high"),
)  # fmt: skip


def check_share(config: BrokerConfig) -> None:
    """Check rules that concern several keys. Raises: ConfigError with Kafka's wording."""

    def at_least(name: str, other: str) -> None:
        if config.integer(name) < config.integer(other):
            raise ConfigError("", config.integer(name), f"{name} must be greater than or equal to {other}")

    assignors = config.words("group.share.assignors")
    if len(assignors) != 1:
        text = f"group.share.assignors must contain exactly one assignor, but found {len(assignors)}"
        raise ConfigError("", ",".join(assignors), text)
    if assignors[0] != SIMPLE_ASSIGNOR:
        raise ConfigError("group.share.assignors", assignors[0], "There is one assignor", SIMPLE_ASSIGNOR)
    for name in ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms"):
        at_least(f"group.share.max.{name}", f"group.share.{name}")
        at_least(f"group.share.{name}", f"group.share.min.{name}")
    at_least("group.share.max.share.sessions", "group.share.max.size")
