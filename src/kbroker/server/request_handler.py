"""Python handlers: threads that serve what the native lane declined or never had.

The only place where an exception becomes an error code.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.protocol import codec
from kbroker.server.context import ApiContext, RequestContext
from kbroker.server.kafka_apis import ApiEntry, KafkaApis, encode_answer

logger = logging.getLogger(__name__)

TAKE_TIMEOUT_S = 0.3


class InboundRequest(Protocol):
    """A request as the network hands it over; ``respond`` or ``close`` is called once, by any thread."""

    @property
    def api_key(self) -> int: ...
    @property
    def api_version(self) -> int: ...
    @property
    def correlation_id(self) -> int: ...
    @property
    def client_id(self) -> str | None: ...
    @property
    def body(self) -> memoryview: ...
    @property
    def listener(self) -> str: ...
    @property
    def principal(self) -> str: ...
    def respond(self, response: bytes) -> None: ...
    def close(self) -> None: ...


class RequestHandlerPool:
    """Threads that take requests and answer them.

    Args: ``receive`` waits up to a number of seconds and gives a request, or None at the time-out or once closed;
    ``count`` of threads.
    Threads: start and stop from one thread.
    """

    def __init__(
        self, ctx: ApiContext, apis: KafkaApis, receive: Callable[[float], InboundRequest | None], count: int
    ) -> None:
        self._ctx = ctx
        self._apis = apis
        self._receive = receive
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"kafka-request-handler-python-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Let the threads end after the request they have; True if all did in time. The queue must be closed first."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while not self._stopping.is_set():
            request = self._receive(TAKE_TIMEOUT_S)
            if request is not None:
                self.serve(request)

    def serve(self, request: InboundRequest) -> None:
        """Answer one request, or close its connection if nothing can be answered. Never raises."""
        try:
            answer = self._answer(request)
        except Exception:  # our bug: one request's, not the thread's
            logger.exception("cannot answer api key %s version %s", request.api_key, request.api_version)
            answer = None
        try:
            if answer is None:
                request.close()
            elif answer:
                request.respond(answer)
        except Exception:
            logger.exception("cannot hand over the answer of api key %s", request.api_key)

    def _answer(self, request: InboundRequest) -> bytes | None:
        """Return the answer with its header; None to close; empty when the handler answers later by itself."""
        key, version = request.api_key, request.api_version
        entry = self._apis.find(key, version)
        if entry is None or entry.handle is None or entry.failure is None:
            logger.debug("closing a connection: api key %d version %d is not served", key, version)
            return None
        facts = RequestContext(
            key, version, request.correlation_id, request.client_id or "", request.listener, request.principal
        )
        try:
            body = codec.decode_request(key, version, request.body)
        except ProtocolError as error:
            logger.info("closing a connection of client %r: malformed %s: %s", facts.client_id, entry.name, error)
            return None
        return self._handle(entry, body, facts)

    def _handle(self, entry: ApiEntry, body: dict[str, Any], facts: RequestContext) -> bytes | None:
        assert entry.handle is not None
        assert entry.failure is not None
        try:
            answer = entry.handle(self._ctx, body, facts)
            return b"" if answer is None else encode_answer(entry, facts, answer)
        except KafkaError as error:
            logger.debug("%s v%d: %s", entry.name, facts.api_version, error)
            code = error.error
        except Exception:
            logger.exception("%s v%d failed (client %r)", entry.name, facts.api_version, facts.client_id)
            code = Errors.UNKNOWN_SERVER_ERROR
        return encode_answer(entry, facts, entry.failure(body, code, facts))
