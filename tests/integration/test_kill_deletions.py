"""kill -9 while topics are created, extended and deleted: each folder on the disk belongs to a partition."""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.log_dir import parse_partition_folder
from kbroker.protocol import codec
from tests.support import wire
from tests.support.broker import BrokerProcess
from tests.support.client import Client
from tests.support.wire import Connection

NAMES = [f"t{number}" for number in range(6)]
UNKNOWN_TOPIC_OR_PARTITION = 3


def delete(connection: Connection, name: str) -> int:
    request = wire.header(wire.DELETE_TOPICS, 1) + b"\0\0\0\1" + wire.text(name) + b"\0\0\x27\x10"
    return wire.first_topic_error(connection.ask(request))


def make_and_delete(broker: BrokerProcess, stop: threading.Event, name: str) -> None:
    """Create a topic, write to it and delete it, until the broker has ended."""
    with contextlib.suppress(OSError, wire.Closed), Connection(broker.bootstrap) as connection:
        while not stop.is_set():
            connection.ask(wire.create_topic(name, 3))
            connection.ask(wire.produce(name, 0, wire.batch([b"value"])))
            delete(connection, name)


@pytest.mark.slow
def test_kill_9_while_topics_are_deleted(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, soak: bool
) -> None:
    """After each kill, every folder belongs to an existing topic, and records of other topics are kept."""
    chance = random.Random(20261122)
    broker = start_broker(folder=tmp_path / "data")
    with Connection(broker.bootstrap) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic("kept", 1))) == 0
        assert wire.produced(connection.ask(wire.produce("kept", 0, wire.batch([b"value"])))).error_code == 0
    for _ in range(60 if soak else 4):
        stop = threading.Event()
        crowd = [threading.Thread(target=make_and_delete, args=(broker, stop, name)) for name in NAMES]
        for thread in crowd:
            thread.start()
        time.sleep(chance.uniform(0.05, 0.4))
        broker.kill()
        stop.set()
        for thread in crowd:
            thread.join(20)
        broker.start()
        folders = [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()]
        assert not [name for name in folders if name.endswith("-stray")]
        assert not [line for line in broker.output if "belongs to no topic" in line or "another topic" in line]
        with Connection(broker.bootstrap) as connection:
            present = {name for name in NAMES if delete(connection, name) == 0} | {"kept", "__cluster_metadata"}
        keys = [key for name in folders if (key := parse_partition_folder(name)) is not None]
        assert {topic for topic, _ in keys} == present
        with Connection(broker.bootstrap) as connection:
            assert len(wire.fetched(connection.ask(wire.fetch("kept"))).batches()) == 1


def add_partitions(connection: Connection, name: str, count: int) -> None:
    body = {"Topics": [{"Name": name, "Count": count, "Assignments": None}], "TimeoutMs": 10_000}
    connection.send_raw(codec.encode_request_frame(wire.CREATE_PARTITIONS, 2, 1, "raw", body))
    connection.receive()


def grow(broker: BrokerProcess, stop: threading.Event, name: str) -> None:
    """Add partitions to a topic until the broker has ended."""
    with contextlib.suppress(OSError, wire.Closed), Connection(broker.bootstrap) as connection:
        for count in range(10, 4000, 10):
            if stop.is_set():
                break
            add_partitions(connection, name, count)


@pytest.mark.slow
def test_kill_9_while_partitions_are_added(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, soak: bool
) -> None:
    """After each kill, every folder belongs to a partition; partitions without acknowledgement leave no folder."""
    chance = random.Random(20261123)
    broker = start_broker(folder=tmp_path / "data")
    left = 0
    for turn in range(60 if soak else 4):
        name = f"grown-{turn}"
        with Connection(broker.bootstrap) as connection:
            assert wire.first_topic_error(connection.ask(wire.create_topic(name, 1))) == 0
        stop = threading.Event()
        growing = threading.Thread(target=grow, args=(broker, stop, name))
        growing.start()
        time.sleep(chance.uniform(0.05, 0.4))  # the moment of the kill is random
        broker.kill()
        stop.set()
        growing.join(20)
        before = {path.name for path in (tmp_path / "data").glob(f"{name}-*/")}
        broker.start()
        folders = {path.name for path in (tmp_path / "data").glob(f"{name}-*/")}
        left += len(before) - len(folders)
        assert folders == {f"{name}-{number}" for number in range(len(folders))}
        assert len(folders) % 10 == 0 or len(folders) == 1
        assert not [line for line in broker.output if "belongs to no topic" in line or "is not served" in line]
        with Connection(broker.bootstrap) as connection:
            last = connection.ask(wire.produce(name, len(folders) - 1, wire.batch([b"value"])))
            assert wire.produced(last) == wire.Produced(0, 0)
            beyond = connection.ask(wire.produce(name, len(folders), wire.batch([b"value"])))
            assert wire.produced(beyond).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert left > 0 or not soak, "no kill came between the folders and the metadata"


def test_kill_9_after_records_were_deleted(start_broker: Callable[..., BrokerProcess]) -> None:
    """Deleted records stay deleted: the new log start offset was on the disk before the response."""
    broker = start_broker()
    with Client(broker.bootstrap) as client:
        assert wire.first_topic_error(client.ask(wire.create_topic("t", 1))) == 0
        for _ in range(3):
            assert wire.produced(client.ask(wire.produce("t", 0, wire.batch([b"value"])))).error_code == 0
        row = {"PartitionIndex": 0, "Offset": 2}
        body = {"Topics": [{"Name": "t", "Partitions": [row]}], "TimeoutMs": 10_000}
        (topic,) = client.call("DeleteRecords", 2, body)["Topics"]
        assert topic["Partitions"] == [{"PartitionIndex": 0, "LowWatermark": 2, "ErrorCode": 0}]
    broker.kill()
    broker.start()
    with Client(broker.bootstrap) as client:
        partition = {"PartitionIndex": 0, "Timestamp": -2}
        where = {"ReplicaId": -1, "Topics": [{"Name": "t", "Partitions": [partition]}]}
        (topic,) = client.call("ListOffsets", 1, where)["Topics"]
        assert topic["Partitions"][0]["Offset"] == 2
