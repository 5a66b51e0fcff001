"""Findings of `kbroker storage check` in log folders, for Apache Kafka and kbroker. The check changes no file."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.common.feature_versions import DEFAULT_FROM, SERVED_LEVELS, default_level
from kbroker.common.listeners import Listener
from kbroker.log.checkpoints import (
    MetaProperties,
    read_meta_properties,
    uuid_from_text,
    write_meta_properties,
    write_moved_from,
    write_partition_metadata,
)
from kbroker.metadata.log.folder_check import KBROKER, Verdict, judge, read_folders
from kbroker.metadata.log.folder_reader import read_metadata
from kbroker.metadata.log.formatter import format_folders, make_voter, standalone_voter
from kbroker.metadata.log.quorum_state import QuorumState, write_quorum_state
from kbroker.metadata.records.batches import build_control, build_records
from kbroker.metadata.records.control_records import KRaftVersion, LeaderChange, Voter
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record
from kbroker.metadata.records.snapshot_files import snapshot_name, write_snapshot
from tests.support.kafka_metadata_log import BOOTSTRAP, LOG, SNAPSHOTS, kafka_metadata_log
from tests.support.metadata_images import partition, read

NOW_MS = 1_700_000_000_000
NODE, OTHER = 1, 2
TOPIC_ID = UUID(int=1 << 70)
ADDRESS = Listener("CONTROLLER", "PLAINTEXT", "localhost", 9093)


def record(name: str, **body: object) -> MetadataRecord:
    return metadata_record(name, body)


def topic(name: str = "orders", replicas: Sequence[int] = (NODE,), topic_id: UUID = TOPIC_ID) -> list[MetadataRecord]:
    fields: dict[str, Any] = {
        "TopicId": topic_id,
        "Replicas": list(replicas),
        "Isr": list(replicas),
        "Leader": replicas[0],
    }
    row = partition(0, **fields, Directories=[UUID(int=9 << 70)] * len(replicas))
    return [record("TopicRecord", Name=name, TopicId=topic_id), *read([row])]


def feature(name: str, level: int) -> MetadataRecord:
    return record("FeatureLevelRecord", Name=name, FeatureLevel=level)


class Folder:
    """Formatted log folder whose metadata log the tests extend with batches."""

    def __init__(self, path: Path, voters: Sequence[Voter] | None = None, /, **levels: int) -> None:
        self.path = path
        self.log = path / "__cluster_metadata-0" / "00000000000000000000.log"
        found = [standalone_voter(NODE, ADDRESS)] if voters is None else voters
        finalized = {**SERVED_LEVELS, **{name.replace("_", "."): level for name, level in levels.items()}}
        format_folders([path], path, cluster_id="c", node_id=NODE, now_ms=NOW_MS, voters=found, levels=finalized)
        self.offset = 0
        self._first = [feature(name, level) for name, level in finalized.items() if name != "kraft.version"]

    def start(self, records: Iterable[MetadataRecord] = ()) -> None:
        """Write the first batches of the log as a start does, then the records."""
        self.log.parent.mkdir(exist_ok=True)
        write_quorum_state(self.log.parent, QuorumState(NODE, 1), 1)
        self.append(build_control([LeaderChange(NODE, (NODE,), (NODE,))], self.offset, 1, NOW_MS), 1)
        self.add([*self._first, *records])

    def add(self, records: Sequence[MetadataRecord]) -> None:
        self.append(build_records(records, self.offset, 1, NOW_MS), len(records))

    def append(self, batch: bytes, count: int) -> None:
        with self.log.open("ab") as file:
            file.write(batch)
        self.offset += count

    def partition(self, name: str, topic_id: UUID = TOPIC_ID) -> None:
        (self.path / name).mkdir()
        write_partition_metadata(self.path / name, topic_id)

    def verdict(self, server: str = KBROKER) -> Verdict:
        before = {path: path.stat().st_mtime_ns for path in self.path.rglob("*")}
        found = judge(read_folders([self.path]), server)
        assert before == {path: path.stat().st_mtime_ns for path in self.path.rglob("*")}
        return found

    def obstacle(self, server: str = KBROKER) -> str:
        (found,) = self.verdict(server).obstacles
        return found

    def losses(self, server: str = KBROKER) -> list[str]:
        found = self.verdict(server)
        assert not found.obstacles
        return list(found.losses)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data")


def test_a_folder_that_either_can_serve(folder: Folder) -> None:
    """A formatted folder has no obstacle, with or without a metadata log."""
    for _ in range(2):
        for server in ("4.3", KBROKER):
            assert folder.verdict(server)[1:] == ([], [])
        if folder.offset == 0:
            folder.start(topic())
            folder.partition("orders-0")
    assert list(folder.verdict("4.3").lines()) == ["Apache Kafka 4.3 can serve it"]
    title = read_folders([folder.path]).title()
    assert title == f"{folder.path}: node 1 of cluster c, metadata.version 30 (4.3-IV0), 1 topic with 1 partition"
    assert "above 29 (4.2-IV1)" in folder.obstacle("4.2")
    assert [*folder.verdict("4.1").lines()] == [
        "Apache Kafka 4.1 cannot serve it:",
        "  metadata.version is 30 (4.3-IV0), above 27 (4.1-IV1)",
        "  streams.version is 1, above 0",
    ]


def test_defaults_of_an_earlier_kafka(tmp_path: Path) -> None:
    """A folder of Kafka 4.2 has a feature that kbroker does not serve and two that Kafka 4.0 does not support."""
    levels = {name.replace(".", "_"): default_level(name, 29) for name in DEFAULT_FROM}
    folder = Folder(tmp_path / "data", metadata_version=29, **levels)
    folder.start()
    assert folder.losses("4.2") == []
    assert folder.losses() == [
        f"{name} is finalized at level 1, which kbroker does not serve: it is kept, and level 0 is served"
        for name in ("eligible.leader.replicas.version",)
    ]
    assert folder.verdict("4.0").obstacles == [
        "metadata.version is 29 (4.2-IV1), above 25 (4.0-IV3)",
        "share.version is finalized at level 1, and is unknown to this version: disable it first",
        "streams.version is finalized at level 1, and is unknown to this version: disable it first",
    ]
    assert "streams.version is 1, above 0" in folder.verdict("4.1").obstacles


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            feature("metadata.version", 31),
            ".*-0: metadata.version: expected a level from 7 .* to 30 .*, found 31 .4.4-IV0.; use.*",
        ),
        (
            feature("metadata.version", 99),
            ".*-0: metadata.version: expected a level from 7 .* to 30 .*, found 99; use the soft.*",
        ),
    ],
)
def test_metadata_of_a_later_kafka(folder: Folder, changed: MetadataRecord, message: str) -> None:
    folder.start([changed])
    assert re.fullmatch(message, folder.obstacle())
    assert len(folder.verdict("4.3").obstacles) == 1


@pytest.mark.parametrize(
    ("name", "level", "served", "message"),
    [
        ("group.version", 2, 1, "group.version is 2, above 1"),
        ("new.version", 1, 0, "new.version is finalized at level 1, and is unknown to this version: disable it first"),
    ],
)
def test_features_of_a_later_kafka(folder: Folder, name: str, level: int, served: int, message: str) -> None:
    """Apache Kafka refuses the level of a later version; kbroker serves the nearest level."""
    folder.start([feature(name, level)])
    assert folder.obstacle("4.3") == message
    sentence = (
        f"{name} is finalized at level {level}, which kbroker does not serve: it is kept, and level {served} is served"
    )
    assert folder.losses() == [sentence]


def test_a_later_quorum(folder: Folder) -> None:
    folder.start()
    folder.append(build_control([KRaftVersion(2)], folder.offset, 1, NOW_MS), 1)
    assert folder.obstacle("4.3") == "kraft.version is 2, above 1"
    assert folder.obstacle().endswith("__cluster_metadata-0: kraft.version is 2, above 1; serve it with Apache Kafka")


def test_topics_of_a_cluster(folder: Folder) -> None:
    """Replicas on other nodes and tiered storage are obstacles for kbroker only."""
    topics = [
        *topic("here"),
        *(one for n in range(4) for one in topic(f"both-{n}", (NODE, OTHER), UUID(int=2 + n << 80))),
        *topic("there", (OTHER,), UUID(int=1 << 90)),
        record("ConfigRecord", ResourceType=2, ResourceName="here", Name="remote.storage.enable", Value="true"),
    ]
    folder.start(topics)
    for name, number in (("here", 1 << 70), *((f"both-{n}", 2 + n << 80) for n in range(4))):
        folder.partition(f"{name}-0", UUID(int=number))
    assert folder.verdict().obstacles == [
        "partition both-0-0 (and 4 more): expected its only replica on node 1, found replicas on 1, 2; move them to "
        "this node with Apache Kafka first",
        "topic here has remote.storage.enable=true: tiered storage is not supported; disable it with Apache Kafka "
        "first",
    ]
    assert folder.losses("4.3") == []


def test_other_voters(tmp_path: Path) -> None:
    """kbroker must be the only voter of the quorum. A voter's directory id must be in a meta.properties."""
    three = [make_voter(n, UUID(int=n << 80), ADDRESS) for n in (1, 2, 3)]
    cluster, broker = Folder(tmp_path / "cluster", three), Folder(tmp_path / "broker", three[1:])
    for one, voters in ((cluster, "1@.{22}, 2@.{22}, 3@.{22}"), (broker, "2@.{22}, 3@.{22}")):
        expected = (
            f"-0: expected 1@.{{22}} as the only voter of the quorum, found {voters}; serve it with Apache Kafka, or"
        )
        assert re.search(expected, one.obstacle())
        assert one.losses("4.3") == ["the quorum has 2 other voters (2, 3): the node needs a majority of the voters"]
    alone = Folder(tmp_path / "alone")
    owner = read_meta_properties(alone.path)
    assert owner is not None
    write_meta_properties(alone.path, owner._replace(directory_id=uuid_from_text("JEXY6aqzQY-32P5TStzaFg")))
    assert re.search("the voter 1 has the directory id .{22}, which no meta.properties", alone.obstacle("4.3"))
    assert re.search("found 1@.{22}; if meta.properties was lost, set directory.id=.{22} in", alone.obstacle())


def test_static_voters_are_not_in_the_log(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data", [], kraft_version=0)
    folder.start()
    assert folder.verdict()[1:] == folder.verdict("4.3")[1:] == ([], [])


def test_losses_in_kafka(folder: Folder) -> None:
    """Shadow quotas and configs of kbroker have no effect in Apache Kafka; tokens need their secret key."""
    quota = {"Entity": [{"EntityType": "user", "EntityName": "u"}], "Value": 1.0, "Remove": False}
    token = {
        "Owner": "User:a",
        "Requester": "User:a",
        "Renewers": [],
        "IssueTimestamp": 1,
        "MaxTimestamp": 3,
        "ExpirationTimestamp": 2,
        "TokenId": "t",
    }
    folder.start(
        [
            record("ClientQuotaRecord", Key="producer_byte_rate", **quota),
            record("ClientQuotaRecord", Key="shadow.producer_byte_rate", **quota),
            record("ConfigRecord", ResourceType=4, ResourceName="1", Name="kbroker.nofile.limit", Value="9"),
            record("DelegationTokenRecord", **token),
        ]
    )
    assert folder.losses() == []
    assert folder.losses("4.3") == [
        "1 shadow quota without effect: Apache Kafka keeps and ignores them",
        "1 config (kbroker.nofile.limit) of kbroker without effect",
        "1 delegation token, valid only with the same delegation.token.secret.key",
    ]


def test_folders_of_partitions(folder: Folder, tmp_path: Path) -> None:
    """Folders without a topic and partitions without a folder are losses. A partition may be in a second folder."""
    folder.start([*topic(), *topic("lost", topic_id=UUID(int=1 << 71))])
    folder.partition("orders-1")
    folder.partition("lost-0", UUID(int=1 << 72))
    folder.partition("gone-0", UUID(int=1 << 73))
    assert (
        folder.losses()
        == folder.losses("4.3")
        == [
            "3 partition folders (gone-0, lost-0, orders-1) of no topic: not served",
            "2 partitions (orders-0, lost-0) without a folder, which will begin empty: name all folders of log.dirs",
        ]
    )
    second = tmp_path / "second"
    (second / "orders-0").mkdir(parents=True)
    write_partition_metadata(second / "orders-0", TOPIC_ID)
    write_meta_properties(second, MetaProperties("c", NODE, UUID(int=5 << 70)))
    for server in ("4.3", KBROKER):  # both servers start with log.dirs in this order
        order, _, missing = judge(read_folders([second, folder.path]), server).losses
        assert order.startswith(f"the metadata log is in {folder.path}: name that folder first in log.dirs, or set ")
        assert missing.startswith("1 partition (lost-0) without")
        assert judge(read_folders([folder.path, second]), server).losses[1:] == [missing]
    (folder.path / "orders-0").mkdir()
    write_partition_metadata(folder.path / "orders-0", TOPIC_ID)
    paths = f"partition orders-0 has several folders, {folder.path / 'orders-0'}, {second / 'orders-0'}"
    both = read_folders([folder.path, second])
    for server in ("4.3", KBROKER):
        assert judge(both, server).obstacles == [f"{paths}: move the one that is out of date away"]
    write_moved_from(second / "orders-0", [UUID(int=9 << 70)])  # a crash in a move left both
    assert judge(both, "4.3").obstacles == [f"{paths}: start and stop kbroker first"]
    assert judge(both, KBROKER).obstacles == []
    write_meta_properties(second, MetaProperties("other", NODE, UUID(int=5 << 70)))
    (found,) = judge(read_folders([folder.path, second]), KBROKER).obstacles
    assert found.startswith(f"{second} belongs to node 1 of cluster other")


def cut_tail(folder: Folder) -> None:
    folder.append(build_records(topic("new", topic_id=UUID(int=1 << 75)), folder.offset, 1, NOW_MS)[:-1], 0)


def test_a_torn_tail_is_no_obstacle(folder: Folder) -> None:
    folder.start()
    size = folder.log.stat().st_size
    cut_tail(folder)
    torn = folder.log.stat().st_size - size
    text = f"{torn} bytes of an incomplete batch at the end of the metadata log, which a start cuts off"
    assert folder.losses() == folder.losses("4.3") == [text]


def flip(folder: Folder) -> None:
    data = bytearray(folder.log.read_bytes())
    data[70] ^= 1
    folder.log.write_bytes(data)


def unknown_record(folder: Folder) -> None:
    value = build_records([record("NoOpRecord")], folder.offset, 1, NOW_MS)
    builder = bytearray(value)
    builder[-4] = 99  # the record's type
    from kbroker._core.codec.crc32c import crc32c

    builder[17:21] = crc32c(bytes(builder[21:])).to_bytes(4, "big")
    folder.append(bytes(builder), 1)


def gap(folder: Folder) -> None:
    folder.append(build_records([record("NoOpRecord")], folder.offset + 3, 1, NOW_MS), 1)


def lost_start(folder: Folder) -> None:
    folder.log.rename(folder.log.with_name("00000000000000000007.log"))


def lost_records(folder: Folder) -> None:
    folder.log.unlink()
    folder.log = folder.log.with_name("00000000000000000007.log")
    folder.append(build_records([record("NoOpRecord")], 7, 1, NOW_MS), 0)


def contradiction(folder: Folder) -> None:
    folder.add([record("RemoveTopicRecord", TopicId=UUID(int=77 << 80))])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            flip,
            r"-0 is damaged: 0{20}\.log: expected a batch of offset 0 .* at byte 0, found other bytes; .* rebuild it",
        ),
        (unknown_record, "-0: .*a metadata record has type 99, supported are .*: use a version of kbroker that"),
        (
            gap,
            r"-0 is damaged: 0{20}\.log: expected a batch of offset 6 .* at byte \d+, found one of offset 9 and leader",
        ),
        (lost_start, "-0 is damaged: 0{19}7.log: expected a batch of offset 7 .* at byte 0, found one of offset 0 and"),
        (lost_records, "-0 is damaged: it begins at offset 7, without a snapshot of the records below; rebuild it"),
        (
            contradiction,
            "-0 is damaged: .*; rebuild it with 'kbroker log recover-metadata .*', or restore it from a backup",
        ),
    ],
)
def test_damage(folder: Folder, damage: Callable[[Folder], None], message: str) -> None:
    folder.start()
    damage(folder)
    for server in ("4.3", KBROKER):
        assert re.search(message, folder.obstacle(server))


def test_a_snapshot_that_is_damaged(folder: Folder) -> None:
    """kbroker reads the log instead of a damaged snapshot; Apache Kafka does not."""
    folder.start(topic())
    folder.partition("orders-0")
    path = folder.log.with_name(snapshot_name(3, 1))
    write_snapshot(path, [feature("metadata.version", 30)], NOW_MS)
    path.write_bytes(path.read_bytes()[:-9])
    (loss,) = folder.losses()
    assert loss.startswith(f"{path}: ")
    assert loss.endswith("; an older snapshot and the log are read instead")
    assert folder.obstacle("4.3").endswith("; Apache Kafka reads no other: move it to another folder")


def test_a_log_that_begins_with_a_snapshot(folder: Folder) -> None:
    """Records below the end of a snapshot are neither required nor replayed after it."""
    folder.start(topic())
    folder.partition("orders-0")
    end = folder.offset
    write_snapshot(folder.log.with_name(snapshot_name(end, 1)), [feature("metadata.version", 30), *topic()], NOW_MS)
    folder.add([record("RemoveTopicRecord", TopicId=TOPIC_ID)])
    assert folder.losses() == ["1 partition folder (orders-0) of no topic: not served"]
    folder.log.write_bytes(b"")
    folder.log.rename(folder.log.with_name(f"{end:020d}.log"))
    assert folder.losses() == []
    write_snapshot(folder.log.with_name(snapshot_name(1, 1)), [], NOW_MS)
    assert folder.losses() == []


def test_transactions_of_records(folder: Folder) -> None:
    """Records of a transaction take effect at its end; aborted and open transactions have no effect."""
    begin, end = record("BeginTransactionRecord", Name="t"), record("EndTransactionRecord")
    abort = record("AbortTransactionRecord", Reason="r")
    names = iter(("one", "two", "three", "four"))
    made = iter(range(1, 9))

    def new() -> list[MetadataRecord]:
        return topic(next(names), (OTHER,), UUID(int=next(made) << 90))

    folder.start()
    folder.add([begin, *new(), end])
    folder.add([begin, *new()])
    folder.add([abort, *new()])
    folder.add([begin, *new()])
    metadata = read_metadata(folder.path)
    assert metadata is not None
    assert sorted(metadata.image.topics) == ["one", "three"]


def test_folders_without_metadata(tmp_path: Path) -> None:
    """Folders that are empty, of an earlier kbroker, without metadata or without an owner have their own findings."""
    names = ("empty", "old", "bare", "lost", "unowned", "unreadable")
    found: dict[str, Any] = {name: tmp_path / name for name in names}
    for path in found.values():
        path.mkdir()

    def obstacles(name: str, server: str = KBROKER) -> Sequence[str]:
        return judge(read_folders([found[name]]), server).obstacles

    assert obstacles("empty") == []
    assert obstacles("empty", "4.3") == ["the folder is not formatted: run kbroker storage format"]
    assert read_folders([found["empty"]]).title() == f"{found['empty']}: not formatted"
    (found["old"] / "kbroker-metadata.db").touch()
    for server in ("4.3", KBROKER):
        assert obstacles("old", server)[0].startswith(f"{found['old']}/kbroker-metadata.db has the metadata of a")
    format_folders([found["lost"]], found["lost"], cluster_id="c", node_id=1, now_ms=NOW_MS)
    for name in ("bare", "lost"):
        (found[name] / "orders-0").mkdir()
        write_partition_metadata(found[name] / "orders-0", TOPIC_ID)
        for server in ("4.3", KBROKER):
            assert obstacles(name, server)[0].startswith("the metadata is missing: name the folder of the metadata log")
    format_folders([found["unowned"]], found["unowned"], cluster_id="c", node_id=1, now_ms=NOW_MS)
    (found["unowned"] / "meta.properties").unlink()
    assert obstacles("unowned") == ["meta.properties is missing: restore it from a backup"]
    (found["unreadable"] / "meta.properties").write_text("version=1\n")
    assert "meta.properties: no " in obstacles("unreadable")[0]


def test_a_log_of_kafka(tmp_path: Path) -> None:
    """Image and findings are the same from the snapshots and the log of an Apache Kafka as from the log alone."""
    path = tmp_path / "data"
    log = path / "__cluster_metadata-0"
    log.mkdir(parents=True)
    content = kafka_metadata_log()
    for name in (LOG, *SNAPSHOTS):
        (log / name).write_bytes(content[name])
    (path / BOOTSTRAP).write_bytes(content[BOOTSTRAP])
    write_quorum_state(log, QuorumState(NODE, 99), 1)
    write_meta_properties(path, MetaProperties("c", NODE, UUID(int=9 << 70)))
    from_snapshot = read_metadata(path)
    for name in SNAPSHOTS:
        (log / name).unlink()
    from_log = read_metadata(path)
    assert from_log is not None
    assert from_snapshot is not None
    # Kafka's snapshot lacks bob: ScramDelta loses users of a mechanism if another user of it was added and removed
    assert from_log.image._replace(scram_credentials={}) == from_snapshot.image._replace(scram_credentials={})
    assert {*from_log.image.scram_credentials} == {("alice", "SCRAM-SHA-256"), ("bob", "SCRAM-SHA-512")}
    assert from_log.loaded.kraft_version == 1
    assert from_log.loaded.voters is not None
    assert [voter.id for voter in from_log.loaded.voters.voters] == [NODE]
    verdict = judge(read_folders([path]), "4.3")
    assert verdict.obstacles[0].startswith("the voter 1 has the directory id smFFdR0_RPqhC3m6Q_uEXA")
    obstacles = judge(read_folders([path]), KBROKER).obstacles
    assert "found 1@smFFdR0_RPqhC3m6Q_uEXA; if meta.properties was lost" in obstacles[0]
    assert obstacles[1].startswith("partition orders-0 (and 3 more): expected its only replica on node 1, found")
