"""Reading of ``kbroker-metadata.db``: all rows of every schema version, and errors that name damage."""

import random
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kbroker.metadata.log.former_file import FILE_NAME
from kbroker.metadata.log.metadata_file import (
    SCHEMA_VERSION,
    TABLES,
    MetadataFileError,
    NewerFileError,
    Value,
    read_tables,
    row_checksum,
    sound_rows,
)
from tests.support.metadata_file import Rows, write_metadata_file

FLIPS = 400
_RANDOM = random.Random(1)
ROWS: Rows = {
    "facts": [("feature.transaction.version", "1"), ("features.epoch", "3")],
    "topics": [(f"topic-{number}", _RANDOM.randbytes(16), number % 9 + 1) for number in range(128)],
    "configs": [
        *(("topic", f"topic-{number}", "retention.ms", str(number)) for number in range(128)),
        ("broker", "", "log.retention.ms", "5"),
        ("group", "readers", "consumer.session.timeout.ms", "45000"),
    ],
    "producer_ids": [(3000,)],
    "quotas": [(f'{{"user": "u{number}"}}', "producer_byte_rate", number + 0.5) for number in range(60)],
    "scram_credentials": [
        (f"user-{number}", "SCRAM-SHA-256", b"s" * 16, 4096, b"k" * 32, b"v" * 32) for number in range(60)
    ],
    "delegation_tokens": [
        (f"token-{number}", "User", "alice", "User", "bob", '[["User", "bob"]]', number, 9000, 800)
        for number in range(60)
    ],
    "acls": [(2, f"topic-{number}", 3, "User:alice", "*", 3, 3) for number in range(60)],
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_metadata_file(tmp_path_factory.mktemp("filled"), ROWS)


def content(path: Path) -> dict[str, list[tuple[Value, ...]]]:
    return {table: sorted(rows) for table, rows in read_tables(path).items()}


def test_every_schema_version_is_read(tmp_path: Path) -> None:
    """Tables that a schema version lacks are read as empty."""
    added = {"quotas": 2, "scram_credentials": 3, "delegation_tokens": 5, "acls": 6}
    for version in range(1, SCHEMA_VERSION + 1):
        folder = tmp_path / str(version)
        folder.mkdir()
        rows = {table: ROWS[table] if added.get(table, 1) <= version else [] for table in TABLES}
        found = content(write_metadata_file(folder, rows, version=version))
        owner = [("cluster.id", "cluster"), ("node.id", "1")]
        assert found == {table: sorted([*rows[table], *(owner if table == "facts" else ())]) for table in TABLES}


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    """An earlier version that was killed during its first start leaves an empty file."""
    (tmp_path / FILE_NAME).write_bytes(b"")
    assert not any(read_tables(tmp_path / FILE_NAME).values())


@pytest.mark.parametrize("content", [b"no database at all, however long" * 40, b"SQLite format 3\0"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file of another program is not changed."""
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    with pytest.raises(MetadataFileError, match=f"{re.escape(str(path))} is damaged: file is not a database"):
        read_tables(path)
    assert path.read_bytes() == content


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """The error names both versions and the remedy."""
    path = write_metadata_file(tmp_path, {})
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=99")
    text = f"schema version 99, this kbroker supports {SCHEMA_VERSION}: start a newer kbroker"
    for read in (read_tables, sound_rows):
        with pytest.raises(NewerFileError, match=text):
            read(path)


def test_a_change_that_was_not_committed_is_rolled_back(filled: Path, tmp_path: Path) -> None:
    """A crash during a commit leaves changed pages in the file and their former content in the journal."""
    with closing(sqlite3.connect(shutil.copyfile(filled, tmp_path / FILE_NAME), isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=PERSIST")
        db.execute("PRAGMA cache_size=1")  # pages are written before the commit
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE topics SET partitions=77")
        db.execute("UPDATE configs SET value='changed'")
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        for name in (FILE_NAME, f"{FILE_NAME}-journal"):
            shutil.copyfile(tmp_path / name, crashed / name)
        db.execute("ROLLBACK")
    assert (crashed / FILE_NAME).read_bytes() != filled.read_bytes()
    assert content(crashed / FILE_NAME) == content(filled)


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_file_of_another_journal_mode_is_read(filled: Path, tmp_path: Path, mode: str) -> None:
    """Commits that are only in the journal of another mode are read."""
    path = tmp_path / FILE_NAME
    shutil.copyfile(filled, path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(f"PRAGMA journal_mode={mode}").fetchone() == (mode,)
        with db:
            db.execute("PRAGMA application_id=1")
        assert content(path) == content(filled)


def test_a_flipped_bit_is_refused_or_harmless(filled: Path, tmp_path: Path, soak: bool) -> None:
    """A flipped bit on any page is refused with the name of the file, or all rows are read unchanged."""
    expected, original = content(filled), filled.read_bytes()
    pages, rng, refused = len(original) // 4096, random.Random(7), []
    assert pages > 12
    path = tmp_path / FILE_NAME
    flips = 12_000 if soak else FLIPS
    for number in range(flips):
        # every third flip is in the header, where a few bits decide how the rest is read
        at = rng.randrange(100) if number % 3 == 0 else number % pages * 4096 + rng.randrange(4096)
        data = bytearray(original)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            found = content(path)
        except MetadataFileError as error:
            refused.append(str(error))
            continue
        assert found == expected, at
    assert len(refused) > flips // 6
    assert [one for one in refused if str(path) not in one or "\n" in one] == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE topics SET partitions=99 WHERE name='topic-1'", "table topics, topic 'topic-1': its checksum"),
        ("UPDATE topics SET name='topik-1' WHERE name='topic-1'", "table topics, topic 'topik-1': its checksum"),
        ("DELETE FROM topics WHERE name='topic-1'", "table topics: its 127 rows are not those that were written"),
        (
            "UPDATE configs SET value='6' WHERE name='log.retention.ms'",
            "table configs, row 'broker' '' 'log.retention.ms': its checksum is wrong",
        ),
        ("UPDATE quotas SET value=1 WHERE entity LIKE '%u5\"%'", "table quotas, quota '{\"user\": \"u5\"}' 'producer"),
        ("UPDATE scram_credentials SET iterations=1 WHERE user='user-3'", "table scram_credentials, user 'user-3' "),
        ("UPDATE producer_ids SET next=0", "table producer_ids, its row: its checksum is wrong"),
        ("UPDATE facts SET value='other' WHERE name='cluster.id'", "table facts, fact 'cluster.id'"),
        ("DELETE FROM totals WHERE name='quotas'", "table quotas: its 60 rows"),
        ("DROP TABLE quotas", "the definition of quotas is not what was written"),
        ("DROP TABLE totals", "the definition of totals"),
        ("PRAGMA user_version=2", "the definition of acls, configs, delegation_tokens"),
        ("PRAGMA user_version=-5", "its schema version is -5"),
        ("PRAGMA user_version=0", "it has tables, but no schema version"),
    ],
)  # fmt: skip
def test_a_changed_row_is_named(filled: Path, tmp_path: Path, statement: str, message: str) -> None:
    """The error names the file, the table and the row."""
    path = shutil.copyfile(filled, tmp_path / FILE_NAME)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)
    with pytest.raises(MetadataFileError, match=f"^{re.escape(f'{path} is damaged: {message}')}"):
        read_tables(path)


def test_sound_rows_of_a_damaged_file(filled: Path, tmp_path: Path) -> None:
    """All sound rows and the names of the complete tables are returned."""
    path = shutil.copyfile(filled, tmp_path / FILE_NAME)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE topics SET partitions=99 WHERE name='topic-1'")
    tables, whole = sound_rows(path)
    assert whole == set(TABLES) - {"topics"}
    assert {table: sorted(rows) for table, rows in tables.items()} == {
        **content(filled),
        "topics": sorted(row for row in ROWS["topics"] if row[0] != "topic-1"),
    }


@pytest.mark.parametrize("version", range(2, SCHEMA_VERSION))
def test_tables_of_a_later_version_are_salvaged(filled: Path, tmp_path: Path, version: int) -> None:
    """A damaged schema version does not hide the rows of the tables that the file has."""
    path = shutil.copyfile(filled, tmp_path / FILE_NAME)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"PRAGMA user_version={version}")
    tables, whole = sound_rows(path)
    assert whole == set(TABLES)
    assert {table: sorted(rows) for table, rows in tables.items()} == content(filled)


def test_checksums_distinguish_types_and_tables() -> None:
    """A checksum differs by the type of a value and by the table."""
    sums = [row_checksum("t", row) for row in ((1,), ("1",), (b"1",), (1.0,), ("1", ""), ("", "1"), (-1,))]
    assert len({*sums, row_checksum("u", (1,))}) == 8
