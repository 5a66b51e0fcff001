"""The configured topology: numbers of tasks and of partitions of internal topics, by the topics that exist.

Source: ``InternalTopicManager``, ``RepartitionTopics``, ``CopartitionedTopicsEnforcer``, ``ChangelogTopics``,
``ConfiguredTopology``; KIP-1071.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_hash import hash_map_order
from kbroker.coordinator.modern_group.topics_image import TopicsImage
from kbroker.coordinator.streams_group.topology import InternalTopic, StreamsTopology, Subtopology

SHOWN_TOPICS = 3  # limit of the missing topics that a message names
MAX_TASKS = 200_000  # limit for a group; Kafka has none: subtopologies may share a topic with many partitions


class Status(enum.IntEnum):
    """Status of a member in the response to its heartbeat, by Kafka's numbers."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class TopicProblem(NamedTuple):
    """Reason why the topics do not fit the topology."""

    status: Status
    text: str


class ConfiguredTopology(NamedTuple):
    """A topology with the numbers that follow from the topics.

    ``subtopologies``: none if they cannot be configured; ``task_counts``: by subtopology; ``missing``: internal topics
    to create; ``problem``: None if all topics exist as required.
    """

    epoch: int
    subtopologies: Mapping[str, Subtopology]
    task_counts: Mapping[str, int]
    missing: Mapping[str, InternalTopic]
    problem: TopicProblem | None

    @property
    def is_ready(self) -> bool:
        """True if all topics exist as required, so that tasks can be assigned."""
        return self.problem is None


class TopicProblemError(Exception):
    """Error of topics that do not fit the topology."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.problem = TopicProblem(status, text)


def configure(topology: StreamsTopology, image: TopicsImage) -> ConfiguredTopology:
    """Return the configured topology.

    Raises: KafkaError STREAMS_INVALID_TOPOLOGY, UNKNOWN_SERVER_ERROR if no topics can fit the topology.
    """
    _check_copartition_groups(topology)
    try:
        _check_sources(topology, image)
        counts = _Counts(topology, image)
        counts.decide()
        subtopologies = {
            one.subtopology_id: _configured(one, counts) for _, one in sorted(topology.subtopologies.items())
        }
        tasks = {one: counts.most(subtopology) for one, subtopology in subtopologies.items()}
        total = sum(tasks.values())
        if total > MAX_TASKS:
            text = f"The topology has {total} tasks, the broker assigns at most {MAX_TASKS}: split the application."
            raise KafkaError(Errors.STREAMS_INVALID_TOPOLOGY, text)
        missing = _missing(subtopologies.values(), topology, image)
    except TopicProblemError as error:
        return ConfiguredTopology(topology.epoch, {}, {}, {}, error.problem)
    problem = None
    if missing:
        text = f"Internal topics are missing: {_summary(missing)}"
        problem = TopicProblem(Status.MISSING_INTERNAL_TOPICS, text)
    return ConfiguredTopology(topology.epoch, subtopologies, tasks, missing, problem)


def _check_copartition_groups(topology: StreamsTopology) -> None:
    """Check the indexes of topics. Raises: KafkaError UNKNOWN_SERVER_ERROR."""
    for one in topology.subtopologies.values():
        for group in one.copartition_groups:
            for indexes, topics in (
                (group.source_topics, one.source_topics),
                (group.repartition_source_topics, one.repartition_source_topics),
            ):
                for index in indexes:
                    if not 0 <= index < len(topics):
                        raise _broken(f"Index {index} out of bounds for length {len(topics)}")


def _check_sources(topology: StreamsTopology, image: TopicsImage) -> None:
    names = {name for one in topology.subtopologies.values() for name in one.source_topics}
    missing = sorted(name for name in names if image.get(name) is None)
    if missing:
        raise TopicProblemError(Status.MISSING_SOURCE_TOPICS, f"Source topics {_summary(missing)} are missing.")


def _summary(names: Collection[str]) -> str:
    more = f" and {len(names) - SHOWN_TOPICS} additional topics" if len(names) > SHOWN_TOPICS else ""
    return ", ".join(list(names)[:SHOWN_TOPICS]) + more


class _Counts:
    """Numbers of partitions of the topics that exist, and those decided for internal topics."""

    def __init__(self, topology: StreamsTopology, image: TopicsImage) -> None:
        # In Kafka's order: a number may follow from those that are known before.
        self._subtopologies = [topology.subtopologies[one] for one in hash_map_order(topology.subtopologies)]
        self._image = image
        self._decided: dict[str, int] = {}
        sources = [topic for one in self._subtopologies for topic in one.repartition_source_topics]
        self._fixed = {topic.name for topic in sources if topic.partitions}
        self._flexible = {topic.name for topic in sources if not topic.partitions}
        self._fixed_count: int | None = None  # partitions of each fixed topic; set when it is first needed

    def find(self, topic: str) -> int | None:
        """Return the number of partitions of a topic, None if it is unknown."""
        found = self._image.get(topic)
        return self._decided.get(topic) if found is None else found.partition_count

    def of(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises: KafkaError UNKNOWN_SERVER_ERROR."""
        found = self.find(topic)
        if found is None:
            raise _broken(f"Number of partitions is not set for topic: {topic}")
        return found

    def decided(self, topic: InternalTopic) -> int:
        """Return the number of partitions that an internal topic must have."""
        return topic.partitions or self._decided[topic.name]

    def most(self, subtopology: Subtopology) -> int:
        """Return the largest number of partitions of the topics that a subtopology reads: the number of its tasks.

        Raises: KafkaError STREAMS_INVALID_TOPOLOGY.
        """
        counts = [self.of(topic) for topic in subtopology.inputs]
        if not counts:
            text = f"No source topics found for subtopology {subtopology.subtopology_id}"
            raise KafkaError(Errors.STREAMS_INVALID_TOPOLOGY, text)
        return max(counts)

    def decide(self) -> None:
        """Decide the numbers of all internal topics. Raises: TopicProblemError, KafkaError."""
        self._decided.update(self._repartition_counts())
        for subtopology in self._subtopologies:
            for group in subtopology.copartition_groups:
                names = [subtopology.source_topics[i] for i in group.source_topics]
                names += [subtopology.repartition_source_topics[i].name for i in group.repartition_source_topics]
                if names:
                    self._decided.update(self._copartitioned(dict.fromkeys(names)))
        for subtopology in self._subtopologies:
            count = self.most(subtopology)
            self._decided.update((topic.name, count) for topic in subtopology.changelog_topics)

    def _repartition_counts(self) -> dict[str, int]:
        """Return the counts of repartition topics: fixed, or the largest of the writer's inputs. Raises: KafkaError."""
        found = {
            topic.name: topic.partitions
            for one in self._subtopologies
            for topic in one.repartition_source_topics
            if topic.partitions
        }
        for number in self._in_order_of_inputs(found):
            one = self._subtopologies[number]
            candidates = [found.get(topic.name) for topic in one.repartition_source_topics]
            candidates += [self.find(name) for name in one.source_topics]
            most = max(count for count in candidates if count is not None)
            for sink in one.repartition_sink_topics:
                found.setdefault(sink, most)
        if any(sink not in found for one in self._subtopologies for sink in one.repartition_sink_topics):
            text = (
                "Failed to compute number of partitions for all repartition topics. There may be loops in the "
                "topology that cannot be resolved."
            )
            raise KafkaError(Errors.STREAMS_INVALID_TOPOLOGY, text)
        if any(topic.name not in found for one in self._subtopologies for topic in one.repartition_source_topics):
            text = (
                "Failed to compute number of partitions for all repartition topics, because a repartition source "
                "topic is never used as a sink topic."
            )
            raise KafkaError(Errors.STREAMS_INVALID_TOPOLOGY, text)
        return found

    def _in_order_of_inputs(self, found: Mapping[str, int]) -> Iterator[int]:
        """Yield the number of each subtopology once one of its inputs is known.

        The order is that of Kafka's rounds over all subtopologies, on which the result depends. Rounds would take
        quadratic time for a chain in reverse.

        Args: ``found``: the known numbers; the caller adds those of the sinks of each yielded subtopology.
        """
        readers: dict[str, list[int]] = {}
        due: list[tuple[int, int]] = []  # round and number
        for number, one in enumerate(self._subtopologies):
            for topic in one.repartition_source_topics:
                readers.setdefault(topic.name, []).append(number)
            if any(topic.name in found for topic in one.repartition_source_topics) or any(
                self.find(name) is not None for name in one.source_topics
            ):
                due.append((0, number))
        known = {number for _, number in due}
        while due:
            turn, number = heapq.heappop(due)
            yield number
            for sink in self._subtopologies[number].repartition_sink_topics:
                for reader in readers.pop(sink, ()):
                    if reader not in known:
                        known.add(reader)
                        heapq.heappush(due, (turn + (reader < number), reader))

    def _copartitioned(self, names: Iterable[str]) -> dict[str, int]:
        """Return the counts of the repartition topics among copartitioned ``names``. Raises: TopicProblemError."""
        counts = {name: self.of(name) for name in names}
        repartition = {name: count for name, count in counts.items() if name in self._fixed or name in self._flexible}
        others = {name: count for name, count in counts.items() if name not in repartition}
        if others:
            count = _same(others, others)
        elif self._fixed:
            if self._fixed_count is None:
                self._fixed_count = _same({name: self.of(name) for name in self._fixed}, repartition)
            count = self._fixed_count
        else:
            count = max(repartition.values())
        for name, present in repartition.items():
            if name in self._fixed and present != count:
                text = (
                    f"Number of partitions [{present}] of repartition topic [{name}] doesn't match number of "
                    f"partitions [{count}] of the source topic."
                )
                raise TopicProblemError(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
        return dict.fromkeys(repartition, count)


def _same(counts: Mapping[str, int], shown: Mapping[str, int]) -> int:
    """Return the number that all ``counts`` equal. Raises: TopicProblemError if they differ."""
    if len(set(counts.values())) > 1:
        rows = ", ".join(f"{name}={count}" for name, count in sorted(shown.items()))
        text = f"Following topics do not have the same number of partitions: [{{{rows}}}]"
        raise TopicProblemError(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
    return next(iter(counts.values()))


def _configured(subtopology: Subtopology, counts: _Counts) -> Subtopology:
    """Return the subtopology with the numbers of partitions of its internal topics."""
    return subtopology._replace(
        changelog_topics=tuple(
            topic._replace(partitions=counts.decided(topic)) for topic in subtopology.changelog_topics
        ),
        repartition_source_topics=tuple(
            topic._replace(partitions=counts.decided(topic)) for topic in subtopology.repartition_source_topics
        ),
    )


def _missing(
    subtopologies: Iterable[Subtopology], topology: StreamsTopology, image: TopicsImage
) -> dict[str, InternalTopic]:
    """Return the internal topics that do not exist. Raises: TopicProblemError if a number of partitions differs."""
    internal = {
        topic.name: topic for one in subtopologies for topic in (*one.repartition_source_topics, *one.changelog_topics)
    }
    missing = {name: internal[name] for name in hash_map_order(internal)}  # Kafka's order, for the text
    for name in hash_map_order(topology.required_topics):
        found, expected = image.get(name), missing.get(name)
        if found is None or expected is None:
            continue
        del missing[name]
        if found.partition_count != expected.partitions:
            text = (
                f"Existing topic {name} has different number of partitions: expected {expected.partitions}, found "
                f"{found.partition_count}"
            )
            raise TopicProblemError(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
    return missing


def _broken(text: str) -> KafkaError:
    return KafkaError(Errors.UNKNOWN_SERVER_ERROR, text)
