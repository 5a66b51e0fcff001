"""Assignors: balance, stickiness, order of members and topics as in Kafka, and speed."""

import random
import time
from collections.abc import Mapping
from uuid import UUID

import pytest

from kbroker.coordinator.consumer_group.assignors import range_assignor, uniform_assignor
from kbroker.coordinator.consumer_group.assignors.group_spec import GroupSpec, MemberSpec
from kbroker.coordinator.consumer_group.member import Target

Wanted = Mapping[str, list[int]]  # numbers of topics, by member id


def spec(wanted: Wanted, counts: Mapping[int, int], present: Mapping[str, Target] | None = None) -> GroupSpec:
    targets = present or {}
    members = {
        member_id: MemberSpec(None, frozenset(UUID(int=one) for one in topics), targets.get(member_id, {}))
        for member_id, topics in wanted.items()
    }
    owned: dict[UUID, set[int]] = {}
    for target in targets.values():
        for topic_id, partitions in target.items():
            owned.setdefault(topic_id, set()).update(partitions)
    sizes = {UUID(int=topic): count for topic, count in counts.items()}
    is_homogeneous = len({tuple(sorted(topics)) for topics in wanted.values()}) <= 1
    return GroupSpec(members, is_homogeneous, owned, sizes)


def shown(targets: Mapping[str, Target]) -> dict[str, dict[int, list[int]]]:
    return {
        member_id: {topic.int: sorted(partitions) for topic, partitions in sorted(target.items())}
        for member_id, target in targets.items()
    }


def loads(targets: Mapping[str, Target]) -> list[int]:
    return sorted(sum(map(len, target.values())) for target in targets.values())


def check_whole(wanted: Wanted, counts: Mapping[int, int], targets: Mapping[str, Target]) -> None:
    """Assert that each partition of each subscribed topic has one owner, which subscribes to the topic."""
    topics = {topic for some in wanted.values() for topic in some}
    found = sorted(
        (topic.int, partition) for target in targets.values() for topic, some in target.items() for partition in some
    )
    assert found == sorted((topic, partition) for topic in topics for partition in range(counts[topic]))
    for member_id, target in targets.items():
        assert {topic.int for topic in target} <= set(wanted[member_id])


def test_ranges_of_every_topic_in_the_order_of_member_ids() -> None:
    wanted = {"b": [1, 2], "a": [1, 2], "c": [1, 2]}
    assert shown(range_assignor.assign(spec(wanted, {1: 7, 2: 2}))) == {
        "a": {1: [0, 1, 2], 2: [0]},
        "b": {1: [3, 4], 2: [1]},
        "c": {1: [5, 6]},
    }


def test_ranges_go_to_subscribers_only() -> None:
    wanted = {"a": [1], "b": [1, 2], "c": [2]}
    assert shown(range_assignor.assign(spec(wanted, {1: 3, 2: 3}))) == {
        "a": {1: [0, 1]},
        "b": {1: [2], 2: [0, 1]},
        "c": {2: [2]},
    }


def test_static_members_have_the_first_ranges_by_their_instance_ids() -> None:
    group = spec({"z": [1], "a": [1], "m": [1]}, {1: 3})
    members = dict(group.members)
    members["z"] = members["z"]._replace(instance_id="i2")
    members["m"] = members["m"]._replace(instance_id="i1")
    targets = range_assignor.assign(group._replace(members=members))
    assert shown(targets) == {"m": {1: [0]}, "z": {1: [1]}, "a": {1: [2]}}


def test_a_member_that_joins_takes_from_those_that_have_most() -> None:
    first = uniform_assignor.assign(spec({"a": [1], "b": [1]}, {1: 9}))
    assert loads(first) == [4, 5]
    wanted = {"a": [1], "b": [1], "c": [1]}
    second = uniform_assignor.assign(spec(wanted, {1: 9}, first))
    assert loads(second) == [3, 3, 3]
    check_whole(wanted, {1: 9}, second)
    assert all(second[member_id][UUID(int=1)] < first[member_id][UUID(int=1)] for member_id in ("a", "b"))


def test_who_has_one_more_keeps_it() -> None:
    """Each of four members with 2, 2, 1 and 1 partitions keeps its partitions."""
    topic = UUID(int=1)
    parts = {"a": [0], "b": [1, 2], "c": [3], "d": [4, 5]}
    present = {member_id: {topic: frozenset(some)} for member_id, some in parts.items()}
    wanted = {member_id: [1] for member_id in parts}
    assert uniform_assignor.assign(spec(wanted, {1: 6}, present)) == present


def test_no_topics_no_target() -> None:
    assert uniform_assignor.assign(spec({"a": []}, {})) == {}
    assert uniform_assignor.assign(spec({}, {})) == {}


@pytest.mark.parametrize("seed", range(40))
def test_random_groups_are_whole_balanced_and_stay(seed: int) -> None:
    """The properties hold after members join and leave and topics grow; without a change no partition moves."""
    random_source = random.Random(seed)
    topics = list(range(1, random_source.randint(2, 6)))
    counts = {topic: random_source.randint(1, 20) for topic in topics}
    same = seed % 2 == 0
    targets: Mapping[str, Target] = {}
    wanted: dict[str, list[int]] = {}
    for _ in range(6):
        if wanted and random_source.random() < 0.3:
            del wanted[random_source.choice(list(wanted))]
        for _ in range(random_source.randint(0, 4)):
            size = len(topics) if same else random_source.randint(1, len(topics))
            wanted[f"m{random_source.randint(0, 10**9)}"] = sorted(random_source.sample(topics, size))
        counts[random_source.choice(topics)] += random_source.randint(0, 3)
        present = {member_id: target for member_id, target in targets.items() if member_id in wanted}
        group = spec(wanted, counts, present)
        targets = uniform_assignor.assign(group)
        if not wanted:
            continue
        check_whole(wanted, counts, targets)
        if group.is_homogeneous:
            assert max(loads(targets)) - min(loads(targets)) <= 1
        assert uniform_assignor.assign(spec(wanted, counts, targets)) == targets
        check_whole(wanted, counts, range_assignor.assign(group))


@pytest.mark.parametrize("is_homogeneous", [True, False])
@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_members_and_five_thousand_partitions(count: int, is_homogeneous: bool) -> None:
    """A target assignment for 10,000 members, which is made under the group's lock, takes less than a second."""
    counts = dict.fromkeys(range(1, 51), 100)
    some = list(range(1, 26))
    wanted = {f"member-{number:05d}": list(counts) if is_homogeneous or number % 2 else some for number in range(count)}
    begin = time.process_time()
    targets = uniform_assignor.assign(spec(wanted, counts))
    again = uniform_assignor.assign(spec(wanted, counts, targets))
    seconds = time.process_time() - begin
    check_whole(wanted, counts, targets)
    assert again == targets
    assert seconds < 20, f"two assignments took {seconds:.1f} s of CPU time"
