"""Kafka's tools in a container, which reject options that they do not support."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from kbroker.client.admin import DESCRIBE_CONFIGS
from kbroker.container.kafka_tools import kafka_tools
from tests.support.fake_broker import METADATA, FakeBroker


def tool(*words: str) -> Result:
    return CliRunner().invoke(kafka_tools, words)


def test_records_without_their_values_are_refused() -> None:
    consumer = ("kafka-console-consumer", "--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--timeout-ms", "1")
    refused = tool(*consumer, "--property", "print.value=false")
    assert (refused.exit_code, "expected print.value=true" in refused.stderr) == (2, True)
    assert "print.value" not in tool(*consumer, "--property", "print.value=TRUE").stderr


def test_storage_takes_the_file_of_each_form(tmp_path: Path) -> None:
    """A store type that only Java reads is ignored, in both ways of naming the file."""
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path / 'data'}\nssl.keystore.type=PKCS12\n")
    (tmp_path / "data").mkdir()
    found = {tool("kafka-storage", "info", *named).output for named in (["-c", str(file)], [f"--config={file}"])}
    assert len(found) == 1
    assert "ssl.keystore.type" not in found.pop()


def test_a_topic_without_an_id() -> None:
    """Brokers before Kafka 2.8 have no ids of topics; Kafka's tool then leaves the id out."""
    with FakeBroker() as broker:
        broker.ranges[METADATA] = (0, 9)
        row = {"ResourceType": 2, "ResourceName": "t", "Configs": []}
        broker.handlers[DESCRIBE_CONFIGS] = lambda version, body: {"Results": [row]}
        found = tool("kafka-topics", "--bootstrap-server", broker.bootstrap, "--describe", "--topic", "t")
    assert found.output.startswith("Topic: t\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: ")
