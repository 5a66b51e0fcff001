"""Programs in C of the folder `native`, compiled at their first use.

`Generator` repeats requests on many connections, in a closed loop or at a rate, and checks each response; `follow`
measures the time from a Produce request to the consumers of its record; `bare_loop` is the minimum work of a server
with one thread.
"""

import contextlib
import hashlib
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import wire

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "loads"
NATIVE = Path(__file__).with_name("native")


LIBRARIES = {"load": (("-lssl", "-lcrypto"), ("-DNO_TLS",))}  # options of a program, and alternatives if these fail


class NoCompiler(Exception):
    """Exception for a machine without a C compiler."""


def compiled(name: str) -> Path:
    """Compile a program unless its source is compiled already, and return its path. Raises: NoCompiler."""
    source = NATIVE / f"{name}.c"
    program = BUILD / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        compiler = next((found for found in map(shutil.which, ("cc", "gcc", "clang")) if found), None)
        if compiler is None:
            raise NoCompiler("needs a C compiler; on Debian: apt-get install gcc")
        BUILD.mkdir(parents=True, exist_ok=True)
        part = program.with_suffix(f".{os.getpid()}")
        command = [compiler, "-std=c11", "-O2", "-Wall", "-o", str(part), str(source)]
        preferred, fallback = LIBRARIES.get(name, ((), ()))
        if subprocess.run([*command, *preferred], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            subprocess.run([*command, *fallback], check=True)
        part.replace(program)
    return program


@dataclass(frozen=True)
class Frame:
    """Request without its length, and the position of an error code in its response that must be 0.

    Each connection sends it and ``others`` in turn.
    """

    request: bytes
    error_at: int | None = None
    others: Sequence[bytes] = ()


def produce_frame(request: bytes, topic: str) -> Frame:
    """Return a Produce request, v3 to v8: correlation id, topics, name, partitions, partition, error code."""
    return Frame(request, error_at=4 + 4 + 2 + len(topic.encode()) + 4 + 4)


def fetch_frame(request: bytes, topic: str) -> Frame:
    """Return a Fetch request, v4, whose response has the throttle time before the topics."""
    return Frame(request, error_at=4 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4)


def frames(topic: str, *, records: int = 1, record_bytes: int = 100, acks: int = 1) -> dict[str, Frame]:
    """Return requests by name: ApiVersions, Metadata, Produce of one batch, Fetch of 1 MiB from the start."""
    batch = wire.batch([b"x" * record_bytes] * records)
    return {
        "api_versions": Frame(wire.header(wire.API_VERSIONS, 0), error_at=4),
        "metadata": Frame(wire.header(wire.METADATA, 4) + struct.pack(">i", 1) + wire.text(topic) + b"\0"),
        "produce": produce_frame(wire.produce(topic, 0, batch, acks=acks), topic),
        "fetch": fetch_frame(wire.fetch(topic), topic),
    }


class Generator:
    """Loads on a server. Raises: NoCompiler.

    Args:
        requests: requests by the names used in ``run``.
        folder: folder for the requests that the program reads.
    """

    def __init__(self, requests: dict[str, Frame], folder: Path = BUILD / "frames") -> None:
        self._program = compiled("load")
        self._frames = requests
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in requests.items():
            self._write(name, [frame.request, *frame.others])

    def _write(self, name: str, requests: Sequence[bytes]) -> Path:
        path = self._folder / f"{name}.bin"
        path.write_bytes(b"".join(struct.pack(">i", len(one)) + one for one in requests))
        return path

    def run(
        self,
        port: int,
        frame: str,
        connections: int,
        in_flight: int,
        seconds: float,
        *,
        warm_up_s: float = 0.0,
        rate: float = 0.0,
        tls: bool = False,
        first: Sequence[bytes] = (),
    ) -> dict[str, Any]:
        """Send requests for `seconds`; return the program's figures (latencies in microseconds).

        Without `warm_up_s` all responses are counted. `rate`: requests per second (open loop); 0 is a closed loop.
        `first`: requests that begin each connection, such as an authentication. Raises: RuntimeError for a wrong
        response, an error code, a closed connection, or a program without TLS.
        """
        command = [str(self._program), "--port", str(port), "--frame", str(self._folder / f"{frame}.bin")]
        command += ["--first", str(self._write("first", first)), *(["--tls"] if tls else [])]
        command += ["--connections", str(connections), "--in-flight", str(in_flight), "--seconds", str(seconds)]
        command += ["--warm-up", str(warm_up_s), "--rate", str(rate)]
        error_at = self._frames[frame].error_at
        if error_at is not None:
            command += ["--error-at", str(error_at)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + warm_up_s + 60, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip() or f"the load ended with {done.returncode}")
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures


def follow(port: int, topic: str, consumers: int, seconds: float, *, warm_up_s: float, rate: float) -> dict[str, Any]:
    """Produce single records to a topic of one partition for consumers; return the program's figures.

    `rate`: records per second; 0 sends the next record when all consumers have the previous one. Raises: RuntimeError.
    """
    bootstrap, place = f"127.0.0.1:{port}", b"KBROKER!"
    start = wire.end_offset(bootstrap, topic)
    fetch = wire.fetch(topic, offset=int.from_bytes(place, "big"), max_wait_ms=500, max_bytes=1 << 16)
    folder = BUILD / "frames"
    folder.mkdir(parents=True, exist_ok=True)
    files = {"produce": wire.produce(topic, 0, wire.batch([b"x" * 100])), "fetch": fetch}
    command = [str(compiled("follow")), "--port", str(port)]
    for name, request in files.items():
        path = folder / f"follow-{name}.bin"
        path.write_bytes(request)
        command += [f"--{name}", str(path)]
    options = {
        "offset-at": fetch.index(place),
        # after the error code: high watermark, last stable offset, count of aborted transactions
        "records-at": (fetch_frame(fetch, topic).error_at or 0) + 2 + 8 + 8 + 4,
        "start": start,
        "consumers": consumers,
        "rate": rate,
        "seconds": seconds,
        "warm-up": warm_up_s,
    }
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + warm_up_s + 60, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"the followers ended with {done.returncode}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@contextlib.contextmanager
def bare_loop(body_bytes: int) -> Iterator[tuple[int, int]]:
    """Run the bare loop; yield its port and process id. Its responses are a correlation id and `body_bytes` bytes."""
    command = [str(compiled("bare_loop")), str(body_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()
