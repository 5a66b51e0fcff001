"""The assignor ``uniform``: the numbers of partitions per member are as equal as possible, and few partitions move.

Source: ``UniformAssignor``, ``UniformHomogeneousAssignmentBuilder``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from kbroker.common.java.java_hash import hash_order, int_hash, uuid_hash
from kbroker.coordinator.consumer_group.assignors.group_spec import GroupSpec
from kbroker.coordinator.consumer_group.assignors.uniform_heterogeneous import assign_heterogeneous
from kbroker.coordinator.consumer_group.member import Target

NAME = "uniform"

Place = tuple[UUID, int]


def assign(group: GroupSpec) -> Mapping[str, Target]:
    """Return the target of each member; members without partitions may be left out."""
    if not group.members:
        return {}
    return _Homogeneous(group).assign() if group.is_homogeneous else assign_heterogeneous(group)


class _Homogeneous:
    """Assignment for members that all subscribe to the same topics."""

    def __init__(self, group: GroupSpec) -> None:
        self._group = group
        self._member_ids = group.member_ids()
        self._topics = group.members[self._member_ids[0]].topics
        self._free: list[Place] = []
        self._kept: dict[str, Target] = {}
        self._wanting: list[tuple[str, int]] = []  # members below their quota, and by how many

    def assign(self) -> Mapping[str, Target]:
        if not self._topics:
            return {}
        total = 0
        for topic_id in hash_order(self._topics, uuid_hash, is_presized=True):
            count = self._group.partition_counts[topic_id]
            owned = self._group.owned.get(topic_id, frozenset())
            self._free += [(topic_id, index) for index in range(count) if index not in owned]
            total += count
        self._keep(*divmod(total, len(self._member_ids)))
        return self._hand_out()

    def _keep(self, least: int, extras: int) -> None:
        """Keep the members' partitions, up to their quota; the first ``extras`` full members keep one more."""
        left = len(self._member_ids)
        for member_id in self._member_ids:
            has_extra = extras > 0
            quota = least + has_extra
            kept, quota = self._within(self._group.members[member_id].target, quota)
            if quota > 0 and has_extra and left > extras:
                quota -= 1  # a member that has one more already keeps it
                has_extra = False
            if quota > 0:
                self._wanting.append((member_id, quota))
            extras -= has_extra
            left -= 1
            self._kept[member_id] = kept

    def _within(self, target: Target, quota: int) -> tuple[Target, int]:
        """Keep partitions of a member up to its quota, and free the rest; return the kept ones and the unused quota."""
        if not target:
            return target, quota
        kept: dict[UUID, frozenset[int]] = {}
        for topic_id in _ordered_topics(target):
            partitions = target[topic_id]
            if topic_id not in self._topics:
                continue
            if len(partitions) <= quota:
                quota -= len(partitions)
                kept[topic_id] = partitions
                continue
            ordered = _ordered(partitions)
            if quota > 0:
                kept[topic_id] = frozenset(ordered[:quota])
            self._free += [(topic_id, index) for index in ordered[quota:]]
            quota = 0
        return kept, quota

    def _hand_out(self) -> Mapping[str, Target]:
        targets = dict(self._kept)
        start = 0
        for member_id, quota in self._wanting:
            added: dict[UUID, set[int]] = {}
            for topic_id, index in self._free[start : start + quota]:
                added.setdefault(topic_id, set()).add(index)
            start += quota
            if added:
                whole = dict(targets[member_id])
                for topic_id, partitions in added.items():
                    whole[topic_id] = whole.get(topic_id, frozenset()) | partitions
                targets[member_id] = whole
        return targets


def _ordered_topics(target: Mapping[UUID, object]) -> Iterable[UUID]:
    return hash_order(target, uuid_hash) if len(target) > 1 else target


def _ordered(partitions: Collection[int]) -> list[int]:
    return hash_order(sorted(partitions), int_hash, is_presized=True)
