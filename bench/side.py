"""Broker of a benchmark, and the CPU time of its loads."""

from __future__ import annotations

import argparse
import atexit
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.loads import peers
from bench.loads.generator import Generator
from tests.support.broker import BrokerProcess
from tests.support.wire import Connection, create_topic

FAR_QUOTAS = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e9}


class Side:
    """Broker with a topic "load", and the CPU microseconds per request of its loads.

    Args: `quotas`: of the user. `build`: folder of another build's packages.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        quotas: Mapping[str, float] | None = None,
        build: Path | None = None,
    ) -> None:
        self.name = folder.name
        self.metrics_port = peers.free_port()
        metrics = {"num.network.threads": "1", "kbroker.metrics.listener": f"127.0.0.1:{self.metrics_port}"}
        wrapper = () if build is None else ("env", f"PYTHONPATH={build}")
        self.broker = BrokerProcess(folder / "data", {**metrics, **(settings or {})}, wrapper=wrapper)
        self.broker.start(120)
        atexit.register(self.broker.discard)  # even if the rest of this method, or the other side, fails
        with Connection(self.broker.bootstrap) as admin:
            admin.ask(create_topic("load", 1))
        if quotas:
            self._set(quotas)
        self.cpu_us: list[float] = []

    def _set(self, quotas: Mapping[str, float]) -> None:
        from kbroker.client.quotas import QuotaClient
        from kbroker.common.quotas import QuotaEntity

        with QuotaClient(self.broker.bootstrap) as client:
            failed = client.alter({QuotaEntity.of({"user": "ANONYMOUS"}): quotas})
        assert not any(failed.values()), failed

    def metric(self, name: str) -> float:
        """Return the sum of all values of a metric."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30) as response:
            rows = (line.rpartition(" ") for line in response.read().decode().splitlines())
        values = [float(value) for series, _, value in rows if series.partition("{")[0] == name]
        assert values, f"no metric {name}"
        return sum(values)

    def run(
        self,
        arguments: argparse.Namespace,
        load: Generator,
        *,
        cpu_s: Callable[[int], float] = peers.cpu_seconds,
        settle_s: float = 0.0,
    ) -> dict[str, Any]:
        """Run the load "produce"; the CPU time until `settle_s` after the load counts."""
        before = cpu_s(self.broker.pid)
        connections, in_flight = arguments.connections, arguments.in_flight
        result = load.run(self.broker.port, "produce", connections, in_flight, arguments.seconds, rate=arguments.rate)
        time.sleep(settle_s)
        self.cpu_us.append((cpu_s(self.broker.pid) - before) / result["requests"] * 1e6)
        return result
