"""Takeover of a folder with ``kbroker-metadata.db``: no row is lost, and a start that was killed can be repeated."""

import os
import shutil
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.common.security.scram import Credential
from kbroker.log import checkpoints
from kbroker.log.checkpoints import MetaProperties, write_meta_properties
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.log import log_storage, opening
from kbroker.metadata.log.former_file import FILE_NAME
from kbroker.metadata.log.metadata_file import SCHEMA_VERSION
from kbroker.metadata.log.metadata_log import FOLDER_NAME, MetadataLogError
from kbroker.metadata.records.control_records import Voter
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT, read_snapshot
from tests.support.killed_steps import killed_at_each_step
from tests.support.metadata import start_metadata
from tests.support.metadata_file import Rows, write_metadata_file

ORDERS, EMPTY = uuid.UUID(int=0x1234), uuid.UUID(int=0x99)
FIRST, SECOND = uuid.UUID(int=1001), uuid.UUID(int=1002)
ROWS: Rows = {
    "facts": [("feature.transaction.version", "1"), ("features.epoch", "3")],
    "topics": [("orders", ORDERS.bytes, 3), ("empty", EMPTY.bytes, 1)],
    "configs": [
        ("topic", "orders", "retention.ms", "7"),
        ("broker", "", "log.retention.ms", "5"),
        ("broker", "1", "num.io.threads", "3"),
        ("broker", "1", "listeners", "PLAINTEXT://:1"),
        ("broker", "1", "my.password", "secret"),
        ("group", "readers", "consumer.session.timeout.ms", "45000"),
        ("client-metrics", "mine", "interval.ms", "100"),
    ],
    "producer_ids": [(3000,)],
    "quotas": [
        ('{"client-id": null, "user": "u"}', "producer_byte_rate", 1.5),
        ('{"user": "u"}', "shadow.consumer_byte_rate", 2.0),
    ],
    "scram_credentials": [("bob", "SCRAM-SHA-256", b"s" * 16, 4096, b"k" * 32, b"v" * 32)],
    "delegation_tokens": [("token", "User", "alice", "User", "bob", '[["User", "carol"]]', 1, 30, 20)],
    "acls": [(2, "orders", 3, "User:alice", "*", 3, 3)],
}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Return the two log folders of a stopped broker of an earlier version."""
    made = [tmp_path / "one", tmp_path / "two"]
    for folder, directory_id in zip(made, (FIRST, SECOND), strict=True):
        folder.mkdir()
        write_meta_properties(folder, MetaProperties("cluster", 1, directory_id))
    write_metadata_file(made[0], ROWS)
    for folder, partition, epochs in ((made[0], 0, {0: 0, 7: 50}), (made[1], 1, {})):
        path = folder / f"orders-{partition}"
        path.mkdir()
        checkpoints.write_partition_metadata(path, ORDERS)
        (path / f"{0:020}.log").write_bytes(b"")
        if epochs:
            checkpoints.leader_epoch_checkpoint(path / checkpoints.LEADER_EPOCH_CHECKPOINT).write(epochs)
    return made


def start(folders: list[Path]) -> MetadataImage:
    config = BrokerConfig({"node.id": 1, "log.dirs": ",".join(map(str, folders))})
    return start_metadata(*folders, directory_id=FIRST, config=config)


def check(image: MetadataImage) -> None:
    """Check that the image has the content of ROWS."""
    assert {name: (topic.topic_id, len(topic.partitions)) for name, topic in image.topics.items()} == {
        "orders": (ORDERS, 3),
        "empty": (EMPTY, 1),
    }
    first, second, third = image.topics["orders"].partitions
    assert (first.leader, first.replicas, first.isr, first.leader_epoch) == (1, (1,), (1,), 7)
    assert (first.directories, second.directories, second.leader_epoch) == ((FIRST,), (SECOND,), 0)
    assert third.directories == (uuid.UUID(int=1),), "expected an unassigned directory"
    assert dict(image.configs) == {
        (2, "orders"): {"retention.ms": "7"},
        (4, ""): {"log.retention.ms": "5"},
        (4, "1"): {"num.io.threads": "3", "my.password": ""},
        (32, "readers"): {"consumer.session.timeout.ms": "45000"},
        (16, "mine"): {"interval.ms": "100"},
    }
    user = {"user": "u"}
    assert dict(image.client_quotas) == {
        QuotaEntity.of({"client-id": None, "user": "u"}): {"producer_byte_rate": 1.5},
        QuotaEntity.of(user): {"shadow.consumer_byte_rate": 2.0},
    }
    assert image.next_producer_id == 3000
    assert image.scram_credentials == {("bob", "SCRAM-SHA-256"): Credential(b"s" * 16, 4096, b"k" * 32, b"v" * 32)}
    alice, bob, carol = (Principal("User", name) for name in ("alice", "bob", "carol"))
    assert image.delegation_tokens == {"token": DelegationToken("token", alice, bob, (carol,), 1, 30, 20)}
    assert list(image.acls.values()) == [
        Acl(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
    ]
    assert image.features == {
        "metadata.version": 30,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 1,
    }


def test_everything_is_taken_over(folders: list[Path]) -> None:
    """The takeover renames the file, and the next start reads the log. metadata.version is the first record."""
    check(start(folders))
    check(start(folders))
    names = {path.name for path in folders[0].iterdir()}
    assert {f"{FILE_NAME}.taken-over", FOLDER_NAME, BOOTSTRAP_CHECKPOINT} <= names
    assert FILE_NAME not in names
    first = next(record for batch in read_snapshot(folders[0] / BOOTSTRAP_CHECKPOINT) for record in batch.records)
    assert (first.name, first.body["Name"]) == ("FeatureLevelRecord", "metadata.version")
    assert (folders[0] / FOLDER_NAME / f"{0:020}-{0:010}.checkpoint").exists(), "expected the file of the voters"


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_every_schema_version_is_taken_over(folders: list[Path], version: int) -> None:
    """Tables that an older file lacks are taken over as empty."""
    added = {"quotas": 2, "scram_credentials": 3, "delegation_tokens": 5, "acls": 6}
    (folders[0] / FILE_NAME).unlink()
    write_metadata_file(
        folders[0], {table: rows for table, rows in ROWS.items() if added.get(table, 1) <= version}, version=version
    )
    image = start(folders)
    assert sorted(image.topics) == ["empty", "orders"]
    assert image.configs[2, "orders"] == {"retention.ms": "7"}
    assert image.next_producer_id == 3000
    found = (image.client_quotas, image.scram_credentials, image.delegation_tokens, image.acls)
    assert [bool(one) for one in found] == [version >= 2, version >= 3, version >= 5, version >= 6]


def test_an_empty_file_is_a_new_cluster(tmp_path: Path) -> None:
    """A first start of an earlier version that was killed leaves an empty file."""
    (tmp_path / FILE_NAME).write_bytes(b"")
    image = start([tmp_path])
    assert image.topics == {}
    assert image.configs == {(4, ""): {"min.insync.replicas": "1"}}
    assert not (tmp_path / FILE_NAME).exists()


def test_both_a_file_and_a_log_are_refused(folders: list[Path]) -> None:
    """Only the operator can decide which of them is newer, so no file is changed."""
    content = (folders[0] / FILE_NAME).read_bytes()
    start(folders)
    (folders[0] / FILE_NAME).write_bytes(content)
    text = (
        f"both {folders[0] / FILE_NAME} and {folders[0] / FOLDER_NAME} have metadata, expected one of them: move "
        f"{folders[0] / FILE_NAME} away if a broker has served the folder from {FOLDER_NAME} since, otherwise move "
        f"{folders[0] / FOLDER_NAME} away"
    )
    with pytest.raises(MetadataLogError) as caught:
        start(folders)
    assert str(caught.value) == text
    shutil.rmtree(folders[0] / FOLDER_NAME)
    check(start(folders))
    assert (folders[0] / f"{FILE_NAME}.taken-over-2").exists()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE topics SET partitions=4", r"is damaged: table topics, topic 'empty': its checksum .*recover-metadata"),
        ("PRAGMA user_version=99", "schema version 99, this kbroker supports 6: start a newer kbroker"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(folders: list[Path], statement: str, message: str) -> None:
    """The file keeps its name, and no other file is written."""
    with closing(sqlite3.connect(folders[0] / FILE_NAME)) as db, db:
        db.execute(statement)
    with pytest.raises(MetadataLogError, match=message):
        start(folders)
    assert (folders[0] / FILE_NAME).exists()
    assert not (folders[0] / BOOTSTRAP_CHECKPOINT).exists()


def test_a_file_of_another_owner_is_refused(folders: list[Path]) -> None:
    """A file of another node or of another cluster is refused."""
    for facts, message in (
        ({"node_id": 2}, r"belongs to node\.id 2, this broker is 1"),
        ({"cluster_id": "other"}, "belongs to cluster other, its log folder to cluster"),
    ):
        (folders[0] / FILE_NAME).unlink()
        write_metadata_file(folders[0], ROWS, **facts)
        with pytest.raises(MetadataLogError, match=message):
            start(folders)


@pytest.mark.parametrize("lost", ["TopicRecord", "ConfigRecord", "AccessControlEntryRecord", "ProducerIdsRecord"])
def test_what_was_written_is_compared_with_the_file(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The file keeps its name if a record is missing."""
    write = opening.write_first

    def losing(folder: Path, voter: Voter, records: object, now_ms: int) -> None:
        kept, is_lost = [], False
        for record in records:  # type: ignore[attr-defined]
            if record.name == "PartitionRecord" and lost == "TopicRecord":
                continue
            if record.name == lost and not is_lost:
                is_lost = True
                continue
            kept.append(record)
        write(folder, voter, kept, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(opening, "write_first", losing)
        with pytest.raises(MetadataLogError, match=r"cannot be taken over: its .* differ from those that were written"):
            start(folders)
    check(start(folders))


def test_folders_without_a_topic_are_no_obstacle(tmp_path: Path) -> None:
    write_metadata_file(tmp_path, {})
    (tmp_path / "old-0").mkdir()
    checkpoints.write_partition_metadata(tmp_path / "old-0", EMPTY)
    assert start([tmp_path]).topics == {}
    assert start([tmp_path]).topics == {}


def test_the_file_may_be_in_another_folder_than_the_log(folders: list[Path]) -> None:
    """A file in any log folder is taken over, because metadata.log.dir applies to the log only."""
    (folders[0] / FILE_NAME).rename(folders[1] / FILE_NAME)
    check(start(folders))
    assert (folders[1] / f"{FILE_NAME}.taken-over").exists()
    check(start(folders))


STEPS = [
    *((Path, name) for name in ("replace", "rename", "mkdir", "chmod")),
    (os, "fsync"),
    (log_storage.LogStorage, "append_control"),
    (log_storage.LogStorage, "append"),
]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_start_that_is_killed_at_any_step_is_repeated(
    folders: list[Path], tmp_path: Path, is_late: bool, is_new: bool
) -> None:
    """A kill at any step, up to the first records in the log, loses nothing of an old folder or of a new one."""
    source = tmp_path / "source"
    if is_new:
        shutil.rmtree(folders[0])
        shutil.rmtree(folders[1] / "orders-1")
        folders[0].mkdir()
    folders[0].rename(source)

    def first_start() -> None:
        shutil.rmtree(folders[0], ignore_errors=True)
        shutil.copytree(source, folders[0])
        start(folders)

    kills = 0
    for is_killed in killed_at_each_step(first_start, STEPS, is_late=is_late):
        kills += is_killed
        for _ in range(2):
            image = start(folders)
            if is_new:
                assert (image.topics, image.configs) == ({}, {(4, ""): {"min.insync.replicas": "1"}})
            else:
                check(image)
        assert not (folders[0] / FILE_NAME).exists()
        assert (folders[0] / FOLDER_NAME / f"{0:020}-{0:010}.checkpoint").exists()
    assert kills > 11
