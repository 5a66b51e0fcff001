"""Checks of loaded metadata before anything is written: a folder that this broker cannot serve stays as it is."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.feature_versions import KRAFT_VERSION, SERVED_LEVELS
from kbroker.log.checkpoints import META_PROPERTIES, uuid_to_text
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.log.loader import LoadedMetadata
from kbroker.metadata.log.metadata_log import FOLDER_NAME, MetadataLogError


class UnservableMetadataError(RuntimeError):
    """Metadata of a cluster that a single broker cannot serve."""


def check_quorum(log_dir: Path, loaded: LoadedMetadata, node_id: int, directory_id: uuid.UUID) -> None:
    """Check that this node is the only voter of the quorum. Raises: MetadataLogError."""
    level, served = loaded.kraft_version, SERVED_LEVELS[KRAFT_VERSION]
    if level > served:
        folder = log_dir / FOLDER_NAME
        raise MetadataLogError(f"{folder}: {KRAFT_VERSION} is {level}, above {served}; serve it with Apache Kafka")
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
    """Check that this broker can serve the metadata. Raises: UnservableMetadataError."""
    found = "; ".join(obstacles(image, node_id))
    if found:
        raise UnservableMetadataError(found)


def obstacles(image: MetadataImage, node_id: int) -> Iterator[str]:
    """Yield the content that only a cluster can serve: replicas on other nodes, and tiered storage."""
    shared = [
        (f"{topic.name}-{index}", ", ".join(map(str, partition.replicas)))
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if partition.replicas != (node_id,)
    ]
    for name, found in shared[:1]:
        yield (
            f"partition {name}{_more(shared)}: expected its only replica on node {node_id}, found replicas on {found}; "
            "move them to this node with Apache Kafka first"
        )
    tiered = [
        name
        for (kind, name), configs in image.configs.items()
        if kind == ConfigResourceType.TOPIC and configs.get("remote.storage.enable", "").lower() == "true"
    ]
    for name in tiered[:1]:
        yield (
            f"topic {name}{_more(tiered)} has remote.storage.enable=true: tiered storage is not supported; disable it "
            "with Apache Kafka first"
        )


def _more(things: Sequence[object]) -> str:
    return f" (and {len(things) - 1} more)" if len(things) > 1 else ""
