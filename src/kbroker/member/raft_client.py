"""The thread that fetches the metadata from the controllers: it sends the observer's requests.

Source: ``KafkaRaftClientDriver``, ``KafkaNetworkChannel``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kbroker._core.clock import BaseClock
from kbroker.client.cluster import shared_version
from kbroker.client.connection import Address, BrokerConnectionError, Connection, format_address
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.limited_log import RepeatedFailures, cause_of
from kbroker.common.loggers import get_logger
from kbroker.common.threads import have_ended, new_thread
from kbroker.log.log_dir import LogDir
from kbroker.member.controller_connection import ControllerConnections
from kbroker.member.raft_observer import RaftFatalError, RaftObserver, Send, Wait
from kbroker.protocol.codec import Body

logger = get_logger(__name__)

DISK_BACKOFF_S = 1.0


class RaftClient:
    """Fetcher of the metadata, with a thread and a connection to each controller that it has contacted.

    Args: ``on_progress`` is called after each response, with the high watermark; ``on_fatal`` once, with the reason why
    the node cannot follow the quorum any more.
    Threads: its own; methods from any.
    """

    def __init__(
        self,
        observer: RaftObserver,
        connections: ControllerConnections,
        client_id: str,
        clock: BaseClock,
        on_progress: Callable[[int], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._observer = observer
        self._maker = connections
        self._client_id = client_id
        self._clock = clock
        self._on_progress = on_progress
        self._on_fatal = on_fatal
        self._closing = threading.Event()
        self._connections: dict[Address, Connection] = {}
        self._current: Connection | None = None
        self._failures = RepeatedFailures(clock)
        self._thread = new_thread("raft-io-thread", self._run, "raft-io")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> bool:
        """End the thread; return whether it ended in time. Idempotent."""
        self._closing.set()
        current = self._current
        if current is not None:
            current.interrupt()
        return have_ended([self._thread], timeout_s)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                step = self._observer.next(self._clock.now_ms())
                if isinstance(step, Wait):
                    self._closing.wait(step.ms / 1000)
                else:
                    self._serve(step)
        except RaftFatalError as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("the metadata cannot be fetched any more")
            self._fail(f"the metadata cannot be fetched any more: {error!r}")
        finally:
            self._observer.close()
            for connection in self._connections.values():
                connection.close()

    def _fail(self, reason: str) -> None:
        logger.critical("%s", reason)
        self._on_fatal(reason)

    def _serve(self, send: Send) -> None:
        """Exchange a request and its response. Raises: RaftFatalError if the folder of the metadata log has failed."""
        observer = self._observer
        try:
            response = self._exchange(send)
        except (BrokerConnectionError, KafkaError) as error:
            self._forget(send.address)
            if self._closing.is_set():
                return
            text = error.message if isinstance(error, KafkaError) else str(error)
            if isinstance(error, KafkaError) and error.error is not Errors.UNSUPPORTED_VERSION:
                text = f"controller {format_address(send.address)} refuses the connection: {error.error.name}: {text}"
            observer.on_disconnect(send, text, self._clock.now_ms())
        else:
            try:
                observer.on_response(send, response, self._clock.now_ms())
            except OSError as error:
                if LogDir.ends_with(error):
                    raise RaftFatalError(f"the folder of the metadata log has failed: {error}") from None
                # a full disk: the same records are fetched again
                observer.on_failure(send, f"the metadata log cannot be written: {error}", self._clock.now_ms())
                self._closing.wait(DISK_BACKOFF_S)
        if observer.last_error:
            failure = observer.last_error
            self._failures.log(cause_of(failure), logger.warning, "no metadata is fetched: %s", failure)
        self._on_progress(observer.high_watermark)

    def _exchange(self, send: Send) -> Body:
        timeout_s = send.timeout_ms / 1000
        connection = self._connections.get(send.address)
        if connection is None or connection.is_stale():
            connection = self._maker.connect(send.address, self._client_id, timeout_s)
            self._connections[send.address] = connection
        self._maker.renew(connection)
        self._current = connection
        version = shared_version(connection, send.api_key, send.versions[1])
        if version < send.versions[0]:
            raise KafkaError(
                Errors.UNSUPPORTED_VERSION,
                f"controller {format_address(send.address)}: expected version {send.versions[0]} or above of API "
                f"{send.api_key}, found {version}; controllers of Apache Kafka 3.9 or later have it",
            )
        return connection.request(send.api_key, version, send.body, timeout_s=timeout_s)

    def _forget(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()
