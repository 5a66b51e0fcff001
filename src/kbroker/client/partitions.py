"""Partitions in requests and responses: by leader, and as rows below their topics."""

from collections.abc import Iterable, Iterator

from kbroker.client.cluster import Cluster
from kbroker.client.connection import Body
from kbroker.common.topic_names import TopicPartition


def by_leader(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Return partitions by the node id of their leader. Raises: KafkaError for one without a leader."""
    found: dict[int, list[TopicPartition]] = {}
    for place in places:
        found.setdefault(cluster.leader(*place), []).append(place)
    return found


def topic_rows(rows: Iterable[tuple[str, object]], name: str = "Name", partitions: str = "Partitions") -> list[Body]:
    """Return the topics of a request from pairs of a topic and the row of a partition, in the order of the pairs.

    Args: ``name``, ``partitions``: fields of a topic.
    """
    topics: dict[str, list[object]] = {}
    for topic, row in rows:
        topics.setdefault(topic, []).append(row)
    return [{name: topic, partitions: listed} for topic, listed in topics.items()]


def partition_rows(
    topics: Iterable[Body], name: str = "Name", partitions: str = "Partitions", index: str = "PartitionIndex"
) -> Iterator[tuple[TopicPartition, Body]]:
    """Yield the partitions of a response with their rows. Args: fields of a topic, and of a partition."""
    for topic in topics:
        for row in topic[partitions]:
            yield (topic[name], row[index]), row
