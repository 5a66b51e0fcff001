"""Request batches for a Python handler, which executes their frames in order as long as each is completed at once.

A frame that is delayed, muted, closed or handed over ends its batch, as do a frame for the native handlers and the end
of the session: the frames after it return to their channel. Responses are sent together, but a completed one does not
wait for a slow frame.
"""
cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.requests.request cimport ACTION_RETURN, Request
from kbroker._core.requests.request_queue cimport Queue, request_queue_take
from kbroker._core.sync cimport atomic_add_fetch, atomic_load
from kbroker.handlers._batch_progress cimport is_intercepted, parse_header
from kbroker.network._kafka_request cimport is_kafka_request, kafka_request
from kbroker.network.processor._inbound cimport InboundRequest, ResponseGatherer, session_has_ended, wrap
from kbroker.requests._native_types cimport Api, NativeApisCore

cdef enum:
    HOLD_NS = 200000            # about the maximum wait of a completed response for the frames after it
    TURN_NS = 2000000           # time after which a batch leaves its handler to others that wait
    RESPONSE_BYTES = 65536      # of a batch; further frames wait until the client has received these


cdef bint is_for_python(NativeApisCore *native_apis, Request *request) noexcept nogil:
    """Return whether a Python handler executes the frame; the native handlers refuse a frame that cannot be parsed."""
    cdef int refused
    cdef Api *api
    if not is_kafka_request(request):
        return False
    api = parse_header(native_apis, request, &refused)
    return api != NULL and (api.handle == NULL or is_intercepted(native_apis, request))


@cython.final
@cython.no_gc_clear
cdef class BatchReceiver:
    """The requests of one Python handler thread. Made by ``NativeApis.receiver``.

    Threads: one, which may differ from the creator's.
    """

    def __init__(self):
        raise TypeError("a BatchReceiver is made by NativeApis.receiver")

    def __dealloc__(self):
        self.end_batch()

    def receive(self, double timeout_s):
        """Return the next request: of the batch if the current one is completed, else of the queue.

        None at the timeout, or when the queue is closed and empty. Waits without the GIL.
        """
        cdef InboundRequest request = None
        cdef int64_t now
        if self.native_apis == NULL:
            raise TypeError("expected a BatchReceiver made by NativeApis.receiver, got one without a broker")
        if self.current is not None:
            now = clock_now_ns(self.native_apis.clock)
            self.note_time(now)
            if self.rest != NULL:
                request = self.next_of_batch(now)
        if request is None:
            self.end_batch()
            request = self.next_batch(<int64_t>(timeout_s * 1e9))
        self.current = request
        return request

    def close(self):
        """Send the completed responses, and return the frames that were not executed to their channel. Idempotent."""
        self.end_batch()

    cdef void note_time(self, int64_t now) noexcept:
        """Note the time of the current frame; after a long frame, the expected time halves with each shorter one."""
        cdef int64_t *expected_ns = &self.taken_ns[self.current.api_key]
        expected_ns[0] = max(1, now - self.begun_ns, expected_ns[0] // 2)

    cdef InboundRequest next_of_batch(self, int64_t now):
        """Return the next frame of the batch; None if it is not to be executed now."""
        cdef NativeApisCore *native_apis = self.native_apis
        cdef InboundRequest before = self.current
        cdef Request *request = self.rest
        cdef int64_t expected_ns
        before.gatherer = None
        if not before.lets_next_run or request.responder.is_closed(request):
            return None
        if session_has_ended(request, now):
            return None
        if self.gatherer.total_bytes > RESPONSE_BYTES:
            return None
        if now - self.batch_begun_ns > TURN_NS and atomic_load(&self.queue.queue.depth) > 0:
            return None
        if not is_for_python(native_apis, request):
            return None
        self.rest = request.batch_next
        request.batch_next = NULL
        request.dequeue_ns = self.begun_ns = now
        atomic_add_fetch(&native_apis.declined, 1)
        expected_ns = self.taken_ns[kafka_request(request).api_key]
        if self.gatherer.first != NULL and (
                expected_ns == 0 or now + expected_ns - self.gatherer.first_ready_ns > HOLD_NS
                or is_intercepted(native_apis, request)):       # an interceptor may take any time
            self.gatherer.send()
        return self.handle_of(request)

    cdef InboundRequest next_batch(self, int64_t timeout_ns):
        """Take a batch from the queue and return its first frame; None at the timeout."""
        cdef Request *batch
        with nogil:
            batch = request_queue_take(self.queue.queue, timeout_ns)
        if batch == NULL:
            return None
        self.rest = batch.batch_next
        self.gatherer.total_bytes = 0
        batch.batch_next = NULL
        batch.dequeue_ns = self.batch_begun_ns = self.begun_ns = clock_now_ns(self.native_apis.clock)
        return self.handle_of(batch)

    cdef InboundRequest handle_of(self, Request *request):
        """Return the handle of a frame, whose response is gathered if frames are after it or responses wait."""
        cdef InboundRequest handle = wrap(self.queue, request)
        if is_kafka_request(request) and (self.rest != NULL or self.gatherer.first != NULL):
            self.gatherer.thread = PyThread_get_thread_ident()
            handle.gatherer = self.gatherer
        return handle

    cdef void end_batch(self) noexcept:
        cdef Request *request = self.rest
        cdef Request *following
        if self.current is not None:
            self.current.gatherer = None
            self.current = None
        self.rest = NULL
        while request != NULL:
            following = request.batch_next
            request.batch_next = NULL
            request.next = NULL
            request.action = ACTION_RETURN
            self.gatherer.add(request)
            request = following
        if self.gatherer is not None:       # None: new_receiver did not make it, or was out of memory
            self.gatherer.send()


cdef BatchReceiver new_receiver(object owner, Queue queue, NativeApisCore *native_apis):
    cdef BatchReceiver receiver = BatchReceiver.__new__(BatchReceiver)
    receiver.owner = owner
    receiver.native_apis = native_apis
    receiver.queue = queue
    receiver.gatherer = ResponseGatherer.__new__(ResponseGatherer)
    return receiver
