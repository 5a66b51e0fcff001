"""Requests with made-up client ids: memory stays bounded, and another client is not affected."""

import itertools
import re
import statistics
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from kbroker.protocol import codec
from tests.support.broker import BrokerProcess, rss_bytes
from tests.support.client import Client, set_quotas
from tests.support.wire import create_topic

MOST = 500
IDS, AT_ONCE = 30_000, 200
API_VERSIONS = 18

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def set_quota(client: Client, client_id: str | None, key: str, value: float) -> None:
    (response,) = client.call("AlterClientQuotas", 1, set_quotas("client-id", client_id, {key: value}))["Entries"]
    assert response["ErrorCode"] == 0


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        rows = (line.rpartition(" ") for line in response.read().decode().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}


def flood(bootstrap: str, first: int, count: int, enough: threading.Event | None = None) -> None:
    """Send at least ``count`` requests, each with a new client id, until ``enough`` is set."""
    with Client(bootstrap, timeout=60) as stranger:
        for start in itertools.count(first, AT_ONCE):
            if start >= first + count and (enough is None or enough.is_set()):
                return
            ids = [f"made-up-{number}-{'x' * 100}" for number in range(start, start + AT_ONCE)]
            stranger.send_raw(b"".join(codec.encode_request_frame(API_VERSIONS, 0, 0, name, {}) for name in ids))
            for _ in ids:
                stranger.receive()


def test_made_up_client_ids_take_bounded_memory(tmp_path: Path) -> None:
    """The sensors of 30,000 client ids stay within `kbroker.quota.max.counters`, and metrics can be scraped."""
    settings = {"kbroker.quota.max.counters": str(MOST), "kbroker.metrics.listener": "127.0.0.1:0"}
    broker = BrokerProcess(tmp_path / "data", settings)
    enough = threading.Event()  # a fast machine would be done before the throttle of the other client ends
    try:
        broker.start()
        (url,) = {found[0] for line in broker.output if (found := re.search(r"http://[\d.:]+", line))}
        with Client(broker.bootstrap, "victim") as victim:
            victim.send(create_topic("t", 1))
            victim.receive()
            set_quota(victim, None, "request_percentage", 150)
            set_quota(victim, "victim", "request_percentage", 150)
            set_quota(victim, "victim", "producer_byte_rate", 1000)
            flood(broker.bootstrap, 0, MOST * 4)
            scrape(url)
            before = rss_bytes(broker.pid)
            victim.produce("t", 10_500)
            owed_ms = victim.end()["ThrottleTimeMs"]
            assert owed_ms > 0
            parts = [
                threading.Thread(target=flood, args=(broker.bootstrap, 10_000_000 * part, IDS // 2, enough))
                for part in (1, 2)
            ]
            for part in parts:
                part.start()
            took, throttles, scrapes = [], [], []
            while any(part.is_alive() for part in parts):
                begun = time.monotonic()
                throttles.append(
                    victim.call("Metadata", 8, {"Topics": [], "AllowAutoTopicCreation": False})["ThrottleTimeMs"]
                )
                took.append(time.monotonic() - begun)
                if len(took) == 200:
                    enough.set()
                if len(took) % 100 == 0:
                    begun = time.monotonic()
                    scrape(url)
                    scrapes.append(time.monotonic() - begun)
            shown = scrape(url)
        assert rss_bytes(broker.pid) - before < 12 << 20
        assert shown["kafka_metrics_count_count"] < MOST * 2 + 200
        assert len([name for name in shown if name.startswith("kafka_request_request_time{")]) <= 101
        assert max(throttles) == 0
        assert statistics.median(took[1:]) < 0.1
        assert max(scrapes) < 5
    finally:
        enough.set()
        broker.discard()
