"""Lost or damaged metadata prevents a start; `kbroker log recover-metadata` rebuilds it from the log folders."""

import json
import os
import re
import shutil
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker._core.codec.crc32c import crc32c
from kbroker.cli import cli
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_quorum import voter_listener
from kbroker.common.feature_versions import KRAFT_VERSION, METADATA_VERSION, SERVED_LEVELS
from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.common.security.scram import Credential
from kbroker.log import checkpoints, clean_shutdown
from kbroker.log.checkpoints import uuid_to_text
from kbroker.log.folder_lock import FolderLock
from kbroker.log.log_dir import LogDir
from kbroker.metadata.image.delta import image_of
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.log.folder_records import PartitionsOnDisk, StoredTopic, topic_records
from kbroker.metadata.log.formatter import feature_records, make_voter, write_bootstrap
from kbroker.metadata.log.metadata_log import FOLDER_NAME, MetadataLogError
from kbroker.metadata.log.opening import write_first
from kbroker.metadata.log.recovery import FIRST_NEW_IDS, LAST_NEW_IDS, RecoveryError, recover
from kbroker.metadata.records.batches import build_records, read_batches
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT, snapshot_name, write_snapshot
from tests.support.killed_steps import killed_at_each_step
from tests.support.metadata import start_metadata

ORDERS, OFFSETS = uuid.UUID(int=0x1234), uuid.UUID(int=0x99)
KEEPS_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
CREDENTIAL = Credential(b"s" * 16, 4096, b"k" * 32, b"v" * 32)
TOKEN = DelegationToken(
    "token-1", Principal("User", "alice"), Principal("User", "bob"), (Principal("User", "carol"),), 1, 30, 20
)
TOPICS = [
    StoredTopic("orders", ORDERS, 3, {"cleanup.policy": "compact", "retention.ms": "7"}),
    StoredTopic("__consumer_offsets", OFFSETS, 2, {"cleanup.policy": "compact"}),
]
REST = EMPTY_IMAGE._replace(
    features={name: one for name, one in SERVED_LEVELS.items() if one and name != KRAFT_VERSION}
    | {"transaction.version": 1},
    configs={(32, "readers"): {"consumer.session.timeout.ms": "45000"}, (4, ""): {"message.max.bytes": "7777"}},
    client_quotas={QuotaEntity.of({"user": "u"}): {"producer_byte_rate": 5.0}},
    next_producer_id=1000,
    scram_credentials={("bob", "SCRAM-SHA-256"): CREDENTIAL},
    delegation_tokens={"token-1": TOKEN},
)
EVERYTHING = {
    "topics": 2, "configs": 5, "producer_ids": 1, "quotas": 1, "scram_credentials": 1, "delegation_tokens": 1,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a log folder with a compacted, a regular and a deleted topic, and without its bootstrap checkpoint."""
    data = tmp_path / "data"
    log_dir = LogDir(data, "some-cluster", 3)
    for name, topic_id, partitions in (("orders", ORDERS, 3), ("__consumer_offsets", OFFSETS, 2)):
        for partition in range(partitions):
            path = log_dir.create_partition_folder(name, partition, topic_id)
            (path / f"{0:020}.log").write_bytes(b"")
    epochs = data / "orders-2" / checkpoints.LEADER_EPOCH_CHECKPOINT
    checkpoints.leader_epoch_checkpoint(epochs).write({4: 0, 9: 10})
    log_dir.cleaner_offsets.write({("orders", 1): 5})
    log_dir.create_partition_folder("gone", 0, uuid.UUID(int=5))
    log_dir.rename_for_delete("gone", 0)
    level = REST.features[METADATA_VERSION]
    records = [*records_of(REST, level), *topic_records(TOPICS, PartitionsOnDisk([data]), 3)]
    voter = make_voter(3, log_dir.directory_id, voter_listener(BrokerConfig({"node.id": 3})))
    write_first(data, voter, records_of(image_of(records), level), 1)
    log_dir.close(clean=True)
    (data / "backup-2024").mkdir()
    start(data)
    start(data)
    (data / BOOTSTRAP_CHECKPOINT).unlink()
    return data


def start(folder: Path, *others: Path, node_id: int = 3) -> MetadataImage:
    """Open the metadata as a start does, close the log, and return the image."""
    log_dir = LogDir(folder, None, node_id)
    try:
        config, is_clean = BrokerConfig({"node.id": node_id}), log_dir.was_clean
        image = start_metadata(folder, *others, directory_id=log_dir.directory_id, config=config, is_clean=is_clean)
        log_dir.was_clean = True
        return image
    finally:
        log_dir.close(clean=log_dir.was_clean)


def lose(folder: Path) -> None:
    shutil.rmtree(folder / FOLDER_NAME)


def segment(folder: Path) -> Path:
    return folder / FOLDER_NAME / f"{0:020}.log"


def damage(path: Path, part: bytes, instead: bytes) -> None:
    """Replace bytes of a file."""
    data = path.read_bytes()
    assert part in data
    path.write_bytes(data.replace(part, instead))


def damage_log(folder: Path) -> None:
    """Damage the first batch after the present ones, with sound batches after it."""
    size = segment(folder).stat().st_size
    start(folder)
    start(folder)
    data = bytearray(segment(folder).read_bytes())
    data[size + 70] ^= 1
    segment(folder).write_bytes(data)


def check_topics(image: MetadataImage) -> None:
    orders, offsets = image.topics["orders"], image.topics["__consumer_offsets"]
    assert (orders.topic_id, len(orders.partitions)) == (ORDERS, 3)
    assert (offsets.topic_id, len(offsets.partitions)) == (OFFSETS, 2)
    assert [one.leader_epoch for one in orders.partitions] == [0, 0, 9]
    assert {one.leader for one in orders.partitions} == {3}


def check_rest(image: MetadataImage) -> None:
    """Check all parts of the image except topics and configs."""
    assert image.client_quotas == {QuotaEntity.of({"user": "u"}): {"producer_byte_rate": 5.0}}
    assert image.scram_credentials == {("bob", "SCRAM-SHA-256"): CREDENTIAL}
    assert image.delegation_tokens == {"token-1": TOKEN}
    assert image.features["transaction.version"] == 1
    assert image.next_producer_id == 1000


def test_a_lost_log_beside_partitions_is_refused(folder: Path) -> None:
    """A missing log beside partition folders is refused with the remedy, and no file is created."""
    lose(folder)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(MetadataLogError) as caught:
        start(folder)
    assert str(caught.value) == (
        f"{folder / FOLDER_NAME} is missing, but {folder} has 5 partition folders (__consumer_offsets-0, ...); rebuild "
        f"it with 'kbroker log recover-metadata {folder}', or restore it from a backup"
    )
    assert sorted(path.name for path in folder.iterdir()) == before


def test_first_records_of_former_times_are_no_replacement(folder: Path) -> None:
    """The records of bootstrap.checkpoint do not replace a lost log, because they lack all later changes."""
    write_bootstrap(folder, feature_records(SERVED_LEVELS), 1)
    lose(folder)
    with pytest.raises(MetadataLogError, match="is missing, but"):
        start(folder)


def test_metadata_of_a_development_version_is_refused(folder: Path) -> None:
    """A development version's metadata file prevents a start, a recovery and a clean verification; no file changes."""
    path = folder / "kbroker-metadata.db"
    path.write_bytes(b"rows")
    before = {one: one.read_bytes() for one in folder.rglob("*") if one.is_file() and one.name != ".lock"}
    expected = rf"{path} has the metadata of a development version .*: start commit [0-9a-f]+ of kbroker on the folder"
    with pytest.raises(MetadataLogError, match=expected):
        start(folder)
    with pytest.raises(RecoveryError, match=expected):
        recover(folder)
    status, output = verify(folder)
    assert status == 3
    assert re.search(expected, output)
    assert {one: one.read_bytes() for one in before} == before
    path.unlink()
    check_rest(start(folder))


def test_a_folder_without_partitions_is_a_new_one(tmp_path: Path) -> None:
    """A first start may have been killed before it wrote a batch. Folders of other names are not partitions."""
    (tmp_path / "backup-2024").mkdir()
    (tmp_path / FOLDER_NAME).mkdir()
    assert start(tmp_path).topics == {}


def test_a_folder_without_files_of_a_broker_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing is written to a folder that was named by mistake, not even a lock."""
    (tmp_path / "backup-2026").mkdir()
    with pytest.raises(RecoveryError, match=f"{tmp_path}: expected a data folder, found no log and no meta.properties"):
        recover(tmp_path, 1)
    assert os.listdir(tmp_path) == ["backup-2026"]


def test_a_folder_that_is_named_twice(folder: Path) -> None:
    with pytest.raises(RecoveryError, match=f"expected each data folder once, found {folder}, {folder}"):
        recover(folder, None, [folder])


def test_topics_come_back_from_their_folders(folder: Path) -> None:
    """Names, ids, partitions and leader epochs are recovered, compacted topics stay compacted, and retention is off."""
    lose(folder)
    found = recover(folder)
    assert (found.kept, found.set_aside, len(found.lost)) == ({}, None, 6)
    image = start(folder)
    check_topics(image)
    assert image.configs[2, "orders"] == {**KEEPS_ALL, "cleanup.policy": "compact"}
    assert image.configs[2, "__consumer_offsets"]["cleanup.policy"] == "compact"
    assert "retention.ms" not in image.configs[2, "__consumer_offsets"]
    assert image.configs[4, ""] == {"min.insync.replicas": "1"}
    assert FIRST_NEW_IDS <= image.next_producer_id < LAST_NEW_IDS
    assert sorted(path.name for path in folder.iterdir() if "recover" in path.name) == []


def test_records_before_the_damage_of_a_log_are_kept(folder: Path) -> None:
    """Records before the damage are kept, and the damaged log is renamed."""
    damage_log(folder)
    data = segment(folder).read_bytes()
    with pytest.raises(MetadataLogError, match=rf"{FOLDER_NAME} is damaged: .*recover-metadata"):
        start(folder)
    found = recover(folder)
    assert found.set_aside is not None
    assert re.fullmatch(rf"{FOLDER_NAME}\.[0-9a-f]{{32}}-stray", found.set_aside.name)
    assert (found.set_aside / segment(folder).name).read_bytes() == data
    assert (found.kept, len(found.lost)) == (EVERYTHING, 6)
    assert re.search(r"the records from offset \d+ on are lost, if there were any", "\n".join(found.notes))
    image = start(folder)
    check_topics(image)
    check_rest(image)
    assert image.configs[2, "orders"] == {"retention.bytes": "-1", "cleanup.policy": "compact", "retention.ms": "7"}
    assert image.configs[32, "readers"] == {"consumer.session.timeout.ms": "45000"}


def test_a_log_that_ends_before_its_snapshot(folder: Path) -> None:
    """The records of the snapshot are kept, and the note names the offset after them."""
    image = start(folder)
    records, path = records_of(image, image.features[METADATA_VERSION]), snapshot_name(image.offset + 1, image.epoch)
    write_snapshot(folder / FOLDER_NAME / path, records, 1, last_contained_log_timestamp_ms=1, control=())
    os.truncate(segment(folder), 500)
    found = recover(folder)
    assert found.kept == EVERYTHING
    assert f"the records from offset {image.offset + 1} on are lost" in "\n".join(found.notes)


@pytest.mark.parametrize("name", [f"{0:020}-{0:010}.checkpoint", "quorum-state"])
def test_a_log_whose_records_are_sound_is_kept_whole(folder: Path, name: str) -> None:
    """Nothing is lost if only a file beside the records is damaged."""
    path = folder / FOLDER_NAME / name
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-7] + b"damaged")
    with pytest.raises(MetadataLogError, match="recover-metadata"):
        start(folder)
    found = recover(folder)
    assert (found.kept, found.lost, found.notes) == (EVERYTHING, [], [])
    image = start(folder)
    check_topics(image)
    check_rest(image)
    assert image.configs[2, "orders"] == {"cleanup.policy": "compact", "retention.ms": "7"}


def test_a_topic_that_was_created_after_the_damage_is_not_the_old_one(folder: Path) -> None:
    """The id in the folders identifies the new topic; configs of the deleted topic of that name do not apply."""
    new_id = uuid.UUID(int=0x777)
    for partition in range(3):
        checkpoints.write_partition_metadata(folder / f"orders-{partition}", new_id)
    damage_log(folder)
    recover(folder)
    image = start(folder)
    assert image.topics["orders"].topic_id == new_id
    assert image.configs[2, "orders"] == {**KEEPS_ALL, "cleanup.policy": "compact"}


def test_whole_metadata_is_left_alone(folder: Path) -> None:
    """Recovery of undamaged metadata is refused, and no file changes."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(RecoveryError, match=f"{FOLDER_NAME} is whole: there is nothing to recover"):
        recover(folder)
    assert {path: path.read_bytes() for path in before} == before


def test_a_torn_tail_is_no_damage(folder: Path) -> None:
    """An incomplete batch after a crash is not damage; the next start cuts it off."""
    with segment(folder).open("ab") as file:
        file.write(b"\0" * 30)
    (folder / clean_shutdown.FILE_NAME).unlink()
    with pytest.raises(RecoveryError, match="is whole"):
        recover(folder)
    check_rest(start(folder))


STEPS = [*((Path, name) for name in ("replace", "rename", "chmod")), (checkpoints, "sync_folder")]


@pytest.mark.parametrize("kind", ["log", "lost"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_recovery_that_is_killed_at_any_step_is_repeated(
    folder: Path, tmp_path: Path, kind: str, is_late: bool
) -> None:
    """After a kill before or after any step, a start has all topics or is refused until the recovery is repeated."""
    damage_log(folder)
    if kind == "lost":
        lose(folder)
    source = tmp_path / "source"
    folder.rename(source)

    def recovery() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        recover(folder)

    kills = 0
    for is_killed in killed_at_each_step(recovery, STEPS, is_late=is_late):
        kills += is_killed
        try:
            image = start(folder)
        except MetadataLogError:
            recover(folder)
            image = start(folder)
        check_topics(image)
        if kind != "lost":
            check_rest(image)
    assert kills > 5


def test_an_id_that_no_folder_has(folder: Path) -> None:
    """Another partition's folder supplies a lost topic id; if no folder has the id, a new id is chosen and noted."""
    lose(folder)
    (folder / "orders-0" / "partition.metadata").write_bytes(b"")
    (folder / "orders-1" / "partition.metadata").unlink()
    for partition in range(2):
        (folder / f"__consumer_offsets-{partition}" / "partition.metadata").write_bytes(b"")
    found = recover(folder)
    by_name = {one.name: one.topic_id for one in found.topics}
    assert by_name["orders"] == ORDERS
    assert by_name["__consumer_offsets"] not in (OFFSETS, uuid.UUID(int=0))
    assert "no folder of topic __consumer_offsets has its topic id: a new id was chosen" in found.notes


def test_offsets_of_a_topic_with_a_new_id_are_noted(folder: Path) -> None:
    """Consumers that fetch offsets by id begin without those of the earlier id until they are committed again."""
    lose(folder)
    for path in folder.glob("orders-*/partition.metadata"):
        path.unlink()
    (note,) = (one for one in recover(folder).notes if "has its topic id" in one)
    assert note.endswith("until `kbroker groups reset GROUP --topic orders --to-current --execute`")


def test_missing_partitions_are_reported(folder: Path) -> None:
    """A missing partition is recreated empty and noted."""
    lose(folder)
    shutil.rmtree(folder / "orders-1")
    found = recover(folder)
    assert [one.partitions for one in found.topics] == [2, 3]
    assert "topic orders has no folder for partition 1: created empty" in found.notes


def make_partition(folder: Path, name: str, topic_id: uuid.UUID) -> None:
    (folder / name).mkdir()
    checkpoints.write_partition_metadata(folder / name, topic_id)


def test_folders_of_two_topics_of_one_name_are_refused(folder: Path) -> None:
    """The error lists the folders of each topic id, and no metadata log is created."""
    lose(folder)
    make_partition(folder, "orders-3", uuid.UUID(int=8))
    text = (
        f"found {uuid_to_text(ORDERS)}: orders-0; {uuid_to_text(uuid.UUID(int=8))}: orders-3: "
        "move the folders of the other topics away"
    )
    with pytest.raises(RecoveryError, match=re.escape(text)):
        recover(folder)
    assert not (folder / FOLDER_NAME).exists()


def test_a_folder_that_is_no_partition_makes_no_million_of_them(folder: Path) -> None:
    """A partition number far above the number of folders is refused as a misnamed folder."""
    lose(folder)
    make_partition(folder, "orders-20240101", ORDERS)
    with pytest.raises(RecoveryError, match="orders-20240101 would be the last of 20240102 partitions, 4 of which"):
        recover(folder)


def test_the_owner_must_be_known(folder: Path) -> None:
    """Recovery needs the node id from meta.properties or from --node-id."""
    lose(folder)
    with pytest.raises(RecoveryError, match="belongs to node 3, not to node 4"):
        recover(folder, 4)
    (folder / "meta.properties").unlink()
    with pytest.raises(RecoveryError, match=r"has no meta\.properties: give the node's id with --node-id"):
        recover(folder)
    recover(folder, 3)
    check_topics(start(folder))


def run(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["log", "recover-metadata", *args])
    return done.exit_code, done.output


def test_the_command_reports_what_was_made_and_what_is_lost(folder: Path) -> None:
    """Output lists the topics, notes for the operator, and the lost parts; a refusal is one line."""
    lose(folder)
    status, output = run(str(folder))
    assert status == 0
    assert f"wrote {folder / BOOTSTRAP_CHECKPOINT}: 2 topics, 5 partitions" in output
    assert re.search(rf"orders +3 +{uuid_to_text(ORDERS)}\n", output)
    assert "note: topics keep all their records" in output
    assert "not recovered: topics without a folder" in output
    assert "configs of topics and brokers; client quotas; SCRAM users" in output
    status, output = run(str(folder))
    assert (status, output) == (1, f"kbroker: {folder / BOOTSTRAP_CHECKPOINT} is whole: there is nothing to recover\n")
    start(folder)
    with segment(folder).open("r+b") as file:
        file.seek(200)
        file.write(b"damaged")
    status, output = run("--json", str(folder))
    document = json.loads(output)
    assert status == 0
    assert document["put_aside"].startswith(str(folder / f"{FOLDER_NAME}."))
    assert {"topic": "orders", "partitions": 3, "id": uuid_to_text(ORDERS)} in document["topics"]


def verify(folder: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["log", "verify", *options, str(folder)])
    return done.exit_code, done.output


def test_verify_checks_the_metadata_log(folder: Path) -> None:
    """Damaged batches and records are reported, not repaired. The log of a running broker is not judged."""
    assert verify(folder) == (0, "0 damaged places\n")
    with segment(folder).open("r+b") as file:
        file.seek(200)
        file.write(b"damaged")
    before = segment(folder).read_bytes()
    for options in ((), ("--repair",)):
        status, output = verify(folder, *options)
        assert status == 3
        assert f"{segment(folder)} at byte " in output
        assert re.search(rf"{FOLDER_NAME} is damaged: .*rebuild it with 'kbroker log recover-metadata", output)
        assert segment(folder).read_bytes() == before
    lock = FolderLock(folder)
    rows = json.loads(verify(folder, "--json")[1])
    lock.release()
    assert not any("recover-metadata" in row["problem"] for row in rows)


def test_verify_checks_records_and_snapshots(folder: Path) -> None:
    """A record of a later version and a damaged snapshot are reported."""
    snapshot = folder / FOLDER_NAME / f"{3:020}-{1:010}.checkpoint"
    snapshot.write_bytes(b"damaged")
    status, output = verify(folder)
    assert status == 3
    assert f"{snapshot} at byte 0, 7 bytes: {snapshot}: " in output
    snapshot.unlink()
    clean_shutdown.write_mark(folder)
    data = segment(folder).read_bytes()
    with segment(folder).open("ab") as file:
        record = MetadataRecord("TopicRecord", 0, {"Name": "t", "TopicId": ORDERS})
        base = max(batch.last_offset for batch in read_batches(data)) + 1
        file.write(with_unknown_type(build_records([record], base, 2, 1)))
    status, output = verify(folder)
    assert status == 3
    assert "a metadata record has type 99, supported are" in output
    with pytest.raises(RecoveryError, match="a metadata record has type 99"):
        recover(folder)


def with_unknown_type(batch: bytes) -> bytes:
    """Return a TopicRecord batch with an unknown record type and a correct checksum."""
    data = bytearray(batch)
    at = data.index(b"\x01\x02\x00\x02t")
    data[at + 1] = 99
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    lose(folder)
    lock = FolderLock(folder)
    status, said = run(str(folder))
    lock.release()
    assert status == 1
    assert "is in use by this process" in said


def test_a_refused_start_leaves_the_checkpoints_and_the_clean_mark(folder: Path) -> None:
    """A refused start keeps the checkpoints and the clean shutdown mark of the log folder, which is opened first."""
    from kbroker.broker import Broker, BrokerStartError

    log_dir = LogDir(folder, None, 3)
    log_dir.log_starts.write({("orders", 0): 0})
    log_dir.recovery_points.write({("orders", 0): 0})
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
        views = {view.name: view.configs for view in broker.context.topics.all()}
        assert sorted(views) == ["__consumer_offsets", "orders"]
        assert views["orders"]["retention.ms"] == "-1"
    assert [path.name for path in folder.iterdir() if "stray" in path.name] == []


def test_several_folders(folder: Path, tmp_path: Path) -> None:
    """A refused start names all folders, and the recovery finds partitions and compacted topics in each of them."""
    other = tmp_path / "other"
    log_dir = LogDir(other, "some-cluster", 3)
    for name in ("orders-1", "orders-2", "__consumer_offsets-1"):
        (folder / name).rename(other / name)
    log_dir.cleaner_offsets.write({("orders", 1): 5})
    log_dir.close(clean=True)
    (folder / "cleaner-offset-checkpoint").unlink()
    lose(folder)
    for name in ("orders-0", "__consumer_offsets-0"):
        shutil.rmtree(folder / name)
    expected = f"{re.escape(str(other))} has 3 partition folders .* recover-metadata {re.escape(f'{folder} {other}')}'"
    with pytest.raises(MetadataLogError, match=expected):
        start(folder, other)
    done = CliRunner().invoke(cli, ["log", "recover-metadata", str(folder), str(other), "--json"])
    assert done.exit_code == 0, done.output
    assert [(row["topic"], row["partitions"]) for row in json.loads(done.stdout)["topics"]] == [
        ("__consumer_offsets", 2),
        ("orders", 3),
    ]
    image = start(folder, other)
    check_topics(image)
    assert {name: image.configs[2, name]["cleanup.policy"] for name in image.topics} == {
        "__consumer_offsets": "compact",
        "orders": "compact",
    }
    assert image.topics["orders"].partitions[1].directories == (log_dir.directory_id,)
