"""The assignor of share groups, which lets members share partitions where there are more members than partitions.

Balance comes first: the numbers of partitions of two members differ by one at most. Then members keep their partitions.
If all members subscribe to the same topics, the partitions of all topics are balanced together, otherwise those of each
topic.
Source: ``SimpleAssignor``, ``SimpleHomogeneousAssignmentBuilder``, ``SimpleHeterogeneousAssignmentBuilder``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from kbroker.common.java.java_hash import hash_map_order
from kbroker.coordinator.modern_group.records import Partitions

Place = tuple[UUID, int]


class MemberSpec(NamedTuple):
    """A member: ids of the existing topics that it subscribes to, and its current target."""

    topics: frozenset[UUID]
    target: Partitions


def assign(
    members: Mapping[str, MemberSpec], partitions: Mapping[UUID, frozenset[int]], is_homogeneous: bool
) -> dict[str, Partitions]:
    """Return the target of each member.

    Args: ``partitions``: those that can be assigned, by topic.
    """
    found: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in members}
    order = hash_map_order(members)
    topics = sorted(frozenset().union(*(one.topics for one in members.values())))
    shares = [topics] if is_homogeneous else [[topic_id] for topic_id in topics]
    for share in shares:
        places = [(topic_id, index) for topic_id in share for index in sorted(partitions.get(topic_id, ()))]
        sharing = [member_id for member_id in order if members[member_id].topics.issuperset(share)]
        held = [
            [(topic_id, index) for topic_id in share for index in sorted(members[member_id].target.get(topic_id, ()))]
            for member_id in sharing
        ]
        for member_id, given in zip(sharing, _share(places, held), strict=True):
            for topic_id, index in given:
                found[member_id].setdefault(topic_id, set()).add(index)
    return {
        member_id: {topic_id: frozenset(indexes) for topic_id, indexes in given.items()}
        for member_id, given in found.items()
    }


def _share(places: Sequence[Place], held: Sequence[Sequence[Place]]) -> list[list[Place]]:
    """Return the partitions of each member. ``held``: those that the members have now."""
    if not places:
        return [[] for _ in held]
    count = len(held)
    copies = math.ceil(count / len(places))  # number of members for each partition
    share = copies * len(places) / count
    wanted = [math.ceil(share * (number + 1)) - math.ceil(share * number) for number in range(count)]
    given: list[list[Place]] = []
    holders: dict[Place, list[int]] = {place: [] for place in places}
    for number, present in enumerate(held):
        kept = [place for place in present if place in holders]
        given.append(kept[max(0, len(kept) - wanted[number]) :])
        for place in given[number]:
            holders[place].append(number)
    for place, numbers in holders.items():
        for number in numbers[: max(0, len(numbers) - copies)]:
            given[number].remove(place)
        del numbers[: max(0, len(numbers) - copies)]
    unfilled = [number for number in range(count) if len(given[number]) < wanted[number]]
    turn = 0
    for place, numbers in holders.items():
        passed = 0  # members that hold the partition already
        while unfilled and len(numbers) < copies and passed < len(unfilled):
            turn %= len(unfilled)
            number = unfilled[turn]
            if number in numbers:
                passed += 1
                turn += 1
                continue
            passed = 0
            numbers.append(number)
            given[number].append(place)
            if len(given[number]) >= wanted[number]:
                del unfilled[turn]
            else:
                turn += 1
    return given
