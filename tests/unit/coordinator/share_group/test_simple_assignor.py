"""Assignor of share groups: balance, multiple members per partition, and stickiness."""

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.share_group.simple_assignor import MemberSpec, assign

T, U = UUID(int=1), UUID(int=2)


def sizes(found: Mapping[str, Mapping[UUID, frozenset[int]]]) -> list[int]:
    return sorted(sum(map(len, one.values())) for one in found.values())


@pytest.mark.parametrize(
    ("members", "partitions", "expected"),
    [(1, 4, [4]), (2, 4, [2, 2]), (3, 4, [1, 1, 2]), (4, 4, [1] * 4), (6, 4, [1, 1, 1, 1, 2, 2]), (3, 1, [1] * 3)],
)
def test_balance(members: int, partitions: int, expected: list[int]) -> None:
    specs = {f"m{number}": MemberSpec(frozenset({T}), {}) for number in range(members)}
    assert sizes(assign(specs, {T: frozenset(range(partitions))}, True)) == expected


def test_members_keep_their_partitions() -> None:
    specs = {"a": MemberSpec(frozenset({T}), {T: frozenset({1, 3})}), "b": MemberSpec(frozenset({T}), {})}
    found = assign(specs, {T: frozenset(range(4))}, True)
    assert found == {"a": {T: {1, 3}}, "b": {T: {0, 2}}}


def test_topics_of_some_members_are_balanced_one_by_one() -> None:
    specs = {
        "a": MemberSpec(frozenset({T}), {T: frozenset({0}), U: frozenset({0})}),
        "b": MemberSpec(frozenset({U}), {}),
        "c": MemberSpec(frozenset({T, U}), {}),
    }
    found = assign(specs, {T: frozenset(range(4)), U: frozenset(range(2))}, False)
    assert {one: {topic: len(some) for topic, some in got.items()} for one, got in found.items()} == {
        "a": {T: 2},
        "b": {U: 1},
        "c": {T: 2, U: 1},
    }
    assert 0 in found["a"][T]


def test_only_initialized_partitions_are_assigned() -> None:
    specs = {"a": MemberSpec(frozenset({T, U}), {T: frozenset({5})})}
    assert assign(specs, {T: frozenset({2})}, True) == {"a": {T: {2}}}
    assert assign(specs, {}, True) == {"a": {}}


@given(
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(0, 6),
    st.lists(st.frozensets(st.integers(0, 5)), min_size=12, max_size=12),
)
def test_any_present_assignment_becomes_balanced(
    members: int, count: int, others: int, held: list[frozenset[int]]
) -> None:
    """Each partition has a member, and the partition counts of two members differ by two at most."""
    specs = {f"m{number}": MemberSpec(frozenset({T, U}), {T: held[number]}) for number in range(members)}
    partitions = {T: frozenset(range(count)), U: frozenset(range(others))}
    found = assign(specs, partitions, True)
    copies = Counter((topic, index) for one in found.values() for topic, some in one.items() for index in some)
    assert set(copies) == {(topic, index) for topic, some in partitions.items() for index in some}
    assert max(copies.values()) <= -(-members // (count + others))
    assert sizes(found)[-1] - sizes(found)[0] <= 2
