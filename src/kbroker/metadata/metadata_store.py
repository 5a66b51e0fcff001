"""Stored metadata of the cluster: topics, configs, quotas, users, ACLs, in one SQLite file with transactions.

Once a method has returned, its change survives a power cut if the disk honours syncs (``metadata_file``).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

from kbroker.common.errors import KafkaError
from kbroker.common.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.common.security.scram import Credential
from kbroker.log.checkpoints import random_uuid_text
from kbroker.log.log_dir import partition_folders
from kbroker.metadata.metadata_file import UNREADABLE, MetadataError, MetadataFile, Value, way_out
from kbroker.metadata.metadata_schema import SCHEMA_VERSION, TABLES

__all__ = ["FILE_NAME", "SCHEMA_VERSION", "MetadataError", "MetadataStore", "StoredTopic"]

FILE_NAME = "kbroker-metadata.db"
PRODUCER_ID_BLOCK = 1000

TOKENS = "delegation_tokens"  # name of the table
FEATURE_PREFIX, FEATURES_EPOCH = "feature.", "features.epoch"  # names of facts
BROKER, TOPIC, GROUP, CLIENT_METRICS = "broker", "topic", "group", "client-metrics"


class StoredTopic(NamedTuple):
    """A stored topic: ``configs`` are the ones that the topic itself sets."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = MappingProxyType({})


class MetadataStore:
    """Cluster metadata.

    Args: ``folder`` of the logs, None to keep all data in memory; ``node_id`` of this broker; ``cluster_id`` of the log
    folder, None for the stored one, or a random one in a new file; ``others``: the other log folders.
    Raises: MetadataError if the file is damaged, locked, of a newer version, of another node or cluster, or missing or
    empty although there are partitions.
    Methods raise KafkaError KAFKA_STORAGE_ERROR when the disk fails; nothing has changed then.
    Threads: any.
    """

    def __init__(
        self, folder: Path | None, node_id: int, cluster_id: str | None = None, others: Sequence[Path] = ()
    ) -> None:
        self.path = None if folder is None else folder / FILE_NAME
        self._producer_lock = threading.Lock()  # taken before the file's
        self._next_producer_id = self._block_end = 0
        if folder is not None and not (folder / FILE_NAME).exists():
            _check_no_partitions([folder, *others], "is missing")
        file = self._file = MetadataFile(self.path)
        try:
            if folder is not None and file.is_new:
                _check_no_partitions([folder, *others], "is empty")
            file.complete([("cluster.id", cluster_id or random_uuid_text()), ("node.id", str(node_id))])
            self._check_owner(node_id, cluster_id)
        except (*UNREADABLE, KafkaError) as error:
            file.close()
            raise MetadataError(f"cannot use {self.path}: {error}") from error
        except BaseException:
            file.close()
            raise
        self.node_id = node_id
        self.config_changes = 0  # rises with every change of a resource's configs

    def _check_owner(self, node_id: int, cluster_id: str | None) -> None:
        facts = {name: value for name, value in self._file.rows("SELECT name, value FROM facts")}  # noqa: C416
        for name in ("cluster.id", "node.id"):
            if name not in facts:
                raise MetadataError(f"{self.path} lacks {name}: it is not a metadata file of kbroker, or it is damaged")
        self.cluster_id = str(facts["cluster.id"])
        stored = str(facts["node.id"])
        if stored != str(node_id):
            raise MetadataError(f"{self.path} belongs to node.id {stored}, this broker is {node_id}")
        if cluster_id is not None and cluster_id != self.cluster_id:
            raise MetadataError(f"{self.path} belongs to cluster {self.cluster_id}, its log folder to {cluster_id}")

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    # ------------------------------------------------------------ topics

    def topics(self) -> list[StoredTopic]:
        """Return all topics, by name."""
        rows = self._file.rows("SELECT name, topic_id, partitions FROM topics ORDER BY name")
        configs: dict[str, dict[str, str]] = {}
        query = "SELECT resource, name, value FROM configs WHERE kind=? ORDER BY name"
        for resource, name, value in self._file.rows(query, (TOPIC,)):
            configs.setdefault(str(resource), {})[str(name)] = str(value)
        return [
            StoredTopic(str(name), uuid.UUID(bytes=cast(bytes, raw)), cast(int, count), configs.get(str(name), {}))
            for name, raw, count in rows
        ]

    def add_topics(self, topics: Iterable[StoredTopic]) -> None:
        """Store new topics, all or none. Raises: sqlite3.IntegrityError if a name or id is taken."""
        topics = list(topics)
        file = self._file
        with file.transaction(grows=True):
            file.insert("topics", [(topic.name, topic.topic_id.bytes, topic.partitions) for topic in topics])
            file.insert(
                "configs",
                [(TOPIC, topic.name, name, value) for topic in topics for name, value in topic.configs.items()],
            )

    def remove_topics(self, names: Iterable[str]) -> None:
        """Delete topics and their configs, all or none."""
        names = list(names)
        with self._file.transaction():
            self._file.delete("topics", "name=?", [(name,) for name in names])
            self._file.delete("configs", "kind=? AND resource=?", [(TOPIC, name) for name in names])

    def set_partitions(self, name: str, partitions: int) -> None:
        """Store the new number of partitions of a topic."""
        with self._file.transaction():
            row = self._file.one("SELECT topic_id FROM topics WHERE name=?", (name,))
            if row is not None:
                self._file.delete("topics", "name=?", [(name,)])
                self._file.insert("topics", [(name, row[0], partitions)])

    # ------------------------------------------------------------ configs

    def configs(self, kind: str, resource: str) -> dict[str, str]:
        """Return the dynamic configs of a resource.

        ``kind`` is BROKER, TOPIC ...; broker "" is the default of all brokers.
        """
        query = "SELECT name, value FROM configs WHERE kind=? AND resource=? ORDER BY name"
        return {str(name): str(value) for name, value in self._file.rows(query, (kind, resource))}

    def replace_configs(self, kind: str, resource: str, configs: Mapping[str, str]) -> None:
        """Set the dynamic configs of one resource to exactly these."""
        with self._file.transaction():
            self._file.delete("configs", "kind=? AND resource=?", [(kind, resource)])
            self._file.insert("configs", [(kind, resource, name, value) for name, value in configs.items()])
        self.config_changes += 1

    def resources_with_configs(self, kind: str) -> list[str]:
        """Return the names of the resources of a kind that have configs."""
        query = "SELECT DISTINCT resource FROM configs WHERE kind=? ORDER BY resource"
        return [str(row[0]) for row in self._file.rows(query, (kind,))]

    # ------------------------------------------------------------ quotas

    def quotas(self) -> list[tuple[str, str, float]]:
        """Return every quota: entity (as passed to ``alter_quotas``), key, value."""
        rows = self._file.rows("SELECT entity, key, value FROM quotas ORDER BY entity, key")
        return [(str(entity), str(key), float(value)) for entity, key, value in rows]

    def alter_quotas(self, changes: Iterable[tuple[str, str, float | None]]) -> None:
        """Set quotas by entity and key, or remove those whose value is None: all or none."""
        with self._file.transaction():
            for entity, key, value in changes:
                self._file.delete("quotas", "entity=? AND key=?", [(entity, key)])
                if value is not None:
                    self._file.insert("quotas", [(entity, key, float(value))])

    # ------------------------------------------------------------ users

    def scram_credentials(self) -> dict[tuple[str, str], Credential]:
        """Return the SCRAM users: credentials by user and mechanism."""
        query = "SELECT user, mechanism, salt, iterations, stored_key, server_key FROM scram_credentials"
        return {(str(user), str(mechanism)): _credential(*rest) for user, mechanism, *rest in self._file.rows(query)}

    def change_scram_credentials(
        self, stored: Mapping[tuple[str, str], Credential], removed: Iterable[tuple[str, str]]
    ) -> None:
        """Remove some credentials and store others, all or none."""
        with self._file.transaction(grows=bool(stored)):
            self._file.delete("scram_credentials", "user=? AND mechanism=?", [*removed, *stored])
            self._file.insert(
                "scram_credentials",
                [(*key, bytes(c.salt), c.iterations, c.stored_key, c.server_key) for key, c in stored.items()],
            )

    # ------------------------------------------------------------ features

    def features(self) -> tuple[dict[str, int], int]:
        """Return the levels of the changed features, and the number of changes."""
        query = "SELECT name, value FROM facts WHERE name LIKE 'feature.%' OR name=?"
        found = {str(name): int(str(value)) for name, value in self._file.rows(query, (FEATURES_EPOCH,))}
        epoch = found.pop(FEATURES_EPOCH, 0)
        return {name.removeprefix(FEATURE_PREFIX): level for name, level in found.items()}, epoch

    def set_features(self, levels: Mapping[str, int], epoch: int) -> None:
        """Store the levels of changed features."""
        facts = {FEATURES_EPOCH: epoch, **{FEATURE_PREFIX + name: level for name, level in levels.items()}}
        with self._file.transaction():
            self._file.delete("facts", "name=?", [(name,) for name in facts])
            self._file.insert("facts", [(name, str(value)) for name, value in facts.items()])

    # ------------------------------------------------------------ delegation tokens

    def delegation_tokens(self) -> list[DelegationToken]:
        """Return every delegation token, the oldest first."""
        query = f"SELECT {', '.join(TABLES[TOKENS])} FROM {TOKENS} ORDER BY issue_ms, token_id"
        return [token_of_row(row) for row in self._file.rows(query)]

    def put_delegation_token(self, token: DelegationToken) -> None:
        """Store a token, replacing an earlier state."""
        self.put_delegation_tokens([token])

    def put_delegation_tokens(self, tokens: Iterable[DelegationToken]) -> None:
        """Store tokens, all or none."""
        rows = [_row_of_token(token) for token in tokens]
        with self._file.transaction(grows=True):
            self._file.delete(TOKENS, "token_id=?", [row[:1] for row in rows])
            self._file.insert(TOKENS, rows)

    def remove_delegation_tokens(self, token_ids: Iterable[str]) -> None:
        """Delete tokens, all or none."""
        with self._file.transaction():
            self._file.delete(TOKENS, "token_id=?", [(token_id,) for token_id in token_ids])

    # ------------------------------------------------------------ ACLs

    def acls(self) -> list[Acl]:
        """Return every rule of the authorizer."""
        return [stored_acl(row) for row in self._file.rows(f"SELECT {', '.join(TABLES['acls'])} FROM acls")]

    def change_acls(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """Remove rules and add others, all or none. Raises: sqlite3.IntegrityError for an existing rule."""
        rows = [_row(acl) for acl in added]
        where = " AND ".join(f"{column}=?" for column in TABLES["acls"])
        with self._file.transaction(grows=bool(rows)):
            self._file.delete("acls", where, [_row(acl) for acl in removed])
            self._file.insert("acls", rows)

    # ------------------------------------------------------------ producer ids

    def next_producer_id(self) -> int:
        """Return an unused id; its block was stored durably before, so that no id is returned again after a crash."""
        with self._producer_lock:
            if self._next_producer_id >= self._block_end:
                with self._file.transaction():
                    row = self._file.one("SELECT next FROM producer_ids")
                    start = 0 if row is None else cast(int, row[0])
                    self._set_next_block(start + PRODUCER_ID_BLOCK)
                self._next_producer_id, self._block_end = start, start + PRODUCER_ID_BLOCK
            self._next_producer_id += 1
            return self._next_producer_id - 1

    def skip_producer_ids(self, next_id: int) -> None:
        """Let producer ids continue from ``next_id``, for a rebuilt file."""
        with self._producer_lock, self._file.transaction():
            self._set_next_block(next_id)

    def _set_next_block(self, start: int) -> None:
        self._file.delete("producer_ids", "1", [()])
        self._file.insert("producer_ids", [(start,)])


def stored_acl(row: Sequence[object]) -> Acl:
    """Return the rule of a row of the table of ACLs."""
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


def _row(acl: Acl) -> tuple[int | str, ...]:
    return tuple(part if isinstance(part, str) else int(part) for part in acl)


def _credential(*parts: object) -> Credential:
    return Credential(*parts)  # type: ignore[arg-type]


def token_of_row(row: Sequence[Value]) -> DelegationToken:
    """Return the delegation token of the values of its row."""
    import json  # not needed at the start of a broker

    token_id, owner_type, owner_name, requester_type, requester_name, renewers, *times = row
    return DelegationToken(
        str(token_id),
        Principal(str(owner_type), str(owner_name)),
        Principal(str(requester_type), str(requester_name)),
        tuple(Principal(kind, name) for kind, name in json.loads(str(renewers))),
        *(cast(int, time) for time in times),
    )


def _row_of_token(token: DelegationToken) -> tuple[Value, ...]:
    import json

    renewers = json.dumps(token.renewers)
    return (token.token_id, *token.owner, *token.requester, renewers, token.issue_ms, token.max_ms, token.expiry_ms)


def _check_no_partitions(folders: Sequence[Path], state: str) -> None:
    """Check that no log folder has partitions. Raises: MetadataError.

    An empty cluster would rename the folders of topics that are created again.
    """
    first = folders[0]
    folder, found = next(((one, found) for one in folders if (found := partition_folders(one))), (first, []))
    if found:
        count = f"{len(found)} partition folders" if len(found) > 1 else "a partition folder"
        raise MetadataError(
            f"{first / FILE_NAME} {state}, but {folder} has {count} ({found[0].name}"
            f"{', ...' if len(found) > 1 else ''}): {way_out(*folders)}"
        )
