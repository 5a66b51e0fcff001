"""A server of S3's protocol on this machine, which knows conditional puts as S3 does, and faults in front of it.

Both run in separate processes: while delta-rs waits for a response in a test's process, no other thread of Python
runs there.
"""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.ports import free_pair

ROOT = Path(__file__).resolve().parents[2]
_SERVER = (
    "import sys; from moto.server import ThreadedMotoServer as Server; s = Server('127.0.0.1', 0, verbose=False); "
    "s.start(); print(s.get_host_and_port()[1], flush=True); sys.stdin.read(); s.stop()"
)


class ObjectStore:
    """A server with one bucket, `tables`, in its memory; ended by `close`."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())
        request("PUT", f"{self.endpoint}/tables")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """For delta-rs."""
        return options_of(self.endpoint)

    def put(self, key: str, content: bytes) -> None:
        """Make an object in the bucket."""
        request("PUT", f"{self.endpoint}/tables/{key}", content)

    def close(self) -> None:
        self._server.communicate(timeout=60)  # it ends with its input


class FaultyStore:
    """A store as its clients see it through faults, which `fail` begins and `heal` ends; `kill` and `start` end it.

    What is kept is in the server behind it, as on the disks of a store whose front end dies.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._upstream = store.port
        self.port = free_pair()
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def options(self) -> dict[str, str]:
        """For delta-rs."""
        return options_of(f"http://127.0.0.1:{self.port}")

    def start(self) -> None:
        """Let it answer, at the port that it has had before."""
        command = [sys.executable, "-m", "tests.support.store_faults", str(self.port), str(self._upstream)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        """End it as `kill -9` does: connections are reset, and new ones refused."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.communicate()

    def fail(self, **rule: Any) -> None:
        """Answer some requests with a fault from now on. Args: as `store_faults.Rule` has them."""
        request("PUT", f"http://127.0.0.1:{self.port}/_faults", json.dumps(rule).encode())

    def heal(self) -> dict[str, int]:
        """Answer all requests again. Returns: how many faults there were since `fail`, by their kind."""
        found = json.loads(request("DELETE", f"http://127.0.0.1:{self.port}/_faults"))
        return {str(name): int(count) for name, count in found.items()}

    def faults(self) -> int:
        """Number of requests that have met a fault since `fail`."""
        return sum(json.loads(request("GET", f"http://127.0.0.1:{self.port}/_faults")).values())

    def close(self) -> None:
        self.kill()


def options_of(endpoint: str) -> dict[str, str]:
    """Return the options of delta-rs for a store at an address of this machine."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }


def as_words(options: Mapping[str, str]) -> list[str]:
    """Options of a store as a command takes them."""
    return [word for pair in options.items() for word in ("--storage-option", "=".join(pair))]


def request(method: str, url: str, content: bytes | None = None) -> bytes:
    """One request. Raises: urllib.error.HTTPError."""
    headers = {"Content-Type": "application/octet-stream"}  # else the server takes it for a form
    asked = urllib.request.Request(url, method=method, data=content, headers=headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return bytes(answer.read())
