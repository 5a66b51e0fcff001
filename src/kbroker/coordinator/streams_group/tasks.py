"""Tasks of streams groups: a subtopology and a partition, in the roles active, standby and warm-up.

Source: ``TasksTuple``, ``TasksTupleWithEpochs``; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kbroker.coordinator.modern_group.member import is_subset

Tasks = Mapping[str, frozenset[int]]  # by subtopology: partitions
ActiveTasks = Mapping[str, Mapping[int, int]]  # by subtopology and partition: the epoch at which it was assigned
NO_TASKS: Tasks = MappingProxyType({})
NO_ACTIVE_TASKS: ActiveTasks = MappingProxyType({})


class TargetTasks(NamedTuple):
    """The tasks that a member is to have, or reports to have."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    @property
    def is_empty(self) -> bool:
        """True if there are no tasks."""
        return not any(self)

    def has_any(self, tasks: AssignedTasks) -> bool:
        """Return whether the member has any of ``tasks``, in the same role."""
        return any(map(_overlap, self, tasks))

    def covers(self, tasks: AssignedTasks) -> bool:
        """Return whether the member has all of ``tasks``, in the same roles."""
        return all(map(is_subset, tasks, self))


class AssignedTasks(NamedTuple):
    """The tasks that a member has, or still has to revoke."""

    active: ActiveTasks = NO_ACTIVE_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    @property
    def is_empty(self) -> bool:
        """True if there are no tasks."""
        return not any(self)

    @property
    def without_epochs(self) -> TargetTasks:
        """The same tasks without the epochs of the active ones."""
        return TargetTasks(
            {one: frozenset(partitions) for one, partitions in self.active.items()}, self.standby, self.warmup
        )

    def merged(self, other: AssignedTasks) -> AssignedTasks:
        """Return these tasks and others."""
        active = {one: dict(partitions) for one, partitions in self.active.items()}
        for one, partitions in other.active.items():
            active.setdefault(one, {}).update(partitions)
        return AssignedTasks(active, _merged(self.standby, other.standby), _merged(self.warmup, other.warmup))


NO_TARGET = TargetTasks()
NOTHING_ASSIGNED = AssignedTasks()


def _overlap(some: Tasks, others: Mapping[str, Iterable[int]]) -> bool:
    return any(not partitions.isdisjoint(others.get(one, ())) for one, partitions in some.items())


def _merged(some: Tasks, others: Tasks) -> Tasks:
    found = dict(some)
    for one, partitions in others.items():
        found[one] = found.get(one, frozenset()) | partitions
    return found
