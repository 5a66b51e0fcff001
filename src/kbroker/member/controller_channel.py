"""Requests of one purpose to the active controller, one at a time, until each has a response.

Source: ``NodeToControllerChannelManagerImpl``, ``NodeToControllerRequestThread``.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.client.cluster import shared_version
from kbroker.client.connection import Address, BrokerConnectionError, Connection, format_address
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.limited_log import RepeatedFailures, cause_of
from kbroker.common.loggers import get_logger
from kbroker.common.threads import have_ended, new_thread
from kbroker.member.controller_connection import ControllerConnections
from kbroker.protocol.codec import Body

logger = get_logger(__name__)

RETRY_BACKOFF_S = 0.05
NO_CONTROLLER_BACKOFF_S = 0.1
NO_TIMEOUT_MS = 2**62


class Outcome(NamedTuple):
    """End of a request: the ``body`` of its response in ``version``, or an ``error``.

    Errors: REQUEST_TIMED_OUT, when no controller took the request in time; UNSUPPORTED_VERSION; those of a failed
    authentication; NETWORK_EXCEPTION, when the channel was closed.
    ``queue_ms``: from ``send`` to the last attempt; ``remote_ms``: duration of that attempt.
    """

    body: Body
    version: int
    error: KafkaError | None = None
    queue_ms: int = 0
    remote_ms: int = 0


Complete = Callable[[Outcome], None]


class _Request(NamedTuple):
    """A request that waits."""

    api_key: int
    body: Body
    complete: Complete
    version: int | None
    created_ms: int


class ControllerChannel:
    """A connection to the active controller, with a thread and a queue of requests.

    A request that a node refuses with NOT_CONTROLLER is sent again before the others. A request whose connection breaks
    is sent again after them: if the controller closes the connection because of this request, it still receives the
    others.

    Args: ``client_id``: in its requests; ``controller`` returns the address of the quorum's leader, None while it is
    unknown; ``retry_timeout_ms``: time after which an unsent request ends; ``request_timeout_ms``: of one attempt.
    Threads: any.
    """

    def __init__(
        self,
        name: str,
        client_id: str,
        clock: BaseClock,
        controller: Callable[[], Address | None],
        connections: ControllerConnections,
        *,
        retry_timeout_ms: int = NO_TIMEOUT_MS,
        request_timeout_ms: int = 30_000,
    ) -> None:
        self.name = name
        self._client_id = client_id
        self._clock = clock
        self._controller = controller
        self._connections = connections
        self._retry_timeout_ms = retry_timeout_ms
        self._request_timeout_s = min(retry_timeout_ms, request_timeout_ms) / 1000
        self._changed = threading.Condition()
        self._queue: deque[_Request] = deque()
        self._is_closed = False
        self._connection: Connection | None = None
        self._versions: Mapping[int, tuple[int, int]] = MappingProxyType({})
        #: Called on the channel's thread when it is connected to a controller with other versions.
        self.on_versions: Callable[[], object] = bool
        self._failures = RepeatedFailures(clock)
        self._thread = new_thread(f"{name}-channel-manager", self._run, "to-controller")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> bool:
        """End all requests with NETWORK_EXCEPTION, and the thread; return whether it ended in time. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        connection = self._connection
        if connection is not None:
            connection.interrupt()
        return have_ended([self._thread], timeout_s)

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Ranges of versions by API key that the last connected controller supports; empty before."""
        return self._versions

    @property
    def queue_size(self) -> int:
        """Number of waiting requests."""
        return len(self._queue)

    def send(self, api_key: int, body: Body, complete: Complete, *, version: int | None = None) -> None:
        """Send a request when its turn comes; ``complete`` is called exactly once, on the channel's thread.

        After ``close``, ``complete`` is called at once, on the caller's thread.
        Args: ``version``: None for the highest one that both sides support.
        """
        with self._changed:
            if not self._is_closed:
                self._queue.append(_Request(api_key, body, complete, version, self._clock.now_ms()))
                self._changed.notify_all()
                return
        complete(_failed(Errors.NETWORK_EXCEPTION, "the broker stops"))

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    break
                request = self._queue.popleft()
            try:
                outcome = self._serve(request)
            except Exception as error:
                logger.exception("channel %s cannot serve a request", self.name)
                outcome = _failed(Errors.UNKNOWN_SERVER_ERROR, repr(error))
            if outcome is not None:
                self._complete(request, outcome)
        self._disconnect()
        while self._queue:
            self._complete(self._queue.popleft(), _failed(Errors.NETWORK_EXCEPTION, "the broker stops"))

    def _complete(self, request: _Request, outcome: Outcome) -> None:
        try:
            request.complete(outcome)
        except Exception:
            logger.exception("the response to a request of channel %s cannot be handled", self.name)

    def _serve(self, request: _Request) -> Outcome | None:
        """Send a request and return its outcome, or put it back, wait and return None."""
        if self._clock.now_ms() - request.created_ms >= self._retry_timeout_ms:
            outcome = _failed(Errors.REQUEST_TIMED_OUT, "no controller took the request in time")
            return outcome._replace(queue_ms=self._retry_timeout_ms)
        address = self._controller()
        if address is None:
            self._retry(request, NO_CONTROLLER_BACKOFF_S)
            return None
        try:
            outcome = self._exchange(address, request)
        except BrokerConnectionError as error:
            self._disconnect()
            self._note(str(error))
            self._retry(request, RETRY_BACKOFF_S, is_first=False)
            return None
        except KafkaError as error:
            if error.error is not Errors.UNSUPPORTED_VERSION:
                self._disconnect()
                self._note(f"controller {format_address(address)}: {error.message}")
            return Outcome({}, 0, error, self._clock.now_ms() - request.created_ms)
        if outcome.body.get("ErrorCode") == Errors.NOT_CONTROLLER:
            self._disconnect()
            self._retry(request, RETRY_BACKOFF_S)
            return None
        return outcome

    def _exchange(self, address: Address, request: _Request) -> Outcome:
        connection = self._connection
        if connection is not None and (connection.address != address or connection.is_stale()):
            self._disconnect()
            connection = None
        if connection is None:
            connection = self._connection = self._connections.connect(address, self._client_id, self._request_timeout_s)
            before, self._versions = self._versions, MappingProxyType(dict(connection.versions))
            if before != self._versions:
                self.on_versions()
            logger.info("channel %s is connected to controller %s", self.name, format_address(address))
        self._connections.renew(connection)
        version = shared_version(connection, request.api_key) if request.version is None else request.version
        sent_ms = self._clock.now_ms()
        body = connection.request(request.api_key, version, request.body, timeout_s=self._request_timeout_s)
        return Outcome(body, version, None, sent_ms - request.created_ms, self._clock.now_ms() - sent_ms)

    def _retry(self, request: _Request, after_s: float, *, is_first: bool = True) -> None:
        with self._changed:
            (self._queue.appendleft if is_first else self._queue.append)(request)
            if not self._is_closed:
                self._changed.wait(after_s)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _note(self, failure: str) -> None:
        self._failures.log(cause_of(failure), logger.warning, "channel %s: %s", self.name, failure)


def _failed(error: Errors, text: str) -> Outcome:
    return Outcome({}, 0, KafkaError(error, text))
