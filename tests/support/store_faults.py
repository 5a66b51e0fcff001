"""Proxy in front of a server of the S3 protocol that responds to some requests with a fault.

    python -m tests.support.store_faults PORT PORT_OF_THE_SERVER

PUT /_faults with a Rule as JSON begins faults and DELETE /_faults ends them; DELETE and GET return their number by
kind. The process prints `ready` and ends when its standard input is closed.
"""

import http.client
import json
import random
import re
import socket
import struct
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kbroker._core.clock import SystemClock
from tests.support.http_bodies import body_of

SLOW_DOWN, ERROR, RESET, LOST, HANG = "503", "500", "reset", "lost", "hang"
HOLD, HOLD_AFTER = "hold", "hold after"
_CODES = {SLOW_DOWN: "SlowDown", ERROR: "InternalError"}
_CLOCK = SystemClock()


@dataclass
class Rule:
    """Requests that fail, and the kind of failure.

    `kinds`, used in turn: "503", "500", "reset" (of the connection before the request is forwarded), "lost" (a reset
    after the server has handled the request), "hang" (no response for `hang_s`, then a reset), "hold" (the request is
    forwarded after the end of the faults), "hold after" (the response is sent after the end of the faults). `share`:
    fraction of the requests; `method`, `path`: patterns of the requests; `seconds`, `count`: maximum duration and
    number of faults.
    """

    kinds: list[str] = field(default_factory=lambda: [SLOW_DOWN])
    share: float = 1.0
    method: str = ".*"
    path: str = ".*"
    seconds: float = 1e9
    count: int = 1_000_000_000
    hang_s: float = 40.0
    seed: int = 1


class _Faults:
    """Rule in force. Threads: any; `_lock` guards all fields."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rule: Rule | None = None
        self._random = random.Random(1)
        self._until_ms = 0.0
        self._seen: Counter[str] = Counter()
        self.over = threading.Event()

    def begin(self, rule: Rule) -> None:
        with self._lock:
            self._rule, self._random, self._seen = rule, random.Random(rule.seed), Counter()
            self._until_ms = _CLOCK.now_ms() + rule.seconds * 1000
            self.over.set()
            self.over = threading.Event()

    def end(self) -> dict[str, int]:
        with self._lock:
            self._rule = None
            self.over.set()
            return dict(self._seen)

    def seen(self) -> dict[str, int]:
        with self._lock:
            return dict(self._seen)

    def of(self, method: str, path: str) -> tuple[str, float] | None:
        """Return the fault of a request and its time without a response in seconds, or None."""
        with self._lock:
            rule = self._rule
            if rule is None or _CLOCK.now_ms() > self._until_ms or self._seen.total() >= rule.count:
                return None
            if not re.fullmatch(rule.method, method) or not re.search(rule.path, path):
                return None
            if self._random.random() >= rule.share:
                return None
            kind = rule.kinds[self._seen.total() % len(rule.kinds)]
            self._seen[kind] += 1
            return kind, rule.hang_s


_faults = _Faults()
_ended = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = 0

    def handle_any(self) -> None:
        content = body_of(self)
        if self.path == "/_faults":
            answer = b""
            if self.command == "PUT":
                _faults.begin(Rule(**json.loads(content)))
            else:
                found = _faults.end() if self.command == "DELETE" else _faults.seen()
                answer = json.dumps(found).encode()
            self._answer(200, [], answer)
            return
        over = _faults.over
        fault = _faults.of(self.command, self.path)
        kind = fault[0] if fault else ""
        if kind in _CODES:
            text = f"<Error><Code>{_CODES[kind]}</Code><Message>{_CODES[kind]}</Message></Error>".encode()
            self._answer(int(kind), [("Content-Type", "application/xml")], text)
            return
        if kind == HANG and fault is not None:
            _ended.wait(fault[1])
        if kind == HOLD:
            over.wait()
        if kind in (RESET, HANG):
            self._reset()
            return
        status, headers, answer = self._ask(content)
        if kind == HOLD_AFTER:
            over.wait()
        if kind == LOST:
            self._reset()
        else:
            self._answer(status, headers, answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def _ask(self, content: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=120)
        try:
            left_out = {"transfer-encoding", "content-length", "connection", "expect"}
            headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
            connection.request(self.command, self.path, body=content, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("content-length", "transfer-encoding", "connection", "content-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that the client or a fault has closed."""


def main(port: str, upstream: str) -> None:
    _Handler.upstream = int(upstream)
    server = _Server(("127.0.0.1", int(port)), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    _ended.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
