"""Several log folders of a broker process: moves under load with kill -9, removed folders, Kafka's tools."""

import contextlib
import json
import random
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kbroker.common.errors import Errors
from kbroker.log.checkpoints import read_meta_properties
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE
from kbroker.metadata.records.batches import read_batches
from kbroker.testing import EmbeddedBroker, VirtualBroker
from tests.support import need, wire
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Client, more_partitions
from tests.support.kafka.tools import TOOLS, Tools
from tests.support.kill import PARTITIONS, AckLog, check_partition, create_topic, finish, read_all, start_module
from tests.support.seeds import random_seed
from tests.support.wire import Connection

TOPIC = "moved"


def described(client: Client) -> dict[str, dict[int, list[bool]]]:
    """Return the partitions of each folder, and for each replica whether it is a future one."""
    response = client.call("DescribeLogDirs", 4, {"Topics": None})
    found: dict[str, dict[int, list[bool]]] = {}
    for folder in response["Results"]:
        assert folder["ErrorCode"] == 0
        rows = found.setdefault(Path(folder["LogDir"]).name, {})
        for topic in folder["Topics"]:
            if topic["Name"] == TOPIC:
                for row in topic["Partitions"]:
                    rows.setdefault(row["PartitionIndex"], []).append(row["IsFutureKey"])
    return found


def move(client: Client, partition: int, folder: Path) -> int:
    topics = [{"Name": TOPIC, "Partitions": [partition]}]
    response = client.call("AlterReplicaLogDirs", 2, {"Dirs": [{"Path": str(folder), "Topics": topics}]})
    error = response["Results"][0]["Partitions"][0]["ErrorCode"]
    assert isinstance(error, int)
    return error


def move_all(broker: BrokerProcess, folders: list[Path]) -> None:
    """Begin to move every partition to the folder that does not have it."""
    with closing(Client(broker.bootstrap)) as client:
        for name, partitions in described(client).items():
            for partition, replicas in partitions.items():
                if replicas == [False]:
                    assert move(client, partition, next(one for one in folders if one.name != name)) == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("flush_messages", [1 << 62, 1], ids=["default", "each record"])
def test_kills_during_moves_lose_nothing(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, soak: bool, flush_messages: int
) -> None:
    """Each acknowledged record is kept while partitions are moved between folders and the broker is killed.

    The rate makes a move last as long as the wait before the kill, so that the kills hit every phase of a move.
    """
    rng = random.Random(random_seed())
    folders = [tmp_path / "a", tmp_path / "b"]
    broker = start_broker(
        log__dirs=",".join(map(str, folders)),
        log__flush__interval__messages=str(flush_messages),
        replica__alter__log__dirs__io__max__bytes__per__second="20000000",
    )
    create_topic(broker.bootstrap, TOPIC, PARTITIONS, segment_bytes=str(1 << 20))
    log = AckLog(tmp_path / "acks")
    producer = start_module("acked_producer", broker.bootstrap, TOPIC, str(PARTITIONS), str(log.path), "none")
    try:
        for _ in range(100 if soak else 4):
            known = len(log.read().acks)
            wait_for("acknowledgements", lambda known=known: len(log.read().acks) > known + 50 or log.trouble, 60)  # type: ignore[misc]
            assert log.trouble == [], broker.tail()
            move_all(broker, folders)
            time.sleep(rng.uniform(0.0, 1.5))  # the moment of the kill is random
            broker.kill()
            broker.start()
        before = settled_homes(broker, folders)
        move_all(broker, folders)
        others = [next(one.name for one in folders if one.name != name) for name in before]
        assert settled_homes(broker, folders) == others
        known = len(log.read().acks)
        wait_for("acknowledgements at the end", lambda: len(log.read().acks) > known or log.trouble, 60)
    finally:
        finish(producer)
    assert log.read().trouble == []
    for partition in range(PARTITIONS):
        check_partition(partition, read_all(broker.bootstrap, TOPIC, partition), log)
    print(f"{len(log.acks)} records")


def settled_homes(broker: BrokerProcess, folders: list[Path]) -> list[str]:
    """Return the name of the one folder of each partition, once no move is left.

    The former folder is renamed a moment after the move is over for clients.
    """

    def homes() -> list[list[str]]:
        return [[one.name for one in folders if (one / f"{TOPIC}-{number}").exists()] for number in range(PARTITIONS)]

    wait_for("the ends of all moves", lambda: is_settled(broker) and all(len(one) == 1 for one in homes()), 120)
    return [one[0] for one in homes()]


def is_settled(broker: BrokerProcess) -> bool:
    with closing(Client(broker.bootstrap)) as client:
        return all(replicas == [False] for rows in described(client).values() for replicas in rows.values())


@pytest.mark.parametrize("home", ["a", "b", "elsewhere"])
def test_the_metadata_names_the_folder_of_each_partition(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, home: str
) -> None:
    """The metadata log has the folder of each partition after creation, extension, a move and a restart."""
    folders = [tmp_path / "a", tmp_path / "b"]
    settings = {"log__dirs": ",".join(map(str, folders)), "metadata__log__dir": str(tmp_path / home)}
    broker = start_broker(**settings)
    create_topic(broker.bootstrap, TOPIC, 3)
    with Client(broker.bootstrap) as client:
        assert client.call("CreatePartitions", 3, more_partitions(TOPIC, 4))["Results"][0]["ErrorCode"] == 0
    stored = stored_folders(broker, tmp_path / home, folders)
    assert stored == real_folders(folders)
    (target,) = (one for one in folders if one != stored[0])
    with Client(broker.bootstrap) as client:
        assert move(client, 0, target) == 0
        wait_for("the move", lambda: described(client)[target.name].get(0) == [False])
    moved = stored_folders(broker, tmp_path / home, folders)
    assert moved == {**stored, 0: target} == real_folders(folders)
    broker.kill()
    (other,) = (one for one in folders if one != moved[1])
    shutil.move(moved[1] / f"{TOPIC}-1", other)  # moved by hand while the broker is stopped
    broker.start()
    assert stored_folders(broker, tmp_path / home, folders) == {**moved, 1: other}


def real_folders(folders: list[Path]) -> dict[int, Path]:
    """Return the log folder of each partition on the disk."""
    return {index: one for one in folders for index in range(4) if (one / f"{TOPIC}-{index}").exists()}


def stored_folders(broker: BrokerProcess, home: Path, folders: list[Path]) -> dict[int, Path]:
    """Restart the broker; return the log folder of each partition in the metadata log."""
    assert broker.stop() == 0, broker.tail()
    owners = {owner.directory_id: one for one in folders if (owner := read_meta_properties(one)) is not None}
    delta = MetadataDelta(EMPTY_IMAGE)
    for batch in read_batches((home / "__cluster_metadata-0" / f"{0:020}.log").read_bytes()):
        for record in batch.records:
            if record.name in ("TopicRecord", "PartitionRecord", "PartitionChangeRecord"):
                delta.replay(record)
    broker.start()
    partitions = delta.apply(0, 0).topics[TOPIC].partitions
    return {index: owners[one] for index, partition in enumerate(partitions) for one in partition.directories}


def test_a_folder_that_is_removed(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """Partitions of a removed folder refuse records after the next checkpoint; other folders are not affected."""
    folders = [tmp_path / "a", tmp_path / "b"]
    broker = start_broker(
        log__dirs=",".join(map(str, folders)), replica__high__watermark__checkpoint__interval__ms="100"
    )
    create_topic(broker.bootstrap, TOPIC, 2)
    request = [wire.produce(TOPIC, partition, wire.batch([b"value"])) for partition in range(2)]
    removed = next(partition for partition in range(2) if (folders[1] / f"{TOPIC}-{partition}").exists())
    with Connection(broker.bootstrap) as connection:
        assert [wire.produced(connection.ask(one)) for one in request] == [wire.Produced(0, 0)] * 2
        shutil.rmtree(folders[1])
        refused = wire.Produced(Errors.KAFKA_STORAGE_ERROR, -1)
        wait_for("the refusal", lambda: wire.produced(connection.ask(request[removed])) == refused)
        assert wire.produced(connection.ask(request[1 - removed])) == wire.Produced(0, 1)
        assert wire.first_topic_error(connection.ask(wire.create_topic("other", 1))) == 0
    assert f"log folder {folders[1]} is offline" in broker.tail()
    broker.kill()
    broker.start()
    assert wire.end_offset(broker.bootstrap, TOPIC, 1 - removed) == 2
    assert "Traceback" not in "".join(broker.output)


@pytest.mark.parametrize("names", ["a", "a,b"])
def test_the_folder_of_the_metadata_log_is_renamed(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, names: str
) -> None:
    """The broker ends with status 1 and a line that names the folder; under the new name no record is missing."""
    folders = [tmp_path / name for name in names.split(",")]
    broker = start_broker(
        log__dirs=",".join(map(str, folders)), replica__high__watermark__checkpoint__interval__ms="100"
    )
    create_topic(broker.bootstrap, TOPIC, 1)
    with Connection(broker.bootstrap) as connection:
        assert wire.produced(connection.ask(wire.produce(TOPIC, 0, wire.batch([b"value"])))) == wire.Produced(0, 0)
        folders[0].rename(tmp_path / "new")
    wait_for("the end of the broker", lambda: not broker.is_alive())
    assert broker.stop() == 1
    assert f"kbroker: the log folder {folders[0]} no longer exists (" in broker.tail()
    assert "Traceback" not in "".join(broker.output)
    (tmp_path / "new").rename(folders[0])
    broker.start()
    assert wire.end_offset(broker.bootstrap, TOPIC, 0) == 1


def test_a_program_outlives_its_embedded_broker(tmp_path: Path) -> None:
    """An embedded broker whose folder is removed stops, and only the broker; ``failure`` has the reason."""
    with VirtualBroker({"log.dirs": str(tmp_path / "data")}) as broker:
        broker.create_topic(TOPIC, 1)
        shutil.rmtree(tmp_path / "data")
        with contextlib.suppress(RuntimeError):  # the broker stops while the time is advanced
            broker.advance_ms(10_000)
        wait_for("the end of the broker", lambda: not broker.is_running)
        assert f"the log folder {tmp_path / 'data'} no longer exists" in broker.failure


def test_a_folder_that_is_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first start without one of the former folders warns of its partitions, which begin empty."""
    folders = [tmp_path / "a", tmp_path / "b"]
    with EmbeddedBroker({"log.dirs": ",".join(map(str, folders))}) as broker:
        broker.create_topic(TOPIC, 2)
    (lost,) = [path.name for path in folders[1].glob(f"{TOPIC}-*")]
    for _ in range(2):
        with EmbeddedBroker({"log.dirs": str(folders[0])}):
            pass
    (warning,) = [one.getMessage() for one in caplog.records if "log.dirs" in one.getMessage()]
    assert f"does not name the folder of 1 partition ({lost}), empty now" in warning


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kafkas_tools_move_a_partition(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """kafka-log-dirs shows both folders; kafka-reassign-partitions moves a partition and verifies the move."""
    need.kafka_tools()
    folders = [tmp_path / "a", tmp_path / "b"]
    broker = start_broker(log__dirs=",".join(map(str, folders)))
    tool = Tools(broker.bootstrap)
    create_topic(broker.bootstrap, TOPIC, 1)
    (there,) = (folder for folder in folders if not (folder / f"{TOPIC}-0").exists())

    def shown() -> dict[str, list[Any]]:
        dirs = json.loads(tool(TOOLS + "LogDirsCommand", "--describe", "--topic-list", TOPIC).splitlines()[-1])
        return {row["logDir"]: row["partitions"] for row in dirs["brokers"][0]["logDirs"]}

    assert sorted(shown()) == sorted(map(str, folders))
    plan = tmp_path / "plan.json"
    partition = {"topic": TOPIC, "partition": 0, "replicas": [1], "log_dirs": [str(there)]}
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    reassign = (TOOLS + "reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan))
    text = tool(*reassign, "--execute", "--replica-alter-log-dirs-throttle", "50000000")
    assert f"Successfully started moving log directory to {there} for replica {TOPIC}-0 with broker 1" in text
    wait_for("the move", lambda: (there / f"{TOPIC}-0").exists(), 30)
    assert f"Reassignment of replica {TOPIC}-0-1 completed successfully." in tool(*reassign, "--verify")
    (row,) = shown()[str(there)]
    assert (row["partition"], row["isFuture"], row["offsetLag"]) == (f"{TOPIC}-0", False, 0)


def test_each_thread_has_a_name(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """Each thread of a broker except the main one shows its own name in ps, top and perf."""
    broker = start_broker(log__dirs=f"{tmp_path / 'a'},{tmp_path / 'b'}", kbroker__metrics__listener="127.0.0.1:0")
    tasks = Path(f"/proc/{broker.pid}/task")
    main = (tasks / str(broker.pid) / "comm").read_text()
    wait_for("all names", lambda: [one.read_text() for one in tasks.glob("*/comm")].count(main) == 1)
    names = {one.read_text().strip() for one in tasks.glob("*/comm")}
    assert {"log-flusher-0", "log-flusher-1", "log-scheduler-1", "throttle-reaper", "network-0"} <= names
    assert {"metrics", "group-rebalance", "group-heartbeat"} <= names
