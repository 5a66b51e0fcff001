"""Checks of loaded metadata before anything is written: a folder that this broker cannot serve stays as it is."""

from __future__ import annotations

import uuid
from pathlib import Path

from kbroker.log.checkpoints import META_PROPERTIES, uuid_to_text
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.log.loader import LoadedMetadata
from kbroker.metadata.log.metadata_log import FOLDER_NAME, MetadataLogError


class UnservableMetadataError(RuntimeError):
    """Metadata of a cluster that a single broker cannot serve."""


def check_quorum(log_dir: Path, loaded: LoadedMetadata, node_id: int, directory_id: uuid.UUID) -> None:
    """Check that this node is the only voter of the quorum. Raises: MetadataLogError."""
    if loaded.voters is None:  # kraft.version 0
        others = [voter for voter in loaded.leader_voters if voter != node_id]
        if others:
            raise MetadataLogError(
                f"{log_dir / FOLDER_NAME}: expected {node_id} as the only voter of the quorum, found "
                f"{', '.join(map(str, loaded.leader_voters))}; serve it with Apache Kafka"
            )
        return
    voters = loaded.voters.voters
    if [(voter.id, voter.directory_id) for voter in voters] == [(node_id, directory_id)]:
        return
    found = ", ".join(f"{voter.id}@{uuid_to_text(voter.directory_id)}" for voter in voters)
    remedy = "serve it with Apache Kafka, or remove the other voters there first"
    if [voter.id for voter in voters] == [node_id]:
        found_id = uuid_to_text(voters[0].directory_id)
        remedy = f"if {META_PROPERTIES} was lost, set directory.id={found_id} in {log_dir / META_PROPERTIES}"
    raise MetadataLogError(
        f"{log_dir / FOLDER_NAME}: expected {node_id}@{uuid_to_text(directory_id)} as the only voter of the quorum, "
        f"found {found}; {remedy}"
    )


def check_servable(image: MetadataImage, node_id: int) -> None:
    """Check that this broker has the only replica of each partition. Raises: UnservableMetadataError."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if partition.replicas != (node_id,):
                found = ", ".join(map(str, partition.replicas))
                raise UnservableMetadataError(
                    f"partition {topic.name}-{index}: expected its only replica on node {node_id}, found replicas on "
                    f"{found}; move them to this node with Apache Kafka first"
                )
    remote = [name for (_, name), configs in image.configs.items() if configs.get("remote.storage.enable") == "true"]
    if remote:
        raise UnservableMetadataError(
            f"topic {remote[0]} has remote.storage.enable=true: tiered storage is not supported; disable it with "
            "Apache Kafka first"
        )
