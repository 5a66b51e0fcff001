"""Start and memory of a broker with many topics, kbroker and Apache Kafka on the same folder.

    python bench/bench_topics.py --topics 100000 --without-kafka
    python bench/bench_topics.py --topics 15000                            # Kafka opens a file and maps two per topic
    python bench/bench_topics.py --topics 5000 --beside OLD/bin/python     # two builds in turn on the same folder

Kafka comes from Maven and needs Java 17, ``sysctl -w vm.max_map_count=2000000``, and more descriptors (``ulimit -Hn``)
than topics.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.bench_start import serve_command, surroundings
from tests.support.broker import cpu_seconds, status_bytes
from tests.support.kafka import COLLECTOR, ApacheKafka, StartError, Unavailable, broker

CREATE = """
import sys
from kbroker.broker import Broker
from kbroker.metadata.topic_rules import NewTopic
count = int(sys.argv[2])
with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": sys.argv[1]}) as broker:
    for first in range(0, count, 5000):
        names = range(first, min(first + 5000, count))
        broker.context.topics.create_all([NewTopic(f"t{name}", 1, 1) for name in names])
"""
ROWS = ("start, s", "CPU time of the start, s", "memory at its end (RSS), MiB", "peak memory, MiB")


def measured(pid: int, began: float) -> list[float]:
    """Return the row of a broker that has just started."""
    taken = time.monotonic() - began
    return [taken, cpu_seconds(pid), *(status_bytes(pid, name) / 2**20 for name in ("VmRSS", "VmHWM"))]


def kbroker(python: str, folder: Path) -> list[float]:
    """Start kbroker on a folder until its ready line, then stop it."""
    words = [*serve_command(python), "serve", "--listener", "127.0.0.1:0", "--data-dir", str(folder)]
    began = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=surroundings())
    assert process.stdout is not None
    with process.stdout as output:
        if "ready" not in output.readline():
            raise SystemExit("kbroker did not start")
        found = measured(process.pid, began)
        process.terminate()
        process.wait(120)
    return found


def kafka(root: Path, heap: str) -> list[float]:
    """Start Apache Kafka on the folder `data` of `root` until it responds, then stop it."""
    server = ApacheKafka({"controller.quorum.voters": ""}, folder=root, heap=heap, compiler=COLLECTOR)
    server.settings["controller.quorum.bootstrap.servers"] = f"127.0.0.1:{server.port + 1}"
    began = time.monotonic()
    try:
        server.start()
        return measured(server.pid, began)
    finally:
        server.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", action="append", default=[], metavar="PYTHON", help="another build's interpreter")
    parser.add_argument("--heap", default="4g", help="of Kafka's JVM")
    parser.add_argument("--without-kafka", action="store_true")
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    broker.START_TIMEOUT_S = 900.0
    root = Path(tempfile.mkdtemp(prefix="bench-topics-"))
    try:
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", CREATE, str(root / "data"), str(given.topics)], check=True)
        print(f"kbroker created {given.topics:,} topics in {time.monotonic() - began:.1f} s")
        pythons = [*map(os.path.abspath, given.beside), sys.executable]
        columns: dict[str, list[list[float]]] = {python: [] for python in pythons}
        for number in range(given.rounds + 1):
            for python in pythons:
                found = kbroker(python, root / "data")
                if number:  # the first round warms the page cache
                    columns[python].append(found)
        if not given.without_kafka:
            try:
                columns["Kafka"] = [kafka(root, given.heap)]
            except (Unavailable, StartError) as error:
                print(f"Apache Kafka: {error}")
        for row, name in enumerate(ROWS):
            cells = (f"{statistics.median(found[row] for found in rows):10.2f}" for rows in columns.values() if rows)
            print(f"{name:32}", *cells)
        print("columns:", *columns)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
