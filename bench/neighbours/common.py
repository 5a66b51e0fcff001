"""Common parts of these measurements: a broker, quotas, and another client whose latency is measured."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support import wire
from tests.support.broker import BrokerProcess
from tests.support.client import Client


@contextmanager
def served(settings: Mapping[str, str]) -> Iterator[BrokerProcess]:
    """Run a broker process with one topic "t" of one partition."""
    with TemporaryDirectory(prefix="kbroker-bench-") as folder:
        broker = BrokerProcess(Path(folder), settings)
        broker.start()
        try:
            with wire.Connection(broker.bootstrap) as admin:
                admin.ask(wire.create_topic("t", 1))
            yield broker
        finally:
            broker.discard()


def set_quota(bootstrap: str, client_id: str | None, key: str, value: float | None) -> None:
    """Set or remove a quota of a client id, or of the default with None."""
    entity = [{"EntityType": "client-id", "EntityName": client_id}]
    op = {"Key": key, "Value": value or 0.0, "Remove": value is None}
    with Client(bootstrap, "admin", 60) as client:
        body = {"Entries": [{"Entity": entity, "Ops": [op]}], "ValidateOnly": False}
        (response,) = client.call("AlterClientQuotas", 1, body)["Entries"]
    if response["ErrorCode"] != 0:
        raise RuntimeError(response["ErrorMessage"])


def p99(latencies: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(latencies, n=100)[98]


class Probe:
    """Client that sends sequential Produce requests of one record of 100 bytes, with latencies in milliseconds."""

    def __init__(self, bootstrap: str, pause_s: float = 0.0) -> None:
        self._connection = wire.Connection(bootstrap, 120)
        self._frame = wire.produce("t", 0, wire.batch([b"x" * 100]))
        self._pause_s = pause_s

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def once(self) -> float:
        begun = time.perf_counter()
        self._connection.ask(self._frame)
        return (time.perf_counter() - begun) * 1000

    def run(self, seconds: float) -> list[float]:
        """Return the latencies of a number of seconds."""
        end = time.perf_counter() + seconds
        found = []
        while time.perf_counter() < end:
            found.append(self.once())
            if self._pause_s:
                time.sleep(self._pause_s)
        return found

    @contextmanager
    def beside(self) -> Iterator[list[tuple[float, float]]]:
        """Produce in a thread during the block, and yield the list of seconds since the start and latencies."""
        found: list[tuple[float, float]] = []
        over = threading.Event()
        start = time.perf_counter()

        def go_on() -> None:
            while not over.is_set():
                at = time.perf_counter() - start
                found.append((at, self.once()))
                over.wait(self._pause_s)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
