"""The servers that are measured: kbroker, the bare loop, Apache Kafka, each on a free port until its block ends."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import wire
from tests.support.broker import BrokerProcess, wait_for


class MissingPeer(Exception):
    """A peer cannot run on this machine; the text says what is missing."""


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    pid: int

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def free_port(pair: bool = False) -> int:
    """A port nobody uses now; with `pair`, the one above it is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            if not pair:
                return port
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


def oracles() -> Path:
    """The folder with the load tools."""
    root = os.environ.get("KBROKER_ORACLES")
    if not root or not (Path(root) / "tools" / "load").is_dir():
        raise MissingPeer("KBROKER_ORACLES does not name a folder with tools/load: nothing to make load with")
    return Path(root)


def compiled(name: str, folder: Path) -> Path:
    """Compile one of the load programs, unless it is there already."""
    source = oracles() / "tools" / "load" / f"{name}.c"
    program = folder / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        if shutil.which("gcc") is None:
            raise MissingPeer("needs gcc; on Debian: apt-get install gcc")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
    return program


@contextlib.contextmanager
def kbroker() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="kbroker-load-"))
    broker = BrokerProcess(folder / "data")
    try:
        broker.start()
        yield Server("kbroker", broker.port, broker.pid)
        broker.stop()
    finally:
        broker.discard()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def bare_loop(program: Path, answer_bytes: int) -> Iterator[Server]:
    """The limit: one thread, epoll, no queue, no handler; answers with as many bytes as we do."""
    port = free_port()
    process = subprocess.Popen([str(program), str(port), str(answer_bytes)])
    try:
        wait_for("the bare loop listens", lambda: can_connect(port), 10)
        yield Server("bare loop", port, process.pid)
    finally:
        process.kill()
        process.wait(10)


@contextlib.contextmanager
def kafka() -> Iterator[Server]:
    script = oracles() / "tools" / "kafka.sh"
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise MissingPeer(f"Apache Kafka needs {program}")
    port = free_port(pair=True)
    said = subprocess.run([str(script), "start", str(port)], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise MissingPeer(f"Apache Kafka did not start: {said.stderr[-500:]}")
    try:
        words = said.stdout.split()
        yield Server(" ".join(words[:2]).capitalize(), port, int(words[words.index("pid") + 1]))
    finally:
        subprocess.run([str(script), "stop", str(port)], check=False, capture_output=True)


def can_connect(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def make_topic(server: Server, topic: str) -> None:
    with wire.Connection(server.bootstrap) as connection:
        code = wire.first_topic_error(connection.ask(wire.create_topic(topic, 1)))
    if code not in (0, 36):
        raise RuntimeError(f"{server.name} answered error {code} to CreateTopics")
    wait_for("the topic has its leader", lambda: wire.is_ready(server.bootstrap, topic), 20)


def start_to_metadata_ms() -> tuple[float, int]:
    """Milliseconds from the start of the process to the first Metadata answer, and memory (bytes) a second later."""
    from tests.support.broker import rss_bytes

    folder = Path(tempfile.mkdtemp(prefix="kbroker-start-"))
    broker = BrokerProcess(folder / "data")
    broker.port = free_port()
    request = wire.header(wire.METADATA, 1) + b"\xff\xff\xff\xff"
    begun = time.monotonic()
    log = (folder / "log").open("wb")
    process = subprocess.Popen(broker.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while True:
            try:
                with wire.Connection(broker.bootstrap, timeout=10) as connection:
                    connection.ask(request)
                break
            except (OSError, wire.Closed):
                if process.poll() is not None or time.monotonic() - begun > 30:
                    raise RuntimeError(f"no broker: {(folder / 'log').read_text()[-2000:]}") from None
                time.sleep(0.001)
        taken = time.monotonic() - begun
        time.sleep(1)
        return taken * 1000, rss_bytes(process.pid)
    finally:
        process.kill()
        process.wait(10)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
