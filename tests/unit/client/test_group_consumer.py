"""The leader's part of a group: ranges of partitions, as Kafka's RangeAssignor makes them."""

import pytest

from kbroker.client.group_consumer import assign_ranges


@pytest.mark.parametrize(
    ("subscriptions", "counts", "expected"),
    [
        ({"a": ["t"]}, {"t": 3}, {"a": [0, 1, 2]}),
        ({"b": ["t"], "a": ["t"]}, {"t": 3}, {"a": [0, 1], "b": [2]}),
        ({"a": ["t"], "b": ["t"], "c": ["t"]}, {"t": 2}, {"a": [0], "b": [1], "c": []}),
        ({"a": ["t"], "b": []}, {"t": 2}, {"a": [0, 1], "b": []}),
        ({"a": ["t"]}, {"t": 0}, {"a": []}),
        ({"a": ["missing"]}, {}, {"a": []}),
    ],
)
def test_ranges_of_one_topic(
    subscriptions: dict[str, list[str]], counts: dict[str, int], expected: dict[str, list[int]]
) -> None:
    """The first members, by id, get one more; who does not subscribe gets none."""
    found = assign_ranges(subscriptions, counts)
    assert {member: [p for _, p in mine] for member, mine in found.items()} == expected


def test_each_topic_is_divided_alone() -> None:
    """The first member gets the extra partition of every topic, as in Kafka."""
    found = assign_ranges({"a": ["x", "y"], "b": ["x", "y"], "c": ["y"]}, {"x": 3, "y": 4})
    assert found == {
        "a": [("x", 0), ("x", 1), ("y", 0), ("y", 1)],
        "b": [("x", 2), ("y", 2)],
        "c": [("y", 3)],
    }
