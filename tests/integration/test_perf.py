"""`kbroker perf` with both clients, whose output has the form of the output of Kafka's performance tools."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client.perf_clients import LIBRDKAFKA, OWN, librdkafka_config
from tests.support import need
from tests.support.broker import BrokerProcess
from tests.support.cli import run
from tests.support.kafka.tools import TOOLS, Tools

CLIENTS = (LIBRDKAFKA, OWN)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("perf") / "data", settings) as started:
        yield started


def perf(broker: BrokerProcess, *words: str) -> str:
    result = run(None, "perf", *words, "--bootstrap-server", broker.bootstrap)
    assert result.exit_code == 0, result.output
    return result.stdout


def form(text: str) -> list[str]:
    """Return the lines up to the histogram with each number replaced by its number of decimals."""
    lines = text.partition("\n\n")[0].splitlines()
    found = [re.sub(r"\d+(?:\.(\d+))?", lambda match: f"<{len(match[1] or '')}>", line) for line in lines]
    # a Java double has a varying number of decimals
    return [re.sub(r"<\d+>\t<\d+>", "<0>\t<many>", line) for line in found]


@pytest.mark.slow
def test_same_lines_as_kafkas_tools(broker: BrokerProcess) -> None:
    """The output of the producer, consumer and latency tools has the same words and numbers of decimals."""
    need.kafka_tools()
    tools = Tools(broker.bootstrap)
    count = ["--num-records", "2000"]
    theirs = tools(
        TOOLS + "ProducerPerformance", "--topic", "java", *count, "--record-size", "10", "--throughput", "-1"
    )
    assert form(perf(broker, "produce", "ours", "-n", "2000", "--record-size", "10")) == form(theirs)
    theirs = tools(TOOLS + "ConsumerPerformance", "--topic", "java", *count)
    assert form(perf(broker, "consume", "ours", "-n", "2000")) == form(theirs)
    size = ["--record-size", "10", "--producer-acks", "all"]
    theirs = tools(TOOLS + "EndToEndLatency", "--topic", "java-latency", "--num-records", "5", *size)
    assert form(perf(broker, "latency", "our-latency", "-n", "5", "--record-size", "10"))[1:] == form(theirs)[1:]


@pytest.mark.parametrize("client", CLIENTS)
def test_every_record_counts(client: str, broker: BrokerProcess) -> None:
    """All records are acknowledged, read and counted, in JSON too, and the throughput is limited."""
    which = ["--client", client]
    made = json.loads(perf(broker, "produce", client, "-n", "500", "--throughput", "2500", "--json", *which))
    assert (made["client"], made["records"], made["bytes"]) == (client, 500, 50_000)
    assert made["seconds"] >= 0.19
    assert sum(row["records"] for row in made["latency_ms"]["histogram"]) == 500
    read = json.loads(perf(broker, "consume", client, "-n", "500", "--json", *which))
    assert (read["records"], read["bytes"]) == (500, 50_000)
    short = run(None, "perf", "consume", client, "-n", "501", "--timeout", "1500", *which, "-b", broker.bootstrap)
    assert "WARNING: Exiting before consuming the expected number of records: timeout (1500 ms)" in short.stdout
    assert short.stdout.splitlines()[-1].split(", ")[4] == "500"
    back = json.loads(perf(broker, "latency", f"{client}-latency", "-n", "20", "--json", *which))
    assert (back["records"], back["latency_ms"]["max"] > 0) == (20, True)


@pytest.mark.parametrize("client", CLIENTS)
def test_refused_records(client: str, broker: BrokerProcess) -> None:
    """A record that the broker refuses ends the command with the broker's error."""
    which = ["--client", client, "--bootstrap-server", broker.bootstrap]
    refused = run(None, "perf", "produce", "large", "-n", "1", "--record-size", "2000000", *which,
                  *(["-X", "message.max.bytes=3000000"] if client == LIBRDKAFKA else []))  # fmt: skip
    assert refused.exit_code == 1
    assert "MESSAGE_TOO_LARGE" in refused.stderr
    missing = run(None, "perf", "produce", "t", "-b", "127.0.0.1:1", "--client", client)
    assert missing.exit_code == 1


def test_security_of_librdkafka(tmp_path: Path) -> None:
    """The properties of Kafka's tools are translated to those of librdkafka."""
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    found = librdkafka_config("h:1", properties)
    wanted = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
    }
    assert wanted.items() <= found.items()
    token = jaas.replace("plain.Plain", "scram.Scram").replace(";", " tokenauth=true;")
    properties = {**properties, "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": token}
    with pytest.raises(ValueError, match="--client kbroker"):
        librdkafka_config("h:1", properties)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("produce refused -n 2 --record-size 2000000", "MESSAGE_TOO_LARGE: a record of 2000000 bytes exceeds"),
        ("produce refused -n 2 -X nosuch=1", 'librdkafka: No such configuration property: "nosuch"'),
        ("consume refused -n 2 -X fetch.min.bytes=many", "librdkafka: Invalid value"),
        ("produce refused -n 2 -X error_cb=x", "confluent-kafka: expected error_cb property as a callable function"),
    ],
)
def test_what_librdkafka_refuses_is_one_line(broker: BrokerProcess, words: str, text: str) -> None:
    result = run(None, "perf", *shlex.split(words), "--client", LIBRDKAFKA, "--bootstrap-server", broker.bootstrap)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"kbroker: {text}")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("produce t -X transactional.id=x", "transactional.id: the records of a measurement are in no transaction"),
        ("consume t -X group.id=", "group.id: expected the name of a group, got an empty one"),
        ("consume t --group ' '", "Invalid value for --group: expected the name of a group, got ' '"),
        ("consume ''", "Invalid value for TOPIC: the empty string is not allowed"),
        ("consume \udcff", r"Invalid value for TOPIC: '\udcff' contains one or more characters other than ASCII"),
        ("consume t -X enable.partition.eof=true", "enable.partition.eof: the end of a partition is not counted"),
    ],
)
def test_properties_with_which_nothing_can_be_measured(words: str, text: str) -> None:
    result = run(None, "perf", *shlex.split(words), "--client", LIBRDKAFKA, "--bootstrap-server", "127.0.0.1:1")
    assert result.exit_code == 2
    assert text in result.stderr
