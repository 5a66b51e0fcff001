"""Native handler threads, and the executor with which a network thread helps them while few batches wait.

They take request batches from the queue and send responses without the GIL. For each request: parse the header, look up
(key, version), call the native handler. A request without a native handler, or that it declines, goes to the queue of
the Python handlers. Produce requests for one partition are appended together.
Source: ``KafkaRequestHandler``.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.codec.bytes cimport load_i16
from kbroker._core.requests.request cimport ACTION_CLOSE, Request
from kbroker._core.requests.request_queue cimport Executor, reject_batch, request_queue_is_closed, request_queue_take
from kbroker._core.sync cimport atomic_cas, atomic_load, atomic_load_relaxed, mutex_lock, mutex_unlock
from kbroker._core.thread_setup cimport kb_block_signals
from kbroker.apis.api01_fetch._fetch cimport run_deferred
from kbroker.handlers._batch_progress cimport (
    BatchProgress, batch_begin, batch_end, batch_next, batch_take, is_intercepted, parse_header,
)
from kbroker.handlers._produce_run cimport run_add, run_flush, run_free, run_is_empty
from kbroker.network._kafka_request cimport is_kafka_request, kafka_request, or_before
from kbroker.network.connections._refused_requests cimport refused_request
from kbroker.quota._quota_enforcement cimport client_cache_free, client_cache_new
from kbroker.replica._topics cimport topic_table_release, topic_table_retain
from kbroker.requests._native_types cimport (
    PRODUCE, Api, Handler, NativeApisCore, OUTCOME_DECLINED, OUTCOME_RESPONDED, Outcome,
)
from kbroker.security.authorizer._acl_table cimport decision_cache_free, decision_cache_new

cdef enum:
    TAKE_NS = 300000000         # Kafka's receiveRequest(300 ms)
    HELPED_BYTES = 65536        # maximum of a batch; validating more takes longer than waking a handler


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


cdef Outcome dispatch(Handler *handler, Request *request) noexcept nogil:
    cdef int refused = 0
    cdef Api *api = parse_header(handler.native_apis, request, &refused)
    if api == NULL:
        refused_request(handler.native_apis.refused, refused, request)
        request.action = ACTION_CLOSE
        return OUTCOME_RESPONDED
    if api.handle == NULL or is_intercepted(handler.native_apis, request):
        return OUTCOME_DECLINED
    return api.handle(handler, request)


cdef void execute_alone(Handler *handler, Request *head) noexcept nogil:
    """Execute a batch in order and send its responses together."""
    cdef NativeApisCore *native_apis = handler.native_apis
    cdef BatchProgress batch
    cdef Request *request
    cdef Outcome outcome
    cdef int64_t now_ns = clock_now_ns(native_apis.clock)
    refresh_topics(handler)
    batch_begin(&batch, head)
    request = batch_next(&batch)
    while request != NULL:
        request.dequeue_ns = now_ns
        outcome = dispatch(handler, request)
        if outcome == OUTCOME_RESPONDED:        # else the batch ends, and the request may belong to another thread
            now_ns = or_before(kafka_request(request).local_done_ns, now_ns)
        batch_take(&batch, native_apis, request, outcome)
        request = batch_next(&batch)
    batch_end(&batch, native_apis)


cdef void finish_requests(Handler *handler) noexcept nogil:
    """Execute the gathered requests, then check the delayed fetches that wait for the appended records."""
    run_flush(handler)
    if handler.deferred_count > 0:
        run_deferred(handler)


cdef bint execute_request(Handler *handler, Request *head) noexcept nogil:
    """Execute a batch, or gather it with others until finish_requests. False: those must be finished first."""
    if handler.deferred_count > 0:
        run_deferred(handler)           # the next append may take long
    if not is_kafka_request(head):
        reject_batch(head)              # from a SocketServer without Kafka requests that shares the queue
        return True
    if not run_is_empty(handler):
        return run_add(handler, head)
    if head.batch_next == NULL and atomic_load_relaxed(&handler.native_apis.requests.depth) == 0:
        execute_alone(handler, head)    # nothing to gather it with
        return True
    refresh_topics(handler)
    if not run_add(handler, head):
        execute_alone(handler, head)
    return True


cdef bint should_exit(NativeApisCore *native_apis) noexcept nogil:
    """Return whether the calling handler is one of those that are to end."""
    cdef int64_t surplus = atomic_load(&native_apis.handlers_to_stop)
    while surplus > 0:
        if atomic_cas(&native_apis.handlers_to_stop, surplus, surplus - 1):
            return True
        surplus = atomic_load(&native_apis.handlers_to_stop)
    return False


cdef void handler_init(Handler *handler, NativeApisCore *native_apis) noexcept nogil:
    memset(handler, 0, sizeof(Handler))
    handler.native_apis = native_apis
    handler.generation = -1
    if native_apis.quotas != NULL:
        handler.clients = client_cache_new()
    if native_apis.acls != NULL:
        handler.decisions = decision_cache_new(native_apis.acls)


cdef void handler_release(Handler *handler) noexcept nogil:
    client_cache_free(handler.clients)
    decision_cache_free(handler.decisions)
    topic_table_release(handler.topics)
    run_free(handler)


cdef void handler_loop(NativeApisCore *native_apis) noexcept nogil:
    cdef Handler handler
    cdef Request *head
    handler_init(&handler, native_apis)
    kb_block_signals()
    while True:
        head = request_queue_take(native_apis.requests, TAKE_NS)
        if head != NULL:
            execute_request(&handler, head)
            finish_requests(&handler)
        elif request_queue_is_closed(native_apis.requests):
            break
        else:
            refresh_topics(&handler)    # a handler without work keeps no deleted topic in memory
        if atomic_load(&native_apis.handlers_to_stop) > 0 and should_exit(native_apis):
            break
    handler_release(&handler)


# --------------------------------------------------- help of the network threads

cdef bint ends_soon(Executor *executor, Request *batch) noexcept nogil:
    """Return whether neither a large request nor an append to a slow disk is in the batch."""
    cdef NativeApisCore *native_apis = (<HandlerExecutor *>executor).handler.native_apis
    cdef Request *request = batch
    cdef int64_t size_bytes = 0
    cdef bint is_slow = batch.start_ns < atomic_load_relaxed(&native_apis.slow_appends_until_ns)
    while request != NULL:
        size_bytes += request.size_bytes
        if size_bytes > HELPED_BYTES or is_slow and request.size_bytes > 1 and load_i16(request.payload) == PRODUCE:
            return False
        request = request.batch_next
    return True


cdef bint execute(Executor *executor, Request *batch) noexcept nogil:
    return execute_request(&(<HandlerExecutor *>executor).handler, batch)


cdef void finish(Executor *executor) noexcept nogil:
    finish_requests(&(<HandlerExecutor *>executor).handler)


cdef void rest(Executor *executor) noexcept nogil:
    refresh_topics(&(<HandlerExecutor *>executor).handler)


cdef HandlerExecutor *executor_new(NativeApisCore *native_apis) noexcept nogil:
    cdef HandlerExecutor *made = <HandlerExecutor *>calloc(1, sizeof(HandlerExecutor))
    if made != NULL:
        made.executor.ends_soon = ends_soon
        made.executor.execute = execute
        made.executor.finish = finish
        made.executor.rest = rest
        handler_init(&made.handler, native_apis)
        made.handler.is_network_thread = True
    return made


cdef void executor_free(HandlerExecutor *executor) noexcept nogil:
    if executor != NULL:
        handler_release(&executor.handler)
        free(executor)
