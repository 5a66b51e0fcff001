"""Request log to report: a broker with a request log, three clients of which one overloads it, then the pipeline.

    python examples/demo/demo.py [--seconds 20] [--folder build/demo]

`make demo` runs this program. Each command is printed before it runs, in the form in which a user would type it. The
clients are kbroker's own; batch-loader sends as fast as its connection accepts data.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kbroker.cli import cli
from kbroker.client.admin import EARLIEST
from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.session import require_spark

HERE = Path(os.path.relpath(Path(__file__).parent))  # in the form of a user's command
TOPIC, PARTITIONS = "orders", 3


def run(*words: object) -> None:
    """Run a command of `kbroker` in this process, so that Java starts only once."""
    text = [str(word) for word in words]
    print(f"\n$ kbroker {' '.join(text)}", flush=True)
    try:
        cli.main(text, prog_name="kbroker")
    except SystemExit as done:
        if done.code:
            raise


def start_broker(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a broker on a free port with a request log in files; return the process and the address."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": folder / "data",
        "kbroker.request.log.dir": folder / "request-log",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    print(f"$ kbroker serve {' '.join(words)} &", flush=True)
    broker = subprocess.Popen([sys.executable, "-m", "kbroker", "serve", *words], stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    line = broker.stdout.readline()
    print(line, end="", flush=True)
    if "ready:" not in line:
        raise SystemExit("the broker did not start")
    return broker, line.split("://", 1)[1].split(",", 1)[0].strip()


def shop(address: str, until: float) -> None:
    """Send orders at random times: some a second, and occasionally many."""
    rng = random.Random(1)
    with Cluster(address, client_id="web-shop") as cluster, Producer(cluster) as producer:
        while time.monotonic() < until:
            for _ in range(rng.choice([1, 2, 3, 40])):
                producer.send(TOPIC, rng.randbytes(rng.randint(200, 900)))
            producer.flush()
            time.sleep(rng.expovariate(12))


def reports(address: str, until: float) -> None:
    """Read all orders, and begin again every five seconds."""
    with Cluster(address, client_id="reports") as cluster:
        while time.monotonic() < until:
            consumer = Consumer(cluster, {(TOPIC, n): EARLIEST for n in range(PARTITIONS)}, max_wait_ms=200)
            again = min(until, time.monotonic() + 5)
            while time.monotonic() < again:
                consumer.poll()
                time.sleep(0.05)


def batch_loader(address: str, until: float) -> None:
    """Overload the broker: after a while, send as fast as possible, at any throttle time."""
    rng = random.Random(2)
    time.sleep(max(0.0, (until - time.monotonic()) / 4))
    with Cluster(address, client_id="batch-loader") as cluster, Producer(cluster) as producer:
        while time.monotonic() < until:
            for _ in range(60):
                producer.send(TOPIC, rng.randbytes(1000))
            producer.flush()


def keep_going(client: Callable[[str, float], None], address: str, until: float) -> None:
    """Run a client until the end; run it again if it loses its connection, as on a machine that was suspended."""
    while time.monotonic() < until:
        with contextlib.suppress(BrokerConnectionError):
            client(address, until)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="how long the clients run")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="emptied first")
    options = parser.parse_args()
    try:
        require_spark()  # fails before the twenty seconds of traffic, not afterwards
    except PipelineError as missing:
        raise SystemExit(f"the demo needs Spark: {missing}") from None
    folder: Path = options.folder
    if folder.exists() and not (folder / ".kbroker-demo").exists():
        raise SystemExit(f"{folder} is not the folder of a demo: delete it first")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / ".kbroker-demo").touch()
    broker, address = start_broker(folder)
    try:
        run("topics", "create", TOPIC, "--partitions", PARTITIONS, "--bootstrap-server", address)
        run("quotas", "apply", HERE / "quotas.yaml", "--bootstrap-server", address)
        print(f"\n# web-shop, reports and batch-loader for {options.seconds:.0f} s", flush=True)
        until = time.monotonic() + options.seconds
        clients: list[Callable[[str, float], None]] = [shop, reports, batch_loader]
        threads = [threading.Thread(target=keep_going, args=(client, address, until)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        broker.terminate()  # the broker writes its buffers before it stops
        broker.wait()
    table, found, page = folder / "table", folder / "recommended.yaml", folder / "report.html"
    quiet = ("--quiet",)
    print("\n# Spark: its first command takes longest", flush=True)
    run("pipeline", "ingest", table, folder / "request-log", *quiet)
    run("pipeline", "usage", table, *quiet)
    run("pipeline", "throttles", table, *quiet)
    wanted = ("--by", "client-id", "--outliers", 1, "--throttled-below", 5, "--io-threads", 8, "--network-threads", 1)
    run("pipeline", "recommend", table, "-o", found, *wanted, *quiet)
    run("pipeline", "replay", table, "--quotas", found, *quiet)
    run("pipeline", "report", table, "-o", page, "--current", HERE / "quotas.yaml", *wanted, *quiet)
    print(f"\nThe report: {page.absolute().as_uri()}")
    if shutil.which("kbroker") is None:
        print(f"To run a command yourself: {os.path.relpath(Path(sys.executable).with_name('kbroker'))}")


if __name__ == "__main__":
    main()
