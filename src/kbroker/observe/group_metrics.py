"""Metrics of the coordinator of groups: how many there are, by protocol and state. What it counts is in its sensors.

Source: ``GroupCoordinatorMetrics``, ``CoordinatorRuntimeMetricsImpl``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbroker.coordinator.classic_group import GroupState
from kbroker.coordinator.consumer_group.group import ConsumerGroupState
from kbroker.coordinator.group_sensors import GROUP
from kbroker.metrics.families import Family

if TYPE_CHECKING:
    from kbroker.coordinator.group_coordinator import GroupCoordinator

Series = Iterable[tuple[tuple[str, ...], float]]

MANAGER = "kafka.coordinator.group:GroupMetadataManager"


def families(groups: GroupCoordinator) -> Iterable[Family]:
    """All of them; each looks at the groups when it is asked for."""

    def partitions() -> Series:
        found = groups.runtime.counts
        return [(("active",), found.active), (("loading",), found.loading), (("failed",), found.failed)]

    def by_protocol() -> Series:
        census = groups.census()
        return [(("classic",), sum(census.classic.values())), (("consumer",), sum(census.consumer.values()))]

    def by_state() -> Series:
        consumer = groups.census().consumer
        return [((state.value,), consumer.get(state, 0)) for state in ConsumerGroupState]

    yield Family(
        GROUP, "num-partitions", "gauge", ("state",),
        "partitions of __consumer_offsets; failed: it could not be read, and its groups are not served", partitions,
    )  # fmt: skip
    yield Family(GROUP, "group-count", "gauge", ("protocol",), "groups of each protocol", by_protocol)
    yield Family(GROUP, "consumer-group-count", "gauge", ("state",), "groups of the consumer protocol", by_state)
    yield Family(
        MANAGER, "NumOffsets", "gauge", (), "committed offsets", lambda: [((), groups.census().offsets)]
    )  # fmt: skip
    yield Family(
        MANAGER, "NumGroups", "gauge", (), "classic groups", lambda: [((), sum(groups.census().classic.values()))]
    )  # fmt: skip
    for state in GroupState:
        yield Family(
            MANAGER, f"NumGroups{state.value}", "gauge", (), f"classic groups in the state {state.value}",
            lambda state=state: [((), groups.census().classic.get(state, 0))],  # type: ignore[misc]
        )  # fmt: skip
