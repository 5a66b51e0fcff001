"""Conversion of a kbroker that was its own controller to a broker of a cluster, with the same folder and node id."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.client.quotas import QuotaClient
from kbroker.common.errors import Errors
from kbroker.log.checkpoints import random_uuid_text
from tests.support import cli, need
from tests.support.broker import BrokerProcess, ConfiguredBroker, wait_for
from tests.support.client import Client, librdkafka_consumer, librdkafka_producer, set_quotas
from tests.support.either_broker import KafkaNode
from tests.support.ports import free_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NODE_ID, CONTROLLER_ID = 5, 101
TOPIC, GROUP, RECORDS, COMMITTED = "kept", "readers", 100, 40
QUOTAS = set_quotas("user", "alice", {"producer_byte_rate": 5e6, "shadow.producer_byte_rate": 4e6})


def fill(folder: Path) -> None:
    """Store records, committed offsets and a quota with a kbroker that is its own controller."""
    settings = {"node.id": str(NODE_ID), "group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "2"}
    with BrokerProcess(folder, settings) as broker:
        producer = librdkafka_producer(broker.bootstrap)
        for number in range(RECORDS):
            producer.produce(TOPIC, str(number).encode())
        assert producer.flush(30) == 0
        consumer = librdkafka_consumer(broker.bootstrap, GROUP)
        consumer.subscribe([TOPIC])
        assert len(consumer.consume(COMMITTED, 30)) == COMMITTED
        consumer.commit(asynchronous=False)
        consumer.close()
        with Client(broker.bootstrap) as client:
            entries = client.call("AlterClientQuotas", 1, QUOTAS)["Entries"]
            assert entries[0]["ErrorCode"] == 0


def check_front_door(bootstrap: str) -> None:
    """Check that kbroker describes the topic and the quotas, and that the partition is offline."""
    with Client(bootstrap) as client:
        (topic,) = client.call("Metadata", 13, {"Topics": [{"Name": TOPIC}]})["Topics"]
        (row,) = topic["Partitions"]
        assert (row["ErrorCode"], row["LeaderId"]) == (Errors.LEADER_NOT_AVAILABLE, -1)
        assert (row["ReplicaNodes"], row["OfflineReplicas"]) == ([NODE_ID], [NODE_ID])
        found = client.call("DescribeClientQuotas", 1, {"Components": [], "Strict": False})["Entries"]
        values = {value["Key"]: value["Value"] for entry in found for value in entry["Values"]}
        assert values == {"producer_byte_rate": 5e6, "shadow.producer_byte_rate": 4e6}


def check_shadows(bootstrap: str) -> None:
    """Check that a new shadow quota is refused with the reason, and that an existing one can be promoted."""
    words = ("--bootstrap-server", bootstrap, "--user", "alice")
    refused = cli.refusal(cli.run(None, "quotas", "set", *words, "shadow.request_percentage=50"))
    assert "Invalid configuration key shadow.request_percentage" in refused
    assert "keeps its quotas in Apache Kafka" in refused
    cli.printed(None, "quotas", "shadow", "promote", *words)
    with QuotaClient(bootstrap) as client:
        wait_for("the promotion", lambda: [*client.describe().values()] == [{"producer_byte_rate": 4e6}])


def check_leader(bootstrap: str) -> None:
    """Check that the records and offsets were kept and that a new record follows them."""
    consumer = librdkafka_consumer(bootstrap, GROUP)
    consumer.subscribe([TOPIC])
    found = [message.value() for message in consumer.consume(RECORDS - COMMITTED, 60)]
    consumer.close()
    assert found == [str(number).encode() for number in range(COMMITTED, RECORDS)]
    offsets: list[int | None] = []
    producer = librdkafka_producer(bootstrap, acks="all")
    producer.produce(TOPIC, b"new", on_delivery=lambda error, message: offsets.append(message.offset()))
    assert producer.flush(30) == 0
    assert offsets == [RECORDS]


def test_a_folder_joins_a_cluster_of_its_metadata(tmp_path: Path) -> None:
    """kbroker serves the metadata of its separated folder; then Apache Kafka leads the partitions of the folder."""
    need.kafka_tools()
    data, output, port = tmp_path / "data", tmp_path / "separated", free_run(2)
    fill(data)
    voters = f"{CONTROLLER_ID}@127.0.0.1:{port}:{random_uuid_text()}"
    words = ("storage", "separate", "--initial-controllers", voters, "--output", str(output), str(data))
    printed = cli.printed(None, *words)
    assert printed == f"controller {CONTROLLER_ID}: {output / 'controller-101'}\nbroker: {data}\n"
    assert not (data / "__cluster_metadata-0").exists()
    assert (output / f"broker-{NODE_ID}" / "__cluster_metadata-0").is_dir()

    common = {
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
    }
    of_controller = written(
        tmp_path / "controller.properties",
        {**common, "process.roles": "controller", "node.id": str(CONTROLLER_ID),
         "listeners": f"CONTROLLER://127.0.0.1:{port}", "log.dirs": str(output / "controller-101")},
    )  # fmt: skip
    of_broker = written(
        tmp_path / "broker.properties",
        {**common, "process.roles": "broker", "node.id": str(NODE_ID), "log.dirs": str(data),
         "listeners": f"PLAINTEXT://127.0.0.1:{port + 1}", "offsets.topic.num.partitions": "2"},
    )  # fmt: skip
    with KafkaNode(tmp_path / "controller", port, of_controller):
        member = ConfiguredBroker(tmp_path, port + 1, of_broker)
        with member:
            check_front_door(member.bootstrap)
            assert "offline here" in member.tail()
        with KafkaNode(tmp_path / "broker", port + 1, of_broker) as broker:
            check_leader(broker.bootstrap)
            broker.end()
        with member:
            check_front_door(member.bootstrap)
            check_shadows(member.bootstrap)


def written(path: Path, properties: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
    return path


def test_folders_that_cannot_be_separated(tmp_path: Path) -> None:
    """A killed broker's folder, a controller with the broker's id, and a folder without metadata are refused unchanged.

    Metadata that is moved back makes the node its own controller again.
    """
    data, output = tmp_path / "data", tmp_path / "output"
    directory = random_uuid_text()

    def refused(controller: int) -> str:
        return cli.refusal(cli.run(None, *words(controller)))

    def words(controller: int) -> list[str]:
        voters = f"{controller}@127.0.0.1:9093:{directory}"
        return ["storage", "separate", "--output", str(output), "--initial-controllers", voters, str(data)]

    data.mkdir()
    assert "found no metadata" in refused(102)
    broker = BrokerProcess(data, {"node.id": "101"})
    broker.start()
    assert str(broker.pid) in refused(102)
    broker.kill()
    assert "node id 101 is that of the broker" in refused(101)
    assert "expected the mark of a clean stop" in refused(102)
    assert not output.exists()
    with broker:
        pass
    cli.printed(None, *words(102))
    assert "found no metadata" in refused(102)
    for path in (output / "broker-101").iterdir():
        shutil.move(path, data)
    with broker:
        pass
