"""Loads on a server: the C generator, consumers of a topic, librdkafka's clients; each is compared with the log."""

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loads import generator
from bench.loads.peers import BARE_LOOP, Server, cpu_seconds
from bench.loads.report import Row
from tests.support import wire


@dataclass
class Plan:
    """Lengths and repetitions of the loads; published figures are from the full plan."""

    rounds: int = 3
    seconds: float = 5.0
    warm_seconds: float = 2.0
    kafka_warm_seconds: float = 30.0
    megabytes: int = 400
    idle_connections: int = 10_000
    transactions: int = 2_000  # transactions of 100 records; a fifth as many of 1,000 records

    @staticmethod
    def quick() -> "Plan":
        return Plan(
            seconds=1.5,
            warm_seconds=0.5,
            kafka_warm_seconds=5.0,
            megabytes=50,
            idle_connections=2_000,
            transactions=200,
        )


class Loads:
    """Load generator and librdkafka's clients, whose figures are compared with the server's log."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._generator = generator.Generator(generator.frames("load"))

    def generate(self, server: Server, frame: str, connections: int, in_flight: int, seconds: float) -> dict[str, Any]:
        """Run a closed loop that counts all responses."""
        try:
            return self._generator.run(server.port, frame, connections, in_flight, seconds)
        except RuntimeError as failure:
            raise RuntimeError(f"load on {server.name} failed: {failure}") from None

    def warm(self, kafka: Server) -> None:
        """Produce to and fetch from the topic "load" until the JVM has compiled both."""
        warm_until = time.monotonic() + self.plan.kafka_warm_seconds
        while time.monotonic() < warm_until:
            self.generate(kafka, "produce", 8, 5, self.plan.kafka_warm_seconds / 2)
            with contextlib.suppress(RuntimeError):  # a cold server on a busy machine may need more time
                self.generate(kafka, "fetch", 4, 1, 1)

    def measure(self, server: Server, frame: str, connections: int, in_flight: int) -> tuple[float, float]:
        """Return requests per second, and CPU microseconds of the server per request.

        After Produce the end offset must have grown at least by the acknowledged requests, and at most by those and the
        requests in flight.
        """
        self.generate(server, frame, connections, in_flight, self.plan.warm_seconds)
        time.sleep(0.2)  # the last requests in flight are appended by now
        has_log = frame == "produce" and server.name != BARE_LOOP
        before = wire.end_offset(server.bootstrap, "load") if has_log else 0
        used = cpu_seconds(server.pid)
        result = self.generate(server, frame, connections, in_flight, self.plan.seconds)
        cpu_us = (cpu_seconds(server.pid) - used) / result["requests"] * 1e6
        if has_log:
            time.sleep(0.2)
            grown, acknowledged = wire.end_offset(server.bootstrap, "load") - before, result["requests"]
            if not acknowledged <= grown <= acknowledged + connections * in_flight:
                raise RuntimeError(f"{server.name} acknowledged {acknowledged} records, its log grew by {grown}")
        return float(result["requests_per_s"]), cpu_us

    def pair(self, row: Row, ours: Server, peer: Server, frame: str, connections: int, in_flight: int) -> None:
        """Measure all rounds of a row, this broker and the peer in turn."""
        row.peer_name = peer.name
        for _ in range(self.plan.rounds):
            for server, rates, cpus in ((ours, row.ours, row.ours_cpu_us), (peer, row.peer, row.peer_cpu_us)):
                rate, cpu_us = self.measure(server, frame, connections, in_flight)
                rates.append(rate)
                cpus.append(cpu_us)

    def librdkafka(self, *arguments: object) -> dict[str, Any]:
        command = [sys.executable, str(Path(__file__).with_name("rdkafka.py")), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def fill(self, bootstrap: str, topic: str) -> float:
        """Produce the planned megabytes in records of 1 kB; return MB/s."""
        records = self.plan.megabytes * 1000
        result = self.librdkafka("produce", bootstrap, topic, records, 1000)
        if result["acknowledged"] != records:
            raise RuntimeError(f"{bootstrap}: {result['acknowledged']} of {records} records acknowledged")
        if bootstrap != "mock" and (end := wire.end_offset(bootstrap, topic)) != records:
            raise RuntimeError(f"{bootstrap}: {records} records acknowledged, the log ends at {end}")
        return float(result["mb_per_s"])

    def transact(self, bootstrap: str, topic: str, records: int, records_each: int, abort_every: int = 0) -> float:
        """Produce transactions of records of 1 kB; return MB/s."""
        before = wire.end_offset(bootstrap, topic)
        result = self.librdkafka("transact", bootstrap, topic, records, 1000, records_each, abort_every)
        grown, expected = wire.end_offset(bootstrap, topic) - before, records + records // records_each
        if grown != expected:
            raise RuntimeError(f"{bootstrap}: {expected} records and markers written, the log grew by {grown}")
        return float(result["mb_per_s"])

    def drain(self, bootstrap: str, topic: str, records: int = 0) -> float:
        records = records or self.plan.megabytes * 1000
        result = self.librdkafka("consume", bootstrap, topic, records)
        if result["read"] != records:
            raise RuntimeError(f"{bootstrap}: read {result['read']} of {records} records")
        return float(result["mb_per_s"])
