"""A native handler thread, which takes request batches from the queue and sends responses without the GIL.

For each request: parse the header, look up (key, version), call the native handler. A request that has none, or that
it declines, goes to the Python handlers' queue. Responses of a batch are sent together; a delayed or declined request
ends the batch, and the frames behind it return to their channel (design: "The native handlers").
Source: ``KafkaRequestHandler``.
"""
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.requests.request cimport (
    ACTION_CLOSE, ACTION_RETURN, Request, request_queue_is_closed, request_queue_put, request_queue_take,
)
from kbroker._core.sync cimport atomic_add_fetch, atomic_cas, atomic_load, mutex_lock, mutex_unlock
from kbroker._core.thread_setup cimport kb_block_signals
from kbroker._core.codec.wire cimport Reader, read_bytes, read_i16, read_i32, read_length, reader_init, skip_tags
from kbroker.network._kafka_request cimport KafkaRequest, is_kafka_request, kafka_release_payload, kafka_request
from kbroker.network.connections._refused_requests cimport (
    REFUSED_FAILED_PRODUCE, REFUSED_MALFORMED_BODY, REFUSED_MALFORMED_HEADER, REFUSED_UNKNOWN_API,
    REFUSED_UNSUPPORTED_VERSION, refused_request,
)
from kbroker.apis.api01_fetch._fetch cimport run_deferred
from kbroker.security.authorizer._acl_table cimport decision_cache_free, decision_cache_new
from kbroker.requests._native_types cimport (
    API_SLOTS, API_VERSIONS, Api, Handler, NativeApisCore, Outcome, OUTCOME_RESPONDED, OUTCOME_DECLINED,
    OUTCOME_DELAYED,
)
from kbroker.replica._topics cimport topic_table_release, topic_table_retain
from kbroker.quota._quota_enforcement cimport client_cache_free, client_cache_new
from kbroker.quota._client_sensors cimport THROTTLE_SERVED

cdef enum:
    TAKE_NS = 300000000         # Kafka's receiveRequest(300 ms)


cdef Api *parse_header(NativeApisCore *native_apis, Request *request) noexcept nogil:
    """Fill the header fields; return NULL (close) if the key or version is not enabled or the header is malformed.

    An unknown version of ApiVersions is accepted with header_bytes 0: its body is not read.
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
        refused_request(native_apis.refused, REFUSED_MALFORMED_HEADER, request)
        return NULL
    if kafka.api_key < 0 or kafka.api_key >= API_SLOTS or not native_apis.apis[kafka.api_key].is_enabled:
        refused_request(native_apis.refused, REFUSED_UNKNOWN_API, request)
        return NULL
    api = &native_apis.apis[kafka.api_key]
    if kafka.api_version < api.min_version or kafka.api_version > api.max_version:
        if kafka.api_key != API_VERSIONS:
            refused_request(native_apis.refused, REFUSED_UNSUPPORTED_VERSION, request)
            return NULL
        n = read_length(&r, False, False)       # every header has its client id here; the rest is unknown
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
        refused_request(native_apis.refused, REFUSED_MALFORMED_HEADER, request)
        return NULL
    kafka.header_bytes = <int32_t>(r.at - request.payload)
    return api


cdef void refresh_topics(Handler *handler) noexcept nogil:
    """Update the handler's cached table to the published one; one atomic load if nothing changed."""
    cdef NativeApisCore *native_apis = handler.native_apis
    cdef int64_t generation = atomic_load(&native_apis.generation)
    if generation == handler.generation and handler.topics != NULL:
        return
    topic_table_release(handler.topics)
    mutex_lock(&native_apis.topics_lock)
    handler.topics = topic_table_retain(native_apis.topics)
    handler.generation = atomic_load(&native_apis.generation)
    mutex_unlock(&native_apis.topics_lock)


cdef inline bint is_intercepted(NativeApisCore *native_apis, Request *request) noexcept nogil:
    """Return whether Python intercepts this request before it is served; one atomic load where no API is intercepted.

    A request without a parsed header (ApiVersions of an unknown version) is never shown.
    """
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int64_t bits = atomic_load(&native_apis.intercepted[kafka.api_key >> 6])
    if bits == 0 or request.was_examined or kafka.header_bytes == 0:
        return False
    return (bits >> (kafka.api_key & 63)) & 1 != 0


cdef Outcome dispatch(Handler *handler, Request *request) noexcept nogil:
    cdef Api *api = parse_header(handler.native_apis, request)
    if api == NULL:
        request.action = ACTION_CLOSE
        return OUTCOME_RESPONDED
    if api.handle == NULL or is_intercepted(handler.native_apis, request):
        return OUTCOME_DECLINED
    return api.handle(handler, request)


cdef inline bint is_refused(Request *request) noexcept nogil:
    """Return whether a native handler closed the connection instead of a response: for an unreadable body, or an
    error of a Produce without acks."""
    return (request.action == ACTION_CLOSE and kafka_request(request).header_bytes > 0
            and request.segment_count == 0)


cdef void close_batch(Request *head) noexcept nogil:
    """Close the connection of a batch that is not Kafka's: its server was given the queue of a broker."""
    cdef Request *request = head
    while request != NULL:
        request.action = ACTION_CLOSE
        request.next = request.batch_next
        request = request.next
    head.responder.respond(head.responder, head)


cdef void execute_request(Handler *handler, Request *head) noexcept nogil:
    """Execute a batch in order and send its responses together."""
    cdef NativeApisCore *native_apis = handler.native_apis
    cdef Request *request = head
    cdef Request *following
    cdef Request *declined = NULL
    cdef Request *responses = NULL
    cdef Request **link = &responses
    cdef Outcome outcome = OUTCOME_RESPONDED
    cdef int64_t completed = 0
    if not is_kafka_request(head):
        close_batch(head)
        return
    refresh_topics(handler)
    while request != NULL:
        following = request.batch_next
        request.batch_next = NULL
        request.next = NULL
        if outcome != OUTCOME_RESPONDED:
            request.action = ACTION_RETURN
            link[0] = request
            link = &request.next
            request = following
            continue
        request.dequeue_ns = clock_now_ns(native_apis.clock)
        outcome = dispatch(handler, request)
        if outcome == OUTCOME_RESPONDED:
            if is_refused(request):
                refused_request(
                    native_apis.refused,
                    REFUSED_FAILED_PRODUCE if kafka_request(request).error_kinds > 0 else REFUSED_MALFORMED_BODY,
                    request)
            request.response_ready_ns = kafka_request(request).local_done_ns
            kafka_release_payload(request)    # its bytes go back to the pool before the response is sent
            completed += 1
            if request.action == ACTION_CLOSE or kafka_request(request).throttle_ms[THROTTLE_SERVED] > 0:
                outcome = OUTCOME_DELAYED        # the frames behind it get no response, or wait for the end
            link[0] = request
            link = &request.next
        elif outcome == OUTCOME_DECLINED:
            declined = request
        request = following
    atomic_add_fetch(&native_apis.handled, completed)
    if responses != NULL:
        head = responses
        # All frames of a batch come from one channel, so from one network thread.
        head.responder.respond(head.responder, head)
    if declined != NULL:
        atomic_add_fetch(&native_apis.declined, 1)
        if not request_queue_put(native_apis.python_requests, &declined):
            declined.action = ACTION_CLOSE
            declined.responder.respond(declined.responder, declined)
    if handler.deferred_count > 0:
        run_deferred(handler)


cdef bint should_exit(NativeApisCore *native_apis) noexcept nogil:
    """Return whether the calling handler is one of those that are to end."""
    cdef int64_t surplus = atomic_load(&native_apis.handlers_to_stop)
    while surplus > 0:
        if atomic_cas(&native_apis.handlers_to_stop, surplus, surplus - 1):
            return True
        surplus = atomic_load(&native_apis.handlers_to_stop)
    return False


cdef void handler_loop(NativeApisCore *native_apis) noexcept nogil:
    cdef Handler handler
    cdef Request *head
    memset(&handler, 0, sizeof(handler))
    handler.native_apis = native_apis
    handler.generation = -1
    if native_apis.quotas != NULL:
        handler.clients = client_cache_new()
    if native_apis.acls != NULL:
        handler.decisions = decision_cache_new(native_apis.acls)
    kb_block_signals()
    while True:
        head = request_queue_take(native_apis.requests, TAKE_NS)
        if head != NULL:
            execute_request(&handler, head)
        elif request_queue_is_closed(native_apis.requests):
            break
        if atomic_load(&native_apis.handlers_to_stop) > 0 and should_exit(native_apis):
            break
    client_cache_free(handler.clients)
    decision_cache_free(handler.decisions)
    topic_table_release(handler.topics)
