"""Reader of ``kbroker-metadata.db``, the SQLite file in which earlier versions stored the metadata.

From version 4 on each row has its checksum; ``totals`` has the number of rows and the sum of their checksums for each
table, so that a lost row is detected too.
"""

from __future__ import annotations

import binascii
import contextlib
import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

JOURNAL_SUFFIX = "-journal"
SCHEMA_VERSION = 6
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
_ADDED_IN = {"quotas": 2, "scram_credentials": 3, "totals": 4, "reserve": 4, "delegation_tokens": 5, "acls": 6}

_SHOWN_CHARACTERS = 80
#: Errors of reading a damaged file, in which even the text of SQLite's error may not be UTF-8.
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
#: Number of values that name a row, and the word for it.
_KEYS = {
    "facts": (1, "fact"), "topics": (1, "topic"), "configs": (3, "row"), "quotas": (2, "quota"),
    "scram_credentials": (2, "user"), "delegation_tokens": (1, "delegation token"), "acls": (7, "ACL"),
}  # fmt: skip

Value = str | int | float | bytes
Row = tuple[Value, ...]
Tables = Mapping[str, Sequence[Row]]


class MetadataFileError(RuntimeError):
    """Metadata file that cannot be used; the message has the reason."""


class NewerFileError(MetadataFileError):
    """Metadata file that a later kbroker has written."""


class SoundRows(NamedTuple):
    """Rows of a damaged file with a correct checksum by table, and the tables that are complete."""

    tables: Tables
    whole: frozenset[str]


def read_tables(path: Path) -> Tables:
    """Return the rows of each table, all checked; a change that was not committed is rolled back first.

    A table that the file's version lacks is empty; all are for an empty file. Raises: MetadataFileError.
    """
    with closing(_open(path)) as db:
        try:
            version = _version(db, path)
            if version == 0:
                return {table: [] for table in TABLES}
            _check_schema(db, path, version)
            if version < CHECKED_FROM:
                found: dict[str, list[Row]] = {table: [] for table in TABLES}
                for table in _tables_of(version):
                    found[table] = db.execute(f"SELECT {', '.join(TABLES[table])} FROM {table}").fetchall()
            else:
                found = _checked_tables(db, path, version)
            problems = [str(row[0]) for row in db.execute("PRAGMA integrity_check(1)")]
        except _UNREADABLE as error:
            raise _damage(path, str(error)) from error
    if problems != ["ok"]:
        raise _damage(path, problems[0])
    return found


def sound_rows(path: Path) -> SoundRows:
    """Return the rows of a damaged file that are sound. Raises: NewerFileError; MetadataFileError, if there is none."""
    found: dict[str, list[Row]] = {}
    whole = set()
    with closing(_open(path)) as db:
        try:
            version = _version(db, path)
        except _UNREADABLE as error:
            raise _damage(path, str(error)) from error
        try:
            totals = _totals(db, path)
        except MetadataFileError:
            totals = {}
        try:
            names = _table_names(db)
        except _UNREADABLE:
            names = list(TABLES)
        for table in TABLES:
            rows = found[table] = []
            checksums = 0
            # the table is newer: nothing of it is lost
            if CHECKED_FROM <= version < _ADDED_IN.get(table, 1) and table not in names:
                whole.add(table)
                continue
            with contextlib.suppress(MetadataFileError):
                for row, checksum in _checksummed(db, path, table):
                    if row_checksum(table, row) == checksum:
                        rows.append(row)
                        checksums += checksum
            if totals.get(table) == (len(rows), checksums):
                whole.add(table)
    return SoundRows(found, frozenset(whole))


def row_checksum(table: str, row: Sequence[Value]) -> int:
    """Return the CRC-32 of a row with the name of its table and the types of its values."""
    parts = [table.encode()]
    for value in row:
        if isinstance(value, str):
            tag, data = b"s", value.encode()
        elif isinstance(value, bytes):
            tag, data = b"b", value
        elif isinstance(value, float):
            tag, data = b"f", struct.pack(">d", value)
        else:
            tag, data = b"i", b"%d" % value
        parts.append(b"%s%d:" % (tag, len(data)))
        parts.append(data)
    return binascii.crc32(b"".join(parts))


def _open(path: Path) -> sqlite3.Connection:
    try:
        return sqlite3.connect(path, timeout=1, isolation_level=None)
    except sqlite3.Error as error:
        raise MetadataFileError(f"cannot open {path}: {error}") from error


def _version(db: sqlite3.Connection, path: Path) -> int:
    """Return the schema version, 0 for an empty file. Raises: MetadataFileError for another file."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])  # the first read rolls back an unfinished change
    if version > SCHEMA_VERSION:
        raise NewerFileError(
            f"{path} has schema version {version}, this kbroker supports {SCHEMA_VERSION}: start a newer kbroker"
        )
    if version < 0:
        raise _damage(path, f"its schema version is {version}")
    if version == 0 and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise _damage(path, "it has tables, but no schema version")
    return version


def _tables_of(version: int) -> list[str]:
    return [table for table in TABLES if _ADDED_IN.get(table, 1) <= version]


def _table_names(db: sqlite3.Connection) -> list[str]:
    return [str(row[0]) for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]


def _check_schema(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Check names and columns of the tables. Raises: MetadataFileError."""
    expected = {table: TABLES[table] for table in _tables_of(version)}
    if version >= CHECKED_FROM:
        expected = {table: (*columns, "checksum") for table, columns in expected.items()}
        expected |= {"totals": ("name", "row_count", "checksums"), "reserve": ("filler",)}
    try:
        found = {name: tuple(row[1] for row in db.execute(f'PRAGMA table_info("{name}")')) for name in _table_names(db)}
    except _UNREADABLE as error:
        raise _damage(path, f"its list of tables cannot be read: {error}") from error
    if found != expected:
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        shown = ", ".join(name[:_SHOWN_CHARACTERS] for name in wrong)
        raise _damage(path, f"the definition of {shown} is not what was written")


def _checked_tables(db: sqlite3.Connection, path: Path, version: int) -> dict[str, list[Row]]:
    totals = _totals(db, path)
    found: dict[str, list[Row]] = {table: [] for table in TABLES}
    for table in _tables_of(version):
        checksums = 0
        for row, checksum in _checksummed(db, path, table):
            if row_checksum(table, row) != checksum:
                raise _damage(path, f"table {table}, {_described(table, row)}: its checksum is wrong")
            found[table].append(row)
            checksums += checksum
        if totals.get(table) != (len(found[table]), checksums):
            raise _damage(path, f"table {table}: its {len(found[table])} rows are not those that were written")
    return found


def _checksummed(db: sqlite3.Connection, path: Path, table: str) -> Iterator[tuple[Row, int]]:
    try:
        for *row, checksum in db.execute(f"SELECT {', '.join(TABLES[table])}, checksum FROM {table}"):
            if None in row or not isinstance(checksum, int):
                raise _damage(path, f"table {table}, {_described(table, row)}: a value is missing")
            yield tuple(row), checksum
    except _UNREADABLE as error:
        raise _damage(path, f"table {table} cannot be read: {error}") from error


def _totals(db: sqlite3.Connection, path: Path) -> dict[str, tuple[int, int]]:
    try:
        rows = db.execute("SELECT name, row_count, checksums FROM totals").fetchall()
    except _UNREADABLE as error:
        raise _damage(path, f"table totals cannot be read: {error}") from error
    return {name: (count, checksums) for name, count, checksums in rows}


def _damage(path: Path, problem: str) -> MetadataFileError:
    return MetadataFileError(f"{path} is damaged: {' '.join(problem.split())}")


def _described(table: str, row: Sequence[object]) -> str:
    """Return a readable name of a row, whose content may be damaged."""
    keys, word = _KEYS.get(table, (0, "its row"))
    return " ".join([word, *(repr(part)[:_SHOWN_CHARACTERS] for part in row[:keys])])
