"""Python handlers: threads that serve requests without a native handler, and requests that native handlers declined.

Only this module converts exceptions to error codes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from kbroker.common.errors import Errors, KafkaError, OutcomeUnknownError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.threads import new_thread
from kbroker.handlers._batch_receiver import BatchReceiver
from kbroker.handlers.api_table import ApiEntry, KafkaApis, encode_response
from kbroker.handlers.long_requests import LongRequests
from kbroker.network.connections._refused_requests import RefusedRequests
from kbroker.network.processor._inbound import InboundRequest
from kbroker.protocol import codec
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.request_log.transactional_ids import transactional_id_of
from kbroker.requests.context import ApiContext, Body, RequestContext

logger = get_logger(__name__)

TAKE_TIMEOUT_S = 0.3
FIND_COORDINATOR, WRITE_TXN_MARKERS, SHARE_FETCH = 10, 27, 78
MAX_REQUEST_ELEMENTS = 100_000  # topics, partitions, names ... of one request; more closes its connection


class PendingResponse:
    """The one response of a request: the handler's, one that comes later, or an error. Threads: any.

    ``quotas`` judge it before it is sent. The larger of their throttle time and the ThrottleTimeMs of the body (set by
    controller mutations or the records of a ShareFetch) goes to the client, and its connection is muted for that long
    (KIP-219).
    """

    def __init__(self, entry: ApiEntry, request: InboundRequest, quotas: ClientQuotaManagers) -> None:
        self._entry = entry
        self._request = request
        self._quotas = quotas
        self._lock = threading.Lock()
        self._claimed = False

    def claim(self) -> bool:
        """Return True to the first caller only, which must send the response."""
        with self._lock:
            claimed, self._claimed = self._claimed, True
        return not claimed

    def complete(self, body: Body) -> None:
        """Send the response. Raises: RuntimeError when it was sent; failures to send close the connection."""
        if not self.claim():
            raise RuntimeError(f"{self._entry.name} has its response already")
        self.send(body)

    def send(self, body: Body) -> None:
        """Encode and send a claimed response; a body that cannot be encoded closes the connection."""
        try:
            self._judge(body)
            self._request.mark_errors(codec.error_counts(body))
            self._request.respond(encode_response(self._entry, self._request, body))
        except Exception:
            logger.exception("cannot encode the response of %s v%d", self._entry.name, self._request.api_version)
            self._request.close()

    def close(self) -> None:
        """Close the connection instead; no effect after the response."""
        if self.claim():
            self._request.close()

    def mark_deferred(self) -> None:
        """Mark the response as deferred: the time after the handler's return is not handler time."""
        with self._lock:
            if not self._claimed:
                self._request.handler_done()

    def _judge(self, body: Body) -> None:
        """Throttle by the larger delay of the quotas, and report it in the response if that has the field."""
        quotas = self._quotas
        serves_mutations = "ThrottleTimeMs" in body  # topics that Metadata would create are refused without a delay
        try:
            self._throttle(body, quotas)
        finally:
            quotas.settle(self._request, serves_mutations)

    def _throttle(self, body: Body, quotas: ClientQuotaManagers) -> None:
        own_ms = body.get("ThrottleTimeMs", 0)  # of its mutations or its records
        time_ms = 0
        if quotas.charges_time:
            # the other exempt requests, Fetch of followers and Produce without acks, are the native handlers'
            if self._entry.key == WRITE_TXN_MARKERS:
                quotas.charge_exempt(self._request)
            else:
                time_ms = quotas.charge(self._request)
        if own_ms <= 0 and time_ms <= 0:
            return
        own = quotas.fetch if self._entry.key == SHARE_FETCH else quotas.controller_mutation
        decided_by = own if own_ms > time_ms else quotas.request
        throttle_ms = max(own_ms, time_ms)
        quotas.throttle(decided_by, self._request, throttle_ms)
        if codec.carries_throttle_time(self._entry.key, self._request.api_version) and not self._hides_delay(body):
            body["ThrottleTimeMs"] = throttle_ms
        else:
            body.pop("ThrottleTimeMs", None)

    def _hides_delay(self, body: Body) -> bool:
        """Return true for FindCoordinator before v4 without a coordinator, which reports no throttle time."""
        is_old = self._entry.key == FIND_COORDINATOR and self._request.api_version < 4
        return is_old and body.get("ErrorCode") == Errors.COORDINATOR_NOT_AVAILABLE


class RequestHandlerPool:
    """Threads that take requests and respond to them.

    Args: ``new_receiver`` makes the receiver of a thread; ``count``: the number of threads; ``refused`` counts
    malformed requests; ``intercept`` is called first and returns True for a request that it has taken over.
    Threads: start and stop from one thread.
    """

    def __init__(
        self,
        ctx: ApiContext,
        apis: KafkaApis,
        new_receiver: Callable[[], BatchReceiver],
        count: int,
        refused: RefusedRequests,
        intercept: Callable[[InboundRequest], bool] | None = None,
    ) -> None:
        self._ctx = ctx
        self._apis = apis
        self._new_receiver = new_receiver
        self._intercept = intercept
        self._refused = refused
        self._log_topic = ctx.config.text("kbroker.request.log.topic")
        self._is_logged = bool(self._log_topic or ctx.config.text("kbroker.request.log.dir"))
        self._stopping = threading.Event()
        self._long_requests = LongRequests()
        self._threads = [
            new_thread(f"kafka-request-handler-python-{number}", self._run, "python-handler") for number in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the threads after their current requests; return whether all ended in time. Close the queue first."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)
        have_ended = self._long_requests.stop(timeout_s)
        return have_ended and not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        receiver = self._new_receiver()
        while not self._stopping.is_set():
            try:
                self._serve_next(receiver)
            except Exception:  # no memory for a request: freed without a response, it closes its connection
                with contextlib.suppress(Exception):
                    logger.exception("a request cannot be served")
        receiver.close()

    def _serve_next(self, receiver: BatchReceiver) -> None:
        request = receiver.receive(TAKE_TIMEOUT_S)
        if request is not None and not (self._intercept is not None and self._intercept(request)):
            self.serve(request)

    def serve(self, request: InboundRequest) -> None:
        """Respond to one request, or close its connection if no response is possible. Never raises."""
        try:
            if not self._serve(request):
                request.refuse(self._refused)
        except Exception:  # a bug must fail one request, not the thread
            with contextlib.suppress(Exception):  # freed without a response, it closes its connection too
                logger.exception("cannot serve api key %s version %s", request.api_key, request.api_version)
                request.close()

    def _serve(self, request: InboundRequest) -> bool:
        """Respond, or let the handler respond later. Returns: False if the connection is to be closed."""
        key, version = request.api_key, request.api_version
        entry = self._apis.find(key, version)
        if entry is None or entry.handle is None or entry.failure is None:
            logger.debug("closing a connection: api key %d version %d is not served", key, version)
            return False
        response = PendingResponse(entry, request, self._ctx.quotas)
        request_context = RequestContext(
            key,
            version,
            request.correlation_id,
            request.client_id or "",
            request.listener,
            request.principal,
            request.remote_host,
            response,
            request,
            request.is_token_authenticated,
        )
        try:
            body = codec.decode_request(key, version, request.body, max_elements=MAX_REQUEST_ELEMENTS)
        except ProtocolError as error:
            logger.info("client %r: malformed %s: %s", request_context.client_id, entry.name, error)
            return False
        if self._is_logged:
            self._note_for_log(request, body)
        self._handle(entry, body, request_context, response)
        return True

    def _serve_late(
        self, entry: ApiEntry, body: Body, request_context: RequestContext, response: PendingResponse
    ) -> None:
        """Serve a request on the thread of long requests. Never raises."""
        try:
            self._handle(entry, body, request_context, response)
        except Exception:  # a bug must fail one request, not the thread
            with contextlib.suppress(Exception):
                logger.exception("cannot serve %s", entry.name)
                response.close()

    def _handle(self, entry: ApiEntry, body: Body, request_context: RequestContext, response: PendingResponse) -> None:
        """Call the handler and respond, let it respond later, or let the thread of long requests call the rest."""
        assert entry.handle is not None
        try:
            found = entry.handle(self._ctx, body, request_context)
        except KafkaError as error:
            logger.debug("%s v%d: %s", entry.name, request_context.api_version, error)
            found = self._failed(entry, body, error.error, request_context)
        except OutcomeUnknownError:
            response.close()  # only the next start shows whether the change is stored
            return
        except Exception:
            logger.exception(
                "%s v%d failed (client %r)", entry.name, request_context.api_version, request_context.client_id
            )
            found = self._failed(entry, body, Errors.UNKNOWN_SERVER_ERROR, request_context)
        if found is None:
            response.mark_deferred()
        elif callable(found):
            response.mark_deferred()
            rest = entry._replace(handle=found)
            self._long_requests.put(lambda: self._serve_late(rest, body, request_context, response), response.close)
        elif response.claim():
            response.send(found)

    def _note_for_log(self, request: InboundRequest, body: Body) -> None:
        """Note the facts of the body that the request log records."""
        if self._is_about_the_log(body):
            request.leave_out()
        transactional_id = transactional_id_of(request.api_key, body)
        if transactional_id is not None:
            request.note_transactional_id(transactional_id)

    def _is_about_the_log(self, body: Body) -> bool:
        """Return whether a request names the request log's topic only: reading it must not add records to it."""
        name = self._log_topic
        topics = body.get("Topics") if name else None
        return bool(topics) and all(
            isinstance(topic, dict) and name in (topic.get("Name"), topic.get("Topic")) for topic in topics or ()
        )

    def _failed(self, entry: ApiEntry, body: Body, error: Errors, request_context: RequestContext) -> Body:
        assert entry.failure is not None
        return entry.failure(body, error, request_context)
