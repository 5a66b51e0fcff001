"""The topology of a streams application, as its members describe it: subtopologies and their topics.

Source: ``StreamsTopology``, ``StreamsGroupTopologyValue``; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_hash import hash_map_order


class InternalTopic(NamedTuple):
    """An internal topic. ``partitions``, ``replication_factor``: 0 for a number that the broker chooses."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> InternalTopic:
        """Return the topic in the fields of a request or record."""
        configs = tuple((row["Key"], row["Value"]) for row in body["TopicConfigs"])
        return cls(body["Name"], body["Partitions"], body["ReplicationFactor"], configs)

    @property
    def body(self) -> dict[str, Any]:
        """The fields of a response or record."""
        return {
            "Name": self.name,
            "Partitions": self.partitions,
            "ReplicationFactor": self.replication_factor,
            "TopicConfigs": [{"Key": key, "Value": value} for key, value in self.configs],
        }


class CopartitionGroup(NamedTuple):
    """Topics that must have the same number of partitions, as indexes into the arrays of their subtopology."""

    source_topics: tuple[int, ...]
    source_topic_regexes: tuple[int, ...]
    repartition_source_topics: tuple[int, ...]


class Subtopology(NamedTuple):
    """A part of the topology whose tasks have one partition of each source topic."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    source_topic_regexes: tuple[str, ...]
    changelog_topics: tuple[InternalTopic, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: tuple[InternalTopic, ...]
    copartition_groups: tuple[CopartitionGroup, ...]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Subtopology:
        """Return the subtopology in the fields of a request or record."""
        groups = [
            CopartitionGroup(
                tuple(row["SourceTopics"]), tuple(row["SourceTopicRegex"]), tuple(row["RepartitionSourceTopics"])
            )
            for row in body["CopartitionGroups"]
        ]
        return cls(
            body["SubtopologyId"],
            tuple(body["SourceTopics"]),
            tuple(body["SourceTopicRegex"]),
            tuple(InternalTopic.of(row) for row in body["StateChangelogTopics"]),
            tuple(body["RepartitionSinkTopics"]),
            tuple(InternalTopic.of(row) for row in body["RepartitionSourceTopics"]),
            tuple(groups),
        )

    @property
    def body(self) -> dict[str, Any]:
        """The fields of a record."""
        return {
            "SubtopologyId": self.subtopology_id,
            "SourceTopics": list(self.source_topics),
            "SourceTopicRegex": list(self.source_topic_regexes),
            "StateChangelogTopics": [one.body for one in self.changelog_topics],
            "RepartitionSinkTopics": list(self.repartition_sink_topics),
            "RepartitionSourceTopics": [one.body for one in self.repartition_source_topics],
            "CopartitionGroups": [
                {
                    "SourceTopics": list(one.source_topics),
                    "SourceTopicRegex": list(one.source_topic_regexes),
                    "RepartitionSourceTopics": list(one.repartition_source_topics),
                }
                for one in self.copartition_groups
            ],
        }

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that the subtopology reads."""
        return (*self.source_topics, *(one.name for one in self.repartition_source_topics))


class StreamsTopology(NamedTuple):
    """A topology. ``subtopologies``: by id, in the order of the request."""

    epoch: int
    subtopologies: Mapping[str, Subtopology]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> StreamsTopology:
        """Return the topology in the fields of a request or record. Raises: KafkaError UNKNOWN_SERVER_ERROR."""
        if body["Epoch"] < 0:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, "Topology epoch must be non-negative.")
        found: dict[str, Subtopology] = {}
        for row in body["Subtopologies"]:
            one = Subtopology.of(row)
            if one.subtopology_id in found:
                text = f"The topology has two subtopologies with the id {one.subtopology_id}."
                raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, text)
            found[one.subtopology_id] = one
        return cls(body["Epoch"], found)

    @property
    def body(self) -> dict[str, Any]:
        """The fields of a record."""
        return {"Epoch": self.epoch, "Subtopologies": [one.body for one in self.subtopologies.values()]}

    @property
    def required_topics(self) -> set[str]:
        """The topics that the application reads or keeps its state in."""
        found: set[str] = set()
        for one in self.subtopologies.values():
            found.update(one.inputs, (topic.name for topic in one.changelog_topics))
        return found

    def readers(self) -> dict[str, str]:
        """Return the id of the subtopology that reads each topic; of several, the last one in Kafka's map."""
        order = hash_map_order(self.subtopologies)
        return {topic: one for one in order for topic in self.subtopologies[one].inputs}


def described(subtopologies: Sequence[Subtopology]) -> list[dict[str, Any]]:
    """Return the subtopologies as StreamsGroupDescribe shows them: everything sorted by name."""
    return [
        {
            "SubtopologyId": one.subtopology_id,
            "SourceTopics": sorted(one.source_topics),
            "RepartitionSinkTopics": sorted(one.repartition_sink_topics),
            "StateChangelogTopics": [topic.body for topic in sorted(one.changelog_topics)],
            "RepartitionSourceTopics": [topic.body for topic in sorted(one.repartition_source_topics)],
        }
        for one in sorted(subtopologies)
    ]
