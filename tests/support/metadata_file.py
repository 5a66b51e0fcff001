"""Writer of ``kbroker-metadata.db`` files as earlier versions wrote them, in every schema version."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from kbroker.metadata.log.former_file import FILE_NAME
from kbroker.metadata.log.metadata_file import CHECKED_FROM, SCHEMA_VERSION, TABLES, Value, row_checksum

Rows = Mapping[str, Sequence[tuple[Value, ...]]]

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (name TEXT PRIMARY KEY, topic_id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE configs (kind TEXT NOT NULL, resource TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
                      PRIMARY KEY (kind, resource, name)) WITHOUT ROWID;
CREATE TABLE producer_ids (next INTEGER NOT NULL);
"""
_UPGRADES = (
    """
CREATE TABLE quotas (entity TEXT NOT NULL, key TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (entity, key))
    WITHOUT ROWID;
""",
    """
CREATE TABLE scram_credentials (user TEXT NOT NULL, mechanism TEXT NOT NULL, salt BLOB NOT NULL,
                                iterations INTEGER NOT NULL, stored_key BLOB NOT NULL, server_key BLOB NOT NULL,
                                PRIMARY KEY (user, mechanism)) WITHOUT ROWID;
""",
    """
ALTER TABLE facts ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE topics ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE configs ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE producer_ids ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE quotas ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scram_credentials ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
CREATE TABLE totals (name TEXT PRIMARY KEY, row_count INTEGER NOT NULL, checksums INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE reserve (filler BLOB NOT NULL);
""",
    """
CREATE TABLE delegation_tokens (token_id TEXT PRIMARY KEY, owner_type TEXT NOT NULL, owner_name TEXT NOT NULL,
                                requester_type TEXT NOT NULL, requester_name TEXT NOT NULL, renewers TEXT NOT NULL,
                                issue_ms INTEGER NOT NULL, max_ms INTEGER NOT NULL, expiry_ms INTEGER NOT NULL,
                                checksum INTEGER NOT NULL) WITHOUT ROWID;
""",
    """
CREATE TABLE acls (resource_type INTEGER NOT NULL, resource_name TEXT NOT NULL, pattern_type INTEGER NOT NULL,
                   principal TEXT NOT NULL, host TEXT NOT NULL, operation INTEGER NOT NULL, permission INTEGER NOT NULL,
                   checksum INTEGER NOT NULL,
                   PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission))
    WITHOUT ROWID;
""",
)


def write_metadata_file(
    folder: Path, rows: Rows, *, node_id: int = 1, cluster_id: str = "cluster", version: int = SCHEMA_VERSION
) -> Path:
    """Write the file and return its path. Facts of the owner and absent producer ids are added."""
    path = folder / FILE_NAME
    facts = [("cluster.id", cluster_id), ("node.id", str(node_id)), *rows.get("facts", ())]
    rows = {"producer_ids": [(0,)], **rows, "facts": facts}
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA journal_mode=PERSIST;" + _TABLES + "".join(_UPGRADES[: version - 1]))
        with db:
            present = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
            for table in TABLES:
                if table not in present:
                    assert not rows.get(table), f"schema version {version} has no table {table}"
                    continue
                sums = [row_checksum(table, row) for row in rows.get(table, ())]
                for row, checksum in zip(rows.get(table, ()), sums, strict=True):
                    values = (*row, checksum) if version >= CHECKED_FROM else row
                    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
                if version >= CHECKED_FROM:
                    db.execute("INSERT INTO totals VALUES (?, ?, ?)", (table, len(sums), sum(sums)))
        db.execute(f"PRAGMA user_version={version}")
    return path
