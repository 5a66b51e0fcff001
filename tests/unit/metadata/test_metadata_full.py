"""Metadata that cannot be stored: error 56 on what it concerns, nothing in force, and room for what makes room."""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.metadata_file import JOURNAL_BYTES, RESERVE_PAGES
from kbroker.metadata.metadata_store import BROKER, FILE_NAME, TOPIC, MetadataStore, StoredTopic
from kbroker.metadata.topic_rules import NewTopic
from tests.support.server import Bench, make_bench

FULL = sqlite3.OperationalError("database or disk is full")
STORAGE = int(Errors.KAFKA_STORAGE_ERROR)


class FailingConnection:
    """A connection that refuses what the test says."""

    def __init__(self, db: sqlite3.Connection, refuses: Callable[[str], bool], error: Exception = FULL) -> None:
        self._db = db
        self.refuses = refuses
        self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, statement: str, *rest: Any) -> Any:
        if self.refuses(statement):
            raise self.error
        return self._db.execute(statement, *rest)


def fill(store: MetadataStore, refuses: Callable[[str], bool] = lambda text: text == "COMMIT") -> FailingConnection:
    """From now on nothing can be stored."""
    failing = FailingConnection(store._file._db, refuses)
    store._file._db = failing  # type: ignore[assignment]
    return failing


@pytest.fixture
def bench() -> Bench:
    made = make_bench()
    made.create("there", 1, retention_ms="1000")
    return made


def state(bench: Bench) -> tuple[object, ...]:
    """What the broker goes by, and what it would know after a restart."""
    ctx, store = bench.ctx, bench.ctx.store
    views = [(view.name, view.topic_id, len(view.partitions), dict(view.configs)) for view in ctx.topics.all()]
    stored = [(one.name, one.topic_id, one.partitions, dict(one.configs)) for one in store.topics()]
    assert views == stored
    partitions = [(view.name, index) for view in ctx.topics.all() for index in range(len(view.partitions))]
    assert sorted(bench.logs.open) == partitions
    users = {f'{{"user": "{entity.names["user"]}"}}' for entity, _ in ctx.quota_entities.find({}, [], False)}
    assert {entity for entity, _, _ in store.quotas()} == users
    assert {user for user, _ in store.scram_credentials()} == set(ctx.credentials.users())
    largest = ctx.config.integer("message.max.bytes")
    return views, largest, store.quotas(), store.scram_credentials(), store.configs(BROKER, "")


ALONE = {"ReplicationFactor": 1, "Assignments": [], "Configs": []}
NO_ID = uuid.UUID(int=0)


def topic(name: str, partitions: int) -> dict[str, Any]:
    return {"Name": name, "NumPartitions": partitions, **ALONE}


def more(name: str) -> dict[str, Any]:
    return {"Name": name, "Count": 5, "Assignments": None}


def resource(kind: int, name: str, *configs: dict[str, Any]) -> dict[str, Any]:
    return {"ResourceType": kind, "ResourceName": name, "Configs": list(configs)}


def quota(user: str, key: str) -> dict[str, Any]:
    ops = [{"Key": key, "Value": 5.0, "Remove": False}]
    return {"Entity": [{"EntityType": "user", "EntityName": user}], "Ops": ops}


RETENTION = {"Name": "retention.ms", "Value": "7"}
LARGEST = {"Name": "message.max.bytes", "ConfigOperation": 0, "Value": "7777"}
USER = {"Name": "u", "Mechanism": 1, "Iterations": 4096, "Salt": b"s", "SaltedPassword": b"p" * 32}
REQUESTS: dict[str, tuple[int, dict[str, Any]]] = {
    "CreateTopics": (7, {"Topics": [topic("a", 2), topic("b", 1), topic("bad name", 1)]}),
    "DeleteTopics": (6, {"Topics": [{"Name": name, "TopicId": NO_ID} for name in ("there", "none")]}),
    "CreatePartitions": (3, {"Topics": [more("there"), more("none")]}),
    "AlterConfigs": (2, {"Resources": [resource(2, "there", RETENTION), resource(2, "none")]}),
    "IncrementalAlterConfigs": (1, {"Resources": [resource(4, "", LARGEST), resource(2, "none")]}),
    "AlterClientQuotas": (1, {"Entries": [quota("u", "producer_byte_rate"), quota("v", "no_such_key")]}),
    "AlterUserScramCredentials": (0, {"Deletions": [{"Name": "none", "Mechanism": 1}], "Upsertions": [USER]}),
}
WHERE = {
    "CreateTopics": "Topics",
    "CreatePartitions": "Results",
    "AlterClientQuotas": "Entries",
    "AlterUserScramCredentials": "Results",
}
#: The first rows are right and cannot be stored; the last one is refused for its own fault all the same.
CODES = {
    "CreateTopics": [STORAGE, STORAGE, 17], "DeleteTopics": [STORAGE, 3], "CreatePartitions": [STORAGE, 3],
    "AlterConfigs": [STORAGE, 3], "IncrementalAlterConfigs": [STORAGE, 3], "AlterClientQuotas": [STORAGE, 42],
    "AlterUserScramCredentials": [91, STORAGE],
}  # fmt: skip


@pytest.mark.parametrize("statement", ["COMMIT", "BEGIN IMMEDIATE", "UPDATE totals"])
@pytest.mark.parametrize("name", list(REQUESTS))
def test_what_cannot_be_stored_is_refused_and_not_in_force(
    bench: Bench, caplog: pytest.LogCaptureFixture, name: str, statement: str
) -> None:
    """Error 56 with a text on each that could not be stored, no traceback, and the same request works with room."""
    version, body = REQUESTS[name]
    before = state(bench)
    store, db = bench.ctx.store, bench.ctx.store._file._db
    failing = fill(store, lambda text: text.startswith(statement))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            response = bench.ask(name, version, body)
            rows = response[WHERE.get(name, "Responses")]
            assert [row["ErrorCode"] for row in rows] == CODES[name]
            texts = [row["ErrorMessage"] for row in rows if row["ErrorCode"] == STORAGE]
            assert set(texts) == {"Cannot store the change in the metadata file: database or disk is full"}
    assert "Traceback" not in caplog.text
    assert len([one for one in caplog.records if one.levelno >= logging.ERROR]) == 1, "logged once, not at each request"
    failing.refuses = lambda text: False
    assert state(bench) == before
    store._file._db = db
    response = bench.ask(name, version, body)
    assert STORAGE not in [row["ErrorCode"] for row in response[WHERE.get(name, "Responses")]]
    assert state(bench) != before


def test_a_topic_that_could_be_neither_made_nor_forgotten(bench: Bench) -> None:
    """Its folders fail, and then the metadata too: it is forgotten before the next one is made."""
    store = bench.ctx.store
    bench.logs.fail_at = ("t", 0)
    commits: list[str] = []

    def refuses(text: str) -> bool:
        commits.extend([text] if text == "COMMIT" else [])
        return text == "COMMIT" and len(commits) == 2

    fill(store, refuses)
    with pytest.raises(KafkaError) as caught:
        bench.ctx.topics.create(NewTopic("t", 1))
    assert caught.value.error == Errors.KAFKA_STORAGE_ERROR
    assert bench.ctx.topics.get("t") is None
    bench.logs.fail_at = None
    assert bench.ctx.topics.create(NewTopic("t", 2)).num_partitions == 2
    assert [one.name for one in store.topics()] == ["t", "there"]


def test_producer_ids_that_cannot_be_stored(bench: Bench) -> None:
    """InitProducerId is refused with KAFKA_STORAGE_ERROR, and no id is given twice."""
    store = bench.ctx.store
    failing = fill(store)
    response = bench.ask("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1})
    assert response["ErrorCode"] == Errors.KAFKA_STORAGE_ERROR
    failing.refuses = lambda text: False
    assert [store.next_producer_id() for _ in range(3)] == [0, 1, 2]


def test_many_topics_are_deleted_one_by_one_where_together_there_is_no_room(bench: Bench) -> None:
    """The journal of one deletion fits where that of a hundred does not."""
    names = [bench.create(f"t{number}").name for number in range(5)]
    deleted: list[str] = []

    def refuses(text: str) -> bool:
        if text == "BEGIN IMMEDIATE":
            deleted.clear()
        if text.startswith("DELETE FROM topics"):
            deleted.append(text)
        return text == "COMMIT" and len(deleted) > 1

    fill(bench.ctx.store, refuses)
    assert all(isinstance(one, uuid.UUID) for one in bench.ctx.topics.delete_all(names))
    assert [one.name for one in bench.ctx.store.topics()] == ["there"]


@pytest.fixture
def full_store(tmp_path: Path) -> Iterator[MetadataStore]:
    """A store with 300 topics in a file that cannot grow any more."""
    store = MetadataStore(tmp_path, 1)
    store.add_topics([StoredTopic(f"t{number}", uuid.uuid4(), 1) for number in range(300)])
    pages: Any = store._file.rows("PRAGMA page_count")[0][0]
    store._file._db.execute(f"PRAGMA max_page_count={pages}")
    yield store
    store.close()


def test_room_is_kept_for_what_makes_room(full_store: MetadataStore, tmp_path: Path) -> None:
    """In a file that cannot grow new topics are refused before the reserve is used up; retention and deletion go on."""
    assert (tmp_path / f"{FILE_NAME}-journal").stat().st_size >= JOURNAL_BYTES
    full_store._file._db.execute("PRAGMA synchronous=OFF")  # a thousand commits
    new = (StoredTopic(f"new-{number}", uuid.uuid4(), 1) for number in range(100_000))
    with pytest.raises(KafkaError, match="database or disk is full"):
        any(full_store.add_topics([one]) for one in new)  # type: ignore[func-returns-value]
    (free,) = full_store._file.rows("PRAGMA freelist_count")[0]
    assert int(free) >= RESERVE_PAGES - 4
    for number in range(300):
        full_store.replace_configs(TOPIC, f"t{number}", {"retention.ms": "1", "retention.bytes": "1"})
    full_store.remove_topics([f"t{number}" for number in range(300)])
    full_store.add_topics([StoredTopic("again", uuid.uuid4(), 1)])


def test_the_reserve_is_made_again_after_an_end_between_its_two_steps(tmp_path: Path) -> None:
    """The blob that was to become free pages is removed by the next start."""
    store = MetadataStore(tmp_path, 1)
    store._file._db.execute("INSERT INTO reserve VALUES (zeroblob(100000))")
    store.close()
    again = MetadataStore(tmp_path, 1)
    assert again._file.rows("SELECT count(*) FROM reserve") == [(0,)]
    again.close()


def test_a_change_whose_outcome_is_not_known_stops_further_ones(tmp_path: Path) -> None:
    """A commit that failed but is in the file would never be undone: nothing is changed any more."""
    store = MetadataStore(tmp_path, 1)
    db = store._file._db

    class Unsure(FailingConnection):
        def execute(self, statement: str, *rest: Any) -> Any:
            found = self._db.execute(statement, *rest)
            if statement == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")
            return found

    store._file._db = Unsure(db, lambda text: False)  # type: ignore[assignment]
    with pytest.raises(KafkaError, match="disk I/O error"):
        store.replace_configs(BROKER, "", {"a": "b"})
    store._file._db = db
    with pytest.raises(KafkaError, match="start the broker again") as caught:
        store.replace_configs(BROKER, "", {"a": "c"})
    assert caught.value.error == Errors.KAFKA_STORAGE_ERROR
    store.close()


def test_a_disk_that_cannot_be_read(bench: Bench) -> None:
    """Reading gets the same code."""
    fill(bench.ctx.store, lambda text: text.startswith("SELECT")).error = sqlite3.OperationalError("disk I/O error")
    with pytest.raises(KafkaError, match="Cannot read the metadata file: disk I/O error"):
        bench.ctx.store.topics()
