"""Server of the S3 protocol on this machine with conditional puts, and a proxy that injects faults.

Both run in separate processes: while delta-rs waits for a response in a test's process, no other Python thread runs
there.
"""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.ports import free_run

ROOT = Path(__file__).resolve().parents[2]
_SERVER = (
    "import sys; from moto.server import ThreadedMotoServer as Server; s = Server('127.0.0.1', 0, verbose=False); "
    "s.start(); print(s.get_host_and_port()[1], flush=True); sys.stdin.read(); s.stop()"
)


class ObjectStore:
    """Server with one bucket in memory, `tables`, which runs until `close`."""

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
        """Options of the store for delta-rs."""
        return options_of(self.endpoint)

    def put(self, key: str, content: bytes) -> None:
        """Create an object in the bucket."""
        request("PUT", f"{self.endpoint}/tables/{key}", content)

    def close(self) -> None:
        self._server.communicate(timeout=60)  # the server ends when its input is closed


class FaultyStore:
    """Store behind a proxy, whose faults begin with `fail` and end with `heal`.

    `kill` and `start` end and start the proxy. The objects stay in the server behind the proxy, as on the
    disks of a store whose front end fails.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._upstream = store.port
        self.port = free_run(2)
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def options(self) -> dict[str, str]:
        """Options of the store for delta-rs."""
        return options_of(f"http://127.0.0.1:{self.port}")

    def start(self) -> None:
        """Start the proxy at its port."""
        command = [sys.executable, "-m", "tests.support.store_faults", str(self.port), str(self._upstream)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        """Kill the proxy: connections are reset, and new connections are refused."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.communicate()

    def fail(self, **rule: Any) -> None:
        """Respond to some requests with a fault from now on. Args: fields of `store_faults.Rule`."""
        request("PUT", f"http://127.0.0.1:{self.port}/_faults", json.dumps(rule).encode())

    def heal(self) -> dict[str, int]:
        """Respond to all requests without faults; return the number of faults since `fail`, by kind."""
        found = json.loads(request("DELETE", f"http://127.0.0.1:{self.port}/_faults"))
        return {str(name): int(count) for name, count in found.items()}

    def faults(self) -> int:
        """Return the number of requests with a fault since `fail`."""
        return sum(json.loads(request("GET", f"http://127.0.0.1:{self.port}/_faults")).values())

    def close(self) -> None:
        self.kill()


def options_of(endpoint: str) -> dict[str, str]:
    """Return the options of delta-rs for a store at an address."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }


def as_words(options: Mapping[str, str]) -> list[str]:
    """Return options of a store as arguments of a command."""
    return [word for pair in options.items() for word in ("--storage-option", "=".join(pair))]


def request(method: str, url: str, content: bytes | None = None) -> bytes:
    """Send a request; return the content of the response. Raises: urllib.error.HTTPError."""
    headers = {"Content-Type": "application/octet-stream"}  # the server would otherwise parse a form
    asked = urllib.request.Request(url, method=method, data=content, headers=headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return bytes(answer.read())
