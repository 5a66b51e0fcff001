"""Topics and partitions that are about to be created: their replicas, and the records that create them.

Source: ``ReplicationControlManager.createTopic``, ``createPartitions``.
"""

import uuid
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.metadata.configs.resource_configs import config_records
from kbroker.metadata.image.image import MetadataImage, TopicImage
from kbroker.metadata.partition_records import new_partition_records
from kbroker.metadata.placement import place, registered_nodes
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record
from kbroker.metadata.topic_rules import NewTopic, TopicNames, check_new_topic


class PlannedTopic(NamedTuple):
    """A topic that passed its checks.

    ``replicas``: of each partition; ``nodes``: whether each node is fenced; ``configs``: those that the topic itself
    sets.
    """

    name: str
    topic_id: uuid.UUID
    replicas: Sequence[Sequence[int]]
    nodes: Mapping[int, bool]
    configs: Mapping[str, str]

    @property
    def created(self) -> "Created":
        """The result once the topic is stored."""
        return Created(self.topic_id, len(self.replicas), len(self.replicas[0]), self.configs)


class Created(NamedTuple):
    """Result of creating a topic. The id is random and not stored when the request was only validated."""

    topic_id: uuid.UUID
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def planned_topic(topic: NewTopic, names: TopicNames, config: BrokerConfig, image: MetadataImage) -> PlannedTopic:
    """Check a new topic, and return it with its replicas.

    Args: ``names``: existing names; ``config``: has the defaults. Raises: KafkaError with Kafka's code and text.
    """
    nodes = registered_nodes(image, config.node_id)
    layout = check_new_topic(topic, names, nodes, config)
    configs = {name: value for name, value in topic.configs.items() if value is not None}
    replicas = layout.replicas or place(image, nodes, layout.factor, _first(topic.name), layout.partitions)
    return PlannedTopic(topic.name, uuid.uuid4(), replicas, nodes, configs)


def topic_records(topic: PlannedTopic, directory_ids: Collection[uuid.UUID], level: int) -> list[MetadataRecord]:
    """Return the records that create a topic. Args: ``directory_ids``: the log folders'."""
    return [
        metadata_record("TopicRecord", {"Name": topic.name, "TopicId": topic.topic_id}),
        *config_records(ConfigResourceType.TOPIC, topic.name, {}, topic.configs),
        *new_partition_records(topic.topic_id, 0, topic.replicas, topic.nodes, directory_ids, level),
    ]


def added_records(
    topic: TopicImage,
    added: range,
    assignments: Sequence[Sequence[int]] | None,
    nodes: Mapping[int, bool],
    image: MetadataImage,
    directory_ids: Collection[uuid.UUID],
) -> list[MetadataRecord]:
    """Return the records that add partitions to a topic, with as many replicas as it has.

    Args: ``assignments``: the replicas of each new partition; None: chosen here; ``nodes``: whether each is fenced.
    """
    if assignments is None:
        factor = len(topic.partitions[0].replicas)
        assignments = place(image, nodes, factor, _first(topic.name) + added.start, len(added))
    return list(new_partition_records(topic.topic_id, added.start, assignments, nodes, directory_ids, image.level))


def _first(name: str) -> int:
    """Return the number that shifts the leaders of a topic, so that topics of one partition are on all nodes."""
    return zlib.crc32(name.encode("utf-8", "surrogateescape"))
