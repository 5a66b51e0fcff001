"""Cluster metadata in SQLite."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import uuid
from pathlib import Path

import pytest

from kbroker.metadata.metadata_file import MetadataFile
from kbroker.metadata.metadata_store import (
    BROKER,
    FILE_NAME,
    SCHEMA_VERSION,
    TOPIC,
    MetadataError,
    MetadataStore,
    StoredTopic,
)

FIRST = StoredTopic("a", uuid.UUID(int=1), 3, {"retention.ms": "5"})
SECOND = StoredTopic("b", uuid.UUID(int=2), 1)


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    """Cluster id, topics, ids, partitions and configs are the same after closing and opening."""
    store = MetadataStore(tmp_path, 1)
    store.add_topics([FIRST])
    store.add_topics([SECOND])
    store.set_partitions("b", 2)
    store.replace_configs(BROKER, "", {"message.max.bytes": "100"})
    store.close()
    again = MetadataStore(tmp_path, 1)
    assert again.cluster_id == store.cluster_id
    assert again.topics() == [FIRST, StoredTopic("b", SECOND.topic_id, 2)]
    assert again.configs(BROKER, "") == {"message.max.bytes": "100"}
    again.close()


def test_cluster_id_looks_like_kafkas() -> None:
    """22 characters of URL-safe base64, another for each cluster."""
    ids = set()
    for _ in range(5):
        store = MetadataStore(None, 1)
        ids.add(store.cluster_id)
        store.close()
    assert len(ids) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", one) for one in ids)


def test_the_log_folder_names_the_cluster(tmp_path: Path) -> None:
    """A new file takes the folder's id; a file of another cluster is refused."""
    store = MetadataStore(tmp_path, 1, "one")
    assert store.cluster_id == "one"
    store.close()
    MetadataStore(tmp_path, 1, "one").close()
    with pytest.raises(MetadataError, match="belongs to cluster one, its log folder to two"):
        MetadataStore(tmp_path, 1, "two")


def test_a_removed_topic_leaves_nothing() -> None:
    """A new topic of the same name starts without the old one's configs."""
    store = MetadataStore(None, 1)
    store.add_topics([FIRST])
    store.remove_topics(["a"])
    assert store.topics() == []
    assert store.configs(TOPIC, "a") == {}
    store.close()


def test_a_failed_change_changes_nothing() -> None:
    """A topic whose name is taken is refused whole, and the store goes on."""
    store = MetadataStore(None, 1)
    store.add_topics([FIRST])
    with pytest.raises(sqlite3.IntegrityError):
        store.add_topics([StoredTopic("c", FIRST.topic_id, 1, {"retention.ms": "1"})])
    store.add_topics([SECOND])
    assert [topic.name for topic in store.topics()] == ["a", "b"]
    assert store.configs(TOPIC, "c") == {}
    store.close()


def test_producer_ids_never_repeat(tmp_path: Path) -> None:
    """Ids go up one by one; after a restart they go on from the next block of 1000."""
    store = MetadataStore(tmp_path, 1)
    assert [store.next_producer_id() for _ in range(1001)] == list(range(1001))
    store.close()
    again = MetadataStore(tmp_path, 1)
    assert again.next_producer_id() == 2000
    again.close()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A file written by a later version is left alone, and the message says what to do."""
    MetadataStore(tmp_path, 1).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    text = f"schema version 99, this kbroker knows {SCHEMA_VERSION}: start a newer kbroker"
    with pytest.raises(MetadataError, match=text):
        MetadataStore(tmp_path, 1)


def test_a_file_of_another_node_is_refused(tmp_path: Path) -> None:
    """Two brokers must not pass for one another."""
    MetadataStore(tmp_path, 1).close()
    with pytest.raises(MetadataError, match=r"belongs to node\.id 1, this broker is 2"):
        MetadataStore(tmp_path, 2)


@pytest.mark.parametrize("content", [b"no database at all, however long" * 40, b"SQLite format 3\0"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """Something else under that name is not overwritten."""
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(MetadataError, match="cannot use"):
        MetadataStore(tmp_path, 1)
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_a_fresh_cluster_has_kafkas_dynamic_default() -> None:
    """Kafka 4.3 sets min.insync.replicas as a default of all brokers when it formats its storage."""
    store = MetadataStore(None, 1)
    assert store.configs(BROKER, "") == {"min.insync.replicas": "1"}
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_process_forks_in_the_middle_of_a_transaction() -> None:
    """The child's copy of it would be rolled back in the parent's file when the child ends."""
    file = MetadataFile(None)
    begun, may_end, order = threading.Event(), threading.Event(), []

    def change() -> None:
        with file.transaction():
            begun.set()
            may_end.wait(10)
            order.append("committed")

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        order.append("forked")
        os.waitpid(child, 0)

    threads = [threading.Thread(target=change), threading.Thread(target=fork)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    threads[1].join(0.3)  # it would be through by now
    may_end.set()
    for thread in threads:
        thread.join(10)
    file.close()
    assert order == ["committed", "forked"]
