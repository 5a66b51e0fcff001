"""Reconstruction of lost metadata from the log folders: topics, their ids and partitions.

``kbroker log recover-metadata``; the broker must not run. The sound part of a damaged metadata log is kept: its
newest usable snapshot and the records up to the first damage. The result is the first records of a new metadata log. A
recovery that was killed can be repeated.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from kbroker._core.clock import SystemClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_quorum import voter_listener
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import UserError
from kbroker.common.feature_versions import METADATA_VERSION, SERVED_LEVELS
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, OFFSETS_TOPIC
from kbroker.log import checkpoints
from kbroker.log.checkpoints import MetaProperties
from kbroker.log.folder_lock import FolderLock, FolderLockedError
from kbroker.log.log_dir import STRAY_SUFFIX, is_data_folder, parse_partition_folder, partition_folders
from kbroker.metadata.image.delta import image_of
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.log.folder_records import PartitionsOnDisk, StoredTopic, topic_records
from kbroker.metadata.log.formatter import feature_records, make_voter, write_bootstrap
from kbroker.metadata.log.former_file import FILE_NAME, refusal
from kbroker.metadata.log.loader import LoadedMetadata
from kbroker.metadata.log.log_storage import activation_records, bootstrap_records, first_image, is_known_cluster
from kbroker.metadata.log.metadata_log import FOLDER_NAME, LogFiles, MetadataLogError, StartableLog
from kbroker.metadata.log.opening import folder_with_log, write_first
from kbroker.metadata.producer_ids import PRODUCER_ID_BLOCK
from kbroker.metadata.records.control_records import Voter
from kbroker.metadata.records.metadata_record import MetadataRecord, UnknownRecordError, metadata_record
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT
from kbroker.metadata.topic_rules import offsets_topic_configs

logger = get_logger(__name__)

MOST_MISSING = 1000  # partitions of a topic without a folder; with more, a folder is misnamed
#: The first block of producer ids is drawn from this range when the last allocated block is unknown.
FIRST_NEW_IDS, LAST_NEW_IDS = 1 << 40, 1 << 52

#: Losses by subject, unless the subject is complete.
_LOST = {
    "topics": "topics without a folder, and partitions after the last one that has a folder",
    "configs": "configs of topics and brokers",
    "quotas": "client quotas",
    "scram_credentials": "SCRAM users",
    "delegation_tokens": "delegation tokens",
    "acls": "ACLs, of which some may have denied what is allowed now",
}
_SUBJECTS = {
    "ConfigRecord": "configs",
    "ProducerIdsRecord": "producer_ids",
    "ClientQuotaRecord": "quotas",
    "UserScramCredentialRecord": "scram_credentials",
    "DelegationTokenRecord": "delegation_tokens",
    "AccessControlEntryRecord": "acls",
}
#: Records that are made anew, from the folders or by the next start.
_MADE_ANEW = frozenset({"TopicRecord", "PartitionRecord", "RegisterBrokerRecord", "RegisterControllerRecord"})


class RecoveryError(UserError, RuntimeError):
    """Error of a recovery that changed no file; the message has the reason and the remedy."""


@dataclass
class Recovered:
    """Result of a recovery.

    ``path`` of the records; ``kept``: number of sound entries of each subject; ``lost``: descriptions of incomplete
    subjects; ``notes``: for the operator; ``set_aside``: the new path of the damaged log, if there was one.
    """

    path: Path
    topics: list[StoredTopic] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    set_aside: Path | None = None


@dataclass
class _Salvage:
    """Sound parts of damaged metadata.

    ``records``: all but those of topics and their configs; ``whole``: the subjects that are complete; ``voter`` of the
    quorum; ``is_static``: the configs have the voters.
    """

    topics: list[StoredTopic] = field(default_factory=list)
    records: list[MetadataRecord] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    voter: Voter | None = None
    is_static: bool = False


def recover(folder: Path, node_id: int | None = None, others: Sequence[Path] = ()) -> Recovered:
    """Rebuild the metadata of the log folders; damaged files are kept beside it.

    Args: ``folder``: with the metadata log; ``node_id``: needed if no folder has ``meta.properties``; ``others``: the
    other log folders of the broker.
    Raises: RecoveryError; FolderLockedError, when a broker uses a folder; CorruptFileError; OSError.
    """
    if not any(is_data_folder(one) for one in (folder, *others)):
        raise RecoveryError(f"{folder}: expected a data folder, found no log and no {checkpoints.META_PROPERTIES}")
    if len({one.resolve() for one in (folder, *others)}) <= len(others):
        raise RecoveryError(f"expected each data folder once, found {', '.join(map(str, (folder, *others)))}")
    with ExitStack() as stack:
        for one in (folder, *others):
            stack.callback(FolderLock(one).release)
        return _recover([folder, *others], node_id)


def damage_of(folder: Path) -> list[tuple[Path, str]]:
    """Return each damaged metadata file of a log folder, with the damage; an empty list while a broker uses the folder.

    Nothing in the folder is changed. Raises: OSError.
    """
    found = list(_damage(folder))
    if found:
        try:
            FolderLock(folder).release()
        except FolderLockedError:
            return []  # half a change may have been read; the broker checked the metadata when it started
        except OSError:
            pass  # a read-only folder
    return found


def _damage(folder: Path) -> Iterator[tuple[Path, str]]:
    if (former := refusal([folder])) is not None:
        yield folder / FILE_NAME, former
    if LogFiles(folder).is_empty:
        return
    try:
        yield from LoadedMetadata(StartableLog(folder)).bad_snapshots.items()
    except MetadataLogError as error:
        yield folder / FOLDER_NAME, f"{error}; of several log folders name all, this one first"


def _recover(folders: Sequence[Path], node_id: int | None) -> Recovered:
    folder = folders[0]
    found = Recovered(folder / BOOTSTRAP_CHECKPOINT)
    salvage = _salvage(folders)
    owner = _owner(folders, node_id, salvage)
    found.notes += salvage.notes
    found.topics = _topics(folders, salvage, found.notes)
    found.kept = {subject: count for subject, count in salvage.kept.items() if count}
    found.lost = [text for subject, text in _LOST.items() if subject not in salvage.whole]
    if "configs" not in salvage.whole:
        found.topics = _with_retention_off(folders, found)
    records = salvage.records or feature_records(SERVED_LEVELS)
    if not is_known_cluster(records):
        blocks = range(FIRST_NEW_IDS // PRODUCER_ID_BLOCK, LAST_NEW_IDS // PRODUCER_ID_BLOCK)
        body = {"BrokerId": -1, "BrokerEpoch": -1, "NextProducerId": secrets.choice(blocks) * PRODUCER_ID_BLOCK}
        records.append(metadata_record("ProducerIdsRecord", body))
    if "configs" not in salvage.whole and not any(map(_is_default_broker_config, records)):
        records += activation_records()
    image = image_of([*records, *topic_records(found.topics, PartitionsOnDisk(folders), owner.node_id)])
    found.set_aside = _write(folders, salvage, owner, image)
    return found


def _is_default_broker_config(record: MetadataRecord) -> bool:
    body = record.body
    is_of_broker = record.name == "ConfigRecord" and body["ResourceType"] == ConfigResourceType.BROKER
    return is_of_broker and body["ResourceName"] == ""


def _write(folders: Sequence[Path], salvage: _Salvage, owner: MetaProperties, image: MetadataImage) -> Path | None:
    """Write the new metadata in a repeatable order; return the new path of the damaged log, None if there was none."""
    folder, now_ms = folders[0], SystemClock().wall_ms()
    if checkpoints.read_meta_properties(folder) != owner:
        checkpoints.write_meta_properties(folder, owner)
    records = list(records_of(image, image.features[METADATA_VERSION]))
    write_bootstrap(folder, records, now_ms)
    aside = None
    if not LogFiles(folder).is_empty:
        # a name under which neither kbroker nor Kafka serves it as a partition
        aside = folder / f"{FOLDER_NAME}.{uuid.uuid4().hex}{STRAY_SUFFIX}"
        (folder / FOLDER_NAME).rename(aside)
        checkpoints.sync_folder(folder)
    voter, directory_id = salvage.voter, owner.directory_id
    assert directory_id is not None
    if voter is not None:
        voter = voter._replace(id=owner.node_id, directory_id=directory_id)
    elif not salvage.is_static:
        voter = make_voter(owner.node_id, directory_id, voter_listener(BrokerConfig({"node.id": owner.node_id})))
    write_first(folder, voter, records, now_ms)
    return aside


def _owner(folders: Sequence[Path], node_id: int | None, salvage: _Salvage) -> MetaProperties:
    """Return the owner of the first folder, or a new one for it. Raises: RecoveryError, CorruptFileError."""
    folder = folders[0]
    own = checkpoints.read_meta_properties(folder)
    owner = own or next(filter(None, map(checkpoints.read_meta_properties, folders)), None)
    if owner is not None and node_id is not None and node_id != owner.node_id:
        raise RecoveryError(f"{folder} belongs to node {owner.node_id}, not to node {node_id}")
    if owner is None:
        if node_id is None:
            raise RecoveryError(f"{folder} has no {checkpoints.META_PROPERTIES}: give the node's id with --node-id")
        owner = MetaProperties(checkpoints.random_uuid_text(), node_id)
    directory_id = own.directory_id if own is not None else None
    if directory_id is None and salvage.voter is not None:
        directory_id = salvage.voter.directory_id
    return owner._replace(directory_id=directory_id or uuid.uuid4())


# -------------------------------------------------------------------- intact batches


def _salvage(folders: Sequence[Path]) -> _Salvage:
    """Read the sound part of the log. Raises: RecoveryError if there is nothing to recover."""
    if (former := refusal(folders)) is not None:
        raise RecoveryError(former)
    folder = folders[0]
    other = folder_with_log(folders[1:])
    if other is not None and LogFiles(folder).is_empty:
        raise RecoveryError(
            f"{folder} has no metadata log, but {other} has it: nothing is recovered; set metadata.log.dir={other} for "
            f"the broker, or name that folder first in log.dirs and in this command"
        )
    if not LogFiles(folder).is_empty:
        try:
            bad_snapshots = LoadedMetadata(StartableLog(folder)).bad_snapshots
        except MetadataLogError:
            return _salvage_log(folder, LogFiles(folder))
        unused = "".join(f", although {damage}" for damage in [*bad_snapshots.values()][:1])
        raise RecoveryError(f"{folder / FOLDER_NAME} is whole{unused}: there is nothing to recover")
    if (folder / FOLDER_NAME).exists():
        return _salvage_first(folder)
    # a recovery that was killed had put the log aside
    asides = sorted(folder.glob(f"{FOLDER_NAME}.*{STRAY_SUFFIX}"), key=lambda one: one.stat().st_mtime)
    return _salvage_log(folder, LogFiles(folder, asides[-1])) if asides else _Salvage()


def _salvage_first(folder: Path) -> _Salvage:
    """Check the first records of a log that is empty. Raises: RecoveryError if they are sound."""
    try:
        records = bootstrap_records(folder)
    except MetadataLogError:
        return _Salvage()
    if is_known_cluster(records) or not any(path.name != FOLDER_NAME for path in partition_folders(folder)):
        raise RecoveryError(f"{folder / BOOTSTRAP_CHECKPOINT} is whole: there is nothing to recover")
    return _Salvage()


def _salvage_log(folder: Path, files: LogFiles) -> _Salvage:
    """Read the newest usable snapshot and the sound records after it. Raises: RecoveryError for unknown records."""
    loaded = LoadedMetadata(files, is_salvage=True)
    if isinstance(loaded.error, UnknownRecordError):
        raise RecoveryError(f"{files.folder}: {loaded.error}")
    image = loaded.image
    salvage = _Salvage(is_static=loaded.kraft_version == 0)
    if loaded.voters is not None and len(loaded.voters.voters) == 1:
        salvage.voter = loaded.voters.voters[0]
    newest = max(files.snapshots(), default=None)
    if loaded.error is None and files.end_offset >= (0 if newest is None else newest.end_offset):
        salvage.whole = frozenset(_LOST)
    else:
        salvage.notes.append(
            f"the records from offset {image.offset + 1} on are lost, if there were any: entries that they removed "
            "exist again"
        )
    if METADATA_VERSION not in image.features:
        salvage.whole = frozenset()
        try:
            image = first_image(folder, bootstrap_records(folder))
        except MetadataLogError:
            return salvage
    for topic in image.topics.values():
        configs = image.configs.get((ConfigResourceType.TOPIC, topic.name), {})
        epochs = {index: one.leader_epoch for index, one in enumerate(topic.partitions)}
        salvage.topics.append(StoredTopic(topic.name, topic.topic_id, len(topic.partitions), configs, epochs))
    salvage.kept["topics"] = len(salvage.topics)
    for record in records_of(image, image.features[METADATA_VERSION]):
        subject = _SUBJECTS.get(record.name, "")
        if subject:
            salvage.kept[subject] = salvage.kept.get(subject, 0) + 1
        is_of_topic = subject == "configs" and record.body["ResourceType"] == ConfigResourceType.TOPIC
        if record.name not in _MADE_ANEW and not is_of_topic:
            salvage.records.append(record)
    return salvage


# -------------------------------------------------------------------- topics


def _topics(folders: Sequence[Path], salvage: _Salvage, notes: list[str]) -> list[StoredTopic]:
    """Return the topics of the folders and of the salvage. Raises: RecoveryError for contradictory folders."""
    ids: dict[str, dict[int, uuid.UUID | None]] = {}
    folder = folders[0]
    for path in (path for one in folders for path in partition_folders(one)):
        name, partition = cast(tuple[str, int], parse_partition_folder(path.name))
        if name == CLUSTER_METADATA_TOPIC:
            continue
        try:
            found = checkpoints.read_partition_metadata(path)
        except checkpoints.CorruptFileError as error:
            found = None
            notes.append(f"{error}; remove that file, and the next start writes it anew")
        ids.setdefault(name, {})[partition] = found if found is not None and found.int else None
    topics = {topic.name: topic for topic in salvage.topics}
    for name, partitions in ids.items():
        known = topics.get(name)
        if known is not None and not any(partitions.values()):
            topic_id = known.topic_id
        else:
            topic_id = _id_of(name, partitions, folder, notes)
            if known is not None and topic_id != known.topic_id:  # the folders are of a topic that was created later
                known = None
        count = max(partitions) + 1
        if count - len(partitions) > MOST_MISSING:
            raise RecoveryError(
                f"{folder / f'{name}-{max(partitions)}'} would be the last of {count} partitions, {len(partitions)} of "
                "which have folders: move it away if it is not a folder of a partition"
            )
        missing = sorted(set(range(count)) - set(partitions))
        if missing:
            notes.append(f"topic {name} has no folder for partition {', '.join(map(str, missing))}: created empty")
        if known is None:
            topics[name] = StoredTopic(name, topic_id, count)
        else:
            topics[name] = known._replace(partitions=max(count, known.partitions))
    return [topics[name] for name in sorted(topics)]


def _id_of(name: str, partitions: Mapping[int, uuid.UUID | None], folder: Path, notes: list[str]) -> uuid.UUID:
    by_id: dict[uuid.UUID, list[int]] = {}
    for partition, found in sorted(partitions.items()):
        if found is not None:
            by_id.setdefault(found, []).append(partition)
    if len(by_id) > 1:
        ids = "; ".join(f"{checkpoints.uuid_to_text(one)}: {name}-{those[0]}" for one, those in by_id.items())
        raise RecoveryError(
            f"the folders of topic {name} in {folder} must have one topic id, found {ids}: "
            "move the folders of the other topics away"
        )
    if by_id:
        return next(iter(by_id))
    note = f"no folder of topic {name} has its topic id: a new id was chosen"
    if name not in INTERNAL_TOPICS:
        note += "; committed offsets name the earlier id, and consumers that fetch by id begin without them until "
        note += f"`kbroker groups reset GROUP --topic {name} --to-current --execute`"
    notes.append(note)
    return uuid.uuid4()


def _with_retention_off(folders: Sequence[Path], found: Recovered) -> list[StoredTopic]:
    """Return the topics with unlimited retention where their configs do not set it."""
    compacted: set[str] = set()
    for folder in folders:
        try:
            cleaned = checkpoints.offset_checkpoint(folder / checkpoints.CLEANER_OFFSET_CHECKPOINT).read()
            compacted |= {topic for topic, _ in cleaned}
        except OSError as error:
            found.notes.append(f"{error}; which topics were compacted is not known")
    topics = []
    for one in found.topics:
        if one.name == OFFSETS_TOPIC:
            configs = {key: value for key, value in offsets_topic_configs(BrokerConfig()).items() if value is not None}
        else:
            configs = {"retention.ms": "-1", "retention.bytes": "-1"}
            if one.name in compacted:
                configs["cleanup.policy"] = "compact"
        topics.append(one._replace(configs={**configs, **one.configs}))
    if topics:
        found.notes.append(
            "topics keep all their records (retention.ms and retention.bytes are -1) until you set their configs again"
        )
    return topics
