"""Partition counts of internal topics by the existing topics; the largest topologies take about linear time."""

from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.streams_group.internal_topics import MAX_TASKS, ConfiguredTopology, Status, configure
from kbroker.coordinator.streams_group.topology import StreamsTopology
from tests.support.errors import error_of
from tests.support.fake_image import FakeImage
from tests.support.streams_groups import subtopology, topic, topology

IMAGE = FakeImage(t=2, u=3, v=3)
WRONG_NUMBER = Status.INCORRECTLY_PARTITIONED_TOPICS


def configured(*parts: dict[str, Any]) -> ConfiguredTopology:
    return configure(StreamsTopology.of(topology(*parts)), IMAGE)


def test_a_chain_of_repartition_topics() -> None:
    """A repartition topic has the largest count of its writer's inputs, or a fixed one; a changelog its readers'."""
    found = configured(
        subtopology("2", [], ["c"], repartition=[topic("r2")]),
        subtopology("1", ["t"], [], ["r2"], [topic("r1")]),
        subtopology("0", ["t", "u"], [], ["r1"]),
    )
    assert {name: one.partitions for name, one in found.missing.items()} == {"r1": 3, "r2": 3, "c": 3}
    assert found.task_counts == {"0": 3, "1": 3, "2": 3}
    assert found.problem is not None
    assert found.problem.status is Status.MISSING_INTERNAL_TOPICS


def test_copartitioned_topics_have_one_number() -> None:
    """The count is that of the source topics, the fixed one, or the largest."""
    found = configured(
        subtopology("0", ["t"], [], ["r"]), subtopology("1", ["u"], repartition=[topic("r")], together=[([0], [0])])
    )
    assert found.missing["r"].partitions == 3
    writer = subtopology("0", ["t"], [], ["a", "b"])
    reader = subtopology("1", [], repartition=[topic("a", 5), topic("b")], together=[([], [0, 1])])
    found = configured(writer, reader)
    assert {name: one.partitions for name, one in found.missing.items()} == {"a": 5, "b": 5}


@pytest.mark.parametrize(
    ("parts", "status", "text"),
    [
        ([subtopology("0", ["t", "u"], together=[([0, 1], [])])], WRONG_NUMBER, "[{t=2, u=3}]"),
        ([subtopology("0", ["t"], ["u"])], WRONG_NUMBER, "expected 2, found 3"),
        ([subtopology("0", ["x", "t", "w"])], Status.MISSING_SOURCE_TOPICS, "Source topics w, x are missing."),
    ],
)  # fmt: skip
def test_topics_that_do_not_fit(parts: list[dict[str, Any]], status: Status, text: str) -> None:
    found = configured(*parts)
    assert found.problem is not None
    assert found.problem.status is status
    assert text in found.problem.text
    assert (found.is_ready, found.subtopologies, found.missing) == (False, {}, {})


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (subtopology("0", [], sinks=["r"], repartition=[topic("r")]), Errors.STREAMS_INVALID_TOPOLOGY),
        (subtopology("0", ["t"], repartition=[topic("r")]), Errors.STREAMS_INVALID_TOPOLOGY),
        (subtopology("0", []), Errors.STREAMS_INVALID_TOPOLOGY),
        (subtopology("0", ["t"], together=[([-1], [])]), Errors.UNKNOWN_SERVER_ERROR),
    ],
)
def test_topologies_that_no_topics_fit(part: dict[str, Any], error: Errors) -> None:
    """A loop, a topic without a writer, no input, and an index out of bounds, negative ones included, are refused."""
    assert error_of(configured, part) is error


COUNT = 20_000  # too many for a quadratic search within the time limit of a test


def chain(end: str) -> StreamsTopology:
    """Return subtopologies that each read the sink of the next one, with `end` as the input of the last one."""
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


def test_more_tasks_than_a_group_may_have() -> None:
    """Subtopologies that share a topic make small requests, but each task takes memory of the broker."""
    parts = [subtopology(str(number), ["t"]) for number in range(10)]
    image = FakeImage(t=MAX_TASKS // 10)
    assert configure(StreamsTopology.of(topology(*parts)), image).is_ready
    image.grow("t", MAX_TASKS // 10 + 1)
    with pytest.raises(KafkaError, match="has 200010 tasks, the broker assigns at most 200000"):
        configure(StreamsTopology.of(topology(*parts)), image)
