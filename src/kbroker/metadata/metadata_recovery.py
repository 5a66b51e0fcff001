"""Reconstruction of a lost metadata file from the log folders: topics, their ids and partitions.

``kbroker log recover-metadata``; the broker must not run. Rows of a damaged file with a correct checksum are kept.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.security.scram import Credential
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC, OFFSETS_TOPIC
from kbroker.log import checkpoints
from kbroker.log.folder_lock import FolderLock, FolderLockedError
from kbroker.log.log_dir import parse_partition_folder, partition_folders
from kbroker.metadata.metadata_file import MetadataError, MetadataFile, NewerMetadataError, Value
from kbroker.metadata.metadata_store import (
    BROKER,
    FEATURE_PREFIX,
    FEATURES_EPOCH,
    FILE_NAME,
    PRODUCER_ID_BLOCK,
    TOPIC,
    MetadataStore,
    StoredTopic,
    stored_acl,
    token_of_row,
)
from kbroker.metadata.topic_rules import offsets_topic_configs

JOURNAL_SUFFIX = "-journal"
MOST_MISSING = 1000  # limit for missing partitions between two folders; with more, a folder is misnamed
#: The first block of producer ids is drawn from this range when the last allocated block is unknown.
FIRST_NEW_IDS, LAST_NEW_IDS = 1 << 40, 1 << 52


class RecoveryError(RuntimeError):
    """No metadata file was created; the message has the reason and the remedy. The folder is unchanged."""


@dataclass
class Recovered:
    """Counts of the recovered rows.

    ``kept``: number of rows of each table that a damaged file still had; ``lost``: facts that are no longer known;
    ``notes``: for the operator; ``set_aside``: the damaged file's new name.
    """

    path: Path
    topics: list[StoredTopic] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    set_aside: Path | None = None


@dataclass
class _Salvage:
    """Rows of a damaged file, and the tables that are complete."""

    rows: dict[str, list[tuple[Value, ...]]] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()

    def of(self, table: str) -> list[tuple[Value, ...]]:
        return self.rows.get(table, [])


def recover(folder: Path, node_id: int | None = None, others: Sequence[Path] = ()) -> Recovered:
    """Rebuild the metadata file of a log folder; a damaged one is kept beside it.

    Args: ``node_id`` if the folder has no ``meta.properties``; ``others``: the other log folders of the broker.
    Raises: RecoveryError; FolderLockedError, when a broker uses a folder; CorruptFileError; OSError.
    """
    with ExitStack() as stack:
        for one in (folder, *others):
            stack.callback(FolderLock(one).release)
        work = Path(tempfile.mkdtemp(prefix=".recover-metadata-", dir=folder))
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        return _recover([folder, *others], work, node_id)


def damage_of(folder: Path) -> str:
    """Return the damage of the metadata file; "" for a sound file, a missing one, and while a broker changes it.

    Nothing in the folder is changed. Raises: OSError.
    """
    with tempfile.TemporaryDirectory(prefix="kbroker-verify-") as work:
        path = folder / FILE_NAME
        if not path.exists():
            return ""
        copy = _copy(path, Path(work))
        try:
            MetadataFile(copy).close()
            return ""
        except MetadataError as error:
            found = str(error).replace(work, str(folder))
    try:
        FolderLock(folder).release()
    except FolderLockedError:
        return ""  # the copy may have half a change; the broker checked the file when it started
    except OSError:
        pass  # a read-only folder
    return found


def _recover(folders: Sequence[Path], work: Path, node_id: int | None) -> Recovered:
    folder = folders[0]
    path = folder / FILE_NAME
    salvage = _salvage(path, work / "old")
    owner = next(filter(None, map(checkpoints.read_meta_properties, folders)), None)
    if owner is not None:
        cluster_id: str | None = owner.cluster_id
        if node_id is not None and node_id != owner.node_id:
            raise RecoveryError(f"{folder} belongs to node {owner.node_id}, not to node {node_id}")
        node_id = owner.node_id
    else:
        cluster_id = None
    if node_id is None:
        raise RecoveryError(f"{folder} has no {checkpoints.META_PROPERTIES}: say whose it is with --node-id")
    found = Recovered(path)
    found.topics = _topics(folders, salvage, found.notes)
    found.kept = {table: len(rows) for table, rows in salvage.rows.items() if rows and table != "facts"}
    found.lost = _lost(salvage)
    _add_configs(folders, found, salvage)
    _build(work / "new", node_id, cluster_id, found, salvage)
    if path.exists() and path.stat().st_size > 0:
        found.set_aside = _put_aside(path)
    _move_journal(path, found.set_aside)  # never beside another file than its own
    os.replace(work / "new" / FILE_NAME, path)
    checkpoints.sync_folder(folder)
    return found


def _salvage(path: Path, work: Path) -> _Salvage:
    """Read the sound rows of a damaged file, from a copy. Raises: RecoveryError, if the file is sound."""
    if not path.exists() or path.stat().st_size == 0:
        return _Salvage()
    work.mkdir()
    copy = _copy(path, work)
    try:
        MetadataFile(copy).close()
    except NewerMetadataError as error:
        raise RecoveryError(str(error)) from None
    except MetadataError:
        pass
    else:
        raise RecoveryError(f"{path} is whole: there is nothing to recover")
    try:
        with closing(MetadataFile(copy, is_checked=False)) as file:
            sound = file.sound_rows()
            return _Salvage(
                {table: rows for table, (rows, _) in sound.items()},
                frozenset(table for table, (_, is_whole) in sound.items() if is_whole),
            )
    except MetadataError:
        return _Salvage()


def _copy(path: Path, work: Path) -> Path:
    """Copy the file, because opening it rolls back uncommitted changes."""
    copy = work / path.name
    shutil.copyfile(path, copy)
    journal = path.with_name(path.name + JOURNAL_SUFFIX)
    if journal.exists():
        shutil.copyfile(journal, copy.with_name(copy.name + JOURNAL_SUFFIX))
    return copy


def _topics(folders: Sequence[Path], salvage: _Salvage, notes: list[str]) -> list[StoredTopic]:
    """Return the topics that have folders, and those that a damaged file lists."""
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
    topics: dict[str, StoredTopic] = {}
    for stored, raw, size in salvage.of("topics"):
        topics[str(stored)] = StoredTopic(str(stored), uuid.UUID(bytes=cast(bytes, raw)), cast(int, size))
    for name, partitions in ids.items():
        known = topics.get(name)
        topic_id = known.topic_id if known is not None else _id_of(name, partitions, folder, notes)
        count = max(partitions) + 1
        if count - len(partitions) > MOST_MISSING:
            raise RecoveryError(
                f"{folder / f'{name}-{max(partitions)}'} would be the last of {count} partitions, {len(partitions)} of "
                "which have folders: move it away if it is not a folder of a partition"
            )
        missing = sorted(set(range(count)) - set(partitions))
        if missing:
            notes.append(f"topic {name} has no folder for partition {', '.join(map(str, missing))}: made empty")
        topics[name] = StoredTopic(name, topic_id, max(count, 0 if known is None else known.partitions))
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
    notes.append(f"no folder of topic {name} has its topic id: a new id was made")
    return uuid.uuid4()


def _lost(salvage: _Salvage) -> list[str]:
    words = {
        "topics": "topics without a folder, and partitions behind the last that has one",
        "configs": "configs of topics and brokers",
        "quotas": "client quotas",
        "scram_credentials": "SCRAM users",
        "delegation_tokens": "delegation tokens",
        "acls": "ACLs, of which some may have denied what is allowed now",
    }
    return [word for table, word in words.items() if table not in salvage.whole]


def _add_configs(folders: Sequence[Path], found: Recovered, salvage: _Salvage) -> None:
    """Set the remaining configs of topics; where some may be lost, retention is off until it is set again."""
    stored: dict[str, dict[str, str]] = {}
    for kind, resource, name, value in salvage.of("configs"):
        if kind == TOPIC:
            stored.setdefault(str(resource), {})[str(name)] = str(value)
    if "configs" in salvage.whole:
        found.topics = [one._replace(configs=stored.get(one.name, {})) for one in found.topics]
        return
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
        topics.append(one._replace(configs={**configs, **stored.get(one.name, {})}))
    found.topics = topics
    if topics:
        found.notes.append(
            "topics keep all their records (retention.ms and retention.bytes are -1) until you set their configs again"
        )


def _build(folder: Path, node_id: int, cluster_id: str | None, found: Recovered, salvage: _Salvage) -> None:
    folder.mkdir()
    stored = [str(value) for name, value in salvage.of("facts") if name == "cluster.id"]
    with closing(MetadataStore(folder, node_id, cluster_id or (stored[0] if stored else None))) as store:
        store.add_topics(found.topics)
        others: dict[tuple[str, str], dict[str, str]] = {}
        for kind, resource, name, value in salvage.of("configs"):
            if kind != TOPIC:
                others.setdefault((str(kind), str(resource)), {})[str(name)] = str(value)
        for (kind, resource), configs in others.items():
            store.replace_configs(kind, resource, configs)
        if not others and "configs" in salvage.whole:
            store.replace_configs(BROKER, "", {})
        store.alter_quotas(
            [(str(entity), str(key), float(cast(float, value))) for entity, key, value in salvage.of("quotas")]
        )
        users = {(str(row[0]), str(row[1])): Credential(*row[2:]) for row in salvage.of("scram_credentials")}  # type: ignore[arg-type]
        store.change_scram_credentials(users, [])
        facts = {str(name): str(value) for name, value in salvage.of("facts")}
        epoch = facts.get(FEATURES_EPOCH, "0")
        levels = {name[len(FEATURE_PREFIX) :]: int(facts[name]) for name in facts if name.startswith(FEATURE_PREFIX)}
        if levels:
            store.set_features(levels, int(epoch))
        store.put_delegation_tokens(token_of_row(row) for row in salvage.of("delegation_tokens"))
        store.change_acls([stored_acl(row) for row in salvage.of("acls")], [])
        known = salvage.of("producer_ids")
        blocks = range(FIRST_NEW_IDS // PRODUCER_ID_BLOCK, LAST_NEW_IDS // PRODUCER_ID_BLOCK)
        store.skip_producer_ids(cast(int, known[0][0]) if known else secrets.choice(blocks) * PRODUCER_ID_BLOCK)


def _put_aside(path: Path) -> Path:
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.damaged{'' if number == 1 else f'-{number}'}")
        if not aside.exists():
            path.rename(aside)
            return aside
    raise RecoveryError(f"{path}.damaged-999 exists: remove the damaged files that were put aside")


def _move_journal(path: Path, aside: Path | None) -> None:
    journal = path.with_name(path.name + JOURNAL_SUFFIX)
    if journal.exists():
        if aside is None:
            journal.unlink()
        else:
            journal.rename(aside.with_name(aside.name + JOURNAL_SUFFIX))
