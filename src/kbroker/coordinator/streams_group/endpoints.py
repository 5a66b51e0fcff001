"""The topic-partitions of each application instance with an address for interactive queries.

Source: ``EndpointToPartitionsManager``, ``StreamsGroup.buildEndpointToPartitions``; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.common.java.java_hash import timeline_map_order
from kbroker.coordinator.modern_group.topics_image import TopicsImage
from kbroker.coordinator.streams_group.group import StreamsGroup
from kbroker.coordinator.streams_group.member import Endpoint, StreamsGroupMember

Partitions = list[tuple[str, list[int]]]


class EndpointPartitions(NamedTuple):
    """An address, and the partitions of the source topics of its active and standby tasks."""

    endpoint: Endpoint
    active: Partitions
    standby: Partitions


def endpoint_partitions(
    group: StreamsGroup, updated: StreamsGroupMember, image: TopicsImage
) -> list[EndpointPartitions]:
    """Return the endpoints of all members; that of ``updated``, a changed member, comes last.

    While the topology cannot be configured, they have no partitions; Kafka 4.3 fails with a server error.
    """
    others = [group.members[one] for one in timeline_map_order(group.members) if one != updated.member_id]
    return [
        EndpointPartitions(
            member.endpoint,
            _partitions(group, member.assigned.active, image),
            _partitions(group, member.assigned.standby, image),
        )
        for member in (*others, updated)
        if member.endpoint is not None
    ]


def _partitions(group: StreamsGroup, tasks: Mapping[str, Iterable[int]], image: TopicsImage) -> Partitions:
    subtopologies = {} if group.configured is None else group.configured.subtopologies
    found: Partitions = []
    for one, indexes in sorted(tasks.items()):
        subtopology = subtopologies.get(one)
        for name in dict.fromkeys(() if subtopology is None else subtopology.inputs):
            topic = image.get(name)
            if topic is not None:  # a topic may have fewer partitions than there are tasks
                found.append((name, sorted(indexes)[: topic.partition_count]))
    return found
