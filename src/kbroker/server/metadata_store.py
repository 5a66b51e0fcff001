"""What the cluster remembers beside the logs: topics, configs, quotas, users ...; one SQLite file with transactions.

``synchronous=FULL``: once a method has returned, its change survives a power loss if the disk keeps its promises.
"""

from __future__ import annotations

import base64
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.common.scram import Credential

FILE_NAME = "kbroker-metadata.db"
PRODUCER_ID_BLOCK = 1000

BROKER, TOPIC, GROUP, CLIENT_METRICS = "broker", "topic", "group", "client-metrics"

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (name TEXT PRIMARY KEY, topic_id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE configs (kind TEXT NOT NULL, resource TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
                      PRIMARY KEY (kind, resource, name)) WITHOUT ROWID;
CREATE TABLE producer_ids (next INTEGER NOT NULL);
INSERT INTO producer_ids VALUES (0);
INSERT INTO configs VALUES ('broker', '', 'min.insync.replicas', '1');
"""

# What brings a file of version 1 to 2, of 2 to 3 ...; a new file goes the same way. Never changed, only added to.
_MIGRATIONS = (
    """
CREATE TABLE quotas (entity TEXT NOT NULL, key TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (entity, key))
    WITHOUT ROWID;
""",
    """
CREATE TABLE scram_credentials (user TEXT NOT NULL, mechanism TEXT NOT NULL, salt BLOB NOT NULL,
                                iterations INTEGER NOT NULL, stored_key BLOB NOT NULL, server_key BLOB NOT NULL,
                                PRIMARY KEY (user, mechanism)) WITHOUT ROWID;
""",
)

SCHEMA_VERSION = 1 + len(_MIGRATIONS)


class MetadataError(RuntimeError):
    """The metadata file cannot be used; the text says why and what to do."""


@dataclass(frozen=True)
class StoredTopic:
    """A topic as remembered: ``configs`` are the ones it sets itself."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


class MetadataStore:
    """Cluster metadata.

    Args: ``folder`` of the logs, None to keep everything in memory; ``node_id`` of this broker; ``cluster_id`` of the
    log folder, None to make one up for a new file and take the stored one otherwise.
    Raises: MetadataError if the file is damaged, locked, of a newer version, or of another node or cluster.
    Threads: any.
    """

    def __init__(self, folder: Path | None, node_id: int, cluster_id: str | None = None) -> None:
        self.path = None if folder is None else folder / FILE_NAME
        self._producer_lock = threading.Lock()  # taken before _lock
        self._lock = threading.Lock()
        self._next_producer_id = self._block_end = 0
        try:
            place = ":memory:" if self.path is None else self.path
            self._db = sqlite3.connect(place, timeout=1, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as error:
            raise MetadataError(f"cannot open {self.path}: {error}") from error
        try:
            self._open(node_id, cluster_id)
        except sqlite3.Error as error:
            self._db.close()
            raise MetadataError(f"cannot use {self.path}: {error}") from error
        except MetadataError:
            self._db.close()
            raise

    def _open(self, node_id: int, cluster_id: str | None) -> None:
        self._db.execute("PRAGMA foreign_keys=ON")
        self._db.execute("PRAGMA synchronous=FULL")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise MetadataError(
                f"{self.path} has schema version {version}, this kbroker knows {SCHEMA_VERSION}: start a newer kbroker"
            )
        if version == 0:
            self._create(node_id, cluster_id or new_cluster_id())
            version = 1
        self._migrate(version)
        self.cluster_id = self._fact("cluster.id")
        stored = int(self._fact("node.id"))
        if stored != node_id:
            raise MetadataError(f"{self.path} belongs to node.id {stored}, this broker is {node_id}")
        if cluster_id is not None and cluster_id != self.cluster_id:
            raise MetadataError(f"{self.path} belongs to cluster {self.cluster_id}, its log folder to {cluster_id}")
        self.node_id = node_id

    def _create(self, node_id: int, cluster_id: str) -> None:
        with self._transaction() as db:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            facts = [("cluster.id", cluster_id), ("node.id", str(node_id))]
            db.executemany("INSERT INTO facts VALUES (?, ?)", facts)
            db.execute("PRAGMA user_version=1")

    def _migrate(self, version: int) -> None:
        """Bring an older file up to date, one version at a time; each step is made whole or not at all."""
        for target in range(version + 1, SCHEMA_VERSION + 1):
            with self._transaction() as db:
                for statement in _MIGRATIONS[target - 2].split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version={target}")

    def _fact(self, name: str) -> str:
        row = self._db.execute("SELECT value FROM facts WHERE name=?", (name,)).fetchone()
        if row is None:
            raise MetadataError(f"{self.path} lacks {name}: it is not a metadata file of kbroker, or it is damaged")
        return str(row[0])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._db.close()

    # ------------------------------------------------------------ topics

    def topics(self) -> list[StoredTopic]:
        """All topics, by name."""
        with self._lock:
            rows = self._db.execute("SELECT name, topic_id, partitions FROM topics ORDER BY name").fetchall()
            configs: dict[str, dict[str, str]] = {}
            for resource, name, value in self._db.execute(
                "SELECT resource, name, value FROM configs WHERE kind=? ORDER BY name", (TOPIC,)
            ):
                configs.setdefault(resource, {})[name] = value
        return [StoredTopic(name, uuid.UUID(bytes=raw), count, configs.get(name, {})) for name, raw, count in rows]

    def add_topics(self, topics: Iterable[StoredTopic]) -> None:
        """Remember new topics, all or none. Raises: sqlite3.IntegrityError if a name or id is taken."""
        topics = list(topics)
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO topics VALUES (?, ?, ?)",
                [(topic.name, topic.topic_id.bytes, topic.partitions) for topic in topics],
            )
            db.executemany(
                "INSERT INTO configs VALUES (?, ?, ?, ?)",
                [(TOPIC, topic.name, name, value) for topic in topics for name, value in topic.configs.items()],
            )

    def remove_topics(self, names: Iterable[str]) -> None:
        """Forget topics and their configs, all or none."""
        names = list(names)
        with self._transaction() as db:
            db.executemany("DELETE FROM topics WHERE name=?", [(name,) for name in names])
            db.executemany("DELETE FROM configs WHERE kind=? AND resource=?", [(TOPIC, name) for name in names])

    def set_partitions(self, name: str, partitions: int) -> None:
        """Remember the new number of partitions of a topic."""
        with self._transaction() as db:
            db.execute("UPDATE topics SET partitions=? WHERE name=?", (partitions, name))

    # ------------------------------------------------------------ configs

    def configs(self, kind: str, resource: str) -> dict[str, str]:
        """Dynamic configs of one resource; ``kind`` is BROKER, TOPIC ...; broker "" is the default of all brokers."""
        with self._lock:
            rows = self._db.execute(
                "SELECT name, value FROM configs WHERE kind=? AND resource=? ORDER BY name", (kind, resource)
            )
            return dict(rows.fetchall())

    def replace_configs(self, kind: str, resource: str, configs: Mapping[str, str]) -> None:
        """Set the dynamic configs of one resource to exactly these."""
        with self._transaction() as db:
            db.execute("DELETE FROM configs WHERE kind=? AND resource=?", (kind, resource))
            rows = [(kind, resource, name, value) for name, value in configs.items()]
            db.executemany("INSERT INTO configs VALUES (?, ?, ?, ?)", rows)

    def resources_with_configs(self, kind: str) -> list[str]:
        """Names of the resources of a kind that have configs."""
        with self._lock:
            rows = self._db.execute("SELECT DISTINCT resource FROM configs WHERE kind=? ORDER BY resource", (kind,))
            return [str(row[0]) for row in rows]

    # ------------------------------------------------------------ quotas

    def quotas(self) -> list[tuple[str, str, float]]:
        """Every quota: entity (as ``alter_quotas`` was given it), key, value."""
        with self._lock:
            rows = self._db.execute("SELECT entity, key, value FROM quotas ORDER BY entity, key")
            return [(str(entity), str(key), float(value)) for entity, key, value in rows]

    def alter_quotas(self, changes: Iterable[tuple[str, str, float | None]]) -> None:
        """Set quotas by entity and key, or remove those whose value is None: all of them together."""
        with self._transaction() as db:
            for entity, key, value in changes:
                if value is None:
                    db.execute("DELETE FROM quotas WHERE entity=? AND key=?", (entity, key))
                else:
                    db.execute("INSERT OR REPLACE INTO quotas VALUES (?, ?, ?)", (entity, key, value))

    # ------------------------------------------------------------ users

    def scram_credentials(self) -> dict[tuple[str, str], Credential]:
        """The SCRAM users: credentials by user and mechanism."""
        with self._lock:
            rows = self._db.execute(
                "SELECT user, mechanism, salt, iterations, stored_key, server_key FROM scram_credentials"
            ).fetchall()
        return {(user, mechanism): Credential(*rest) for user, mechanism, *rest in rows}

    def change_scram_credentials(
        self, stored: Mapping[tuple[str, str], Credential], removed: Iterable[tuple[str, str]]
    ) -> None:
        """Remove some credentials and store others, all of it or nothing."""
        with self._transaction() as db:
            db.executemany("DELETE FROM scram_credentials WHERE user=? AND mechanism=?", list(removed))
            db.executemany(
                "INSERT OR REPLACE INTO scram_credentials VALUES (?, ?, ?, ?, ?, ?)",
                [(*key, c.salt, c.iterations, c.stored_key, c.server_key) for key, c in stored.items()],
            )

    # ------------------------------------------------------------ producer ids

    def next_producer_id(self) -> int:
        """Return an id no producer has had: its block was taken durably, so that none comes twice after a crash."""
        with self._producer_lock:
            if self._next_producer_id >= self._block_end:
                with self._transaction() as db:
                    start = int(db.execute("SELECT next FROM producer_ids").fetchone()[0])
                    db.execute("UPDATE producer_ids SET next=?", (start + PRODUCER_ID_BLOCK,))
                self._next_producer_id, self._block_end = start, start + PRODUCER_ID_BLOCK
            self._next_producer_id += 1
            return self._next_producer_id - 1


def new_cluster_id() -> str:
    """A random cluster id as Kafka writes it: 22 characters, the first not a dash (it would look like an option)."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
