"""Delayed produces: watched by partition, completed once, when the flushed offset reaches them or they expire.

The response is encoded when the request is delayed; appends that did not reach the disk get their error in its bytes.
Source: ``DelayedProduce``.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.timer.purgatory cimport (
    Key, Operation, OperationTable, operation_force_complete, operation_init, operation_release,
    purgatory_try_complete_else_watch,
)
from kbroker._core.requests.request cimport ACTION_CLOSE, ACTION_SEND, Request, request_add_memory
from kbroker._core.sync cimport atomic_load
from kbroker._core.codec.wire cimport Writer, writer_free
from kbroker.common._errors cimport KAFKA_STORAGE_ERROR, NONE, REQUEST_TIMED_OUT
from kbroker.log._partition cimport Partition, partition_flushed_offset, partition_is_closed, partition_release
from kbroker.network._kafka_request cimport kafka_mark_error, kafka_release_payload, kafka_request
from kbroker.requests._native_types cimport Handler, NativeApisCore, Outcome, OUTCOME_RESPONDED, OUTCOME_DELAYED
from kbroker.quota._quota_enforcement cimport gate_produce, store_throttle


cdef struct DelayedProduce:     # begins with its Operation; freed by the last count
    Operation op
    Request *request
    int32_t processor_id        # source of the request, for snapshots, which may not read it
    int64_t channel_number
    NativeApisCore *native_apis
    char *response                # owned until passed to the request
    int64_t response_bytes
    int32_t count
    Waiting *waiting


cdef OperationTable DELAYED_PRODUCE


cdef void store_throttle_time(Request *request, char *response, int64_t size_bytes, int32_t throttle_ms) noexcept nogil:
    """Write the throttle time at the end of the response, before the tagged section of flexible versions."""
    if throttle_ms > 0:
        store_throttle(response + size_bytes - (5 if kafka_request(request).api_version >= 9 else 4), throttle_ms)


cdef void free_waiting(Waiting *waiting, int32_t count) noexcept nogil:
    cdef int32_t i
    for i in range(count):
        partition_release(waiting[i].partition)
    free(waiting)


cdef Outcome delay_produce(Handler *handler, Request *request, int32_t timeout_ms, Writer *w, Waiting *waiting,
                           int32_t count) noexcept nogil:
    cdef DelayedProduce *delayed = <DelayedProduce *>calloc(1, sizeof(DelayedProduce))
    cdef Key *keys = <Key *>calloc(<size_t>count, sizeof(Key))
    cdef char *copy = w.data
    cdef int32_t i
    if not w.is_owned and delayed != NULL and keys != NULL:
        copy = <char *>malloc(<size_t>w.size_bytes)
        if copy != NULL:
            memcpy(copy, w.data, <size_t>w.size_bytes)
    if delayed == NULL or keys == NULL or copy == NULL:
        free(delayed)
        free(keys)
        writer_free(w)
        free_waiting(waiting, count)
        request.action = ACTION_CLOSE       # no memory to wait: nothing was acknowledged
        return OUTCOME_RESPONDED
    kafka_release_payload(request)      # the records are in the log
    delayed.request = request
    delayed.processor_id = request.responder.processor_id
    delayed.channel_number = request.channel_number
    delayed.native_apis = handler.native_apis
    delayed.response = copy
    delayed.response_bytes = w.size_bytes
    delayed.count = count
    delayed.waiting = waiting
    for i in range(count):
        keys[i].high = <int64_t>waiting[i].partition
    operation_init(&delayed.op, &DELAYED_PRODUCE, timeout_ms if timeout_ms > 0 else 0, NULL)
    purgatory_try_complete_else_watch(handler.native_apis.produce_purgatory, &delayed.op, keys, count)
    free(keys)
    operation_release(&delayed.op)
    return OUTCOME_DELAYED


cdef void delayed_produce_source(Operation *op, int32_t *processor_id, int64_t *channel_number) noexcept nogil:
    processor_id[0] = (<DelayedProduce *>op).processor_id
    channel_number[0] = (<DelayedProduce *>op).channel_number


cdef inline bint has_failed(Partition *partition) noexcept nogil:
    """Return whether records will not reach the disk: a sync failed, or the partition was deleted or closed."""
    return atomic_load(&partition.is_failed) != 0 or partition_is_closed(partition)


cdef bint delayed_produce_try_complete(Operation *op) noexcept nogil:
    cdef DelayedProduce *delayed = <DelayedProduce *>op
    cdef int32_t i
    for i in range(delayed.count):
        if partition_flushed_offset(delayed.waiting[i].partition) < delayed.waiting[i].flush_offset and not (
                has_failed(delayed.waiting[i].partition)):
            return False
    return operation_force_complete(op)


cdef void delayed_produce_on_complete(Operation *op) noexcept nogil:
    """Set the error of partitions whose records did not reach the disk, and send the response."""
    cdef DelayedProduce *delayed = <DelayedProduce *>op
    cdef Request *request = delayed.request
    cdef Waiting *waiting
    cdef int16_t error
    cdef int32_t i
    for i in range(delayed.count):
        waiting = &delayed.waiting[i]
        if partition_flushed_offset(waiting.partition) < waiting.flush_offset:
            error = KAFKA_STORAGE_ERROR if has_failed(waiting.partition) else REQUEST_TIMED_OUT
            kafka_mark_error(request, NONE, -1)
            kafka_mark_error(request, error, 1)
            delayed.response[waiting.error_at] = 0
            delayed.response[waiting.error_at + 1] = <char>error
            memset(delayed.response + waiting.base_offset_at, 0xFF, 8)
    request.response_ready_ns = clock_now_ns(delayed.native_apis.clock)
    store_throttle_time(request, delayed.response, delayed.response_bytes, gate_produce(
        delayed.native_apis.quotas, NULL, request, True, request.response_ready_ns))
    request.action = ACTION_SEND
    if not request_add_memory(request, delayed.response, delayed.response_bytes, delayed.response):
        free(delayed.response)
        request.action = ACTION_CLOSE
    delayed.response = NULL
    delayed.request = NULL
    request.next = NULL
    request.responder.respond(request.responder, request)


cdef void delayed_produce_on_expiration(Operation *op) noexcept nogil:
    pass


cdef void delayed_produce_destroy(Operation *op) noexcept nogil:
    cdef DelayedProduce *delayed = <DelayedProduce *>op
    free_waiting(delayed.waiting, delayed.count)
    free(delayed.response)
    free(delayed)


DELAYED_PRODUCE.try_complete = delayed_produce_try_complete
DELAYED_PRODUCE.on_complete = delayed_produce_on_complete
DELAYED_PRODUCE.on_expiration = delayed_produce_on_expiration
DELAYED_PRODUCE.destroy = delayed_produce_destroy
