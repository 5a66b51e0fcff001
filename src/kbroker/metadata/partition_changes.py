"""Changes of leaders and replicas that administrators request: elections, reassignments, moves.

Source: ``ReplicationControlManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.image import MetadataImage, TopicImage
from kbroker.metadata.image.partition_registration import PartitionRegistration
from kbroker.metadata.leaders import change_records, elected, led_by, live_ids, reassigned
from kbroker.metadata.placement import registered_nodes
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.topic_rules import check_assignment


class Election(NamedTuple):
    """Result of an election in one partition; ``error`` is ELECTION_NOT_NEEDED if the leader stays."""

    topic: str
    partition: int
    error: Errors
    message: str | None


class PartitionChanges:
    """Changes of the partitions of a cluster whose nodes share their logs. Each raises KafkaError.

    Args: ``node_id``: the only node before any registration. Threads: any.
    """

    def __init__(self, controller: Controller, node_id: int) -> None:
        self._controller = controller
        self._node_id = node_id

    def reassign(self, name: str, index: int, replicas: Sequence[int] | None, *, may_change_factor: bool) -> None:
        """Assign a partition to other replicas, or cancel a reassignment (None). Raises: KafkaError."""

        def change(partition: PartitionRegistration, image: MetadataImage) -> PartitionRegistration:
            if replicas is not None:
                check_assignment(replicas, registered_nodes(image, self._node_id))
                factor = len(set(partition.replicas) - set(partition.removing_replicas))
                if not may_change_factor and factor != len(replicas):
                    text = f"The replication factor is changed from {factor} to {len(replicas)}"
                    raise KafkaError(Errors.INVALID_REPLICATION_FACTOR, text)
            return reassigned(partition, replicas, self._live(image))

        self._change(name, index, change)

    def move_leader(self, name: str, index: int, node_id: int) -> None:
        """Make a node the leader of a partition; a node that is not a replica replaces the former leader."""
        self._change(name, index, lambda partition, image: led_by(partition, node_id, live_ids(image)))

    def elect(self, wanted: Iterable[tuple[str, int]] | None, *, is_unclean: bool) -> list[Election]:
        """Elect the preferred leaders of partitions or, if ``is_unclean``, leaders where there are none.

        Args: ``wanted``: topic names and partition numbers, None for all partitions. Returns: one result for each.
        """
        results: list[Election] = []

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            records: list[MetadataRecord] = []
            for name, index in _all(image) if wanted is None else wanted:
                error, message = Errors.NONE, None
                try:
                    records += self._elect(image, name, index, is_unclean)
                except KafkaError as refusal:
                    error, message = refusal.error, refusal.message
                results.append(Election(name, index, error, message))
            return records

        self._controller.change(plan)
        return results

    def _elect(self, image: MetadataImage, name: str, index: int, is_unclean: bool) -> list[MetadataRecord]:
        topic = image.topics.get(name)
        if topic is None:
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
        after = elected(topic.partitions[index], self._live(image), is_unclean=is_unclean)
        return change_records(topic, index, after, image.level)

    def _change(
        self,
        name: str,
        index: int,
        change: Callable[[PartitionRegistration, MetadataImage], PartitionRegistration],
    ) -> None:
        def plan(image: MetadataImage) -> list[MetadataRecord]:
            topic = _topic(image, name, index)
            return change_records(topic, index, change(topic.partitions[index], image), image.level)

        self._controller.change(plan)

    def _live(self, image: MetadataImage) -> set[int]:
        return live_ids(image) if image.brokers else {self._node_id}


def _topic(image: MetadataImage, name: str, index: int) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    return topic


def _all(image: MetadataImage) -> list[tuple[str, int]]:
    return [(name, index) for name in sorted(image.topics) for index in range(len(image.topics[name].partitions))]
