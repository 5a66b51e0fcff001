"""Exactly-once source of Kafka Connect, unmodified, with kill -9 of worker and broker."""

import http.client
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.exactly_once import ARCHIVE, Worker, run_over_kills, started
from tests.clients.programs import FRAMEWORKS
from tests.support import need
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kafka import SHORT_LIVED, ClassArchive, classpath, java_command
from tests.support.kill import create_topic
from tests.support.ports import free_run
from tests.support.topic_reader import Reader, read_to_end

CONNECTOR = "org.apache.kafka.connect.file.FileStreamSourceConnector"
KEPT_BACK = 1000  # exceeds the lines that the connector buffers until further lines arrive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def worker_settings(bootstrap: str, port: int) -> dict[str, str]:
    """Return the settings of a distributed worker that writes in transactions."""
    topics = {f"{name}.storage.topic": f"connect-{name}" for name in ("config", "offset", "status")}
    replicas = {f"{name}.storage.replication.factor": "1" for name in ("config", "offset", "status")}
    converters = {f"{part}.converter": "org.apache.kafka.connect.storage.StringConverter" for part in ("key", "value")}
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "connect",
        "exactly.once.source.support": "enabled",
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "service_load",  # otherwise a start searches all classes of all jars
        "session.timeout.ms": "2000",
        "heartbeat.interval.ms": "500",
        "rebalance.timeout.ms": "5000",
        "scheduled.rebalance.max.delay.ms": "0",
        # a new worker waits for the open transactions of a killed one in the offsets topic
        "producer.transaction.timeout.ms": "3000",
        **topics,
        **replicas,
        **converters,
    }


def asked(port: int, method: str, path: str, body: dict[str, str] | None = None) -> tuple[int, str]:
    """Return the status and text of a worker's response, status 0 if it does not respond."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def create(port: int, config: dict[str, str]) -> bool:
    """Create the connector; return False while the worker is not ready."""
    status, text = asked(port, "PUT", "/connectors/file/config", config)
    assert status in (0, 200, 201, 404, 409, 500, 503), f"{status} {text}"
    return status in (200, 201)


def restart_failed(port: int) -> None:
    """Restart a failed task as an operator does, since a task fails with its producer.

    Kafka's producer 4.3.1 sometimes fails on a busy machine: its thread may send EndTxn before the records
    (``Sender.maybeSendAndPollTransactionalRequest`` checks for unsent records before it takes the lock), to which any
    broker responds with INVALID_TXN_STATE.
    """
    if '"state":"FAILED"' in asked(port, "GET", "/connectors/file/status")[1]:
        asked(port, "POST", "/connectors/file/restart?includeTasks=true&onlyFailed=true")


def test_file_source(start_broker: Callable[..., BrokerProcess], tmp_path: Path, soak: bool) -> None:
    """The topic has each line once and in order: the transactions include the source's offsets."""
    need.program("java", "mvn")
    count = 400_000 if soak else 15_000
    deaths = ("worker", "broker") * (3 if soak else 1)
    broker = started(start_broker)
    create_topic(broker.bootstrap, "lines", 1)
    source, port = tmp_path / "lines.txt", free_run(2)
    source.write_text("".join(f"line {number}\n" for number in range(count)))
    properties = tmp_path / "worker.properties"
    settings = worker_settings(broker.bootstrap, port)
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    archive = ClassArchive("ConnectDistributed", classpath(pom=FRAMEWORKS))
    options = (*SHORT_LIVED, *archive.options(tmp_path / ARCHIVE))
    command = java_command(main, str(properties), options=options, pom=FRAMEWORKS)
    worker = Worker(command, tmp_path, archive=archive)
    output = Reader(broker.bootstrap, "lines", 1)
    config = {
        "connector.class": CONNECTOR,
        "file": str(source),
        "topic": "lines",
        "tasks.max": "1",
        "batch.size": "20",  # lines per transaction
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }
    try:
        worker.start()
        wait_for("the connector", lambda: create(port, config), 60, every=0.2)
        run_over_kills(broker, worker, output, count - KEPT_BACK, deaths, tend=lambda: restart_failed(port))
        found = read_to_end(broker.bootstrap, "lines", 1)[0]
        assert [value for _, value in found] == [f"line {number}" for number in range(len(found))]
        assert output.rows[0] == found[: len(output.rows[0])]
    finally:
        worker.discard()
        output.close()
