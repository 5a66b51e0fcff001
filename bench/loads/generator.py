"""The load generator and the bare loop: C programs below `native`, compiled when they are first used.

`Generator` sends one request over and over on many connections, in a closed loop or at a rate, and checks every
response; `bare_loop` is the least that a server of one thread does.
"""

import contextlib
import hashlib
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import wire

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "loads"
NATIVE = Path(__file__).with_name("native")


class NoCompiler(Exception):
    """This machine has no C compiler."""


def compiled(name: str) -> Path:
    """Compile a program unless this source has been compiled already. Raises: NoCompiler."""
    source = NATIVE / f"{name}.c"
    program = BUILD / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        compiler = next((found for found in map(shutil.which, ("cc", "gcc", "clang")) if found), None)
        if compiler is None:
            raise NoCompiler("needs a C compiler; on Debian: apt-get install gcc")
        BUILD.mkdir(parents=True, exist_ok=True)
        part = program.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-std=c11", "-O2", "-Wall", "-o", str(part), str(source)], check=True)
        part.replace(program)
    return program


@dataclass(frozen=True)
class Frame:
    """One request without its length, and where in its response an error code is that must be 0."""

    request: bytes
    error_at: int | None = None


def frames(topic: str, *, records: int = 1, record_bytes: int = 100, acks: int = 1) -> dict[str, Frame]:
    """Requests by name: ApiVersions, Metadata, Produce of one batch, Fetch of 1 MiB from the start of partition 0."""
    name = len(topic.encode())
    batch = wire.batch([b"x" * record_bytes] * records)
    return {
        "api_versions": Frame(wire.header(wire.API_VERSIONS, 0), error_at=4),
        "metadata": Frame(wire.header(wire.METADATA, 4) + struct.pack(">i", 1) + wire.text(topic) + b"\0"),
        # correlation id, count of topics, topic, count of partitions, partition
        "produce": Frame(wire.produce(topic, 0, batch, acks=acks), error_at=4 + 4 + 2 + name + 4 + 4),
        # the throttle time comes first
        "fetch": Frame(wire.fetch(topic), error_at=4 + 4 + 4 + 2 + name + 4 + 4),
    }


class Generator:
    """Loads on a server. Raises: NoCompiler.

    Args:
        requests: by the name that a load is asked for with.
        folder: where the requests are written for the program.
    """

    def __init__(self, requests: dict[str, Frame], folder: Path = BUILD / "frames") -> None:
        self._program = compiled("load")
        self._frames = requests
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in requests.items():
            self._file(name).write_bytes(frame.request)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.bin"

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
    ) -> dict[str, Any]:
        """Send for so long; return the program's figures (latencies in microseconds).

        Without `warm_up_s` all responses are counted. `rate`: requests per second (open loop); 0: as fast as
        responses come. Raises: RuntimeError on a wrong response, an error code, a closed connection.
        """
        command = [str(self._program), "--port", str(port), "--frame", str(self._file(frame))]
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


@contextlib.contextmanager
def bare_loop(body_bytes: int) -> Iterator[tuple[int, int]]:
    """Run the bare loop; gives its port and process id. Its responses are a correlation id and so many bytes."""
    command = [str(compiled("bare_loop")), str(body_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()
