"""Headless Chromium for all tests of this folder, and a broker with data for each page of its console.

Both end with the tests of this package, because an open page takes CPU time; the folder is a package so that
fixtures can have this scope.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Producer

from kbroker.broker import Broker
from kbroker.client.cluster import Cluster
from kbroker.client.groups import Groups
from kbroker.common.quotas import QuotaEntity
from kbroker.console.views.clients import PRODUCE_LATENCY
from kbroker.metadata.topic_rules import NewTopic
from kbroker.quota.entity_rules import Alteration, QuotaOp
from kbroker.telemetry.manager import Client as TelemetryClient
from kbroker.telemetry.otlp import Point
from tests.browser.browser import Browser
from tests.support import console, need, wire

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "browser"
SETTINGS: dict[str, object] = {
    **console.SETTINGS,
    "kbroker.console.edit": True,
    "kbroker.request.log.topic": "__request_log",
}
LIMITED = QuotaEntity.of({"client-id": "loader<i>"})


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the script of axe-core, which npm fetches once."""
    need.program("npm")
    script = BUILD / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, BUILD)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(BUILD)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return script.read_text(encoding="utf-8")


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    need.program("chromium", "chromedriver")
    made = Browser(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


@pytest.fixture(scope="package")
def broker() -> Iterator[Broker]:
    with console.served(SETTINGS) as made:
        fill(made)
        yield made


def fill(broker: Broker) -> None:
    """Create records of each kind, a group with a lag, a throttled client, and a client with a shadow quota."""
    for name, partitions in (("orders", 3), ("binary", 1), *((f"team-{n:02d}.events", 1) for n in range(60))):
        broker.context.topics.create(NewTopic(name, partitions))
    store = broker.context.quota_entities
    store.alter([Alteration(LIMITED, [QuotaOp("producer_byte_rate", 2000.0)])])
    store.alter([Alteration(QuotaEntity.of({"client-id": "mirror"}), [QuotaOp("shadow.producer_byte_rate", 1000.0)])])
    values = [json.dumps({"order": n, "sku": f"<b>{n}</b>"}).encode() for n in range(30)]
    with wire.Connection(broker.bootstrap_servers) as client:
        client.ask(wire.produce("orders", 0, wire.batch(values)))
        client.ask(wire.produce("orders", 1, wire.batch([b"plain <img src=x onerror=alert(1)>", "Grüße".encode()])))
        client.ask(wire.produce("binary", 0, wire.batch([os.urandom(700)])))
    for name in ("loader<i>", "mirror"):
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": name})
        producer.produce("binary", bytes(30_000))
        assert producer.flush(20) == 0
    facts = {"client_id": "loader<i>", "client_source_address": "127.0.0.1"}
    telemetry = broker.context.telemetry
    telemetry.manager.get_subscription(UUID(int=7), TelemetryClient(facts, "User:ANONYMOUS", "", lambda: True))
    telemetry.series.put(UUID(int=7), [Point(PRODUCE_LATENCY, (("node.id", "1"),), 2.5, False, False)], 0)
    with Cluster(broker.bootstrap_servers) as cluster:
        Groups(cluster).commit("billing", {("orders", 0): 10, ("orders", 1): 2})
