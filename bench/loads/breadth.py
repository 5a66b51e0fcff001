"""Measurements beside Apache Kafka, each of one property, such as the codec, the connections or TLS."""

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.loads import generator, peers
from bench.loads.generator import Frame, Generator, fetch_frame, produce_frame
from bench.loads.loads import Loads
from bench.loads.peers import MissingPeer, Server, cpu_seconds, free_port
from bench.loads.report import Row, at_least, at_most_of_peer
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import RecordBatchBuilder
from tests.support import wire

PARTITIONS = 100
SASL = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule"
    ' required user_alice="secret";',
}
LOGIN = (
    wire.header(17, 1) + wire.text("PLAIN"),
    wire.header(36, 0) + (13).to_bytes(4, "big") + b"\0alice\0secret",
)


@dataclass(frozen=True)
class Case:
    """Load of a row; ``records`` is the number that each Produce adds to partition 0 of its topic, 0 for a Fetch."""

    name: str
    topic: str
    frame: Frame
    connections: int
    in_flight: int = 1
    records: int = 0
    tls: bool = False
    first: Sequence[bytes] = ()

    def run(self, loads: Loads, server: Server) -> tuple[float, float]:
        """Return requests per second, and CPU microseconds of the server per request."""
        load = Generator({"case": self.frame})

        def send(seconds: float) -> Mapping[str, float]:
            port = server.second if self.tls else server.port
            return load.run(port, "case", self.connections, self.in_flight, seconds, tls=self.tls, first=self.first)

        def end() -> int:
            time.sleep(0.2)  # the last requests in flight are appended by then
            return wire.end_offset(server.bootstrap, self.topic) if self.records else 0

        try:
            send(loads.plan.warm_seconds)
            before, used = end(), cpu_seconds(server.pid)
            figures = send(loads.plan.seconds)
            used = cpu_seconds(server.pid) - used
            grown, least = end() - before, int(figures["requests"]) * self.records
        except RuntimeError as failure:
            raise RuntimeError(f"{self.name} on {server.name}: {failure}") from None
        if not least <= grown <= least + self.connections * self.in_flight * self.records:
            raise RuntimeError(f"{server.name} acknowledged {least} records, its log grew by {grown}")
        return figures["requests_per_s"], used / figures["requests"] * 1e6


def row_of(loads: Loads, case: Case, goal: float, ours: Server, kafka: Server) -> Row:
    """Measure a case in interleaved pairs."""
    row = Row(case.name, "req/s", f">= {goal:g} of Kafka", peer_name=kafka.name, is_reached=at_least(goal))
    for _ in range(loads.plan.rounds):
        for server, rates, cpus in ((ours, row.ours, row.ours_cpu_us), (kafka, row.peer, row.peer_cpu_us)):
            rate, cpu_us = case.run(loads, server)
            rates.append(rate)
            cpus.append(cpu_us)
    return row


@contextlib.contextmanager
def pair(
    loads: Loads, settings: Mapping[str, str] | None = None, listener: str | None = None
) -> Iterator[list[Server]]:
    """Start kbroker and a warm Kafka with a topic "load" each; ``listener`` is a second listener, on free ports."""

    def second(port: int) -> str | None:
        return f"{listener}://127.0.0.1:{port}" if listener else None

    ports = [free_port(), free_port()]
    with peers.kbroker(settings, second(ports[0])) as ours, peers.kafka(settings, second(ports[1])) as kafka:
        for server in (ours, kafka):
            peers.make_topic(server, "load")
        loads.warm(kafka)
        loads.generate(ours, "produce", 8, 5, 0.5)
        yield [ours, kafka]


def durable(loads: Loads) -> list[Row]:
    """Measure acks=all with a sync after each message."""
    rows = []
    frame = produce_frame(wire.produce("load", 0, wire.batch([b"x" * 100]), acks=-1), "load")
    with pair(loads, {"log.flush.interval.messages": "1"}) as servers:
        for producers in (1, 16, 256):
            name = f"acks=all, log.flush.interval.messages=1, 100 B, {producers} producers"
            rows.append(row_of(loads, Case(name, "load", frame, producers, records=1), 2.0, *servers))
    return rows


def batch_of(codec: CompressionType) -> bytes:
    """Return a batch of 100 records of about 200 bytes that compress like JSON events."""
    builder = RecordBatchBuilder(int(codec))
    for number in range(100):
        event = {"id": f"{number * 2654435761 % 2**32:08x}", "user": f"user-{number % 17}", "page": f"/shop/{number}"}
        builder.append(
            None, json.dumps({**event, "agent": "Mozilla/5.0 (X11; Linux)", "items": [number] * 12}).encode()
        )
    return builder.build()


def codecs(loads: Loads) -> list[Row]:
    """Measure Produce and Fetch of batches of each codec."""
    rows = []
    with pair(loads) as servers:
        for codec in CompressionType:
            topic, name = f"load-{codec.name.lower()}", codec.name.lower()
            for server in servers:
                peers.make_topic(server, topic)
            produce = produce_frame(wire.produce(topic, 0, batch_of(codec)), topic)
            for case in (
                Case(f"Produce of 100 records, {name}, 8 x 5", topic, produce, 8, 5, 100),
                Case(f"Fetch of 1 MiB, {name}, 4 x 1", topic, fetch_frame(wire.fetch(topic), topic), 4),
            ):
                rows.append(row_of(loads, case, 1.5, *servers))
    return rows


def spread(loads: Loads) -> list[Row]:
    """Measure requests of 100 partitions, and 1,000 connections."""
    batch, many = wire.batch([b"x" * 100]), "partitions"
    produce = produce_frame(wire.produce_to(many, range(PARTITIONS), batch), many)
    fetch = fetch_frame(wire.fetch(many, range(PARTITIONS), partition_max_bytes=1000), many)
    single = produce_frame(wire.produce("load", 0, batch), "load")
    some = fetch_frame(wire.fetch("load", partition_max_bytes=1 << 14), "load")
    cases = (
        Case(f"Produce to {PARTITIONS} partitions, 100 B each, 8 x 1", many, produce, 8, records=1),
        Case(f"Fetch of {PARTITIONS} partitions, 1 kB each, 8 x 1", many, fetch, 8),
        Case("Produce of one 100 B record, 1,000 connections", "load", single, 1000, records=1),
        Case("Fetch of 16 KiB, 1,000 connections", "load", some, 1000),
    )
    with pair(loads, {"socket.listen.backlog.size": "2000"}) as servers:
        for server in servers:
            peers.make_topic(server, many, PARTITIONS)
        return [row_of(loads, case, 1.5, *servers) for case in cases]


def latency(loads: Loads) -> list[Row]:
    """Measure the time from a Produce to its consumer, and records for 100 consumers."""
    halves = at_most_of_peer(0.5)
    rows = [
        Row(f"produce to consume at 1,000 records/s, {which}", "us", "<= 0.5 of Kafka", is_reached=halves)
        for which in ("p50", "p99")
    ]
    fan_out = Row("fan-out to 100 consumers", "deliveries/s", ">= 2 of Kafka", is_reached=at_least(2.0))
    warm, seconds = loads.plan.warm_seconds, loads.plan.seconds
    with pair(loads) as servers:
        for server in servers:
            peers.make_topic(server, "followed")
        generator.follow(servers[1].port, "followed", 1, 2 * warm, warm_up_s=0, rate=2000)
        for row in (*rows, fan_out):
            row.peer_name = servers[1].name
        for _ in range(loads.plan.rounds):
            for server, of in zip(servers, ("ours", "peer"), strict=True):
                one = generator.follow(server.port, "followed", 1, seconds, warm_up_s=warm, rate=1000)
                for row, key in zip(rows, ("p50_us", "p99_us"), strict=True):
                    getattr(row, of).append(one[key])
                used = cpu_seconds(server.pid)
                all_of_them = generator.follow(server.port, "followed", 100, seconds, warm_up_s=warm, rate=0)
                getattr(fan_out, of).append(all_of_them["deliveries_per_s"])
                used = (cpu_seconds(server.pid) - used) / (seconds + warm) / all_of_them["deliveries_per_s"] * 1e6
                getattr(fan_out, f"{of}_cpu_us").append(used)
    return [*rows, fan_out]


def keystore(folder: Path) -> Path:
    """Create a key and its certificate in one PEM file. Raises: MissingPeer without openssl."""
    if shutil.which("openssl") is None:
        raise MissingPeer("needs openssl; on Debian: apt-get install openssl")
    key, certificate, both = (folder / name for name in ("key.pem", "certificate.pem", "both.pem"))
    subject = ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *subject]
    command += ["-keyout", str(key), "-out", str(certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MissingPeer(f"openssl made no certificate: {done.stderr.strip()[-160:]}")
    both.write_text(key.read_text() + certificate.read_text())
    return both


def encrypted(loads: Loads) -> list[Row]:
    """Measure Produce and Fetch with TLS, without and with SASL authentication."""
    rows = []
    produce = produce_frame(wire.produce("load", 0, wire.batch([b"x" * 100] * 100)), "load")
    single = produce_frame(wire.produce("load", 0, wire.batch([b"x" * 100])), "load")
    fetch = fetch_frame(wire.fetch("load"), "load")
    for protocol, first in (("SSL", ()), ("SASL_SSL", LOGIN)):
        cases = (
            Case(f"Produce of one 100 B record, {protocol}, 8 x 5", "load", single, 8, 5, 1, True, first),
            Case(f"Produce of 100 records of 100 B, {protocol}, 8 x 5", "load", produce, 8, 5, 100, True, first),
            Case(f"Fetch of 1 MiB, {protocol}, 4 x 1", "load", fetch, 4, 1, 0, True, first),
        )
        with tempfile.TemporaryDirectory(prefix="certificates-") as folder:
            keys = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore(Path(folder)))}
            with pair(loads, {**keys, **SASL}, protocol) as servers:
                cases[1].run(loads, servers[1])  # warms up TLS in the JVM
                rows += [row_of(loads, case, 1.5, *servers) for case in cases]
    return rows


MEASURES: dict[str, Callable[[Loads], list[Row]]] = {
    "durable": durable,
    "codecs": codecs,
    "spread": spread,
    "latency": latency,
    "encrypted": encrypted,
}
