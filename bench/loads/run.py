"""kbroker beside its peers in one run: the bare loop, Apache Kafka, Tansu, kfake, noida-db, librdkafka's mock.

    python bench/loads/run.py [--quick] [--rounds N] [--only NAME ...] [--json FILE] [--markdown FILE] [--compare FILE]
                                [--plot NAME] [--beside PYTHON]

Runs are interleaved, kbroker and peer in turn; ratios are medians of the pairs' ratios. All prerequisites are checked
first and the missing ones listed: without librdkafka's client (`pip install -r bench/requirements.txt`) or a C compiler
the run ends; a missing peer is listed in the table. --compare shows the run beside a saved one (FILE of --json).
--beside only measures this kbroker beside the build that PYTHON imports. Each response's error code is checked, and
after each load the end offset must have grown by the number of acknowledged records. A measurement that fails is a row
with the reason, and the exit status is 1. A C program of this folder, compiled at the first run, generates the load;
Apache Kafka comes from Maven and needs Java.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.bench_start import first_metadata  # noqa: E402
from bench.loads import breadth, coordination, generator, peers, prerequisites, report, share_groups  # noqa: E402
from bench.loads.loads import Loads, Plan  # noqa: E402
from bench.loads.peers import MissingPeer, Server, cpu_seconds  # noqa: E402
from bench.loads.report import Row, at_least, at_most, at_most_of_peer  # noqa: E402
from tests.support import wire  # noqa: E402
from tests.support.broker import SERVE, rss_bytes  # noqa: E402

BUILD = ROOT / "build" / "loads"

NAME = "Produce acks=1 of one 100 B record"
#: Goals as shares of the bare loop, by request, connections and requests in flight on each.
BARE = {("api_versions", 16, 1): 0.88, ("api_versions", 8, 5): 0.8, ("produce", 16, 1): 0.8, ("produce", 8, 5): 0.6}


def bare_loop(loads: Loads) -> list[Row]:
    rows = []
    with peers.kbroker() as ours:
        peers.make_topic(ours, "load")
        for (frame, connections, in_flight), goal in BARE.items():
            title = NAME if frame == "produce" else "ApiVersions"
            name = f"{title}, {connections} x {in_flight}"
            row = Row(name, "req/s", f">= {goal:.2f} of the bare loop", is_reached=at_least(goal))
            with wire.Connection(ours.bootstrap) as connection:
                size = len(connection.ask(generator.frames("load")[frame].request))
            with peers.bare_loop(size - 4) as bare:
                loads.pair(row, ours, bare, frame, connections, in_flight)
            rows.append(row)
    return rows


BESIDE = {(16, 1): f"{NAME}, 16 x 1", (8, 5): f"{NAME}, 8 x 5"}


def against_kafka(loads: Loads) -> list[Row]:
    consumer = Row("librdkafka consumer, 1 kB", "MB/s", ">= 1.0 of Kafka", is_reached=at_least(1.0))
    half = at_most_of_peer(0.5)
    used = Row("the same, CPU of the broker", "s/GB", "<= 0.5 of Kafka", is_reached=half)
    with peers.kbroker() as ours, peers.kafka() as kafka:
        for server in (ours, kafka):
            peers.make_topic(server, "load")
            peers.make_topic(server, "filled")
        loads.warm(kafka)
        rows = beside(loads, ours, kafka, {(16, 1): 1.5, (8, 5): 2.5})
        consumer.peer_name = used.peer_name = kafka.name
        for server in (ours, kafka):
            loads.fill(server.bootstrap, "filled")
        for _ in range(loads.plan.rounds):
            for server, rates, cpus in ((ours, consumer.ours, used.ours), (kafka, consumer.peer, used.peer)):
                before = cpu_seconds(server.pid)
                rates.append(loads.drain(server.bootstrap, "filled"))
                cpus.append((cpu_seconds(server.pid) - before) / loads.plan.megabytes * 1000)
    return [*rows, consumer, used]


def beside(loads: Loads, ours: Server, peer: Server, goals: dict[tuple[int, int], float]) -> list[Row]:
    """Measure Produce at two loads and ApiVersions; an error of a peer is reported in its row."""
    rows = []
    for (connections, in_flight), name in BESIDE.items():
        goal = goals.get((connections, in_flight))
        row = Row(name, "req/s") if goal is None else Row(name, "req/s", f">= {goal}", is_reached=at_least(goal))
        rows.append(row)
        attempt(loads, row, ours, peer, "produce", connections, in_flight)
    rows.append(Row("ApiVersions, 16 x 1", "req/s"))
    attempt(loads, rows[-1], ours, peer, "api_versions", 16, 1)
    return rows


def attempt(loads: Loads, row: Row, ours: Server, peer: Server, frame: str, connections: int, in_flight: int) -> None:
    try:
        loads.pair(row, ours, peer, frame, connections, in_flight)
    except (RuntimeError, OSError, AssertionError, wire.Closed) as error:
        row.ours, row.peer, row.ours_cpu_us, row.peer_cpu_us = [], [], [], []
        row.peer_name, row.note = peer.name, " ".join(str(error).split())[:160]


def small_rival(start_peer: Callable[[], contextlib.AbstractContextManager[Server]]) -> Callable[[Loads], list[Row]]:
    def measure(loads: Loads) -> list[Row]:
        with start_peer() as peer, peers.kbroker() as ours:
            for server in (ours, peer):
                try:
                    peers.make_topic(server, "load")
                except (RuntimeError, OSError, AssertionError, wire.Closed) as error:
                    raise MissingPeer(f"{server.name} made no topic: {' '.join(str(error).split())[:160]}") from None
            return beside(loads, ours, peer, {})

    return measure


def start_to_metadata(python: str = sys.executable) -> tuple[float, int]:
    """Return ms from the start of a process to its first Metadata response, and memory in bytes one second later."""
    with tempfile.TemporaryDirectory(prefix="kbroker-start-") as root:
        taken_ms, rss, _ = first_metadata([python, *SERVE[:-1]], Path(root) / "data", peers.free_port(), 1)
    return taken_ms, rss


def another_build(loads: Loads, python: str) -> list[Row]:
    """Measure requests, a consumer, start and idle memory of this build beside another build."""
    consumer = Row("librdkafka consumer, 1 kB", "MB/s")
    with peers.kbroker() as ours, peers.kbroker(python=python) as other:
        for server in (ours, other):
            peers.make_topic(server, "load")
            peers.make_topic(server, "filled")
        rows = beside(loads, ours, other, {})
        consumer.peer_name = other.name
        for server in (ours, other):
            loads.fill(server.bootstrap, "filled")
        for _ in range(loads.plan.rounds):
            consumer.ours.append(loads.drain(ours.bootstrap, "filled"))
            consumer.peer.append(loads.drain(other.bootstrap, "filled"))
    taken, memory = Row("start to first Metadata response", "ms"), Row("idle memory (RSS)", "MiB")
    for interpreter in (sys.executable, python):
        start_to_metadata(interpreter)  # compiles the modules, as pip does at installation
    for _ in range(max(loads.plan.rounds, 3)):
        ours_ms, ours_rss = start_to_metadata()
        other_ms, other_rss = start_to_metadata(python)
        taken.ours.append(ours_ms)
        taken.peer.append(other_ms)
        memory.ours.append(ours_rss / (1 << 20))
        memory.peer.append(other_rss / (1 << 20))
    taken.peer_name = memory.peer_name = consumer.peer_name
    return [*rows, consumer, taken, memory]


def producer(loads: Loads) -> list[Row]:
    row = Row(
        f"librdkafka producer, 1 kB, {loads.plan.megabytes} MB in all",
        "MB/s",
        ">= 0.90 of the mock",
        peer_name="in-process mock",
        is_reached=at_least(0.9),
    )
    with peers.kbroker() as ours:
        for n in range(loads.plan.rounds):
            peers.make_topic(ours, f"fill-{n}")
            row.ours.append(loads.fill(ours.bootstrap, f"fill-{n}"))
            row.peer.append(loads.fill("mock", f"fill-{n}"))
    return [row]


def transactions(loads: Loads) -> list[Row]:
    """Measure librdkafka's transactions beside Kafka, and a read_committed consumer of the resulting topics."""
    writes = {each: Row(f"librdkafka transactions of {each:,} records of 1 kB", "MB/s") for each in (100, 1000)}
    reads = {
        every: Row(f"librdkafka consumer, read_committed, 1 kB, {share} aborted", "MB/s")
        for every, share in ((0, "0 %"), (10, "10 %"))
    }
    rows = [*writes.values(), *reads.values()]
    records = loads.plan.transactions * 100
    filled = loads.plan.megabytes * 1000
    with peers.kbroker() as ours, peers.kafka() as kafka:
        for server in (ours, kafka):
            for topic in ("written", *(f"aborted-{every}" for every in reads)):
                peers.make_topic(server, topic)
            for every in reads:  # warms up Kafka, too
                loads.transact(server.bootstrap, f"aborted-{every}", filled, 100, every)
        for row in rows:
            row.peer_name = kafka.name
        for _ in range(loads.plan.rounds):
            for each, row in writes.items():
                count = records if each == 100 else records * 2
                row.ours.append(loads.transact(ours.bootstrap, "written", count, each))
                row.peer.append(loads.transact(kafka.bootstrap, "written", count, each))
            for every, row in reads.items():
                committed = filled if every == 0 else filled // every * (every - 1)
                row.ours.append(loads.drain(ours.bootstrap, f"aborted-{every}", committed))
                row.peer.append(loads.drain(kafka.bootstrap, f"aborted-{every}", committed))
    return rows


def start(loads: Loads) -> list[Row]:
    taken = Row("start to first Metadata response", "ms", "<= 200 ms", is_reached=at_most(200))
    memory = Row("idle memory (RSS)", "MiB", "<= 50 MiB", is_reached=at_most(50))
    start_to_metadata()  # compiles the modules, as pip does at installation
    for _ in range(max(loads.plan.rounds, 3)):
        milliseconds, rss = start_to_metadata()
        taken.ours.append(milliseconds)
        memory.ours.append(rss / (1 << 20))
    return [taken, memory]


def idle_connections(loads: Loads) -> list[Row]:
    count = loads.plan.idle_connections
    memory = Row(f"{count:,} idle connections, memory", "KiB each", "<= 8 KiB", is_reached=at_most(8))
    load = Row(f"{count:,} idle connections, CPU", "% of a core", "< 2 %", is_reached=lambda row: row.median < 2)
    # one client opens all connections without a pause: with Kafka's backlog of 50, each lost SYN would take a second
    with peers.kbroker({"socket.listen.backlog.size": "4096"}) as ours:
        for _ in range(10):
            assert wire.responses(ours.bootstrap)
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
            assert wire.responses(ours.bootstrap)
            assert holder.stdin is not None
            holder.stdin.close()
    return [memory, load]


MEASURES: dict[str, Callable[[Loads], list[Row]]] = {
    "bare": bare_loop,
    "kafka": against_kafka,
    "tansu": small_rival(peers.tansu),
    "kfake": small_rival(peers.kfake),
    "noida": small_rival(peers.noida),
    "producer": producer,
    "transactions": transactions,
    "start": start,
    "idle": idle_connections,
}
USUAL = list(MEASURES)
MEASURES |= {**breadth.MEASURES, **coordination.MEASURES, **share_groups.MEASURES}  # each takes one to three minutes


def measured(loads: Loads, names: list[str]) -> list[Row]:
    """Return the rows of measurements; one that fails is a row with the reason, so that the others are not lost."""
    rows: list[Row] = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            rows += MEASURES[name](loads)
        except MissingPeer as missing:
            rows.append(Row(name, "", note=" ".join(str(missing).split())))
        except Exception as error:
            traceback.print_exc()
            reason = " ".join(str(error).split())[:160]
            rows.append(Row(name, "", note=f"{type(error).__name__}: {reason}", has_failed=True))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short loads: they show that it runs, not how fast")
    parser.add_argument("--rounds", type=int, help="repetitions; the figure is their median")
    parser.add_argument(
        "--only", nargs="+", choices=list(MEASURES), default=USUAL, help="measurements; default: the first nine"
    )
    parser.add_argument("--json", type=Path, default=BUILD / "results.json", help="where to write all figures")
    parser.add_argument("--markdown", type=Path, help="where to write the table too")
    parser.add_argument("--plot", type=Path, help="name of the pictures without .png and .svg; needs matplotlib")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="saved run to compare this one with")
    parser.add_argument("--beside", metavar="PYTHON", help="measure beside the kbroker that this interpreter imports")
    options = parser.parse_args()
    saved = json.loads(options.compare.read_text(encoding="utf-8")) if options.compare else None
    plan = Plan.quick() if options.quick else Plan()
    plan.rounds = options.rounds or plan.rounds
    measures = ["another build"] if options.beside else options.only
    lacks = prerequisites.missing(measures, plot=options.plot is not None)
    for lack in lacks:
        print(f"bench/loads {lack}", file=sys.stderr, flush=True)
    if any(lack.is_required for lack in lacks):
        return 1
    facts = report.machine()
    loads = Loads(plan)
    rows = another_build(loads, options.beside) if options.beside else measured(loads, options.only)
    text = report.table(rows, facts, plan.rounds)
    print(f"\n{text}")
    report.save(options.json, rows, facts, vars(plan))
    if options.markdown:
        options.markdown.write_text(text + "\n", encoding="utf-8")
    if saved is not None:
        print(f"\n{report.comparison(rows, saved)}")
    status = int(any(row.has_failed for row in rows))
    if options.plot:
        program = Path(__file__).with_name("plot.py")
        plotted = subprocess.run([sys.executable, str(program), str(options.json), str(options.plot)], check=False)
        return plotted.returncode or status
    return status


if __name__ == "__main__":
    sys.exit(main())
