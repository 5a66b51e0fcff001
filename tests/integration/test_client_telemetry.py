"""Client telemetry: clients push metrics, which the broker keeps, logs and forwards."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer

from kbroker.broker import Broker
from kbroker.common.configs.config_def import ConfigError
from kbroker.handlers.api_table import KafkaApis
from kbroker.telemetry import decoder
from kbroker.telemetry.instances import ClientInstance
from kbroker.testing import EmbeddedBroker
from tests.integration.test_authorization import SASL, log_in
from tests.support.broker import wait_for
from tests.support.cli import printed, refusal, run
from tests.support.client import Client, set_configs
from tests.support.telemetry import gauges

CLIENT_METRICS, SET = 16, 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"kbroker.telemetry.log.dir": str(tmp_path / "log")}) as running:
        subscribe(running, "all", metrics="*", interval_ms="200")
        yield running


def subscribe(broker: Broker, name: str, **configs: str) -> None:
    body = set_configs(CLIENT_METRICS, name, {key.replace("_", "."): value for key, value in configs.items()})
    with Client(broker.bootstrap_servers) as client:
        response = client.call("IncrementalAlterConfigs", 1, body)
    assert response["Responses"][0]["ErrorCode"] == 0


def instance_of(broker: Broker, client_id: str) -> ClientInstance | None:
    service = broker.context.telemetry
    return next((one for one in service.manager.instances if one.facts["client_id"] == client_id), None)


def values(broker: Broker, client_id: str) -> dict[str, float]:
    """Return the latest values of a client's metrics by name."""
    found = instance_of(broker, client_id)
    if found is None:
        return {}
    return {name: value.value for (name, _), value in broker.context.telemetry.series.of(found.uuid).items()}


def test_librdkafka_pushes(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A librdkafka producer and consumer push; the broker logs the pushes and removes clients that disconnect."""
    broker.create_topic("t")
    servers = {"bootstrap.servers": broker.bootstrap_servers, "enable.metrics.push": True}
    producer = Producer({**servers, "client.id": "p"})
    consumer = Consumer({**servers, "client.id": "c", "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])

    def has_both() -> bool:
        producer.produce("t", b"x")
        producer.flush(5)
        consumer.poll(0.05)
        latency, fetched = "producer.node.request.latency.max", "consumer.fetch.manager.fetch.latency.max"
        return values(broker, "p").get(
            f"org.apache.kafka.{latency}", 0
        ) > 0 and f"org.apache.kafka.{fetched}" in values(broker, "c")

    wait_for("pushes of both clients", has_both)
    found = instance_of(broker, "p")
    assert found is not None
    assert found.facts["client_software_name"] == "confluent-kafka-python"
    assert found.facts["client_source_address"] == "127.0.0.1"
    assert found.requested.interval_ms == 200
    consumer.close()
    producer.close()
    wait_for("the end of the connections", lambda: not broker.context.telemetry.manager.instances)
    (file,) = (tmp_path / "log").iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert {record["clientId"] for record in records} == {"p", "c"}
    assert {record["softwareName"] for record in records} == {"confluent-kafka-python"}
    assert any(record["terminating"] for record in records)
    assert broker.context.telemetry.series.figures.series == 0


def test_without_the_decoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the decoder, the APIs are not advertised, and a config that needs the decoder prevents the start."""
    decoder.has_decoder.cache_clear()
    with monkeypatch.context() as changed:
        changed.setattr(decoder, "_FILES", ("no such file",))
        assert {71, 72}.isdisjoint(KafkaApis().ranges())
        with EmbeddedBroker() as broker, Client(broker.bootstrap_servers) as client:
            software = {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"}
            advertised = {row["ApiKey"] for row in client.call("ApiVersions", 3, software)["ApiKeys"]}
            assert {70, 71, 72}.isdisjoint(advertised)
            assert 74 in advertised
        folder, url = str(tmp_path), "http://127.0.0.1:1"
        for name, value, shown in (("log.dir", folder, folder), ("otlp.endpoint", url, "[hidden]")):
            with pytest.raises(ConfigError, match=r"pip install 'kbroker\[telemetry\]'") as refused:
                EmbeddedBroker({f"kbroker.telemetry.{name}": value}).start()
            assert shown in str(refused.value)
            assert (url in str(refused.value)) is False
    decoder.has_decoder.cache_clear()


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    """A log folder that cannot be written prevents the start."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"kbroker\.telemetry\.log\.dir"):
        EmbeddedBroker({"kbroker.telemetry.log.dir": str(tmp_path / "file" / "log")}).start()


@pytest.mark.parametrize(
    "endpoint",
    [
        "collector:4318", "grpc://collector", "http://", "http://a:b", "http://a b", "http://u:p@a",
        "http://a..b", f"http://{'a' * 64}", "http://a/é", "http://a/?k=é",  # the first push would end the forwarder
    ],
)  # fmt: skip
def test_an_endpoint_that_is_no_url(endpoint: str) -> None:
    """An invalid endpoint, which may have a secret, is refused before the start."""
    with pytest.raises(ConfigError, match=r"kbroker\.telemetry\.otlp\.endpoint") as refused:
        Broker({"kbroker.telemetry.otlp.endpoint": endpoint})
    assert endpoint not in refused.value.explain().replace("http://host:port", "")


@pytest.mark.parametrize("endpoint", ["http://collector:4318", "https://bücher.example/a?b=c", "http://[::1]:1/v1"])
def test_an_endpoint_that_is_a_url(endpoint: str) -> None:
    assert Broker({"kbroker.telemetry.otlp.endpoint": endpoint})


def test_configs_of_a_subscription(broker: EmbeddedBroker) -> None:
    """`configs alter` sets the configs of a subscription, with Kafka's error messages."""
    server = ("--bootstrap-server", broker.bootstrap_servers)
    change = ("configs", "alter", "client-metrics", "s", *server)
    assert printed(None, *change, "--set", "match=client_id=a.*", "--set", "metrics=x") == "altered client-metrics s\n"
    shown = printed(None, "configs", "describe", "client-metrics", "s", *server)
    assert "match    client_id=a.*  DYNAMIC_CLIENT_METRICS_CONFIG" in shown
    assert [one.name for one in broker.context.telemetry.manager.subscriptions] == ["all", "s"]
    assert "Illegal client matching pattern: client=a" in refusal(run(None, *change, "--set", "match=client=a"))


def test_no_permission_is_needed() -> None:
    """A user without any ACL receives a subscription and may push metrics, as in Kafka."""
    with EmbeddedBroker(SASL) as broker, log_in(broker.bound_listeners[0].partition("://")[2], "alice") as client:
        granted = client.call("GetTelemetrySubscriptions", 0, {"ClientInstanceId": UUID(int=0)})
        assert granted["ErrorCode"] == 0
        push = {name: granted[name] for name in ("ClientInstanceId", "SubscriptionId")}
        push |= {"Terminating": True, "CompressionType": 0, "Metrics": gauges({"a": 1}).SerializeToString()}
        assert client.call("PushTelemetry", 0, push)["ErrorCode"] == 0
        (found,) = broker.context.telemetry.manager.instances
        assert found.principal == "User:alice"
        assert [name for name, _ in broker.context.telemetry.series.of(found.uuid)] == ["a"]


def test_instances_end_with_their_connections(broker: EmbeddedBroker) -> None:
    manager = broker.context.telemetry.manager
    clients = [Client(broker.bootstrap_servers) for _ in range(3)]
    request = {"ClientInstanceId": UUID(int=0)}
    made = [client.call("GetTelemetrySubscriptions", 0, request)["ClientInstanceId"] for client in clients]

    def known() -> list[UUID]:
        return [uuid for uuid in made if uuid in {one.uuid for one in manager.instances}]

    assert known() == made
    for number, client in enumerate(clients):
        client.close()
        wait_for("the end of the instance", lambda left=made[number + 1 :]: known() == left)  # type: ignore[misc]


def test_a_push_imports_no_numpy() -> None:
    """The decoder is imported with the first push, and without numpy."""
    program = (
        "import sys\nfrom uuid import UUID\nfrom kbroker.broker import Broker\n"
        "from kbroker.telemetry.manager import Client\n"
        "with Broker() as broker:\n"
        "    assert not [name for name in sys.modules if name.startswith(('google.', 'opentelemetry'))]\n"
        "    manager = broker.context.telemetry.manager\n"
        "    client = Client({}, '', '', lambda: True)\n"
        "    granted = manager.get_subscription(UUID(int=7), client)\n"
        "    manager.push(UUID(int=7), granted.subscription_id, False, 0, bytes([10, 0]), client)\n"
        "    assert 'opentelemetry.proto.metrics.v1.metrics_pb2' in sys.modules\n"
        "    assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
