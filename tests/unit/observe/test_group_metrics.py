"""Metrics of groups by Kafka's names: groups in each state, and counted events."""

from kbroker._core.clock import VirtualClock
from kbroker.coordinator.group_coordinator import GroupSettings
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.metrics.registry import Metrics
from kbroker.observe.group_metrics import ROWS
from kbroker.observe.metric_table import families
from tests.support.consumer_groups import AT_ONCE, ConsumerGroupBench
from tests.support.groups import RANGE, Groups

DAY_MS = 24 * 3600 * 1000


class Scene(ConsumerGroupBench):
    """Coordinator with metrics."""

    def __post_init__(self) -> None:
        self.metrics = Metrics(clock=self.clock)
        known = GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS, consumer=AT_ONCE)
        self.groups = Groups(known, self.clock, self.topic, self.image, self.metrics)
        self.topic, self.coordinator = self.groups.topic, self.groups.coordinator

    def gauges(self, name: str) -> dict[str, float]:
        """Return the values of a family by label; the key is "" without a label."""
        (family,) = [one for one in families(ROWS, self.coordinator) if one.name == name]
        return {".".join(labels): value for labels, value in family.collect() if isinstance(value, (int, float))}

    def count(self, name: str) -> float:
        (metric,) = self.metrics.find(f"{name}-count", "group-coordinator-metrics")
        (rate,) = self.metrics.find(f"{name}-rate", "group-coordinator-metrics")
        assert (rate.measure() > 0) == (metric.measure() > 0)
        return metric.measure()


def offset(clock: VirtualClock) -> CommittedOffset:
    return CommittedOffset(1, -1, "", clock.wall_ms())


def test_groups_by_protocol_and_state() -> None:
    scene = Scene()
    assert scene.gauges("group-count") == {"classic": 0, "consumer": 0, "share": 0, "streams": 0}
    assert scene.gauges("consumer-group-count") == dict.fromkeys(
        ("Empty", "Assigning", "Reconciling", "Stable", "Dead"), 0
    )
    scene.join("a", group="stable")
    scene.join("a", group="reconciling")
    scene.join("b", group="reconciling")
    scene.join("a", group="empty")
    scene.beat("a", -1, group="empty")
    joining = scene.groups.join(group="classic", known=False, protocols=RANGE).one
    scene.coordinator.offsets.commit("offsets only", "", None, -1, {("t", 0): offset(scene.clock)})
    assert scene.gauges("group-count") == {"classic": 2, "consumer": 3, "share": 0, "streams": 0}
    states = scene.gauges("consumer-group-count")
    assert states == {"Empty": 1, "Assigning": 0, "Reconciling": 1, "Stable": 1, "Dead": 0}
    assert scene.gauges("NumGroups") == {"": 2}
    assert scene.gauges("NumGroupsCompletingRebalance") == {"": 1}
    assert scene.gauges("NumGroupsEmpty") == {"": 1}
    assert scene.gauges("NumOffsets") == {"": 1}
    assert scene.gauges("num-partitions")["active"] > 0
    scene.groups.sync(joining.member_id, joining.generation_id, {joining.member_id: b""}, group="classic")
    assert scene.gauges("NumGroupsStable") == {"": 1}
    assert scene.count("group-completed-rebalance") == 1


def test_what_has_happened() -> None:
    """Commits, deletions and expirations count offsets; a join to a consumer group counts a rebalance, a leave none."""
    scene = Scene()
    for name in ("offset-commit", "offset-expiration", "offset-deletion", "consumer-group-rebalance"):
        assert scene.count(name) == 0
    scene.coordinator.offsets.commit("o", "", None, -1, {("t", index): offset(scene.clock) for index in range(3)})
    assert scene.count("offset-commit") == 3
    scene.coordinator.offsets.delete("o", [("t", 0), ("t", 7)])
    assert scene.count("offset-deletion") == 1
    scene.clock.advance_ms(DAY_MS)
    scene.coordinator.offsets.expire()
    assert scene.count("offset-expiration") == 2
    scene.join("a")
    scene.join("b")
    assert scene.count("consumer-group-rebalance") == 2
    scene.beat("b", -1)  # the epoch increases; as in Kafka, only joins, changed subscriptions and changed topics count
    assert scene.count("consumer-group-rebalance") == 2
