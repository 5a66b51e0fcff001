"""kbroker beside its peers in one run: the bare loop, Apache Kafka, librdkafka's in-process mock.

    python bench/loads/run.py [--quick] [--rounds N] [--only NAME ...] [--json FILE]

Runs are interleaved, kbroker and peer in turn; the figures are medians of the rounds. Every answer's error code is
checked, and after each load the end offset must have grown by what was acknowledged. KBROKER_ORACLES names the folder
with the load programs (tools/load) and with tools/kafka.sh.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.loads import peers  # noqa: E402
from bench.loads.peers import MissingPeer, Server  # noqa: E402
from tests.support import wire  # noqa: E402
from tests.support.broker import rss_bytes  # noqa: E402

BUILD = ROOT / "build" / "loads"


@dataclass
class Plan:
    """How long and how often; the full plan is what published figures come from."""

    rounds: int = 3
    seconds: float = 5.0
    warm_seconds: float = 2.0
    kafka_warm_seconds: float = 30.0
    megabytes: int = 400
    idle_connections: int = 10_000

    @staticmethod
    def quick() -> "Plan":
        return Plan(seconds=2.0, warm_seconds=1.0, kafka_warm_seconds=5.0, megabytes=50, idle_connections=2_000)


@dataclass
class Row:
    """One line of the table: ours, the peer's, their ratio or a bound."""

    name: str
    unit: str
    goal: str
    ours: list[float] = field(default_factory=list)
    peer_name: str = ""
    peer: list[float] = field(default_factory=list)
    is_reached: Callable[["Row"], bool] = lambda row: True
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.ours)

    @property
    def ratio(self) -> float | None:
        return self.median / statistics.median(self.peer) if self.peer else None

    def markdown(self) -> str:
        if not self.ours:
            return f"| {self.name} | - | - | - | {self.goal} | not run: {self.note} |"
        peer = f"{self.peer_name} {shown(statistics.median(self.peer))}" if self.peer else "-"
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else "-"
        reached = "reached" if self.is_reached(self) else "**missed**"
        return f"| {self.name} | {shown(self.median)} {self.unit} | {peer} | {ratio} | {self.goal} | {reached} |"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "peer_name": self.peer_name,
            "peer": self.peer,
            "ratio": self.ratio,
            "goal": self.goal,
            "reached": self.is_reached(self) if self.ours else None,
            "note": self.note,
        }


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def at_least(bound: float) -> Callable[[Row], bool]:
    return lambda row: row.ratio is not None and row.ratio >= bound


def at_most(bound: float) -> Callable[[Row], bool]:
    return lambda row: row.median <= bound


class Loads:
    """Runs loadgen and librdkafka clients, and distrusts what they say."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loadgen = peers.compiled("loadgen", BUILD)
        self.bare_server = peers.compiled("bare_server", BUILD)
        self.frames = BUILD / "frames"
        command = [sys.executable, str(peers.oracles() / "tools/load/frames.py"), str(self.frames), "--topic", "load"]
        subprocess.run(command, check=True)

    def generate(self, server: Server, frame: str, connections: int, in_flight: int, seconds: float) -> dict[str, Any]:
        """One closed loop from the first request on, so that what it counts is all that was answered."""
        arguments = ["127.0.0.1", server.port, self.frames / f"{frame}.bin", connections, in_flight, seconds, 0]
        command = [str(self.loadgen), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"load on {server.name} failed: {done.stderr.strip()}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def requests_per_s(self, server: Server, frame: str, connections: int, in_flight: int) -> float:
        self.generate(server, frame, connections, in_flight, self.plan.warm_seconds)
        return float(self.generate(server, frame, connections, in_flight, self.plan.seconds)["requests_per_s"])

    def produce_per_s(self, server: Server, connections: int, in_flight: int) -> float:
        """Produce requests per second; the end offset must have grown by the acknowledged ones and those under way."""
        self.generate(server, "produce", connections, in_flight, self.plan.warm_seconds)
        time.sleep(0.2)  # what was under way when the client left is appended by now
        before = wire.end_offset(server.bootstrap, "load")
        result = self.generate(server, "produce", connections, in_flight, self.plan.seconds)
        time.sleep(0.2)
        grown = wire.end_offset(server.bootstrap, "load") - before
        acknowledged = result["requests"]
        if not acknowledged <= grown <= acknowledged + connections * in_flight:
            raise RuntimeError(f"{server.name} acknowledged {acknowledged} records, its log grew by {grown}")
        return float(result["requests_per_s"])

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

    def drain(self, bootstrap: str, topic: str) -> float:
        records = self.plan.megabytes * 1000
        result = self.librdkafka("consume", bootstrap, topic, records)
        if result["read"] != records:
            raise RuntimeError(f"{bootstrap}: read {result['read']} of {records} records")
        return float(result["mb_per_s"])


def api_versions(loads: Loads) -> list[Row]:
    row = Row(
        "ApiVersions, 16 x 1", "req/s", ">= 0.60 of the bare loop", peer_name="bare loop", is_reached=at_least(0.6)
    )
    with peers.kbroker() as ours:
        with wire.Connection(ours.bootstrap) as connection:
            size = len(connection.ask(wire.header(wire.API_VERSIONS, 0)))
        with peers.bare_loop(loads.bare_server, size - 4) as bare:
            for _ in range(loads.plan.rounds):
                row.ours.append(loads.requests_per_s(ours, "api_versions", 16, 1))
                row.peer.append(loads.requests_per_s(bare, "api_versions", 16, 1))
    return [row]


def against_kafka(loads: Loads) -> list[Row]:
    name = "Produce acks=1 of one 100 B record"
    rows = [
        Row(f"{name}, 16 x 1", "req/s", ">= 1.5 of Kafka", is_reached=at_least(1.5)),
        Row(f"{name}, 8 x 5", "req/s", ">= 2.5 of Kafka", is_reached=at_least(2.5)),
    ]
    consumer = Row("librdkafka consumer, 1 kB", "MB/s", ">= 1.0 of Kafka", is_reached=at_least(1.0))
    with peers.kbroker() as ours, peers.kafka() as kafka:
        for server in (ours, kafka):
            peers.make_topic(server, "load")
            peers.make_topic(server, "filled")
        warm_until = time.monotonic() + loads.plan.kafka_warm_seconds
        while time.monotonic() < warm_until:
            loads.generate(kafka, "produce", 8, 5, loads.plan.kafka_warm_seconds / 2)
            loads.generate(kafka, "fetch", 4, 1, 1)
        for row, (connections, in_flight) in zip(rows, ((16, 1), (8, 5)), strict=True):
            row.peer_name = kafka.name
            for _ in range(loads.plan.rounds):
                row.ours.append(loads.produce_per_s(ours, connections, in_flight))
                row.peer.append(loads.produce_per_s(kafka, connections, in_flight))
        consumer.peer_name = kafka.name
        for server in (ours, kafka):
            loads.fill(server.bootstrap, "filled")
        for _ in range(loads.plan.rounds):
            consumer.ours.append(loads.drain(ours.bootstrap, "filled"))
            consumer.peer.append(loads.drain(kafka.bootstrap, "filled"))
    return [*rows, consumer]


def producer(loads: Loads) -> list[Row]:
    row = Row(
        f"librdkafka producer, 1 kB, {loads.plan.megabytes} MB in all",
        "MB/s",
        ">= 0.60 of the mock",
        peer_name="in-process mock",
        is_reached=at_least(0.6),
    )
    with peers.kbroker() as ours:
        for n in range(loads.plan.rounds):
            peers.make_topic(ours, f"fill-{n}")
            row.ours.append(loads.fill(ours.bootstrap, f"fill-{n}"))
            row.peer.append(loads.fill("mock", f"fill-{n}"))
    return [row]


def start(loads: Loads) -> list[Row]:
    taken = Row("start to first Metadata answer", "ms", "<= 200 ms", is_reached=at_most(200))
    memory = Row("idle memory (RSS)", "MiB", "<= 50 MiB", is_reached=at_most(50))
    for _ in range(max(loads.plan.rounds, 3)):
        milliseconds, rss = peers.start_to_metadata_ms()
        taken.ours.append(milliseconds)
        memory.ours.append(rss / (1 << 20))
    return [taken, memory]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_connections(loads: Loads) -> list[Row]:
    count = loads.plan.idle_connections
    memory = Row(f"{count:,} idle connections, memory", "KiB each", "<= 8 KiB", is_reached=at_most(8))
    load = Row(f"{count:,} idle connections, CPU", "% of a core", "< 2 %", is_reached=lambda row: row.median < 2)
    with peers.kbroker() as ours:
        for _ in range(10):
            assert wire.answers(ours.bootstrap)
        before = rss_bytes(ours.pid)
        command = [sys.executable, str(Path(__file__).with_name("rdkafka.py")), "idle", str(ours.port), str(count)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            held = json.loads(holder.stdout.readline())["held"]
            assert held == count
            time.sleep(1)
            memory.ours.append((rss_bytes(ours.pid) - before) / count / 1024)
            used, begun = cpu_seconds(ours.pid), time.monotonic()
            time.sleep(5)
            load.ours.append((cpu_seconds(ours.pid) - used) / (time.monotonic() - begun) * 100)
            assert wire.answers(ours.bootstrap)
            assert holder.stdin is not None
            holder.stdin.close()
    return [memory, load]


MEASURES: dict[str, Callable[[Loads], list[Row]]] = {
    "api-versions": api_versions,
    "kafka": against_kafka,
    "producer": producer,
    "start": start,
    "idle": idle_connections,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short loads: tells whether it runs, not how fast")
    parser.add_argument("--rounds", type=int, help="repetitions; the figure is their median")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), default=list(MEASURES))
    parser.add_argument("--json", type=Path, default=BUILD / "results.json", help="where to write all figures")
    options = parser.parse_args()
    plan = Plan.quick() if options.quick else Plan()
    plan.rounds = options.rounds or plan.rounds
    try:
        loads = Loads(plan)
    except MissingPeer as missing:
        print(f"bench/loads: {missing}", file=sys.stderr)
        return 1
    rows: list[Row] = []
    for name in options.only:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            rows += MEASURES[name](loads)
        except MissingPeer as missing:
            rows.append(Row(name, "", "-", note=str(missing)))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"\n{machine}; medians of {plan.rounds}\n")
    print("| measure | kbroker | peer | ratio | to reach | |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(row.markdown())
    with contextlib.suppress(OSError):
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"plan": vars(plan), "rows": [r.as_json() for r in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
