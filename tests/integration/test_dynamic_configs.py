"""Configs that a client changes at run time: in force with the response, and after a restart."""

import threading
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from kbroker.broker import Broker
from kbroker.common.configs.config_resource import ConfigChange
from kbroker.common.errors import KafkaError
from kbroker.protocol.records import iter_batches
from tests.support.client import librdkafka_producer, send_values

pytestmark = pytest.mark.timeout(60)


def settings(folder: Path) -> dict[str, object]:
    return {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder)}


def change(broker: Broker, kind: ResourceType, name: str, **values: str) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]).values():
        future.result(20)


def produce(broker: Broker, value: bytes) -> object:
    """Return the error of one record's delivery, None without an error."""
    producer = librdkafka_producer(broker.bootstrap_servers, **{"message.max.bytes": 2_000_000})
    return send_values(producer, value)[0]


def test_topic_and_broker_configs_act_at_once_and_stay(tmp_path: Path) -> None:
    """A topic config, a default of all topics and the number of handlers are in force from the next request on."""
    with Broker(settings(tmp_path)) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1)])["t"].result(20)
        assert produce(broker, b"x" * 10_000) is None
        change(broker, ResourceType.TOPIC, "t", compression_type="gzip")
        assert produce(broker, b"y" * 10_000) is None
        log = broker.context.topics.partition("t", 0)
        stored = [batch.compression for offset in (0, 1) for batch in iter_batches(log.read(offset, 1).records)]
        assert stored[0] == 0
        assert stored[-1] == 1

        # librdkafka's AdminClient cannot name the default of the cluster
        default = [ConfigChange("message.max.bytes", 0, "5000")]
        broker.context.dynamic.alter(4, "", default)
        failed = produce(broker, b"z" * 10_000)
        assert failed is not None
        assert failed.code() == 10  # type: ignore[attr-defined]

        change(broker, ResourceType.BROKER, "1", num_io_threads="4")
        change(broker, ResourceType.BROKER, "1", num_io_threads="6")
        assert produce(broker, b"small") is None
        with pytest.raises(KafkaException) as refusal:
            change(broker, ResourceType.BROKER, "1", num_io_threads="1")
        assert refusal.value.args[0].code() == 42
        with pytest.raises(KafkaException) as refusal:
            change(broker, ResourceType.BROKER, "1", node_id="5")
        assert "Cannot update these configs dynamically: [node.id]" in refusal.value.args[0].str()

    others = threading.enumerate()  # threads of the broker that several tests share
    with Broker(settings(tmp_path)) as broker:
        assert broker.config.integer("num.io.threads") == 6
        started = [one for one in threading.enumerate() if one not in others]
        handlers = [one for one in started if one.name.startswith("data-plane-kafka-request-handler-")]
        assert len(handlers) == 6
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "t")]).values()
        rows = future.result(20)
        assert (rows["compression.type"].value, ConfigSource(rows["compression.type"].source)) == (
            "gzip", ConfigSource.DYNAMIC_TOPIC_CONFIG,
        )  # fmt: skip
        assert (rows["max.message.bytes"].value, ConfigSource(rows["max.message.bytes"].source)) == (
            "5000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(2, "retention.bytes", "-2"), (2, "segment.index.bytes", "7"), (4, "log.index.size.max.bytes", "7"),
     (4, "log.retention.bytes", "-5"), (4, "log.retention.ms", "-9"), (4, "log.flush.interval.ms", "-1")],
)  # fmt: skip
def test_odd_values_that_kafka_takes_keep_partitions_online(tmp_path: Path, kind: int, name: str, value: str) -> None:
    """With an unusual value that Kafka accepts, partitions stay online, even after a restart, and can be created."""
    with Broker(settings(tmp_path)) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1)])["t"].result(20)
        broker.context.dynamic.alter(kind, "t" if kind == 2 else "", [ConfigChange(name, 0, value)])
        assert produce(broker, b"before") is None
    with Broker(settings(tmp_path)) as broker:
        assert produce(broker, b"after") is None
        log = broker.context.topics.partition("t", 0)
        assert (log.log_start_offset, log.log_end_offset) == (0, 2)
        configs = {name: value} if kind == 2 else {}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("u", 2, config=configs)])["u"].result(20)
        assert broker.context.topics.partition("u", 1) is not None


def test_a_listener_has_network_threads_of_its_own(tmp_path: Path) -> None:
    """`listener.name.NAME.num.network.threads` applies at the start and at run time, to that listener only."""
    two = {
        **settings(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        "num.network.threads": 2,
        "listener.name.inside.num.network.threads": 3,
    }
    with Broker(two) as broker:

        def threads() -> dict[str, int]:
            return dict(Counter(processor.listener_name for processor in broker.parts.server.processors))

        assert threads() == {"PLAINTEXT": 2, "INSIDE": 3}
        broker.context.dynamic.alter(4, "1", [ConfigChange("listener.name.inside.num.network.threads", 0, "5")])
        assert threads() == {"PLAINTEXT": 2, "INSIDE": 5}
        broker.context.dynamic.alter(4, "", [ConfigChange("num.network.threads", 0, "1")])
        assert threads() == {"PLAINTEXT": 1, "INSIDE": 5}
        with pytest.raises(KafkaError, match="should be at least half the current value 5"):
            broker.context.dynamic.alter(4, "1", [ConfigChange("listener.name.inside.num.network.threads", 0, "1")])
        assert threads() == {"PLAINTEXT": 1, "INSIDE": 5}


def test_network_threads_change_while_clients_produce(tmp_path: Path) -> None:
    """Clients of network threads that end reconnect and lose no record."""
    with Broker({**settings(tmp_path), "num.network.threads": 2}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1)])["t"].result(20)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        errors: list[object] = []
        sent = 0
        for count in (4, 2, 1, 2, 4, 8, 4):
            change(broker, ResourceType.BROKER, "1", num_network_threads=str(count))
            assert len(broker.parts.server.processors) == count
            for _ in range(200):
                producer.produce("t", b"%d" % sent, on_delivery=lambda error, _: errors.append(error))
                sent += 1
                producer.poll(0)
            assert producer.flush(30) == 0
        assert errors == [None] * sent
        with pytest.raises(KafkaException, match="should not be greater than double the current value 4"):
            change(broker, ResourceType.BROKER, "1", num_network_threads="9")
        with pytest.raises(KafkaException, match="should be at least half the current value 4"):
            change(broker, ResourceType.BROKER, "1", num_network_threads="1")
        log = broker.context.topics.partition("t", 0)
        assert log.log_end_offset == sent
    with Broker(settings(tmp_path)) as broker:
        assert len(broker.parts.server.processors) == 4
