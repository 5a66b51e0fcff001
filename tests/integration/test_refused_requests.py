"""Connections that are closed without a response: lines in the log, metrics, and records of the request log."""

import json
import socket
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import BrokerProcess, wait_for
from tests.support.socket_rig import frame

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("request-log")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, log_folder: Path) -> Iterator[BrokerProcess]:
    settings = {"kbroker.metrics.listener": "127.0.0.1:0", "kbroker.request.log.dir": str(log_folder)}
    with BrokerProcess(tmp_path_factory.mktemp("refused") / "data", settings) as process:
        yield process


def header(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, 3) + b"abc"


def closed_for(broker: BrokerProcess, sent: bytes) -> str:
    """Send bytes and wait for the end of the connection; return the error in the log."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as one:
        one.sendall(sent)
        port = one.getsockname()[1]
        assert one.recv(100) == b""
    found: list[str] = []

    def is_logged() -> bool:
        found[:] = [line for line in broker.output if f":{port}-" in line]
        return bool(found)

    wait_for("the line of the log", is_logged)
    (line,) = found
    before, _, error = line.strip().partition(" because of error: ")
    assert f"] WARN Closing socket for 127.0.0.1:{broker.port}-127.0.0.1:{port}-" in before, line
    return error


@pytest.mark.parametrize(
    ("sent", "reason", "expected"),
    [
        (frame(header(999, 0)), "unknown-api", "Our best guess of the apiKeyId is: 999"),
        (frame(header(4, 0)), "unknown-api", "Our best guess of the apiKeyId is: 4"),
        (frame(header(3, 99)), "unsupported-version", "Unsupported api with key 3 (Metadata) and version 99"),
        (frame(b"\0"), "malformed-header", "Our best guess of the apiKeyId is: -1"),
        (frame(header(3, 1)[:-1]), "malformed-header", "Our best guess of the apiKeyId is: 3 (Metadata)"),
        (frame(header(3, 1) + struct.pack(">i", 1000)), "malformed-body", "Error getting request for apiKey: Metadata"),
        (frame(header(0, 3) + b"\xff"), "malformed-body", "Error getting request for apiKey: Produce, apiVersion: 3"),
        (
            frame(header(0, 7) + struct.pack(">hhiih4sii", -1, 0, 1000, 1, 4, b"none", 1, 0) + struct.pack(">i", -1)),
            "failed-produce",
            "error during produce request with correlation id 7 with ack=0: ",
        ),
        (b"GET / HTTP/1.1\r\n\r\n", "invalid-receive", "the bytes are an HTTP request's ('GET ')"),
        (b"\x16\x03\x01\x02\x00\x01", "invalid-receive", "the bytes are a TLS handshake's"),
        (struct.pack(">i", -5), "invalid-receive", "Invalid receive (size = -5)"),
    ],
)
def test_the_log_and_the_metrics_say_why(broker: BrokerProcess, sent: bytes, reason: str, expected: str) -> None:
    """The log names the client and the reason, and a metric counts the reason."""
    before = refused(broker)[reason]
    assert expected in closed_for(broker, sent)
    assert refused(broker)[reason] == before + 1


def test_a_flood_leaves_few_lines(broker: BrokerProcess) -> None:
    """At most ten connections a second are logged, with the number of the others."""
    begun = time.monotonic()
    lines = len(broker.output)
    before = sum(refused(broker).values())
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as one:
            one.sendall(frame(header(999, 0)))
            assert one.recv(10) == b""
    wait_for("all closed connections are counted", lambda: sum(refused(broker).values()) == before + 300)
    wait_for("the sum's line", lambda: any("more sockets were closed" in line for line in broker.output[lines:]))
    seconds = time.monotonic() - begun
    assert len(broker.output) - lines <= 11 * (seconds + 2)


def test_the_request_log_has_each_of_them(broker: BrokerProcess, log_folder: Path) -> None:
    """The request log has each closed connection, or their number, and no request for them."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as one:
        one.sendall(frame(header(999, 5)))
        port = one.getsockname()[1]
        assert one.recv(10) == b""

    def records() -> list[dict[str, Any]]:
        rows = [row for path in log_folder.glob("*.jsonl") for row in path.read_text().splitlines()]
        lines = [json.loads(row) for row in rows if row.endswith("}")]
        return [line for line in lines if "refusal" in line]

    wait_for("the record", lambda: any(f":{port}-" in line.get("connection", "") for line in records()))
    (record,) = [line for line in records() if f":{port}-" in line.get("connection", "")]
    assert record["refusal"] == {"reason": "unknown-api", "requestApiKey": 999, "requestApiVersion": 5}
    assert (record["address"], record["listener"], record["repeated"]) == ("127.0.0.1", "PLAINTEXT", 1)
    assert "requestHeader" not in record

    def is_complete() -> bool:
        counted: Counter[str] = Counter()
        for line in records():
            counted[line["refusal"]["reason"]] += line["repeated"]
        return counted == Counter({reason: int(count) for reason, count in refused(broker).items() if count})

    wait_for("a record of each refusal that the metrics count", is_complete)


def refused(broker: BrokerProcess) -> dict[str, float]:
    """Return the refused requests by reason in the metrics."""
    (url,) = {word.rstrip(",") for line in broker.output for word in line.split() if word.endswith("/metrics")}
    with urllib.request.urlopen(url, timeout=20) as response:
        text = response.read().decode()
    rows = [line for line in text.splitlines() if line.startswith("kbroker_network_refused_requests_total{")]
    return {row.split('"')[1]: float(row.rpartition(" ")[2]) for row in rows}
