"""Client metrics (KIP-714) of each client that pushes them, stored by the broker and forwarded to a collector."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kbroker.testing import EmbeddedBroker
from tests.clients.programs import go_program, java_program
from tests.integration.test_client_telemetry import instance_of, subscribe, values
from tests.support.broker import wait_for
from tests.support.kafka.tools import TOOLS, run_tool
from tests.support.ports import free_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PRODUCER, CONSUMER = "org.apache.kafka.producer.", "org.apache.kafka.consumer."
LATENCIES = {
    "java-producer": f"{PRODUCER}node.request.latency.avg",
    "java-consumer": f"{CONSUMER}fetch.manager.fetch.latency.avg",
}


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the block ends; a line on its standard input ends the program."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.communicate("end\n", timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as found:
        found.create_topic("t")
        yield found


def test_java_pushes(broker: EmbeddedBroker) -> None:
    """Producer and consumer push metrics for a subscription of Kafka's own tool, under the broker's instance ids."""
    tool = f"{TOOLS}ClientMetricsCommand"
    made = ["--alter", "--name", "java", "--metrics", "*", "--interval", "300", "--match", "client_id=java-.*"]
    done = run_tool(tool, "--bootstrap-server", broker.bootstrap_servers, *made)
    assert done.returncode == 0, done.stderr
    with running([*java_program("Telemetry"), broker.bootstrap_servers, "t"]) as program:
        assert program.stdout is not None
        instance_id = program.stdout.readline().strip()
        names = ("java-producer", "java-consumer")
        for name in names:
            wait_for(name, lambda name=name: values(broker, name).get(LATENCIES[name], 0) > 0)  # type: ignore[misc]
        found = [instance_of(broker, name) for name in names]
        assert found[0] is not None
        assert found[0].facts["client_instance_id"] == instance_id
        assert {one.facts["client_software_name"] for one in found if one is not None} == {"apache-kafka-java"}
        total = f"{CONSUMER}fetch.manager.records.consumed.total"
        wait_for("a record in the consumer's metrics", lambda: values(broker, names[1]).get(total, 0) > 0)
    wait_for("the end of the clients", lambda: not broker.context.telemetry.manager.instances)
    done = run_tool(tool, "--bootstrap-server", broker.bootstrap_servers, "--describe", "--name", "java")
    assert "interval.ms=300" in done.stdout
    assert "match=client_id=java-.*" in done.stdout


def test_franz_go_pushes(broker: EmbeddedBroker) -> None:
    """A client that is producer and consumer pushes metrics for a prefix, because it does not support ``*``."""
    subscribe(broker, "all", metrics="org.apache.kafka", interval_ms="300")
    with running([str(go_program()), broker.bootstrap_servers, "metrics", "t"]):
        wait_for("metrics", lambda: values(broker, "franz-go").get(f"{PRODUCER}node.request.latency.avg", 0) > 0)
        found = instance_of(broker, "franz-go")
        assert found is not None
        assert found.facts["client_software_name"] == "kgo"


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Yield the URL of an OpenTelemetry collector, and a function that returns the received metrics."""
    program = go_program("collector")
    port, output, config = free_run(1), tmp_path / "received.json", tmp_path / "collector.yaml"
    config.write_text(
        f"""
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{file: {{path: "{output}", flush_interval: 100ms}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{metrics: {{receivers: [otlp], exporters: [file]}}}}
"""
    )
    with (tmp_path / "collector.log").open("w") as log:
        process = subprocess.Popen([str(program), f"--config=file:{config}"], stdout=log, stderr=log)

    def received() -> list[Any]:
        if not output.exists():
            return []
        lines = output.read_text().split("\n")[:-1]
        return [resource for line in lines for resource in json.loads(line)["resourceMetrics"]]

    try:
        yield f"http://127.0.0.1:{port}", received
    finally:
        process.terminate()
        process.wait(10)


def test_a_collector_gets_the_metrics(collector: tuple[str, Callable[[], list[Any]]]) -> None:
    """The collector gets metrics with attributes of the client and the broker, and no push is lost during its start."""
    url, received = collector
    with EmbeddedBroker({"kbroker.telemetry.otlp.endpoint": url, "node.id": 5}) as broker:
        subscribe(broker, "all", metrics="*", interval_ms="200")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "p"})
        forwarder = broker.context.telemetry.forwarder
        assert forwarder is not None

        def has_latency() -> bool:
            producer.produce("t", b"x")
            producer.flush(5)
            return any(f"{PRODUCER}node.request.latency.avg" in names_of(one) for one in received())

        wait_for("metrics at the collector", has_latency)
        producer.close()
        attributes = {one["key"]: one["value"]["stringValue"] for one in received()[-1]["resource"]["attributes"]}
        assert attributes["client_id"] == "p"
        assert attributes["client_software_name"] == "confluent-kafka-python"
        assert attributes["principal"] == "User:ANONYMOUS"
        assert attributes["kbroker.node.id"] == "5"
        assert forwarder.figures.dropped == 0
        assert forwarder.figures.sent > 0


def names_of(resource: Any) -> set[str]:
    return {metric["name"] for scope in resource["scopeMetrics"] for metric in scope["metrics"]}
