"""Forwarding of pushes to an OTLP endpoint over HTTP, from a bounded queue and on its own thread."""

from __future__ import annotations

import http.client
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.limited_log import RepeatedFailures
from kbroker.common.loggers import get_logger
from kbroker.common.threads import have_ended, new_thread

if TYPE_CHECKING:
    from kbroker.log.scheduler import ScheduledTask, Scheduler

logger = get_logger(__name__)

TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 1 << 16  # read of a response, which is not used; after a longer one, a new connection is opened
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1000, 30_000
CONTENT_TYPE = "application/x-protobuf"

#: Statuses after which OTLP permits another attempt.
_RETRIED = frozenset({429, 502, 503, 504})


class ForwarderFigures(NamedTuple):
    """Pushes that the endpoint accepted, attempts that failed, pushes that were dropped, and bytes in the queue."""

    sent: int
    failed: int
    dropped: int
    queued_bytes: int


class Forwarder:
    """Sender of metrics to ``endpoint``, a URL; without a path, OTLP's own path is used.

    A push that does not fit the queue is dropped. An endpoint that cannot be reached, or is overloaded, gets the same
    push again after a pause of 1 to 30 seconds of ``clock``; a push that it refuses otherwise is dropped.
    Threads: any; ``stop`` once.
    """

    def __init__(self, endpoint: str, clock: BaseClock, scheduler: Scheduler, max_bytes: int) -> None:
        self._url = urllib.parse.urlsplit(endpoint)
        self._shown_url = self._url._replace(query="").geturl()  # a query may have a secret
        self._scheduler = scheduler
        self._max_bytes = max_bytes
        self._failures = RepeatedFailures(clock)
        self._changed = threading.Condition()  # guards the rest; a leaf
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._sent = self._failed = self._dropped = 0
        self._pausing: ScheduledTask | None = None
        self._pause_ms = FIRST_PAUSE_MS
        self._is_stopping = False
        self._connection: http.client.HTTPConnection | None = None
        self._thread = new_thread("telemetry-forwarder", self._run, "telemetry")
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Queue a message, or drop it if the queue is full. Never waits."""
        with self._changed:
            if not self._is_stopping and self._queued_bytes + len(data) <= self._max_bytes:
                self._queue.append(data)
                self._queued_bytes += len(data)
                self._changed.notify()
                return
            self._dropped += 1
            reason = (
                "the broker stops" if self._is_stopping else "the queue is full (kbroker.telemetry.otlp.queue.bytes)"
            )
        self._report(reason)

    def stop(self, timeout_s: float) -> bool:
        """Send each queued message once more, without pauses, and end the thread; return whether it ended in time."""
        with self._changed:
            self._is_stopping = True
            if self._pausing is not None:
                self._pausing.cancel()
                self._pausing = None
            self._changed.notify()
        return have_ended([self._thread], timeout_s)

    @property
    def figures(self) -> ForwarderFigures:
        """Counts since the start, and bytes in the queue."""
        with self._changed:
            return ForwarderFigures(self._sent, self._failed, self._dropped, self._queued_bytes)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while (data := self._next()) is not None:
            try:
                status = self._send(data)
                reason, is_retried = f"the endpoint responded with status {status}", status in _RETRIED
                is_sent = 200 <= status < 300
            except (OSError, MemoryError, http.client.HTTPException) as error:
                self._disconnect()
                reason, is_retried, is_sent = str(error) or type(error).__name__, True, False
            self._settle(data, is_sent, is_retried)
            if not is_sent:
                self._report(reason)
        self._disconnect()

    def _next(self) -> bytes | None:
        """Wait for a message, which stays in the queue; None once the forwarder stops and the queue is empty."""
        with self._changed:
            while self._pausing is not None or not (self._queue or self._is_stopping):
                self._changed.wait()
            return self._queue[0] if self._queue else None

    def _settle(self, data: bytes, is_sent: bool, is_retried: bool) -> None:
        with self._changed:
            if not is_sent:
                self._failed += 1
            if not is_sent and is_retried and not self._is_stopping:
                self._pausing = self._scheduler.schedule("telemetry-retry", self._resume, delay_ms=self._pause_ms)
                self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)
                return
            self._queue.popleft()
            self._queued_bytes -= len(data)
            if is_sent:
                self._sent += 1
                self._pause_ms = FIRST_PAUSE_MS
            else:
                self._dropped += 1

    def _resume(self) -> None:
        with self._changed:
            self._pausing = None
            self._changed.notify()

    def _send(self, data: bytes) -> int:
        """Send one message and return the status. Raises: OSError, HTTPException."""
        if self._connection is None:
            kind: Callable[..., http.client.HTTPConnection] = (
                http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
            )
            self._connection = kind(self._url.hostname, self._url.port, timeout=TIMEOUT_S)
        path = self._url.path if self._url.path not in ("", "/") else "/v1/metrics"
        path += f"?{self._url.query}" if self._url.query else ""
        self._connection.request("POST", path, data, {"Content-Type": CONTENT_TYPE, "User-Agent": "kbroker"})
        with self._connection.getresponse() as response:
            response.read(MAX_RESPONSE_BYTES)
            is_whole = response.isclosed()
        if not is_whole:
            self._disconnect()
        return response.status

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _report(self, reason: str) -> None:
        message = "client metrics are not forwarded to %s: %s"
        self._failures.log(None, logger.warning, message, self._shown_url, reason)
