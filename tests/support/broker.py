"""Broker in a separate process, as a user starts it: ready line, kill -9, restart on the same port, memory."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

READY = re.compile(r"ready: .*?127\.0\.0\.1:([1-9]\d*)")
SERVE = ["-c", "from kbroker.__main__ import main; main()", "serve"]


def wait_for(what: str, condition: Callable[[], object], seconds: float = 30.0, every: float = 0.02) -> None:
    """Poll a condition; fail with its name if it is not true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(every)


def status_bytes(pid: int, name: str) -> int:
    """Return a size from the kernel's status of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def rss_bytes(pid: int) -> int:
    return status_bytes(pid, "VmRSS")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class BrokerProcess:
    """`kbroker serve` on 127.0.0.1. The system chooses the port at the first start; later starts keep the port.

    Args:
        settings: given with --set.
        wrapper: a command put before the broker's, such as prlimit.
        python: the interpreter that has the kbroker to run.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        wrapper: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        self.folder = folder
        self.settings = dict(settings or {})
        self.wrapper = list(wrapper)
        self.python = python
        self.port = 0
        self.output: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self._ready = threading.Event()
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: object) -> None:
        """Stop the broker, which must end with status 0; after a failure of the test, kill it."""
        try:
            if kind is None:
                status = self.stop()
                assert status == 0, f"the broker ended with {status}:\n{self.tail()}"
        finally:
            self.discard()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker was never started"
        return self.process.pid

    def command(self) -> list[str]:
        settings = {"listeners": f"PLAINTEXT://127.0.0.1:{self.port}", "log.dirs": str(self.folder), **self.settings}
        return [
            *self.wrapper,
            self.python,
            *SERVE,
            *(part for k, v in settings.items() for part in ("--set", f"{k}={v}")),
        ]

    def start(self, seconds: float = 30.0) -> float:
        """Start, wait for the ready line, and return the seconds that it took."""
        begun = time.monotonic()
        if self.port == 0 and "listeners" not in self.settings and sys.platform == "linux":
            self._hold_port()
        self._ready.clear()
        self.process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        while not self._ready.wait(0.05):
            if self.process.poll() is not None:
                self._reader.join(5)
                raise AssertionError(f"the broker ended with {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() - begun > seconds:
                self.kill()
                raise AssertionError(f"no ready line within {seconds:g} s:\n{self.tail()}")
        return time.monotonic() - begun

    def _hold_port(self) -> None:
        """Choose a port that no other program can get while the broker does not run; the broker may listen at it."""
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        self.port = held.getsockname()[1]
        weakref.finalize(self, held.close)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.output.append(line)
                found = READY.search(line)
                if found and not self._ready.is_set():
                    self.port = int(found.group(1))
                    self._ready.set()

    def tail(self, lines: int = 40) -> str:
        return "".join(self.output[-lines:])

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self._end(signal.SIGKILL, 10)

    def stop(self, seconds: float = 20.0) -> int:
        """Stop the process with SIGTERM; return its exit status."""
        return self._end(signal.SIGTERM, seconds)

    def _end(self, number: signal.Signals, seconds: float) -> int:
        process = self.process
        assert process is not None, "the broker was never started"
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise AssertionError(f"the broker did not stop within {seconds:g} s:\n{self.tail()}") from None
        finally:
            if self._reader is not None:
                self._reader.join(10)
        return process.returncode

    def discard(self) -> None:
        """Kill the process if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.kill()


class ConfiguredBroker(BrokerProcess):
    """`kbroker serve` with a written file of properties. Args: ``port`` of its first listener."""

    def __init__(self, folder: Path, port: int, properties: Path) -> None:
        super().__init__(folder)
        self.port = port
        self.properties = properties

    def command(self) -> list[str]:
        return [self.python, *SERVE, "--config", str(self.properties)]


def run_to_end(
    command: Sequence[str | Path],
    *,
    stdin: str | bytes | None = None,
    seconds: float = 120.0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end and return its standard output; a failure shows all it printed."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(command, input=data, capture_output=True, timeout=seconds, check=False, cwd=cwd, env=env)
    if done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))} ended with {done.returncode}\n"
            f"{done.stdout.decode(errors='replace')[-4000:]}\n{done.stderr.decode(errors='replace')[-4000:]}"
        )
    return done.stdout.decode(errors="replace")
