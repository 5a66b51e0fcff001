"""Commands replay, recommend and report: their output, and files for other commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import Result

from kbroker.broker import Broker
from kbroker.common.quotas import QuotaEntity
from tests.spark.logged import LoggedBroker, logged, traffic
from tests.spark.written_table import write_table
from tests.support.fixtures import fixture_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_FORCE = {QuotaEntity.of({"user": None, "client-id": None}): {"producer_byte_rate": 3_000.0}}
FILE = "- entity: {user: null, client-id: null}\n  quotas: {producer_byte_rate: 3000}\n"


log = fixture_of(lambda: logged(traffic(1_500, 41), IN_FORCE), scope="module")


@pytest.fixture(scope="module")
def table(spark: SparkSession, log: LoggedBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whatif") / "table"
    write_table(spark.createDataFrame(log.table()), path, buckets=2)
    return path


@pytest.fixture
def run(command: Callable[..., Result]) -> Callable[..., str]:
    return lambda *words: command(*words).stdout


def in_order(entries: list[dict[str, Any]]) -> list[str]:
    """Return entities and their quotas in a fixed order."""
    return sorted(json.dumps(entry, sort_keys=True) for entry in entries)


def test_replay_prints_before_and_after(
    run: Callable[..., str], table: Path, log: LoggedBroker, tmp_path: Path
) -> None:
    """With the quotas in effect the delay after equals the delay before, for all clients."""
    quotas = tmp_path / "same.yaml"
    quotas.write_text(FILE, encoding="utf-8")
    found = json.loads(run("pipeline", "replay", table, "--quotas", quotas, "--json", "-q"))
    assert found["totals"]["requests"] == 1_500
    assert found["totals"]["delay_ms"] == found["totals"]["logged_delay_ms"] == sum(log.served) > 0
    assert "open loop" in found["note"]
    assert len(found["clients"]) == found["totals"]["clients"] == 6
    text = run("pipeline", "replay", table, "--quotas", quotas, "-q")
    assert "1,500 requests of 6 clients" in text
    assert "open loop" in text
    checked = json.loads(run("pipeline", "replay", table, "--quotas", quotas, "--check", "--json", "-q"))
    wrong = ("different", "only_logged", "only_replayed", "unknown", "incomplete", "missing")
    assert checked == {"equal": len(log.delays), **dict.fromkeys(wrong, 0)}


def test_times_are_utc_on_every_machine(
    run: Callable[..., str], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and last delays do not depend on the time zone of the machine: the traffic begins at midnight."""
    quotas = tmp_path / "same.yaml"
    quotas.write_text(FILE, encoding="utf-8")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        found = json.loads(run("pipeline", "replay", table, "--quotas", quotas, "--json", "-q"))
        text = run("pipeline", "replay", table, "--quotas", quotas, "-q")
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    times = [one["first_delay"] for one in found["clients"] if one["delayed"]]
    assert times
    assert all(one.startswith("2026-01-02 00:") for one in times)
    assert f" {times[0].split()[1]} " in text


def test_a_broker_takes_the_recommendation(run: Callable[..., str], table: Path, tmp_path: Path) -> None:
    """`quotas apply` sets all recommended quotas, and `quotas diff` then finds no difference."""
    path = tmp_path / "recommended.yaml"
    words = ("--throttled-below", 5, "--outliers", 2, "--io-threads", 8, "--network-threads", 3, "--listeners", 2)
    found = json.loads(run("pipeline", "recommend", table, "-o", path, *words, "--json", "-q"))
    assert found["headroom"]["capacity"] == 1400
    assert found["quotas"]
    with Broker() as broker:
        address = broker.bootstrap_servers
        assert "producer_byte_rate" in run("quotas", "apply", path, "--bootstrap-server", address)
        listed = json.loads(run("quotas", "list", "--bootstrap-server", address, "--json"))
        assert in_order(listed) == in_order(found["quotas"])
        run("quotas", "diff", path, "--bootstrap-server", address, "--exit-code")
        page = tmp_path / "page.html"
        run("pipeline", "report", table, "-o", page, *words, "--bootstrap-server", address, "-q")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    text = run("pipeline", "recommend", table, *words, "-q")
    assert text.startswith("# Recommended quotas by user,client-id")
