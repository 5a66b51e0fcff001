"""Python's handle of a request: freeing it without a response closes the connection, a second response is an error.

Responses can be suppressed, which simulates a network that fails after the broker has executed a request.
"""
cimport cython

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport Clock, clock_now_ns
from kbroker._core.guarded cimport guarded_value
from kbroker._core.network.loop_types cimport Channel
from kbroker._core.requests.request cimport (
    ACTION_CLOSE, ACTION_END_THROTTLE, ACTION_NO_OP, ACTION_RETURN, ACTION_SEND, ACTION_START_THROTTLE, Request,
    control_message, request_reserve,
)
from kbroker._core.requests.request_queue cimport Queue, RequestQueue, request_queue_put, request_queue_take
from kbroker._core.sync cimport atomic_add_fetch, atomic_store, mutex_destroy, mutex_init, mutex_lock, mutex_unlock
from kbroker.network._kafka_request cimport (
    RECORD_SKIP, KafkaRequest, is_kafka_request, kafka_clear_response, kafka_copy_texts, kafka_mark_error,
    kafka_note_transactional_id, kafka_request,
)
from kbroker.network.connections._client_information cimport software_of
from kbroker.network.connections._refused_requests cimport REFUSED_MALFORMED_BODY, RefusedRequests, refused_request
from kbroker.network.processor._processor_core cimport ProcessorCore
from kbroker.network.transport._security cimport SESSION_BY_TOKEN


# ---------------------------------------------- suppressed responses

cdef void lost_release(void *core_pointer) noexcept nogil:
    cdef LostCore *core = <LostCore *>core_pointer
    if atomic_add_fetch(&core.refs, -1) == 0:     # no request is kept: close() came before the handle's end
        mutex_destroy(&core.lock)
        free(core)


cdef bint lost_divert(Request *request) noexcept nogil:
    """Drop the response; keep the request (true), or let it continue so that its connection is closed (false)."""
    cdef LostCore *core = <LostCore *>request.response_hook_arg
    cdef bint kept
    request.response_hook = NULL        # once only: a request that continues returns to its network thread
    if request.action == ACTION_CLOSE:
        return False
    kafka_clear_response(request)
    request.action = ACTION_CLOSE
    mutex_lock(&core.lock)
    core.lost_count += 1
    kept = core.keeps
    if kept:
        request.next = core.kept
        core.kept = request
        core.kept_count += 1
    mutex_unlock(&core.lock)
    return kept


cdef void lost_close(LostCore *core) noexcept nogil:
    cdef Request *request
    cdef Request *following
    mutex_lock(&core.lock)
    core.keeps = False
    request = core.kept
    core.kept = NULL
    core.kept_count = 0
    mutex_unlock(&core.lock)
    while request is not NULL:              # they may have different connections, so one by one
        following = request.next
        request.next = NULL
        request.responder.respond(request.responder, request)
        request = following


cdef void suppress_response(SuppressedResponses lost, Request *request) noexcept:
    """Divert the response of a request that the caller owns and that is not completed yet."""
    if request.response_hook_arg is not NULL:
        request.release_response_hook(request.response_hook_arg)
    atomic_add_fetch(&lost.core.refs, 1)
    request.response_hook = lost_divert
    request.response_hook_arg = lost.core
    request.release_response_hook = lost_release


@cython.final
@cython.no_gc
cdef class SuppressedResponses:
    """Destination of responses that their clients must not receive; see ``InboundRequest.suppress_response``.

    Args: ``keep``: True leaves the connections open and muted until ``close``; False closes each connection instead of
    sending its response.
    Threads: any.
    """

    def __cinit__(self, keep):
        if not isinstance(keep, bool):
            raise TypeError(f"keep must be True or False, not {type(keep).__name__}")
        self.core = <LostCore *>calloc(1, sizeof(LostCore))
        if self.core is NULL:
            raise MemoryError
        atomic_store(&self.core.refs, 1)
        mutex_init(&self.core.lock)
        self.core.keeps = keep

    @property
    def kept(self):
        """Number of executed requests whose connections are kept open and muted."""
        return guarded_value(&self.core.lock, &self.core.kept_count)

    @property
    def lost(self):
        """Number of responses lost so far."""
        return guarded_value(&self.core.lock, &self.core.lost_count)

    def close(self):
        """Close the kept connections; later lost responses close their connections at once. Idempotent."""
        with nogil:
            lost_close(self.core)

    def __dealloc__(self):
        if self.core is not NULL:
            with nogil:
                lost_close(self.core)
                lost_release(self.core)


# ---------------------------------------------------- requests

@cython.final
@cython.no_gc
cdef class OwnedPayload:
    """Memory of a large frame, taken over from its request."""
    cdef char *data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)

    def __dealloc__(self):
        free(self.data)


@cython.final
@cython.no_gc
cdef class ChannelThrottle:
    """Throttle of a connection, which stays muted until ``end`` is called or the object is freed (KIP-219)."""
    cdef Request *ending        # owned until end

    def end(self):
        """Unmute the connection. Further calls do nothing. Threads: any."""
        cdef Request *ending = self.ending
        self.ending = NULL
        if ending is not NULL:
            with nogil:
                ending.responder.respond(ending.responder, ending)

    def __dealloc__(self):
        self.end()


@cython.final
@cython.no_gc
cdef class ResponseGatherer:
    """Responses of requests of one connection that one thread completes; ``send`` sends them together."""

    cdef void add(self, Request *request) noexcept:
        if self.last is NULL:
            self.first = request
            self.first_ready_ns = request.response_ready_ns
        else:
            self.last.next = request
        self.last = request
        self.total_bytes += request.response_bytes

    cdef void send(self) noexcept:
        cdef Request *first = self.first
        self.first = NULL
        self.last = NULL
        if first is not NULL:
            with nogil:
                first.responder.respond(first.responder, first)

    def __dealloc__(self):
        self.send()


@cython.final
cdef class InboundRequest:
    """One frame. Any thread may send its response, once. Made by ``RequestChannel.receive``.

    The attributes of the connection and of the header are copies and stay readable. ``payload`` and ``body`` must be
    read before the response is sent; the views that they return stay valid afterwards.
    """
    def __init__(self):
        raise TypeError("an InboundRequest comes from RequestChannel.receive")

    @property
    def listener(self):
        """Alias of ``listener_name``."""
        return self.listener_name

    @property
    def connection_id(self):
        """Kafka's id of the connection: its addresses, network thread and number."""
        return (
            f"{self.local_host}:{self.local_port}-{self.remote_host}:{self.remote_port}"
            f"-{self.processor_id}-{self.connection_index}")

    @property
    def has_response(self):
        """True once the request is completed."""
        return self.request is NULL

    @property
    def is_disconnected(self):
        """Return whether its connection is closed; true once the request is completed."""
        cdef Request *request = self.request
        return request is NULL or request.responder.is_closed(request)

    @property
    def client_information(self):
        """Name and version of the client's software (KIP-511), each "unknown" until the client has sent them.

        Raises: ValueError once the request is completed.
        """
        self.check_open()
        return software_of(&(<ProcessorCore *>self.request.responder.owner).software, <Channel *>self.request.channel)

    @property
    def payload(self):
        """The frame without its length prefix, read-only."""
        cdef OwnedPayload owned
        if self.held is None:
            self.check_open()
            if self.request.payload_owned is not NULL:
                if is_kafka_request(self.request):
                    kafka_copy_texts(self.request)      # they are read after the response is sent and the payload freed
                owned = OwnedPayload.__new__(OwnedPayload)
                owned.data = self.request.payload_owned
                owned.size = self.request.size_bytes
                self.request.payload_owned = NULL       # payload still points at it: the views keep it alive
                self.held = owned
            else:
                self.held = self.request.payload[:self.request.size_bytes]
        return memoryview(self.held)

    @property
    def body(self):
        """The payload after the request header (the whole payload if no native handler parsed a header)."""
        return self.payload[self.header_bytes:]

    cdef bint is_open_kafka(self) noexcept:
        return self.request is not NULL and is_kafka_request(self.request)

    cdef int check_open(self) except -1:
        if self.request is NULL:
            raise ValueError("the request has its response already")
        return 0

    cdef int check_kafka(self) except -1:
        self.check_open()
        if not is_kafka_request(self.request):
            raise ValueError("a request of Kafka's protocol is needed (SocketServerOptions.kafka_requests)")
        return 0

    cdef int finish(self, int action) except -1:
        cdef Request *request = self.request
        cdef Clock *clock = self.clock
        cdef ResponseGatherer gatherer = self.gatherer
        self.request = NULL
        self.lets_next_run = action != ACTION_CLOSE and not self.is_muted and request.response_hook is NULL
        if self.held is not None:
            request.payload = NULL
        request.action = action
        request.response_ready_ns = clock_now_ns(clock)
        if is_kafka_request(request) and kafka_request(request).local_done_ns == 0:
            kafka_request(request).local_done_ns = request.response_ready_ns
        request.next = NULL
        if gatherer is not None and gatherer.thread == PyThread_get_thread_ident():
            gatherer.add(request)
        else:
            with nogil:
                request.responder.respond(request.responder, request)
        return 0

    def respond(self, response):
        """Send ``response``: bytes-like, or a list of them. Framing adds its length prefix, but no delimiter.

        Raises: ValueError if the request is completed already, TypeError for other types, MemoryError. After a
        TypeError or MemoryError the request can still be completed.
        """
        cdef const unsigned char[::1] piece
        cdef char *into
        cdef int64_t total = 0
        self.check_open()
        if type(response) is bytes and 0 < len(<bytes>response) <= 0x7FFFFFFF:
            into = request_reserve(self.request, len(<bytes>response))
            if into is NULL:
                raise MemoryError
            memcpy(into, <const char *>response, len(<bytes>response))
            self.finish(ACTION_SEND)
            return
        pieces = response if isinstance(response, (list, tuple)) else (response,)
        views = [memoryview(item).cast("B") for item in pieces]     # held: none can shrink or fail from here on
        for view in views:
            total += view.nbytes
        if total > 0x7FFFFFFF:
            raise ValueError(f"a response has at most 2**31 - 1 bytes, got {total}")
        self.check_open()                       # a buffer written in Python may have completed the request
        for view in views:
            piece = view
            if piece.shape[0] == 0:
                continue
            into = request_reserve(self.request, piece.shape[0])
            if into is NULL:
                kafka_clear_response(self.request)
                raise MemoryError
            memcpy(into, &piece[0], piece.shape[0])
        self.finish(ACTION_SEND)

    def mark_errors(self, dict counts not None):
        """Record the error codes of the response, with the number of each, for the metrics. Call before responding.

        Does nothing if the request is completed, or does not belong to Kafka's protocol. Raises: TypeError,
        OverflowError for invalid codes or numbers.
        """
        cdef int32_t code, times
        for key, value in counts.items():
            code, times = key, value
            if self.is_open_kafka():
                kafka_mark_error(self.request, code, times)

    def leave_out(self):
        """Exclude the request from the records of finished requests. Does nothing once the request is completed."""
        if self.is_open_kafka():
            kafka_request(self.request).record_flags |= RECORD_SKIP

    def note_transactional_id(self, str transactional_id not None):
        """Set the transactional id for the records of finished requests. Does nothing once the request is completed."""
        cdef bytes encoded = transactional_id.encode("utf-8", "surrogateescape")
        if self.is_open_kafka():
            kafka_note_transactional_id(self.request, <const char *>encoded, len(encoded), True)

    def handler_done(self):
        """Mark the end of the handler's local time; the response follows later, and the time until then is remote time.

        Does nothing if the request is completed. Threads: not while another thread completes the request.
        """
        if self.is_open_kafka() and kafka_request(self.request).local_done_ns == 0:
            kafka_request(self.request).local_done_ns = clock_now_ns(self.clock)

    def respond_nothing(self):
        """Complete the request without a response (acks=0); the connection continues to read."""
        self.check_open()
        self.finish(ACTION_NO_OP)

    def close(self):
        """Close the connection after the responses to its earlier requests."""
        self.check_open()
        self.finish(ACTION_CLOSE)

    def refuse(self, RefusedRequests noted not None):
        """Close the connection, as ``close``, because the body does not match its header, and count that in ``noted``.

        Raises: ValueError if the request is completed already.
        """
        self.check_open()
        with nogil:             # network threads take its lock
            refused_request(noted.table, REFUSED_MALFORMED_BODY, self.request)
        self.finish(ACTION_CLOSE)

    @property
    def was_examined(self):
        """True after ``hand_over``: the request is not passed to an interceptor again."""
        return self.examined

    def hand_over(self, Queue to not None):
        """Hand the request to the handlers of another queue; this object counts as completed.

        If that queue is closed, the connection is closed. Views of a large payload stay valid: the request continues
        with a copy.

        Raises: ValueError if the request is completed already, MemoryError.
        Threads: any; waits without the GIL while the queue is full.
        """
        cdef Request *request
        cdef RequestQueue *queue = to.queue
        cdef char *copy
        self.check_open()
        request = self.request
        if self.held is not None and isinstance(self.held, OwnedPayload):
            copy = <char *>malloc(<size_t>(request.size_bytes or 1))
            if copy is NULL:
                raise MemoryError
            memcpy(copy, request.payload, request.size_bytes)
            request.payload = copy
            request.payload_owned = copy
        self.request = NULL
        request.was_examined = True
        request.next = NULL
        with nogil:
            if not request_queue_put(queue, &request, False):
                request.action = ACTION_CLOSE
                request.responder.respond(request.responder, request)

    def suppress_response(self, SuppressedResponses to not None):
        """Send the response, of any handler, to ``to`` instead of the client. Call before ``hand_over``.

        Raises: ValueError if the request is completed already.
        """
        self.check_open()
        suppress_response(to, self.request)

    def start_throttle(self):
        """Mute the connection beyond its response. Call before responding; call ``end`` on the returned object later.

        Raises: ValueError if the request is completed already, MemoryError.
        """
        cdef ChannelThrottle throttle
        cdef Request *starting
        self.check_open()
        throttle = ChannelThrottle.__new__(ChannelThrottle)
        starting = control_message(self.request, ACTION_START_THROTTLE)
        throttle.ending = control_message(self.request, ACTION_END_THROTTLE)
        if starting is NULL or throttle.ending is NULL:
            free(starting)
            free(throttle.ending)
            throttle.ending = NULL
            raise MemoryError
        self.is_muted = True
        with nogil:
            starting.responder.respond(starting.responder, starting)
        return throttle

    def __dealloc__(self):
        cdef Request *request = self.request
        if request is not NULL:         # freed without a response
            self.request = NULL
            close_unanswered(request)


cdef void close_unanswered(Request *request) noexcept:
    """Close the connection of a request without a response: its client must not wait forever."""
    with nogil:
        request.action = ACTION_CLOSE
        request.next = NULL
        request.responder.respond(request.responder, request)


cdef str text(const char *chars):
    return chars.decode("utf-8", "replace")


cdef bint session_has_ended(const Request *request, int64_t now_ns) noexcept nogil:
    return 0 < (<Channel *>request.channel).session_expires_ns < now_ns


cdef InboundRequest wrap(Queue queue, Request *request):
    cdef KafkaRequest *kafka
    cdef InboundRequest inbound
    cdef Channel *channel = <Channel *>request.channel
    try:
        inbound = InboundRequest.__new__(InboundRequest)
    except MemoryError:
        close_unanswered(request)
        raise
    inbound.request = request           # from here on, dealloc completes the request
    inbound.queue = queue
    inbound.clock = queue.queue.clock
    inbound.size_bytes = <int>request.size_bytes
    inbound.examined = request.was_examined
    if is_kafka_request(request):
        kafka = kafka_request(request)
        inbound.header_bytes = kafka.header_bytes
        inbound.api_key = kafka.api_key
        inbound.api_version = kafka.api_version
        inbound.correlation_id = kafka.correlation_id
        if kafka.client_id is not NULL:
            inbound.client_id = kafka.client_id[:kafka.client_id_bytes].decode("utf-8", "replace")
    inbound.principal = text(request.session.principal) if request.session is not NULL else ""
    inbound.is_token_authenticated = request.session is not NULL and request.session.kind == SESSION_BY_TOKEN
    inbound.listener_name = text(channel.metadata.listener_name)
    inbound.local_host = text(channel.metadata.local_host)
    inbound.local_port = channel.metadata.local_port
    inbound.remote_host = text(channel.metadata.remote_host)
    inbound.remote_port = channel.metadata.remote_port
    inbound.processor_id = request.responder.processor_id
    inbound.connection_index = channel.metadata.index
    return inbound


def receive(Queue queue not None, timeout_ns):
    """Dequeue one request; None at the timeout, or when the queue is closed and empty.

    A negative timeout waits until the queue is closed.

    If the request batch has more frames, they return to their connection, which enqueues them again after this
    response.
    """
    cdef RequestQueue *requests = queue.queue
    cdef int64_t timeout = integer(timeout_ns, "timeout_ns", INT64_MIN, INT64_MAX)
    cdef Request *batch
    cdef Request *rest
    cdef Request *frame
    with nogil:
        batch = request_queue_take(requests, timeout)
        if batch is not NULL:
            batch.dequeue_ns = clock_now_ns(requests.clock)       # again, if a native handler declined the request
            rest = batch.batch_next
            batch.batch_next = NULL
            if rest is not NULL:
                frame = rest
                while frame is not NULL:
                    frame.action = ACTION_RETURN
                    frame.next = frame.batch_next
                    frame = frame.batch_next
                rest.responder.respond(rest.responder, rest)
    return wrap(queue, batch) if batch is not NULL else None
