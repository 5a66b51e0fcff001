"""`kbroker pipeline clients`: pushed latencies beside the broker's, exact for given lines, and with real traffic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import Result
from confluent_kafka import Producer

from kbroker.spark.tables.log_reader import LogSource, good, read_log
from kbroker.spark.usage_views.clients import METRICS, compare, read_pushes
from kbroker.testing import EmbeddedBroker
from tests.integration.test_client_telemetry import subscribe
from tests.spark.day import Day, make_day
from tests.support.broker import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRODUCE, FETCH = METRICS["produce"], METRICS["fetch"]


def push(client_id: str, instance: str, metrics: dict[str, float], principal: str = "User:team-0") -> str:
    values = [{"name": name, "attributes": {}, "value": value, "delta": False} for name, value in metrics.items()]
    record = {"version": 1, "time": 1_790_000_000_000, "clientInstanceId": instance, "clientId": client_id}
    return json.dumps({**record, "principal": principal, "metrics": values})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Day]:
    """Return the folder of a request log, pushes, and lines of other kinds, and its day."""
    found, day = tmp_path_factory.mktemp("logs"), make_day(1_000)
    (found / "requests-1.jsonl").write_text("\n".join(day.lines()) + "\n")
    pushes = [
        push("app-00", "a", {f"{PRODUCE}.avg": 10, f"{PRODUCE}.max": 30, f"{FETCH}.avg": 700}),
        push("app-00", "b", {f"{PRODUCE}.avg": 20, f"{PRODUCE}.max": 25}),
        push("app-00", "b", {f"{PRODUCE}.avg": 0, f"{PRODUCE}.max": 0, "other": 1e9}),
        push("silent", "c", {f"{FETCH}.avg": 3}, principal="User:other"),
        '{"version":1,"time":1,"clientInstanceId":"x"}',
        "no record",
        "",
    ]
    (found / "telemetry-20260921T000000Z-000001.jsonl").write_text("\n".join(pushes) + "\n")
    return found, day


def test_latencies(spark: SparkSession, folder: tuple[Path, Day]) -> None:
    """Averages exclude intervals without requests, and a client that the broker's log lacks has no figures."""
    source = LogSource.of_files(folder[0])
    rows = good(read_log(spark, source)).cache()
    found = {row["client_id"]: row.asDict() for row in compare(read_pushes(spark, source), rows).collect()}
    assert list(found) == ["app-00", "silent"]
    first = found["app-00"]
    assert (first["instances"], first["produce_ms"], first["produce_max_ms"]) == (2, 15, 30)
    assert (first["fetch_ms"], first["fetch_max_ms"]) == (700, None)
    own = rows.where("principal = 'User:team-0' and client_id = 'app-00'")
    for name, api in (("produce", "PRODUCE"), ("fetch", "FETCH")):
        served = [row for row in own.where(f"api_name = '{api}'").collect() if row["total_time_us"] is not None]
        weights = [(row["repeated"] or 1) / (row["sampling"] or 1) for row in served]
        total = sum(row["total_time_us"] / 1000 * weight for row, weight in zip(served, weights, strict=True))
        assert first[f"broker_{name}_ms"] == pytest.approx(total / sum(weights))
        assert first[f"broker_{name}_max_ms"] == max(row["total_time_us"] for row in served) / 1000
    rows.unpersist()
    assert found["silent"] == {
        **dict.fromkeys(first), "principal": "User:other", "client_id": "silent", "instances": 1, "fetch_ms": 3,
    }  # fmt: skip


def test_the_command(command: Callable[..., Result], folder: tuple[Path, Day], tmp_path: Path) -> None:
    """The command prints a table or JSON, and pushes may be in another folder."""
    seen = command("pipeline", "clients", folder[0], "--quiet")
    header, first, second = seen.stdout.splitlines()
    assert header.split()[:4] == ["PRINCIPAL", "CLIENT", "ID", "INSTANCES"]
    assert first.split()[:3] == ["User:team-0", "app-00", "2"]
    assert second.split() == ["User:other", "silent", "1", *["-"] * 4, "3", "ms", *["-"] * 3]
    printed = json.loads(command("pipeline", "clients", folder[0], "--json", "--quiet", "--top", "1").stdout)
    assert [row["client_id"] for row in printed] == ["app-00"]
    (tmp_path / "none.jsonl").write_text(push("x", "y", {}) + "\n")
    seen = command("pipeline", "clients", folder[0], "--pushes", tmp_path, "--quiet")
    assert seen.stdout == "No client has pushed metrics.\n"


@pytest.mark.slow
def test_real_clients(command: Callable[..., Result], tmp_path: Path) -> None:
    """librdkafka's latencies are at least those of the broker."""
    logs = str(tmp_path / "logs")
    settings = {"kbroker.request.log.dir": logs, "kbroker.telemetry.log.dir": logs}
    with EmbeddedBroker(settings) as broker:
        subscribe(broker, "all", metrics="*", interval_ms="200")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "loader"})
        service = broker.context.telemetry

        def has_pushed() -> bool:
            producer.produce("t", bytes(1000))
            producer.flush(5)
            return service.log is not None and service.log.written > 3

        wait_for("pushes", has_pushed)
        producer.close()
    rows: list[dict[str, Any]] = json.loads(command("pipeline", "clients", logs, "--json", "--quiet").stdout)
    (loader,) = (row for row in rows if row["client_id"] == "loader")
    assert loader["principal"] == "User:ANONYMOUS"
    assert loader["produce_max_ms"] >= loader["produce_ms"] > 0
    assert 0 < loader["broker_produce_ms"] <= loader["broker_produce_max_ms"]
