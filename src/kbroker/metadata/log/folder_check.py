"""Check of log folders before another server starts on them: a release of Apache Kafka, or kbroker.

Source: Kafka 4.0 to 4.3 (``QuorumFeatures``, ``FeatureControlManager``, ``LogManager``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from kbroker.common.feature_versions import KRAFT_VERSION, METADATA_VERSION, RELEASES, level_text, unserved
from kbroker.common.quotas import is_shadow_key
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC, TopicPartition
from kbroker.common.units import counted
from kbroker.log import checkpoints
from kbroker.log.checkpoints import CorruptFileError, MetaProperties, uuid_to_text
from kbroker.log.log_dir import parse_partition_folder, partition_folders
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.partition_registration import UNASSIGNED
from kbroker.metadata.log.folder_reader import FolderMetadata, read_metadata
from kbroker.metadata.log.former_file import refusal
from kbroker.metadata.log.metadata_log import FOLDER_NAME, LogFiles, MetadataLogError
from kbroker.metadata.log.opening import has_recovered_records
from kbroker.metadata.log.servable import check_quorum, obstacles
from kbroker.metadata.records.control_records import Voter

KBROKER = "kbroker"
_SHOWN = 3  # names of a list that a sentence shows


class LogFolders(NamedTuple):
    """Content of the log folders of one node.

    Attributes:
        folders: as given.
        owners: owners of the folders that are formatted.
        metadata: of the first folder that has metadata, None if there is none.
        fault: the first fault of the metadata or of a folder's owner, "" if there is none.
        strays: partition folders that belong to no partition of the metadata.
        missing: partitions of this node without a folder.
        doubles: the folders of each partition that has several.
    """

    folders: Sequence[Path]
    owners: Mapping[Path, MetaProperties]
    metadata: FolderMetadata | None
    fault: str
    strays: Sequence[Path]
    missing: Sequence[str]
    doubles: Sequence[Sequence[Path]]

    @property
    def node_id(self) -> int:
        """Return the owner's node id, -1 without an owner."""
        return next((owner.node_id for owner in self.owners.values()), -1)

    def summary(self) -> dict[str, object]:
        """Return the owner and the size of the metadata, as values of JSON."""
        owner = next(iter(self.owners.values()), None)
        image = None if self.metadata is None else self.metadata.image
        return {
            "cluster_id": None if owner is None else owner.cluster_id,
            "node_id": None if owner is None else owner.node_id,
            "metadata_version": None if image is None else image.features.get(METADATA_VERSION),
            "topics": None if image is None else len(image.topics),
            "partitions": None if image is None else sum(len(topic.partitions) for topic in image.topics.values()),
        }

    def title(self) -> str:
        """Return a line with the owner and the size of the metadata."""
        parts = [", ".join(map(str, self.folders)) + ":"]
        owner = next(iter(self.owners.values()), None)
        parts.append("not formatted" if owner is None else f"node {owner.node_id} of cluster {owner.cluster_id}")
        if self.metadata is not None:
            image = self.metadata.image
            level = image.features.get(METADATA_VERSION, 0)
            partitions = sum(len(topic.partitions) for topic in image.topics.values())
            parts[-1] += f", {METADATA_VERSION} {level_text(METADATA_VERSION, level)},"
            parts.append(f"{counted(len(image.topics), 'topic')} with {counted(partitions, 'partition')}")
        return " ".join(parts)


class Verdict(NamedTuple):
    """Result for one server, which can serve the folders if there is no obstacle; ``losses``: its restrictions."""

    server: str
    obstacles: Sequence[str]
    losses: Sequence[str]

    def lines(self) -> Iterator[str]:
        """Yield the result and its reasons."""
        reasons = self.obstacles or self.losses
        judgement = "cannot serve it" if self.obstacles else "can serve it"
        yield f"{self.server} {judgement}{', but' if reasons and not self.obstacles else ''}{':' if reasons else ''}"
        for reason in reasons:
            yield f"  {reason}"


def read_folders(folders: Sequence[Path]) -> LogFolders:
    """Read all log folders of a node, without changing any file. Raises: OSError."""
    owners, fault = {}, refusal(folders) or ""
    metadata = None
    for folder in folders:
        try:
            owner = checkpoints.read_meta_properties(folder)
            if owner is not None:
                owners[folder] = owner
            metadata = metadata or read_metadata(folder, [one for one in folders if one != folder])
        except CorruptFileError as error:
            fault = fault or f"{error}; restore it from a backup"
        except MetadataLogError as error:
            fault = fault or str(error)
    if metadata is not None and _is_lost(metadata.log_dir, folders):
        metadata = None
    first = next(iter(owners.values()), None)
    for folder, owner in owners.items():
        if first is not None and (owner.cluster_id, owner.node_id) != (first.cluster_id, first.node_id):
            fault = fault or f"{folder} belongs to node {owner.node_id} of cluster {owner.cluster_id}"
    strays: list[Path] = []
    missing: list[str] = []
    doubles: list[Sequence[Path]] = []
    if metadata is not None and first is not None:
        strays, missing, doubles = _compare(folders, metadata.image, first.node_id)
    return LogFolders(folders, owners, metadata, fault, strays, missing, doubles)


def _is_lost(log_dir: Path, folders: Sequence[Path]) -> bool:
    """Return whether a start would refuse the folders, because the metadata log is empty but partitions exist."""
    others = [folder for folder in folders if folder != log_dir]
    if not LogFiles(log_dir).is_empty or has_recovered_records(log_dir, others):
        return False
    return any(path.name != FOLDER_NAME for folder in folders for path in partition_folders(folder))


def _compare(
    folders: Sequence[Path], image: MetadataImage, node_id: int
) -> tuple[list[Path], list[str], list[Sequence[Path]]]:
    """Return folders without a partition in the image, the node's partitions without a folder, duplicate folders."""
    strays = []
    present: dict[TopicPartition, list[Path]] = {}
    for path in (path for folder in folders for path in partition_folders(folder)):
        found = parse_partition_folder(path.name)
        if found is None or found[0] == CLUSTER_METADATA_TOPIC:
            continue
        topic = image.topics.get(found[0])
        if topic is None or found[1] >= len(topic.partitions) or _topic_id(path) not in (None, topic.topic_id):
            strays.append(path)
        else:
            present.setdefault(found, []).append(path)
    missing = [
        f"{topic.name}-{number}"
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if node_id in partition.replicas and (topic.name, number) not in present
    ]
    return strays, missing, [paths for paths in present.values() if len(paths) > 1]


def _topic_id(folder: Path) -> UUID | None:
    try:
        return checkpoints.read_partition_metadata(folder)
    except CorruptFileError:
        return None


def judge(found: LogFolders, server: str) -> Verdict:
    """Return the result for a server: Apache Kafka of a release such as ``4.3``, or KBROKER."""
    is_kafka = server != KBROKER
    reasons = list(_folder_obstacles(found, is_kafka))
    losses: list[str] = []
    if found.metadata is not None and not reasons:
        reasons += _kafka_obstacles(found, server) if is_kafka else _kbroker_obstacles(found)
        losses += _kafka_losses(found) if is_kafka else _kbroker_losses(found.metadata)
        losses += _common_losses(found)
    return Verdict(f"Apache Kafka {server}" if is_kafka else KBROKER, reasons, losses)


def _folder_obstacles(found: LogFolders, is_kafka: bool) -> Iterator[str]:
    if found.fault:
        yield found.fault
    elif found.metadata is None:
        if any(partition_folders(folder) for folder in found.folders):
            yield "the metadata is missing: name the folder of the metadata log, or run kbroker log recover-metadata"
        elif is_kafka:
            yield "the folder is not formatted: run kbroker storage format"
    elif not found.owners:
        yield "meta.properties is missing: restore it from a backup"
    for paths in found.doubles:
        # after a crash in a move between log folders; the next start of kbroker removes the former folder
        is_moved = any((path / checkpoints.MOVED_FROM).exists() for path in paths)
        if is_kafka or not is_moved:
            remedy = "start and stop kbroker first" if is_moved else "move the one that is out of date away"
            yield f"partition {paths[0].name} has several folders, {', '.join(map(str, paths))}: {remedy}"


def _kafka_obstacles(found: LogFolders, release: str) -> Iterator[str]:
    assert found.metadata is not None
    image, loaded = found.metadata.image, found.metadata.loaded
    known = RELEASES[release]
    for name, level in sorted({**image.features, KRAFT_VERSION: loaded.kraft_version}.items()):
        if name not in known:
            yield f"{name} is finalized at level {level}, and is unknown to this version: disable it first"
        elif level > known[name]:
            yield f"{name} is {level_text(name, level)}, above {level_text(name, known[name])}"
    if METADATA_VERSION not in image.features:
        yield f"the metadata has no {METADATA_VERSION}"
    for fault in loaded.bad_snapshots.values():
        yield f"{fault}; Apache Kafka reads no other: move it to another folder"
    ids = {owner.directory_id for owner in found.owners.values()}
    for voter in _voters(found.metadata):
        if voter.id == found.node_id and voter.directory_id not in ids:
            expected = uuid_to_text(voter.directory_id)
            yield f"the voter {voter.id} has the directory id {expected}, which no meta.properties of the folders has"


def _kbroker_obstacles(found: LogFolders) -> Iterator[str]:
    assert found.metadata is not None
    log_dir, image, loaded, _ = found.metadata
    owner = found.owners.get(log_dir)
    directory_id = None if owner is None else owner.directory_id
    try:
        check_quorum(log_dir, loaded, found.node_id, directory_id or UNASSIGNED)
    except MetadataLogError as error:
        yield str(error)
    if METADATA_VERSION not in image.features:
        yield f"the metadata has no {METADATA_VERSION}"
    yield from obstacles(image, found.node_id)


def _kafka_losses(found: LogFolders) -> Iterator[str]:
    assert found.metadata is not None
    image = found.metadata.image
    others = [str(voter.id) for voter in _voters(found.metadata) if voter.id != found.node_id]
    if others:
        yield f"the quorum has {_list('other voter', others)}: the node needs a majority of the voters"
    shadows = sum(is_shadow_key(key) for quotas in image.client_quotas.values() for key in quotas)
    if shadows:
        yield f"{counted(shadows, 'shadow quota')} without effect: Apache Kafka keeps and ignores them"
    own = {name for configs in image.configs.values() for name in configs if name.startswith("kbroker.")}
    if own:
        yield f"{_list('config', sorted(own))} of kbroker without effect"
    if image.delegation_tokens:
        yield (
            f"{counted(len(image.delegation_tokens), 'delegation token')}, valid only with the same "
            "delegation.token.secret.key"
        )


def _kbroker_losses(metadata: FolderMetadata) -> Iterator[str]:
    yield from unserved(metadata.image.features)
    for fault in metadata.loaded.bad_snapshots.values():
        yield f"{fault}; an older snapshot and the log are read instead"


def _common_losses(found: LogFolders) -> Iterator[str]:
    assert found.metadata is not None
    if found.metadata.torn_bytes:
        torn = counted(found.metadata.torn_bytes, "byte")
        yield f"{torn} of an incomplete batch at the end of the metadata log, which a start cuts off"
    if found.folders[0] != found.metadata.log_dir:
        log_dir = found.metadata.log_dir
        yield f"the metadata log is in {log_dir}: name that folder first in log.dirs, or set metadata.log.dir={log_dir}"
    if found.strays:
        yield f"{_list('partition folder', [path.name for path in found.strays])} of no topic: not served"
    if found.missing:
        partitions = _list("partition", found.missing)
        yield f"{partitions} without a folder, which will begin empty: name all folders of log.dirs"


def _list(thing: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = "" if len(names) <= _SHOWN else f" and {len(names) - _SHOWN} more"
    return f"{counted(len(names), thing)} ({shown}{more})"


def _voters(metadata: FolderMetadata) -> Sequence[Voter]:
    """Return the voters in the metadata log, none with kraft.version 0."""
    return () if metadata.loaded.voters is None else metadata.loaded.voters.voters
