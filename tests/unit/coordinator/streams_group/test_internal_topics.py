"""Topologies as large as a request can carry: their numbers are found in about linear time."""

import pytest

from kbroker.common.errors import KafkaError
from kbroker.coordinator.streams_group.internal_topics import configure
from kbroker.coordinator.streams_group.topology import StreamsTopology
from tests.support.consumer_groups import FakeImage
from tests.support.streams_groups import subtopology, topic, topology

COUNT = 20_000  # a quadratic search does not end within the time of a test


def chain(end: str) -> StreamsTopology:
    """Return subtopologies that each read the sink of the next one; the last one reads ``end``."""
    rows = [subtopology(str(i), [], [], [f"r{i}"], [topic(f"r{i + 1}")]) for i in range(COUNT)]
    first = subtopology("first", ["t"], repartition=[topic("r0")])
    return StreamsTopology.of(topology(first, *rows, subtopology("last", [end], [], [f"r{COUNT}"])))


def test_a_long_chain_in_reverse() -> None:
    found = configure(chain("u"), FakeImage(t=4, u=7))
    assert (found.task_counts["first"], len(found.missing)) == (7, COUNT + 1)


def test_a_long_chain_that_begins_nowhere() -> None:
    rows = [subtopology(str(i), [], [], [f"r{i}"], [topic(f"r{(i + 1) % COUNT}")]) for i in range(COUNT)]
    with pytest.raises(KafkaError, match="There may be loops in the topology"):
        configure(StreamsTopology.of(topology(*rows)), FakeImage())


def test_many_copartition_groups_of_topics_with_fixed_numbers() -> None:
    names = [f"r{i}" for i in range(COUNT)]
    groups: list[tuple[list[int], list[int]]] = [([], [i]) for i in range(COUNT)]
    shape = subtopology("0", ["t"], [], names, [topic(name, 3) for name in names], groups)
    found = configure(StreamsTopology.of(topology(shape)), FakeImage(t=2))
    assert {one.partitions for one in found.missing.values()} == {3}
