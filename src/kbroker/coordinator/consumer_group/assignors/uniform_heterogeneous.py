"""The assignor ``uniform`` for members with different subscriptions.

Members keep the partitions of their subscriptions, free partitions go to the least loaded subscribers, and then
partitions move from the most to the least loaded ones, topic by topic, until the balance no longer improves.
Source: ``UniformHeterogeneousAssignmentBuilder``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping
from uuid import UUID

from kbroker.coordinator.consumer_group.assignors.group_spec import GroupSpec
from kbroker.coordinator.consumer_group.member import Target

MAX_ROUNDS = 16  # each about halves the imbalance
NO_ONE = -1


def assign_heterogeneous(group: GroupSpec) -> Mapping[str, Target]:
    """Return the target of each member."""
    return _Builder(group).assign()


class _Builder:
    """A partial assignment. Members are numbers, in the order of ``GroupSpec.member_ids``."""

    def __init__(self, group: GroupSpec) -> None:
        self._member_ids = group.member_ids()
        self._members = [group.members[member_id] for member_id in self._member_ids]
        self._counts = group.partition_counts
        self._loads = [0] * len(self._members)
        self._subscribers: dict[UUID, list[int]] = {}
        for number, member in enumerate(self._members):
            for topic_id in member.topics:
                self._subscribers.setdefault(topic_id, []).append(number)
        self._owners = {topic_id: [NO_ONE] * self._counts[topic_id] for topic_id in self._subscribers}

    def assign(self) -> Mapping[str, Target]:
        if not self._subscribers:
            return {}
        self._keep()
        self._hand_out()
        self._balance()
        parts: list[dict[UUID, list[int]]] = [{} for _ in self._members]
        for topic_id, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                parts[owner].setdefault(topic_id, []).append(partition)
        return {
            member_id: {topic_id: frozenset(partitions) for topic_id, partitions in part.items()}
            for member_id, part in zip(self._member_ids, parts, strict=True)
        }

    def _keep(self) -> None:
        for number, member in enumerate(self._members):
            for topic_id, partitions in member.target.items():
                if topic_id in member.topics:
                    owners = self._owners[topic_id]
                    for partition in partitions:
                        owners[partition] = number
                    self._loads[number] += len(partitions)

    def _hand_out(self) -> None:
        for topic_id in self._in_order(self._subscribers):
            owners = self._owners[topic_id]
            free = [partition for partition, owner in enumerate(owners) if owner == NO_ONE]
            if free:
                scale = _Scale(self._loads, self._subscribers[topic_id])
                for partition in free:
                    self._give(owners, partition, scale.least_loaded())

    def _in_order(self, topic_ids: Iterable[UUID]) -> list[UUID]:
        """Return the topics: most partitions per subscriber first, then fewest subscribers, then by id."""

        def order(topic_id: UUID) -> tuple[float, int, int, int]:
            count = len(self._subscribers[topic_id])
            return -self._counts[topic_id] / count, count, *struct.unpack(">2q", topic_id.bytes)

        return sorted(topic_ids, key=order)

    def _give(self, owners: list[int], partition: int, number: int) -> None:
        present = owners[partition]
        if present != NO_ONE:
            self._loads[present] -= 1
        owners[partition] = number
        self._loads[number] += 1

    # ------------------------------------------------------------ balance

    def _balance(self) -> None:
        """Balance the topics in rounds, until one moves nothing or the maximum number of rounds is reached."""
        topics = self._in_order(topic_id for topic_id, them in self._subscribers.items() if len(them) > 1)
        last_moved = None
        for _ in range(MAX_ROUNDS):
            for topic_id in topics:
                if topic_id == last_moved:
                    return
                if self._balance_topic(topic_id) or last_moved is None:
                    last_moved = topic_id

    def _balance_topic(self, topic_id: UUID) -> bool:
        """Move partitions of a topic from its most to its least loaded subscribers; return whether any moved."""
        scale = _Scale(self._loads, self._subscribers[topic_id])
        if scale.imbalance <= 1:
            return False
        owners = self._owners[topic_id]
        held: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            held.setdefault(owner, []).append(partition)
        has_moved = False
        while not scale.is_balanced():
            giver = scale.most_loaded()
            while giver != NO_ONE and not held.get(giver):
                scale.exclude_most_loaded()
                giver = scale.most_loaded()
            if giver == NO_ONE:
                break
            partition = held[giver].pop()
            taker = scale.least_loaded()
            if scale.is_balanced():
                break
            self._give(owners, partition, taker)
            has_moved = True
        return has_moved


class _Scale:
    """Members of one topic from the least to the most loaded, while partitions move from one end to the other.

    Each end is a range of members of one level; a range that was passed once includes the next level.
    """

    def __init__(self, loads: list[int], members: Iterable[int]) -> None:
        self._loads = loads
        self._members = sorted(members, key=functools.partial(_load_and_number, loads))
        self.imbalance = loads[self._members[-1]] - loads[self._members[0]]
        self._low_end = 0  # [0, low_end) are level at low_level
        self._low_level = loads[self._members[0]] - 1
        self._next_low = 0
        self._high_start = self._high_end = len(self._members)  # [high_start, high_end) are level at high_level
        self._high_level = loads[self._members[-1]] + 1
        self._next_high = len(self._members) - 1

    def is_balanced(self) -> bool:
        """Return whether both ends have the same level."""
        return self._high_level - self._low_level <= 1

    def least_loaded(self) -> int:
        """Return the member that gets the next partition, and advance to the one after it."""
        members, loads = self._members, self._loads
        if self._next_low >= self._low_end:
            self._low_level += 1
            while self._low_end < len(members) and loads[members[self._low_end]] == self._low_level:
                self._low_end += 1
            self._next_low = 0
        self._next_low += 1
        return members[self._next_low - 1]

    def most_loaded(self) -> int:
        """Return the member that loses the next partition, and advance to the one after it; NO_ONE if none is left."""
        members, loads = self._members, self._loads
        if self._next_high < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                self._high_level = loads[members[self._high_start - 1]]
            else:
                self._high_level -= 1
            while self._high_start > 0 and loads[members[self._high_start - 1]] == self._high_level:
                self._high_start -= 1
            self._next_high = self._high_end - 1
        if self._next_high < 0:
            return NO_ONE
        self._next_high -= 1
        return members[self._next_high + 1]

    def exclude_most_loaded(self) -> None:
        """Skip the member just returned, which has no partition to lose."""
        members, at, last = self._members, self._next_high + 1, self._high_end - 1
        members[at], members[last] = members[last], members[at]
        self._high_end = last


def _load_and_number(loads: list[int], number: int) -> tuple[int, int]:
    return loads[number], number
