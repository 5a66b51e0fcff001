"""Damage to the metadata file is refused by name, or it changes nothing; what an older kbroker wrote is taken over."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import uuid
from pathlib import Path

import pytest

from kbroker.common.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.common.security.scram import Credential
from kbroker.metadata.metadata_file import row_checksum
from kbroker.metadata.metadata_schema import MIGRATIONS, NEW_FILE
from kbroker.metadata.metadata_store import (
    BROKER,
    FILE_NAME,
    GROUP,
    SCHEMA_VERSION,
    MetadataError,
    MetadataStore,
    StoredTopic,
)

FLIPS = 500


def content(store: MetadataStore) -> tuple[object, ...]:
    """Everything that a broker reads from it."""
    groups = {name: store.configs(GROUP, name) for name in store.resources_with_configs(GROUP)}
    return (
        store.cluster_id, store.topics(), store.configs(BROKER, ""), store.configs(BROKER, "1"), groups, store.quotas(),
        store.scram_credentials(), store.delegation_tokens(), store.features(),
        store._file.rows("SELECT next FROM producer_ids"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed file with rows of every kind, in more pages than one a table."""
    folder = tmp_path_factory.mktemp("filled")
    store = MetadataStore(folder, 1, "some-cluster")
    rng = random.Random(1)
    store.add_topics(
        [
            StoredTopic(
                f"topic-{number}", uuid.UUID(int=rng.getrandbits(128)), number % 9 + 1, {"retention.ms": str(number)}
            )
            for number in range(150)
        ]
    )
    store.remove_topics([f"topic-{number}" for number in range(0, 150, 7)])
    store.replace_configs(BROKER, "", {"message.max.bytes": "1000000", "log.retention.ms": "5"})
    store.replace_configs(BROKER, "1", {"num.io.threads": "3"})
    store.replace_configs(GROUP, "readers", {"consumer.session.timeout.ms": "45000"})
    store.alter_quotas([(f'{{"user": "u{number}"}}', "producer_byte_rate", number + 0.5) for number in range(60)])
    store.change_scram_credentials(
        {
            (f"user-{number}", "SCRAM-SHA-256"): Credential(b"s" * 16, 4096, b"k" * 32, b"v" * 32)
            for number in range(60)
        },
        [],
    )
    owner, other = Principal("User", "alice"), Principal("User", "bob")
    store.put_delegation_tokens(
        DelegationToken(f"token-{number}", owner, other, (other, owner), number, 9000, 800 + number)
        for number in range(60)
    )
    store.set_features({"transaction.version": 1}, 3)
    assert store.next_producer_id() == 0
    store.close()
    return folder


def damaged_copy(filled: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for file in filled.iterdir():
        shutil.copyfile(file, folder / file.name)
    return folder / FILE_NAME


def pages_in_use(file: Path) -> int:
    """The pages before the room that is kept."""
    db = sqlite3.connect(file)
    (count,), (free,) = db.execute("PRAGMA page_count").fetchone(), db.execute("PRAGMA freelist_count").fetchone()
    db.close()
    return int(count - free)


def test_a_flipped_bit_is_refused_or_harmless(filled: Path, tmp_path: Path, soak: bool) -> None:
    """Flips over all pages: each is refused with the file's name, or all that is read is the same."""
    sound = MetadataStore(filled, 1)
    expected = content(sound)
    sound.close()
    original = (filled / FILE_NAME).read_bytes()
    page_count, rng, refused = len(original) // 4096, random.Random(7), []
    assert pages_in_use(filled / FILE_NAME) > 15
    flips = 12_000 if soak else FLIPS
    for number in range(flips):
        file = damaged_copy(filled, tmp_path / "data")
        page = number % page_count
        # every third in the header, where a few bits decide how all else is read
        at = rng.randrange(100) if number % 3 == 0 else page * 4096 + rng.randrange(4096)
        data = bytearray(original)
        data[at] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        try:
            store = MetadataStore(tmp_path / "data", 1)
        except MetadataError as error:
            refused.append((str(error), at))
            continue
        try:
            assert content(store) == expected, at
        finally:
            store.close()
    assert len(refused) > flips // 6
    assert [one for one in refused if str(tmp_path / "data" / FILE_NAME) not in one[0] or "\n" in one[0]] == []


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
        ("PRAGMA user_version=-5", "its schema version is -5"),
        ("PRAGMA user_version=0", "it has tables, but no schema version"),
    ],
)  # fmt: skip
def test_a_row_that_was_changed_behind_our_back_is_named(
    filled: Path, tmp_path: Path, statement: str, message: str
) -> None:
    """The text names file, table and row, and the way out."""
    file = damaged_copy(filled, tmp_path)
    db = sqlite3.connect(file)
    with db:
        db.execute(statement)
    db.close()
    with pytest.raises(MetadataError, match=re.escape(message)) as caught:
        MetadataStore(tmp_path, 1)
    assert str(caught.value).startswith(f"{file} is damaged: ")
    assert f"'kbroker log recover-metadata {tmp_path}'" in str(caught.value)


def test_checksums_distinguish_types_and_tables() -> None:
    """The text '1' is not the number 1, and a row of one table is none of another."""
    sums = [row_checksum("t", row) for row in ((1,), ("1",), (b"1",), (1.0,), ("1", ""), ("", "1"), (-1,))]
    assert len({*sums, row_checksum("u", (1,))}) == 8


def test_a_file_without_checksums_is_brought_up_to_date(tmp_path: Path) -> None:
    """What the version before had is kept, and from then on it is checked."""
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.executescript(NEW_FILE + MIGRATIONS[0] + MIGRATIONS[1])
    with db:
        db.execute("INSERT INTO facts VALUES ('cluster.id', 'old'), ('node.id', '1')")
        db.execute("INSERT INTO topics VALUES ('t', x'00000000000000000000000000000001', 2)")
        db.execute("INSERT INTO quotas VALUES ('{}', 'k', 5.0)")
    db.execute("PRAGMA user_version=3")
    db.close()
    store = MetadataStore(tmp_path, 1)
    assert (store.cluster_id, store.topics()) == ("old", [StoredTopic("t", uuid.UUID(int=1), 2)])
    assert store.quotas() == [("{}", "k", 5.0)]
    store.close()
    db = sqlite3.connect(tmp_path / FILE_NAME)
    with db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        db.execute("UPDATE topics SET partitions=3")
    db.close()
    with pytest.raises(MetadataError, match="topic 't': its checksum is wrong"):
        MetadataStore(tmp_path, 1)


def test_a_file_without_delegation_tokens_and_acls_is_brought_up_to_date(tmp_path: Path) -> None:
    """Schema version 4 had no tables for them; its rows are checked before and stay."""
    store = MetadataStore(tmp_path, 1)
    store.alter_quotas([("{}", "producer_byte_rate", 5.0)])
    store.close()
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.executescript("""DROP TABLE delegation_tokens; DELETE FROM totals WHERE name='delegation_tokens';
                        DROP TABLE acls; DELETE FROM totals WHERE name='acls'; PRAGMA user_version=4;""")
    db.close()
    store = MetadataStore(tmp_path, 1)
    assert (store.quotas(), store.delegation_tokens()) == ([("{}", "producer_byte_rate", 5.0)], [])
    owner = Principal("User", "alice")
    store.put_delegation_token(DelegationToken("id", owner, owner, (), 1, 2, 3))
    acl = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
    store.change_acls([acl], [])
    store.close()
    store = MetadataStore(tmp_path, 1)
    assert [one.token_id for one in store.delegation_tokens()] == ["id"]
    assert store.acls() == [acl]
    store.close()


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_file_of_another_journal_mode_is_taken_over(filled: Path, tmp_path: Path, mode: str) -> None:
    """What an older kbroker or another program set does not stay."""
    file = damaged_copy(filled, tmp_path)
    db = sqlite3.connect(file)
    assert db.execute(f"PRAGMA journal_mode={mode}").fetchone() == (mode,)
    with db:
        db.execute("PRAGMA application_id=1")
    db.close()
    store = MetadataStore(tmp_path, 1)
    assert len(store.topics()) == 127 + 1
    assert store._file.rows("PRAGMA journal_mode") == [("persist",)]
    assert store._file.rows("PRAGMA synchronous") == [(2,)]
    store.close()
