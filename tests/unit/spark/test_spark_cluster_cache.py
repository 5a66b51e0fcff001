"""Cached cluster connections of a worker while brokers start."""

from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client.connection import BrokerConnectionError
from kbroker.spark.datasource import cluster_cache


class Client:
    """Client options with their own clock; brokers are unavailable for the first ``away_s`` seconds."""

    retry_timeout_s = 10.0

    def __init__(self, away_s: float) -> None:
        self.away_s = away_s
        self.clock = VirtualClock()
        self.began_ms = self.clock.now_ms()
        self.opened = object()

    def connect(self) -> Any:
        if self.now_s < self.away_s:
            raise BrokerConnectionError(("127.0.0.1", 1), "connection refused")
        return self.opened

    @property
    def now_s(self) -> float:
        return (self.clock.now_ms() - self.began_ms) / 1000

    def sleep(self, seconds: float) -> None:
        self.clock.advance_ms(round(seconds * 1000))

    def cluster(self) -> Any:
        client: Any = self
        return cluster_cache.cluster_for(client, self.clock, self.sleep)


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_cache, "_open", {})


def test_a_new_worker_waits_for_a_broker_that_starts() -> None:
    """A worker without a connection retries for as long as a worker with a connection."""
    client = Client(away_s=8.0)
    assert client.cluster() is client.opened
    assert 8.0 <= client.now_s <= 10.0
    client.away_s = 1e9
    assert client.cluster() is client.opened  # from the cache


def test_brokers_that_stay_away_are_an_error() -> None:
    client = Client(away_s=1e9)
    with pytest.raises(BrokerConnectionError, match="connection refused"):
        client.cluster()
    assert 8.0 <= client.now_s <= 10.0
