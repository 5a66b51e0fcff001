"""Requests of clients to the active controller, in Envelopes with the principal and the address of the client.

Source: ``ForwardingManagerImpl``, ``ForwardingManagerMetrics``, ``DefaultKafkaPrincipalBuilder``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker._core.metrics.sensor import Sensor
from kbroker._core.metrics.stats import Percentiles
from kbroker.common.errors import Errors
from kbroker.common.limited_log import RateLimitedLogger
from kbroker.common.loggers import get_logger
from kbroker.member.client import Client
from kbroker.member.controller_channel import ControllerChannel, Outcome
from kbroker.protocol import codec

logger = get_logger(__name__)

ENVELOPE = 58
TIMEOUT_MS = 60_000  # after which a request without a response of a controller fails
HISTOGRAM_BYTES = 4000
MAX_WAITING_BYTES = 64 << 20  # of all requests that wait for a controller
#: Largest request, far below the usual socket.request.max.bytes: a controller closes the connection of a larger one.
MAX_REQUEST_BYTES = MAX_WAITING_BYTES // 4


class ForwardedResponse(NamedTuple):
    """The ``data`` of a response, header included, or an ``error``.

    Errors: UNSUPPORTED_VERSION: the controller does not support the version of the request, so the connection of the
    client is to be closed; INVALID_REQUEST: the request is too large; REQUEST_TIMED_OUT: no controller took the request
    in time; NETWORK_EXCEPTION: this broker stops; UNKNOWN_SERVER_ERROR.
    """

    data: bytes
    error: Errors = Errors.NONE


Complete = Callable[[ForwardedResponse], None]


class ForwardingManager:
    """Sender of forwarded requests through a channel.

    A waiting request occupies no thread. Its size is limited to `MAX_REQUEST_BYTES`, the total size of all waiting
    requests to `MAX_WAITING_BYTES`.

    Attributes: ``queue_times``, ``remote_times``: sensors of milliseconds, with the metrics "p99" and "p999".
    Threads: any.
    """

    def __init__(self, channel: ControllerChannel, clock: BaseClock) -> None:
        self._channel = channel
        self._log = RateLimitedLogger(logger, clock)
        self.queue_times, self.remote_times = _times("QueueTimeMs", clock), _times("RemoteTimeMs", clock)
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._waiting = 0

    @property
    def queue_length(self) -> int:
        """Number of requests without a response."""
        return self._waiting

    def forward(self, request: bytes, client: Client, complete: Complete) -> None:
        """Send a request, header included, for a client; ``complete`` is called exactly once, perhaps at once."""
        size_bytes = len(request)
        if size_bytes > MAX_REQUEST_BYTES:
            self._log.warning(
                "a request of %s at %s is refused: it has %d bytes, and at most %d can be forwarded to the controller",
                client.principal, client.host, size_bytes, MAX_REQUEST_BYTES,
            )  # fmt: skip
            complete(ForwardedResponse(b"", Errors.INVALID_REQUEST))
            return
        body = envelope(request, client)
        with self._lock:
            fits = self._waiting_bytes + size_bytes <= MAX_WAITING_BYTES
            if fits:
                self._waiting += 1
                self._waiting_bytes += size_bytes
        if not fits:
            self._log.warning("a request is refused: %d forwarded ones wait for a controller", self._waiting)
            complete(ForwardedResponse(b"", Errors.REQUEST_TIMED_OUT))
            return

        def finish(outcome: Outcome) -> None:
            with self._lock:
                self._waiting -= 1
                self._waiting_bytes -= size_bytes
            self.queue_times.record(outcome.queue_ms)
            if outcome.error is None or outcome.error.error is not Errors.REQUEST_TIMED_OUT:
                self.remote_times.record(outcome.remote_ms)
            complete(self._response(outcome))

        self._channel.send(ENVELOPE, body, finish)

    def _response(self, outcome: Outcome) -> ForwardedResponse:
        if outcome.error is not None:
            error = outcome.error.error
            if error not in (Errors.REQUEST_TIMED_OUT, Errors.NETWORK_EXCEPTION):
                self._log.warning("a request cannot be forwarded: %s", outcome.error.message)
                error = Errors.UNKNOWN_SERVER_ERROR
            return ForwardedResponse(b"", error)
        code = outcome.body["ErrorCode"]
        if code == Errors.UNSUPPORTED_VERSION:
            return ForwardedResponse(b"", Errors.UNSUPPORTED_VERSION)
        if code or outcome.body["ResponseData"] is None:
            self._log.warning("a forwarded request failed with error %d of its envelope", code)
            return ForwardedResponse(b"", Errors.UNKNOWN_SERVER_ERROR)
        return ForwardedResponse(bytes(outcome.body["ResponseData"]))


def _times(name: str, clock: BaseClock) -> Sensor:
    found = Sensor(name, clock=clock)
    found.add(None, Percentiles(HISTOGRAM_BYTES, TIMEOUT_MS, {"p99": 99.0, "p999": 99.9}))
    return found


def envelope(request: bytes, client: Client) -> codec.Body:
    """Return the body of the Envelope of a request."""
    kind, _, name = client.principal.partition(":")
    principal = {"Type": kind, "Name": name, "TokenAuthenticated": client.is_token_authenticated}
    return {
        "RequestData": request,
        "RequestPrincipal": codec.encode_versioned("DefaultPrincipalData", 0, principal),
        "ClientHostAddress": address_bytes(client.host),
    }


def address_bytes(host: str) -> bytes:
    """Return the bytes of an IP address as Java does: 4 for an IPv4 address mapped into IPv6."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed
