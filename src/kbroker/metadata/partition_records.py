"""Records of partitions: new ones, and the log folders that they are in.

Source: ``ReplicationControlManager``, ``AssignmentsManager``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from kbroker.common.feature_versions import DIRECTORIES_LEVEL
from kbroker.common.topic_names import TopicPartition
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.partition_registration import RECOVERED, RESERVED_IDS, UNASSIGNED, PartitionRegistration
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record


def new_partition_records(
    topic_id: uuid.UUID,
    first: int,
    placed: Iterable[Sequence[int]],
    nodes: Mapping[int, bool],
    directory_ids: Collection[uuid.UUID],
    level: int,
) -> Iterator[MetadataRecord]:
    """Yield the records of new partitions from the number ``first`` on, each led by its first replica that serves.

    Args: ``placed``: the replicas of each; ``nodes``: whether each node is fenced; ``directory_ids``: the log
    folders'; if there are several, the log manager chooses later; ``level``: of metadata.version.
    """
    directory = next(iter(directory_ids)) if len(directory_ids) == 1 else UNASSIGNED
    has_directories = level >= DIRECTORIES_LEVEL
    for index, replicas in enumerate(placed, first):
        isr = tuple(one for one in replicas if not nodes[one])
        partition = PartitionRegistration(
            tuple(replicas), (directory,) * len(replicas), isr, (), (), isr[0], RECOVERED, 0, 0
        )
        body = partition.to_record(topic_id, index, has_directories=has_directories)
        yield metadata_record("PartitionRecord", body, level)


def partitions_elsewhere(image: MetadataImage, directory_ids: Collection[uuid.UUID]) -> list[TopicPartition]:
    """Return the partitions with a log folder, according to the image, other than these."""
    return [
        (topic.name, index)
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if any(one.int >= RESERVED_IDS and one not in directory_ids for one in partition.directories)
    ]


def directory_records(
    image: MetadataImage, names: Iterable[str], directory_of: Callable[[str, int], uuid.UUID | None], level: int
) -> list[MetadataRecord]:
    """Return the records that correct the log folders of the partitions of these topics.

    Args: ``directory_of`` returns the id of a partition's log folder, None if it is not open.
    """
    records = []
    for name in names:
        topic = image.topics.get(name)
        for index, partition in enumerate(topic.partitions if topic is not None else ()):
            found = directory_of(name, index)
            if topic is not None and found is not None and partition.directories != (found,):
                body = {"PartitionId": index, "TopicId": topic.topic_id, "Directories": [found]}
                records.append(metadata_record("PartitionChangeRecord", body, level))
    return records
