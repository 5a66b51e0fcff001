"""Takeover of a log folder whose metadata is in ``kbroker-metadata.db``, the file of earlier versions.

Its content becomes the first records of the metadata log, then the file is renamed. A start that is killed before the
rename is repeated from the file; after it the folder is like a newly formatted one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.feature_versions import KRAFT_VERSION, METADATA_VERSION, SERVED_LEVELS
from kbroker.common.loggers import get_logger
from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.common.security.scram import Credential
from kbroker.common.units import counted
from kbroker.log.checkpoints import CorruptFileError, sync_folder
from kbroker.metadata.configs.dynamic_configs import kept_broker_configs
from kbroker.metadata.image.delta import image_of
from kbroker.metadata.image.image import EMPTY_IMAGE, NO_PRODUCER_ID, MetadataImage
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.log.folder_records import PartitionsOnDisk, StoredTopic, topic_records
from kbroker.metadata.log.metadata_file import (
    JOURNAL_SUFFIX,
    MetadataFileError,
    NewerFileError,
    Row,
    Tables,
    read_tables,
)
from kbroker.metadata.log.metadata_log import FOLDER_NAME, MetadataLogError, recovery_command
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT, read_snapshot

logger = get_logger(__name__)

TAKEN_OVER_SUFFIX = ".taken-over"
_KINDS = {
    "topic": ConfigResourceType.TOPIC,
    "broker": ConfigResourceType.BROKER,
    "client-metrics": ConfigResourceType.CLIENT_METRICS,
    "group": ConfigResourceType.GROUP,
}
_FEATURE_PREFIX = "feature."
_SUBJECTS = {
    "features": "features",
    "configs": "configs",
    "client_quotas": "quotas",
    "next_producer_id": "producer ids",
    "acls": "ACLs",
    "scram_credentials": "SCRAM users",
    "delegation_tokens": "delegation tokens",
}
Configs = dict[tuple[int, str], dict[str, str]]


def take_over(
    path: Path,
    folders: Sequence[Path],
    node_id: int,
    cluster_id: str | None,
    write_first: Callable[[Iterable[MetadataRecord]], None],
    *,
    has_log: bool,
) -> None:
    """Make the content of the metadata file the first records of the metadata log, and rename the file.

    Args:
        path: path of the file.
        folders: that of the metadata log first, then the others of the logs; all are locked.
        cluster_id: id of the cluster of the folder; None for any.
        write_first: writes the files with which the log begins, durably.
        has_log: the folder has a metadata log with content.

    Raises: MetadataLogError, if the file is damaged, newer, or another node's, or if both have content; OSError.
    """
    folder = folders[0]
    if has_log:
        raise MetadataLogError(both_have_metadata(path, folder))
    try:
        tables = read_tables(path)
    except NewerFileError as error:
        raise MetadataLogError(str(error)) from None
    except MetadataFileError as error:
        raise MetadataLogError(f"{error}; {recovery_command(*folders)}") from None
    if not tables["facts"]:  # the first start of an earlier version ended before it was complete
        put_aside(path, TAKEN_OVER_SUFFIX)
        return
    _check_owner(path, tables, node_id, cluster_id)
    cluster, topics = cluster_image(tables), topics_of(tables)
    level = cluster.features[METADATA_VERSION]
    try:
        records = [*records_of(cluster, level), *topic_records(topics, PartitionsOnDisk(folders), node_id)]
    except CorruptFileError as error:
        raise MetadataLogError(f"{path} cannot be taken over: {error}; remove that file, then start again") from None
    write_first(records_of(image_of(records), level))
    written = image_of(record for batch in read_snapshot(folder / BOOTSTRAP_CHECKPOINT) for record in batch.records)
    _compare(path, topics, cluster, written)
    aside = put_aside(path, TAKEN_OVER_SUFFIX)
    logger.warning(  # once in the life of a folder, and the file has another name now
        "the metadata of %s is in %s now: %s; the file is kept as %s",
        *(path, folder / FOLDER_NAME, counted(len(written.topics), "topic"), aside.name),
    )


def both_have_metadata(path: Path, folder: Path) -> str:
    """Return the error of log folders with both the file and a metadata log."""
    log = folder / FOLDER_NAME
    return (
        f"both {path} and {log} have metadata, expected one of them: move {path} away if a broker has served the "
        f"folder from {FOLDER_NAME} since, otherwise move {log} away"
    )


def put_aside(path: Path, suffix: str) -> Path:
    """Rename the file and its journal durably; return the new path. Raises: OSError."""
    number = 1
    aside = path.with_name(path.name + suffix)
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}{suffix}-{number}")
    journal = path.with_name(path.name + JOURNAL_SUFFIX)
    # the journal is cold by now: the file was opened, or it is damaged
    if journal.exists():
        journal.rename(aside.with_name(aside.name + JOURNAL_SUFFIX))
    path.rename(aside)
    sync_folder(path.parent)
    return aside


def cluster_image(tables: Tables) -> MetadataImage:
    """Return the image of the tables' content, except topics and their configs."""
    levels = dict(SERVED_LEVELS)
    for name, text in _facts(tables).items():
        if name.startswith(_FEATURE_PREFIX):
            levels[name.removeprefix(_FEATURE_PREFIX)] = int(text)
    del levels[KRAFT_VERSION]
    quotas: dict[QuotaEntity, dict[str, float]] = {}
    for entity, key, value in tables["quotas"]:
        quotas.setdefault(QuotaEntity.of(json.loads(str(entity))), {})[str(key)] = float(value)
    return EMPTY_IMAGE._replace(
        features={name: level for name, level in sorted(levels.items()) if level},
        configs={key: one for key, one in _configs(tables).items() if key[0] != ConfigResourceType.TOPIC},
        client_quotas=quotas,
        next_producer_id=max([NO_PRODUCER_ID, *(cast(int, row[0]) for row in tables["producer_ids"])]),
        acls={uuid.uuid4(): _acl(row) for row in tables["acls"]},
        scram_credentials=_credentials(tables),
        delegation_tokens={token.token_id: token for token in _tokens(tables)},
    )


def topics_of(tables: Tables) -> list[StoredTopic]:
    """Return the topics with the configs that they set."""
    configs = _configs(tables)
    return [
        StoredTopic(
            str(name),
            uuid.UUID(bytes=cast(bytes, raw)),
            cast(int, count),
            configs.get((ConfigResourceType.TOPIC, str(name)), {}),
        )
        for name, raw, count in tables["topics"]
    ]


def _facts(tables: Tables) -> dict[str, str]:
    return {str(name): str(value) for name, value in tables["facts"]}


def cluster_id_of(tables: Tables) -> str | None:
    """Return the id of the cluster, None if its row is lost."""
    return _facts(tables).get("cluster.id")


def _check_owner(path: Path, tables: Tables, node_id: int, cluster_id: str | None) -> None:
    facts = _facts(tables)
    for name in ("cluster.id", "node.id"):
        if name not in facts:
            raise MetadataLogError(f"{path} lacks {name}: it is not a metadata file of kbroker, or it is damaged")
    if facts["node.id"] != str(node_id):
        raise MetadataLogError(f"{path} belongs to node.id {facts['node.id']}, this broker is {node_id}")
    if cluster_id is not None and facts["cluster.id"] != cluster_id:
        raise MetadataLogError(f"{path} belongs to cluster {facts['cluster.id']}, its log folder to {cluster_id}")


def _configs(tables: Tables) -> Configs:
    """Return the configs by type and name of the resource; of brokers only those that have an effect at run time."""
    found: Configs = {}
    for kind, resource, name, value in tables["configs"]:
        found.setdefault((_KINDS[str(kind)], str(resource)), {})[str(name)] = str(value)
    for (resource_type, resource), configs in found.items():
        if resource_type == ConfigResourceType.BROKER:
            found[resource_type, resource] = kept_broker_configs(configs)
    return {key: configs for key, configs in found.items() if configs}


def _acl(row: Row) -> Acl:
    kind, name, pattern, principal, host, operation, permission = row
    return Acl(
        ResourceType(cast(int, kind)),
        str(name),
        PatternType(cast(int, pattern)),
        str(principal),
        str(host),
        Operation(cast(int, operation)),
        Permission(cast(int, permission)),
    )


def _credentials(tables: Tables) -> dict[tuple[str, str], Credential]:
    rows = tables["scram_credentials"]
    return {(str(user), str(mechanism)): Credential(*rest) for user, mechanism, *rest in rows}  # type: ignore[arg-type]


def _tokens(tables: Tables) -> list[DelegationToken]:
    found = []
    for token_id, owner_type, owner_name, requester_type, requester_name, renewers, *times in tables[
        "delegation_tokens"
    ]:
        found.append(
            DelegationToken(
                str(token_id),
                Principal(str(owner_type), str(owner_name)),
                Principal(str(requester_type), str(requester_name)),
                tuple(Principal(kind, name) for kind, name in json.loads(str(renewers))),
                *(cast(int, time) for time in times),
            )
        )
    return found


def _compare(path: Path, topics: Sequence[StoredTopic], cluster: MetadataImage, written: MetadataImage) -> None:
    """Compare what was written with the file. Raises: MetadataLogError."""
    configs = dict(cluster.configs)
    configs.update({(ConfigResourceType.TOPIC, topic.name): topic.configs for topic in topics if topic.configs})
    expected = cluster._replace(configs=configs)
    differing = [subject for field, subject in _SUBJECTS.items() if getattr(expected, field) != getattr(written, field)]
    found = {topic.name: (topic.topic_id, len(topic.partitions)) for topic in written.topics.values()}
    if found != {topic.name: (topic.topic_id, topic.partitions) for topic in topics}:
        differing.append("topics")
    if differing:
        raise MetadataLogError(
            f"{path} cannot be taken over: its {', '.join(differing)} differ from those that were written to "
            f"{BOOTSTRAP_CHECKPOINT}; the file is unchanged: report this, and serve the folder with the version "
            "that wrote it"
        )
