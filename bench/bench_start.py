"""Time of a broker's start, and its idle memory: one installation alone, or interleaved with others.

    python bench/bench_start.py --rounds 15
    python bench/bench_start.py --rounds 15 --beside OLD/bin/python        # medians of both, measured in turn

Goals (two cores, Linux, CPython 3.11): ``kbroker serve`` to the first Metadata response <= 110 ms, ``with Broker():``
in a running program <= 15 ms, idle RSS <= 24 MiB. ``python -X importtime -m kbroker serve ...`` shows the time of
imports.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.loads.peers import free_port
from tests.support import wire
from tests.support.broker import rss_bytes

GOALS = {
    "Python alone, ms": None,
    "first start to first Metadata, ms": 110.0,
    "restart to first Metadata, ms": 110.0,
    "idle RSS, MiB": 24.0,
    "idle private memory, MiB": None,
    "import of kbroker.broker.broker, ms": None,
    "first with Broker() of a program, ms": 15.0,
    "later with Broker(), ms": 15.0,
}
EMBEDDED = """
import json, statistics, time
a = time.perf_counter()
from kbroker.broker import Broker
b = time.perf_counter()
def enter():
    began = time.perf_counter()
    with Broker():
        return (time.perf_counter() - began) * 1000
first = enter()
print(json.dumps([(b - a) * 1000, first, statistics.median(enter() for _ in range(5))]))
"""


def surroundings() -> dict[str, str]:
    """Return an environment in which modules may be compiled, as by pip at installation."""
    return {name: text for name, text in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}


def serve_command(python: str) -> list[str]:
    """Return the command of the console script beside an interpreter, as a user starts it."""
    script = Path(python).with_name("kbroker")
    return [str(script)] if script.exists() else [python, "-m", "kbroker"]


def private_bytes(pid: int) -> int:
    """Return the memory that no other process shares, 0 if the system does not report it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def first_metadata(command: Sequence[str], folder: Path, port: int, idle_s: float) -> tuple[float, int, int]:
    """Return ms from a process's start to its first Metadata response, and RSS and private bytes ``idle_s`` later."""
    request = wire.header(wire.METADATA, 1) + b"\xff\xff\xff\xff"
    words = [*command, "serve", "--set", f"listeners=PLAINTEXT://127.0.0.1:{port}", "--set", f"log.dirs={folder}"]
    with (folder.parent / "output").open("ab") as output:
        begun = time.monotonic()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=surroundings())
        try:
            while True:
                try:
                    with wire.Connection(f"127.0.0.1:{port}", timeout=10) as connection:
                        connection.ask(request)
                    break
                except (OSError, wire.Closed):
                    if process.poll() is not None or time.monotonic() - begun > 30:
                        text = (folder.parent / "output").read_text(errors="replace")[-2000:]
                        raise RuntimeError(f"no broker: {text}") from None
                    time.sleep(0.001)
            taken = time.monotonic() - begun
            time.sleep(idle_s)
            found = rss_bytes(process.pid), private_bytes(process.pid)
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(10)
    return taken * 1000, *found


def once(python: str, idle_s: float) -> list[float]:
    """Return the figures of one round of an installation, in the order of GOALS."""
    begun = time.monotonic()
    subprocess.run([python, "-c", "pass"], check=True, env=surroundings())
    alone = (time.monotonic() - begun) * 1000
    root = Path(tempfile.mkdtemp(prefix="kbroker-start-"))
    try:
        command, folder, port = serve_command(python), root / "data", free_port()
        first, rss, private = first_metadata(command, folder, port, idle_s)
        restart, _, _ = first_metadata(command, folder, port, 0)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    response = subprocess.run(
        [python, "-c", EMBEDDED], check=True, env=surroundings(), capture_output=True, text=True, cwd="/"
    )
    return [alone, first, restart, rss / (1 << 20), private / (1 << 20), *json.loads(response.stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--idle", type=float, default=1.0, metavar="SECONDS", help="before memory is read")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the installation that is measured")
    parser.add_argument("--beside", action="append", default=[], metavar="PYTHON", help="another installation's")
    parser.add_argument("--check", action="store_true", help="fail where a goal is missed")
    given = parser.parse_args()
    pythons = [os.path.abspath(python) for python in (*given.beside, given.python)]
    found: list[list[list[float]]] = [[] for _ in pythons]
    for number in range(given.rounds + 1):
        for column, python in enumerate(pythons):
            values = once(python, given.idle)
            if number:  # the first round warms the page cache
                found[column].append(values)
    print(f"medians (least - most) of {given.rounds} rounds, interleaved; the last column is {pythons[-1]}")
    missed = []
    for row, (name, goal) in enumerate(GOALS.items()):
        cells = []
        for rounds in found:
            column_values = [values[row] for values in rounds]
            low, high = min(column_values), max(column_values)
            cells.append(f"{statistics.median(column_values):7.1f} ({low:.1f} - {high:.1f})")
        median = statistics.median(values[row] for values in found[-1])
        if goal is not None and median > goal:
            missed.append(name)
        print(f"{name:40}", *(f"{cell:26}" for cell in cells), "" if goal is None else f"<= {goal:g}")
    if given.check and missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
