"""A lost metadata file: the start is refused, and `kbroker log recover-metadata` makes a new one from the folders."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import cli
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.common.security.scram import Credential
from kbroker.log import checkpoints, clean_shutdown
from kbroker.log.checkpoints import uuid_to_text
from kbroker.log.folder_lock import FolderLock
from kbroker.log.log_dir import LogDir
from kbroker.metadata.metadata_recovery import FIRST_NEW_IDS, LAST_NEW_IDS, RecoveryError, recover
from kbroker.metadata.metadata_store import BROKER, FILE_NAME, GROUP, TOPIC, MetadataError, MetadataStore, StoredTopic

ORDERS, OFFSETS = uuid.UUID(int=0x1234), uuid.UUID(int=0x99)
KEEPS_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
CREDENTIAL = Credential(b"s" * 16, 4096, b"k" * 32, b"v" * 32)
TOKEN = DelegationToken(
    "token-1", Principal("User", "alice"), Principal("User", "bob"), (Principal("User", "carol"),), 1, 30, 20
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a broker left: two topics, one of them compacted, a group's config, a user, a quota, a deleted topic."""
    data = tmp_path / "data"
    log_dir = LogDir(data, "some-cluster", 3)
    store = MetadataStore(data, 3, "some-cluster")
    topics = [
        StoredTopic("orders", ORDERS, 3, {"cleanup.policy": "compact", "retention.ms": "7"}),
        StoredTopic("__consumer_offsets", OFFSETS, 2, {"cleanup.policy": "compact"}),
    ]
    store.add_topics(topics)
    store.replace_configs(GROUP, "readers", {"consumer.session.timeout.ms": "45000"})
    store.replace_configs(BROKER, "", {"message.max.bytes": "7777"})
    store.alter_quotas([('{"user": "u"}', "producer_byte_rate", 5.0)])
    store.change_scram_credentials({("bob", "SCRAM-SHA-256"): CREDENTIAL}, [])
    store.put_delegation_token(TOKEN)
    store.set_features({"transaction.version": 1}, 4)
    assert store.next_producer_id() == 0
    store.close()
    for topic in topics:
        for partition in range(topic.partitions):
            path = log_dir.create_partition_folder(topic.name, partition, topic.topic_id)
            (path / f"{0:020}.log").write_bytes(b"")
    log_dir.write_cleaner_offsets({("orders", 1): 5})
    log_dir.create_partition_folder("gone", 0, uuid.UUID(int=5))
    log_dir.rename_for_delete("gone", 0)
    log_dir.close(clean=True)
    (data / "backup-2024").mkdir()
    return data


def lose(folder: Path) -> None:
    (folder / FILE_NAME).unlink()
    (folder / f"{FILE_NAME}-journal").unlink()


def damage(folder: Path, what: bytes, instead: bytes) -> None:
    """Change bytes of the file behind our back; the journal that a copy would bring stays."""
    file = folder / FILE_NAME
    data = file.read_bytes()
    assert what in data
    file.write_bytes(data.replace(what, instead))


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_a_lost_file_beside_partitions_is_refused(folder: Path, state: str) -> None:
    """An empty cluster would put the folders of topics made again aside; the text says what to do; nothing is made."""
    lose(folder)
    if state == "empty":
        (folder / FILE_NAME).write_bytes(b"")
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(MetadataError) as caught:
        MetadataStore(folder, 3)
    assert str(caught.value) == (
        f"{folder / FILE_NAME} is {state}, but {folder} has 5 partition folders (__consumer_offsets-0, ...): put the "
        f"file back from a backup, or run 'kbroker log recover-metadata {folder}', which makes a new one from the "
        "partition folders"
    )
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_folder_without_partitions_is_a_new_one(tmp_path: Path) -> None:
    """The first start may have ended before the file was written; other folders are no partitions."""
    (tmp_path / "backup-2024").mkdir()
    (tmp_path / FILE_NAME).write_bytes(b"")
    MetadataStore(tmp_path, 1).close()


def test_topics_come_back_from_their_folders(folder: Path) -> None:
    """Names, ids and partitions; compaction where it ran; nothing is removed by retention; what is lost is said."""
    lose(folder)
    found = recover(folder)
    assert found.kept == {}
    assert found.set_aside is None
    assert len(found.lost) == 6
    store = MetadataStore(folder, 3, "some-cluster")
    offsets, orders = store.topics()
    assert (orders.name, orders.topic_id, orders.partitions) == ("orders", ORDERS, 3)
    assert orders.configs == {**KEEPS_ALL, "cleanup.policy": "compact"}
    assert (offsets.topic_id, offsets.partitions) == (OFFSETS, 2)
    assert offsets.configs["cleanup.policy"] == "compact"
    assert "retention.ms" not in offsets.configs
    assert FIRST_NEW_IDS <= store.next_producer_id() < LAST_NEW_IDS
    store.close()
    assert sorted(path.name for path in folder.iterdir() if "recover" in path.name) == []


def test_what_a_damaged_file_still_has_is_kept(folder: Path) -> None:
    """Rows with the right checksum come back, the damaged ones do not; the file is put aside."""
    damage(folder, b"consumer.session.timeout.ms45000", b"consumer.session.timeout.ms45001")
    with pytest.raises(MetadataError, match="table configs"):
        MetadataStore(folder, 3)
    found = recover(folder)
    assert found.set_aside == folder / f"{FILE_NAME}.damaged"
    assert found.lost == ["configs of topics and brokers"]
    assert found.kept == {
        "topics": 2, "configs": 4, "producer_ids": 1, "quotas": 1, "scram_credentials": 1, "delegation_tokens": 1,
    }  # fmt: skip
    store = MetadataStore(folder, 3, "some-cluster")
    assert [one.configs for one in store.topics() if one.name == "orders"] == [
        {"retention.bytes": "-1", "cleanup.policy": "compact", "retention.ms": "7"}
    ]
    assert (store.configs(GROUP, "readers"), store.configs(BROKER, "")) == ({}, {"message.max.bytes": "7777"})
    assert store.quotas() == [('{"user": "u"}', "producer_byte_rate", 5.0)]
    assert store.scram_credentials() == {("bob", "SCRAM-SHA-256"): CREDENTIAL}
    assert store.delegation_tokens() == [TOKEN]
    assert store.features() == ({"transaction.version": 1}, 4)
    assert store.next_producer_id() == 1000
    store.close()


def test_a_file_that_is_no_database_is_put_aside(folder: Path) -> None:
    """Nothing of it can be read; the second damaged file does not overwrite the first."""
    for number in ("", "-2"):
        (folder / FILE_NAME).write_bytes(b"no database at all, however long" * 200)
        with pytest.raises(MetadataError, match=r"cannot use .*recover-metadata"):
            MetadataStore(folder, 3)
        assert recover(folder).set_aside == folder / f"{FILE_NAME}.damaged{number}"
        MetadataStore(folder, 3).close()


def test_a_whole_file_is_left_alone(folder: Path) -> None:
    """There is nothing to recover, and nothing is changed."""
    before = (folder / FILE_NAME).read_bytes()
    with pytest.raises(RecoveryError, match="is whole: there is nothing to recover"):
        recover(folder)
    assert (folder / FILE_NAME).read_bytes() == before


def test_an_id_that_no_folder_has(folder: Path) -> None:
    """A power cut may leave it empty: other partitions know it, else the topic has a new one, and that is said."""
    lose(folder)
    (folder / "orders-0" / "partition.metadata").write_bytes(b"")
    (folder / "orders-1" / "partition.metadata").unlink()
    for partition in range(2):
        (folder / f"__consumer_offsets-{partition}" / "partition.metadata").write_bytes(b"")
    found = recover(folder)
    by_name = {one.name: one.topic_id for one in found.topics}
    assert by_name["orders"] == ORDERS
    assert by_name["__consumer_offsets"] not in (OFFSETS, uuid.UUID(int=0))
    assert "no folder of topic __consumer_offsets has its topic id: a new id was made" in found.notes


def test_missing_partitions_are_reported(folder: Path) -> None:
    """A hole is filled with an empty partition, and said."""
    lose(folder)
    shutil.rmtree(folder / "orders-1")
    found = recover(folder)
    assert [one.partitions for one in found.topics] == [2, 3]
    assert "topic orders has no folder for partition 1: made empty" in found.notes


def make_partition(folder: Path, name: str, topic_id: uuid.UUID) -> None:
    (folder / name).mkdir()
    checkpoints.write_partition_metadata(folder / name, topic_id)


def test_folders_of_two_topics_of_one_name_are_refused(folder: Path) -> None:
    """Only people can decide which one is right; nothing is created."""
    lose(folder)
    make_partition(folder, "orders-3", uuid.UUID(int=8))
    text = (
        f"found {uuid_to_text(ORDERS)}: orders-0; {uuid_to_text(uuid.UUID(int=8))}: orders-3: "
        "move the folders of the other topics away"
    )
    with pytest.raises(RecoveryError, match=re.escape(text)):
        recover(folder)
    assert not (folder / FILE_NAME).exists()


def test_a_folder_that_is_no_partition_makes_no_million_of_them(folder: Path) -> None:
    """A number far behind all others is a mistake in a name."""
    lose(folder)
    make_partition(folder, "orders-20240101", ORDERS)
    with pytest.raises(RecoveryError, match="orders-20240101 would be the last of 20240102 partitions, 4 of which"):
        recover(folder)


def test_the_owner_must_be_known(folder: Path) -> None:
    """meta.properties says whose folder it is; without it people must."""
    lose(folder)
    with pytest.raises(RecoveryError, match="belongs to node 3, not to node 4"):
        recover(folder, 4)
    (folder / "meta.properties").unlink()
    with pytest.raises(RecoveryError, match=r"has no meta\.properties: say whose it is with --node-id"):
        recover(folder)
    recover(folder, 3)
    MetadataStore(folder, 3).close()


def test_folders_of_apache_kafka_can_be_taken_over(folder: Path) -> None:
    """Its controller's own log is not a topic."""
    lose(folder)
    make_partition(folder, "__cluster_metadata-0", uuid.UUID(int=1))
    assert [one.name for one in recover(folder).topics] == ["__consumer_offsets", "orders"]


def run(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["log", "recover-metadata", *args])
    return done.exit_code, done.output


def test_the_command_says_what_was_made_and_what_is_lost(folder: Path) -> None:
    """A table of topics, what people should look at, and what could not be recovered; one line when it is refused."""
    lose(folder)
    status, said = run(str(folder))
    assert status == 0
    assert f"wrote {folder / FILE_NAME}: 2 topics, 5 partitions" in said
    assert re.search(rf"orders +3 +{uuid_to_text(ORDERS)}\n", said)
    assert "note: topics keep all their records" in said
    assert "not recovered: topics without a folder" in said
    assert "configs of topics and brokers; client quotas; SCRAM users" in said
    status, said = run(str(folder))
    assert (status, said) == (1, f"kbroker: {folder / FILE_NAME} is whole: there is nothing to recover\n")
    damage(folder, ORDERS.bytes, uuid.UUID(int=7).bytes)
    status, said = run("--json", str(folder))
    document = json.loads(said)
    assert status == 0
    assert document["put_aside"] == str(folder / f"{FILE_NAME}.damaged")
    assert {"topic": "orders", "partitions": 3, "id": uuid_to_text(ORDERS)} in document["topics"]


def test_verify_looks_at_the_metadata_too(folder: Path) -> None:
    """Damage gives exit code 3, in JSON as well; the file is not touched, and a running broker's not judged."""

    def verify(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["log", "verify", *options, str(folder)])
        return done.exit_code, done.output

    assert verify() == (0, "0 damaged places\n")
    damage(folder, ORDERS.bytes, uuid.UUID(int=7).bytes)
    before = (folder / FILE_NAME).read_bytes()
    status, said = verify()
    assert status == 3
    assert f"{folder / FILE_NAME} is damaged: table topics, topic 'orders': its checksum is wrong" in said
    (row,) = json.loads(verify("--json")[1])
    assert row["path"] == str(folder / FILE_NAME)
    assert (folder / FILE_NAME).read_bytes() == before
    lock = FolderLock(folder)
    assert verify()[0] == 0
    lock.release()
    lose(folder)
    assert verify()[0] == 0, "a folder of Apache Kafka has no such file"


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    """The broker that uses it must be stopped first."""
    lose(folder)
    lock = FolderLock(folder)
    status, said = run(str(folder))
    lock.release()
    assert status == 1
    assert "is in use by this process" in said


def test_a_refused_start_leaves_the_checkpoints_and_the_clean_mark(folder: Path) -> None:
    """The log folder is taken before the metadata is looked at: what it says of the logs must not be lost by that."""
    from kbroker.broker import Broker, BrokerStartError

    log_dir = LogDir(folder, None, 3)
    log_dir.write_log_starts({("orders", 0): 0})
    log_dir.write_recovery_points({("orders", 0): 0})
    log_dir.close(clean=True)
    files = [folder / name for name in (checkpoints.LOG_START_CHECKPOINT, checkpoints.RECOVERY_POINT_CHECKPOINT)]
    before = [file.read_bytes() for file in files]
    lose(folder)
    broker = Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "node.id": 3})
    for _ in range(2):
        with pytest.raises(BrokerStartError, match="recover-metadata"):
            broker.start()
        assert [file.read_bytes() for file in files] == before
        assert (folder / clean_shutdown.FILE_NAME).exists()
    recover(folder)
    with broker:
        assert sorted(view.name for view in broker.context.topics.all()) == ["__consumer_offsets", "orders"]
        assert broker.context.store.configs(TOPIC, "orders")["retention.ms"] == "-1"
    assert [path.name for path in folder.iterdir() if "stray" in path.name] == []


def test_several_folders(folder: Path, tmp_path: Path) -> None:
    """The start names all folders, and the recovery finds the partitions and compacted topics of each."""
    other = tmp_path / "other"
    log_dir = LogDir(other, "some-cluster", 3)
    for name in ("orders-1", "orders-2", "__consumer_offsets-1"):
        (folder / name).rename(other / name)
    log_dir.write_cleaner_offsets({("orders", 1): 5})
    log_dir.close(clean=True)
    (folder / "cleaner-offset-checkpoint").unlink()
    lose(folder)
    for name in ("orders-0", "__consumer_offsets-0"):
        shutil.rmtree(folder / name)
    way_out = f"{re.escape(str(other))} has 3 partition folders .* recover-metadata {re.escape(f'{folder} {other}')}'"
    with pytest.raises(MetadataError, match=way_out):
        MetadataStore(folder, 3, "some-cluster", [other])
    done = CliRunner().invoke(cli, ["log", "recover-metadata", str(folder), str(other), "--json"])
    assert done.exit_code == 0, done.output
    assert [(row["topic"], row["partitions"]) for row in json.loads(done.stdout)["topics"]] == [
        ("__consumer_offsets", 2),
        ("orders", 3),
    ]
    store = MetadataStore(folder, 3, "some-cluster")
    assert {one.name: one.configs["cleanup.policy"] for one in store.topics()} == {
        "__consumer_offsets": "compact",
        "orders": "compact",
    }
    store.close()
