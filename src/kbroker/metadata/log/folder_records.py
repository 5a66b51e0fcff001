"""Records of topics whose partitions have folders: their log folders and leader epochs are those on the disk."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.log import checkpoints
from kbroker.log.log_dir import partition_folder_name
from kbroker.metadata.configs.resource_configs import config_records
from kbroker.metadata.image.partition_registration import UNASSIGNED, PartitionRegistration
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record


class StoredTopic(NamedTuple):
    """A topic. ``configs``: those that the topic itself sets; ``epochs``: known leader epochs of its partitions."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = {}
    epochs: Mapping[int, int] = {}


class PartitionsOnDisk:
    """The partition folders of all log folders. Args: ``folders``: an unreadable log folder counts as empty."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._names: list[tuple[Path, uuid.UUID, frozenset[str]]] = []
        for folder in folders:
            try:
                owner = checkpoints.read_meta_properties(folder)
                names = frozenset(os.listdir(folder))
            except OSError:
                continue
            directory_id = None if owner is None else owner.directory_id
            self._names.append((folder, directory_id or UNASSIGNED, names))
        # with several log folders, the log manager will choose that of a partition without a folder
        self._default = self._names[0][1] if len(folders) == 1 and self._names else UNASSIGNED

    def registration(self, node_id: int, topic: StoredTopic, partition: int) -> PartitionRegistration:
        """Return the state of a partition whose only replica is the node. Raises: OSError, CorruptFileError."""
        directory_id, epoch = self._default, topic.epochs.get(partition, 0)
        name = partition_folder_name(topic.name, partition)
        found = [(folder / name, one) for folder, one, names in self._names if name in names]
        # after an incomplete move between log folders there are two folders: the one that replaces the other counts
        found.sort(key=lambda one: (one[0] / checkpoints.MOVED_FROM).exists(), reverse=True)
        if found:
            path, directory_id = found[0]
            epochs = checkpoints.leader_epoch_checkpoint(path / checkpoints.LEADER_EPOCH_CHECKPOINT).read()
            epoch = max([epoch, *epochs])
        replicas = (node_id,)
        return PartitionRegistration(replicas, (directory_id,), replicas, (), (), node_id, 0, epoch, 0)


def topic_records(topics: Iterable[StoredTopic], disk: PartitionsOnDisk, node_id: int) -> Iterator[MetadataRecord]:
    """Yield the records of topics, their configs and partitions. Raises: OSError, CorruptFileError."""
    for topic in topics:
        yield metadata_record("TopicRecord", {"Name": topic.name, "TopicId": topic.topic_id})
        yield from config_records(ConfigResourceType.TOPIC, topic.name, {}, topic.configs)
        for partition in range(topic.partitions):
            registration = disk.registration(node_id, topic, partition)
            yield metadata_record("PartitionRecord", registration.to_record(topic.topic_id, partition))
