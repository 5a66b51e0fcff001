"""Metrics of the group coordinator: numbers of groups by protocol and state. Its sensors record the rest.

Source: ``GroupCoordinatorMetrics``, ``CoordinatorRuntimeMetricsImpl``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kbroker.coordinator.classic_group import ClassicGroup, GroupState
from kbroker.coordinator.group_sensors import GROUP
from kbroker.coordinator.modern_group.group import ModernGroupState
from kbroker.observe.metric_table import Row, Series

if TYPE_CHECKING:
    from kbroker.coordinator.group_coordinator import GroupCoordinator

#: The states of each kind of group.
_KINDS: Mapping[str, Sequence[enum.Enum]] = {
    ClassicGroup.KIND: tuple(GroupState),
    "consumer": [state for state in ModernGroupState if state is not ModernGroupState.NOT_READY],
    "share": (ModernGroupState.EMPTY, ModernGroupState.STABLE, ModernGroupState.DEAD),
    "streams": tuple(ModernGroupState),
}

MANAGER = "kafka.coordinator.group:GroupMetadataManager"


def _partitions(groups: GroupCoordinator) -> Series:
    found = groups.runtime.counts
    return [(("active",), found.active), (("loading",), found.loading), (("failed",), found.failed)]


def _by_protocol(groups: GroupCoordinator) -> Series:
    census = groups.census().states
    return [((kind,), sum(census.get((kind, state), 0) for state in states)) for kind, states in _KINDS.items()]


def _by_state(groups: GroupCoordinator, kind: str) -> Series:
    census = groups.census().states
    return [((state.value,), census.get((kind, state), 0)) for state in _KINDS[kind]]


def _in_state(groups: GroupCoordinator, state: GroupState) -> float:
    return groups.census().states.get((ClassicGroup.KIND, state), 0)


ROWS: tuple[Row[GroupCoordinator], ...] = (
    Row(GROUP, "num-partitions",
        "partitions of __consumer_offsets; failed: it could not be read, and its groups are not served",
        _partitions, ("state",)),
    Row(GROUP, "group-count", "groups of each protocol", _by_protocol, ("protocol",)),
    *(Row(GROUP, f"{kind}-group-count", f"groups of the {kind} protocol", partial(_by_state, kind=kind), ("state",))
      for kind in _KINDS if kind != ClassicGroup.KIND),
    Row(MANAGER, "NumOffsets", "committed offsets", lambda groups: groups.census().offsets),
    Row(MANAGER, "NumGroups", "classic groups", lambda groups: sum(_in_state(groups, state) for state in GroupState)),
    *(Row(MANAGER, f"NumGroups{state.value}", f"classic groups in the state {state.value}",
          partial(_in_state, state=state)) for state in GroupState),
)  # fmt: skip
