"""The tables of the metadata file, from its first version on."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import closing

NEW_FILE = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (name TEXT PRIMARY KEY, topic_id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE configs (kind TEXT NOT NULL, resource TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
                      PRIMARY KEY (kind, resource, name)) WITHOUT ROWID;
CREATE TABLE producer_ids (next INTEGER NOT NULL);
INSERT INTO producer_ids VALUES (0);
INSERT INTO configs VALUES ('broker', '', 'min.insync.replicas', '1');
"""

# Upgrades from version 1 to 2, 2 to 3, and so on; a new file runs them too. Entries are added, never changed.
MIGRATIONS = (
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
INSERT INTO totals VALUES ('delegation_tokens', 0, 0);
""",
    """
CREATE TABLE acls (resource_type INTEGER NOT NULL, resource_name TEXT NOT NULL, pattern_type INTEGER NOT NULL,
                   principal TEXT NOT NULL, host TEXT NOT NULL, operation INTEGER NOT NULL, permission INTEGER NOT NULL,
                   checksum INTEGER NOT NULL,
                   PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission))
    WITHOUT ROWID;
INSERT INTO totals VALUES ('acls', 0, 0);
""",
)

SCHEMA_VERSION = 1 + len(MIGRATIONS)
CHECKED_FROM = 4  # first version in which rows have checksums

#: The columns that a row's checksum covers.
TABLES = {
    "facts": ("name", "value"),
    "topics": ("name", "topic_id", "partitions"),
    "configs": ("kind", "resource", "name", "value"),
    "producer_ids": ("next",),
    "quotas": ("entity", "key", "value"),
    "scram_credentials": ("user", "mechanism", "salt", "iterations", "stored_key", "server_key"),
    "delegation_tokens": (
        "token_id", "owner_type", "owner_name", "requester_type", "requester_name", "renewers", "issue_ms", "max_ms",
        "expiry_ms",
    ),
    "acls": ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission"),
}  # fmt: skip

_ADDED_IN = {"delegation_tokens": 5, "acls": 6}  # versions of the tables that were added after CHECKED_FROM


def tables_of(version: int) -> list[str]:
    """Return the checked tables of a file of this version, which is at least CHECKED_FROM."""
    return [table for table in TABLES if _ADDED_IN.get(table, CHECKED_FROM) <= version]


@functools.cache
def expected_schema(version: int) -> frozenset[tuple[str, str, str, str | None]]:
    """Return ``schema_of`` a file of this version."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(NEW_FILE + "".join(MIGRATIONS[: version - 1]))
        return schema_of(db)


def schema_of(db: sqlite3.Connection) -> frozenset[tuple[str, str, str, str | None]]:
    """Return SQLite's list of tables and indexes, whose spacing depends on its version."""
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    return frozenset((kind, name, table, sql and " ".join(sql.split())) for kind, name, table, sql in rows)
