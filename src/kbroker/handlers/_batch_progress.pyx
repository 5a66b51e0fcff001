"""Request batches in execution: headers, outcomes, and the responses that a batch sends together.

A delayed request ends its batch, and the frames after it return to their channel; those after a declined one go with
it to the Python handlers.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.codec.wire cimport Reader, read_bytes, read_i16, read_i32, read_length, reader_init, skip_tags
from kbroker._core.requests.request cimport ACTION_CLOSE, ACTION_RETURN, Request
from kbroker._core.requests.request_queue cimport RequestQueue, reject_batch, request_queue_put
from kbroker._core.sync cimport atomic_add_fetch, atomic_load
from kbroker.network._kafka_request cimport KafkaRequest, kafka_release_payload, kafka_request
from kbroker.network.connections._refused_requests cimport (
    REFUSED_FAILED_PRODUCE, REFUSED_MALFORMED_BODY, REFUSED_MALFORMED_HEADER, REFUSED_UNKNOWN_API,
    REFUSED_UNSUPPORTED_VERSION, refused_request,
)
from kbroker.quota._client_sensors cimport THROTTLE_SERVED
from kbroker.requests._native_types cimport (
    API_SLOTS, API_VERSIONS, Api, NativeApisCore, OUTCOME_DECLINED, OUTCOME_DELAYED, OUTCOME_LEFT, OUTCOME_RESPONDED,
    Outcome,
)


cdef Api *parse_header(NativeApisCore *native_apis, Request *request, int *refused) noexcept nogil:
    """Fill the header fields; return NULL if the key or version is not enabled or the header is malformed.

    ``refused`` is then the reason. An unknown version of ApiVersions is accepted with header_bytes 0, and its body is
    not read.
    """
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef Reader r
    cdef Api *api
    cdef int64_t n
    reader_init(&r, request.payload, request.size_bytes)
    kafka.api_key = read_i16(&r)
    kafka.api_version = read_i16(&r)
    kafka.correlation_id = read_i32(&r)
    if r.bad:
        refused[0] = REFUSED_MALFORMED_HEADER
        return NULL
    if kafka.api_key < 0 or kafka.api_key >= API_SLOTS or not native_apis.apis[kafka.api_key].is_enabled:
        refused[0] = REFUSED_UNKNOWN_API
        return NULL
    api = &native_apis.apis[kafka.api_key]
    if kafka.api_version < api.min_version or kafka.api_version > api.max_version:
        if kafka.api_key != API_VERSIONS:
            refused[0] = REFUSED_UNSUPPORTED_VERSION
            return NULL
        n = read_length(&r, False, False)       # every version of a header has the client id here; the rest is unknown
        if n > 0:
            kafka.client_id = <char *>read_bytes(&r, n)
        kafka.client_id_bytes = <int32_t>(n if n > 0 and not r.bad else 0)
        kafka.header_bytes = 0
        return api
    n = read_length(&r, False, False)
    if n > 0:
        kafka.client_id = <char *>read_bytes(&r, n)
    kafka.client_id_bytes = <int32_t>(n if n > 0 else 0)
    if kafka.api_version >= api.first_flexible:
        skip_tags(&r)
    if r.bad:
        refused[0] = REFUSED_MALFORMED_HEADER
        return NULL
    kafka.header_bytes = <int32_t>(r.at - request.payload)
    return api


cdef bint is_intercepted(NativeApisCore *native_apis, Request *request) noexcept nogil:
    """Return whether Python intercepts this request before it is served; one atomic load where no API is intercepted.

    A request without a parsed header (ApiVersions of an unknown version) is never intercepted.
    """
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int64_t bits = atomic_load(&native_apis.intercepted[kafka.api_key >> 6])
    if bits == 0 or request.was_examined or kafka.header_bytes == 0:
        return False
    return (bits >> (kafka.api_key & 63)) & 1 != 0


cdef inline bint is_refused(Request *request) noexcept nogil:
    """Return whether a native handler refused the request: an unreadable body, or a failed Produce without acks."""
    return (request.action == ACTION_CLOSE and kafka_request(request).header_bytes > 0
            and request.segment_count == 0)


cdef void batch_begin(BatchProgress *batch, Request *head) noexcept nogil:
    batch.rest = head
    batch.responses = batch.last = batch.declined = batch.left = NULL
    batch.outcome = OUTCOME_RESPONDED
    batch.completed = 0


cdef inline void add_response(BatchProgress *batch, Request *request) noexcept nogil:
    request.next = NULL
    if batch.last == NULL:
        batch.responses = request
    else:
        batch.last.next = request
    batch.last = request


cdef Request *batch_next(BatchProgress *batch) noexcept nogil:
    cdef Request *request = batch.rest
    if request == NULL or batch.outcome != OUTCOME_RESPONDED:
        return NULL
    batch.rest = request.batch_next
    request.batch_next = NULL
    request.next = NULL
    return request


cdef void batch_take(BatchProgress *batch, NativeApisCore *native_apis, Request *request,
                     Outcome outcome) noexcept nogil:
    if outcome == OUTCOME_RESPONDED:
        if is_refused(request):
            refused_request(
                native_apis.refused,
                REFUSED_FAILED_PRODUCE if kafka_request(request).error_kinds > 0 else REFUSED_MALFORMED_BODY, request)
        request.response_ready_ns = kafka_request(request).local_done_ns
        batch.completed += 1
        if request.action == ACTION_CLOSE or kafka_request(request).throttle_ms[THROTTLE_SERVED] > 0:
            outcome = OUTCOME_DELAYED        # the frames after it get no response, or wait for the end
        kafka_release_payload(request)      # its bytes go back to the pool before the response is sent
        add_response(batch, request)
    elif outcome == OUTCOME_DECLINED:
        batch.declined = request
    elif outcome == OUTCOME_LEFT:
        request.batch_next = batch.rest
        batch.left = request
        batch.rest = NULL
    if batch.outcome == OUTCOME_RESPONDED:
        batch.outcome = outcome


cdef void hand_over(RequestQueue *queue, Request *head) noexcept nogil:
    """Put a batch into a queue; if the queue is closed, close the connection."""
    cdef Request *first = head
    if not request_queue_put(queue, &first, False):
        reject_batch(head)


cdef void batch_end(BatchProgress *batch, NativeApisCore *native_apis) noexcept nogil:
    cdef Request *request = batch.rest
    cdef Request *following
    if batch.declined != NULL:
        batch.declined.batch_next = request
        request = NULL
    while request != NULL:
        following = request.batch_next
        request.batch_next = NULL
        request.action = ACTION_RETURN
        add_response(batch, request)
        request = following
    atomic_add_fetch(&native_apis.handled, batch.completed)
    if batch.responses != NULL:
        # All frames of a batch come from one channel, so from one network thread.
        request = batch.responses
        request.responder.respond(request.responder, request)
    if batch.declined != NULL:
        atomic_add_fetch(&native_apis.declined, 1)
        hand_over(native_apis.python_requests, batch.declined)
    if batch.left != NULL:
        batch.left.is_for_takers = True
        hand_over(native_apis.requests, batch.left)
