"""Delayed fetches: watched by partition, listed for shutdown, completed once by one thread, which responds.

Lock: ``NativeApisCore.delayed_lock`` guards the list of them, a leaf. Source: ``DelayedFetch``.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.timer.purgatory cimport (
    Key, Operation, OperationTable, operation_force_complete, operation_init, operation_release,
    purgatory_check_and_complete, purgatory_try_complete_else_watch,
)
from kbroker._core.requests.request cimport Request, Responder
from kbroker._core.sync cimport atomic_add_fetch, mutex_lock, mutex_unlock
from kbroker.log._partition cimport Partition, partition_release, partition_retain
from kbroker.apis.api01_fetch._fetch_response cimport (
    ask_again, is_satisfied, read_partitions, release_partitions, respond_to_fetch,
)
from kbroker.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.requests._native_types cimport DEFERRED_SLOTS, Handler, NativeApisCore

cdef enum:
    CLOSED_PER_CHECK = 64

cdef OperationTable DELAYED_FETCH


cdef void free_state(FetchState *state) noexcept nogil:
    release_partitions(state)
    free(state)


cdef void release_partitions_locked(FetchState *state) noexcept nogil:
    mutex_lock(&state.op.own_lock)
    release_partitions(state)
    mutex_unlock(&state.op.own_lock)


cdef bint delay_fetch(Handler *handler, FetchState *state) noexcept nogil:
    cdef NativeApisCore *native_apis = handler.native_apis
    cdef Key *keys = <Key *>calloc(<size_t>state.part_count, sizeof(Key))
    cdef int32_t i, count = 0
    if keys == NULL:
        return False
    for i in range(state.part_count):
        if state.parts[i].partition != NULL and not state.parts[i].is_superseded:
            keys[count].high = <int64_t>state.parts[i].partition
            count += 1
    if count == 0:
        free(keys)
        return False
    state.processor_id = state.request.responder.processor_id
    state.channel_number = state.request.channel_number
    operation_init(&state.op, &DELAYED_FETCH, state.max_wait_ms, NULL)
    mutex_lock(&native_apis.delayed_lock)
    state.delayed_next = <FetchState *>native_apis.delayed
    if state.delayed_next != NULL:
        state.delayed_next.delayed_prev = state
    native_apis.delayed = state
    mutex_unlock(&native_apis.delayed_lock)
    purgatory_try_complete_else_watch(native_apis.fetch_purgatory, &state.op, keys, count)
    free(keys)
    operation_release(&state.op)
    return True


cdef bint delayed_fetch_try_complete(Operation *op) noexcept nogil:
    cdef FetchState *state = <FetchState *>op
    if not is_satisfied(state) or not operation_force_complete(op):
        return False
    release_partitions(state)               # the lock is held
    return True


cdef void delayed_fetch_on_complete(Operation *op) noexcept nogil:
    """Read again, within the limits, the partitions that the client may still read, and respond; called once."""
    cdef FetchState *state = <FetchState *>op
    cdef Request *request = state.request
    cdef bint any_error = False
    cdef int32_t readable = 0
    unlink(state)
    ask_again(state)
    read_partitions(state, &any_error, &readable)
    respond_to_fetch(state, NULL)
    state.request = NULL
    request.response_ready_ns = clock_now_ns(state.native_apis.clock)
    request.next = NULL
    request.responder.respond(request.responder, request)


cdef void unlink(FetchState *state) noexcept nogil:
    mutex_lock(&state.native_apis.delayed_lock)
    if state.delayed_prev != NULL:
        state.delayed_prev.delayed_next = state.delayed_next
    elif state.native_apis.delayed == state:
        state.native_apis.delayed = state.delayed_next
    if state.delayed_next != NULL:
        state.delayed_next.delayed_prev = state.delayed_prev
    state.delayed_next = state.delayed_prev = NULL
    mutex_unlock(&state.native_apis.delayed_lock)


cdef void complete_delayed(NativeApisCore *native_apis) noexcept nogil:
    cdef FetchState *state
    while True:
        mutex_lock(&native_apis.delayed_lock)
        state = <FetchState *>native_apis.delayed
        if state != NULL:
            atomic_add_fetch(&state.op.refs, 1)
        mutex_unlock(&native_apis.delayed_lock)
        if state == NULL:
            return
        if operation_force_complete(&state.op):
            release_partitions_locked(state)
        else:
            unlink(state)       # another thread is completing it
        operation_release(&state.op)


cdef void complete_disconnected(NativeApisCore *native_apis) noexcept nogil:
    """Complete the fetches of disconnected clients: a wait may take 24 days and hold megabytes."""
    cdef FetchState *found[CLOSED_PER_CHECK]
    cdef FetchState *state
    cdef Responder *responder
    cdef int32_t i, count = CLOSED_PER_CHECK
    while count == CLOSED_PER_CHECK:
        count = 0
        mutex_lock(&native_apis.delayed_lock)
        state = <FetchState *>native_apis.delayed
        while state != NULL and count < CLOSED_PER_CHECK:
            responder = state.request.responder
            if responder.is_closed != NULL and responder.is_closed(state.request):
                atomic_add_fetch(&state.op.refs, 1)
                found[count] = state
                count += 1
            state = state.delayed_next
        mutex_unlock(&native_apis.delayed_lock)
        for i in range(count):
            if operation_force_complete(&found[i].op):
                release_partitions_locked(found[i])
            operation_release(&found[i].op)


cdef void delayed_fetch_on_expiration(Operation *op) noexcept nogil:
    release_partitions_locked(<FetchState *>op)


cdef void delayed_fetch_destroy(Operation *op) noexcept nogil:
    free_state(<FetchState *>op)


DELAYED_FETCH.try_complete = delayed_fetch_try_complete
DELAYED_FETCH.on_complete = delayed_fetch_on_complete
DELAYED_FETCH.on_expiration = delayed_fetch_on_expiration
DELAYED_FETCH.destroy = delayed_fetch_destroy


# --------------------------------------------------------------------------------- checks after the responses

cdef void defer_check(Handler *handler, Partition *partition) noexcept nogil:
    cdef int32_t i
    for i in range(handler.deferred_count):
        if handler.deferred[i] == partition:
            return
    if handler.deferred_count == DEFERRED_SLOTS:
        run_deferred(handler)
    handler.deferred[handler.deferred_count] = partition_retain(partition)
    handler.deferred_count += 1


cdef void run_deferred(Handler *handler) noexcept nogil:
    cdef int32_t i, n = handler.deferred_count
    cdef Key key
    handler.deferred_count = 0
    for i in range(n):
        key.high = <int64_t>handler.deferred[i]
        key.low = 0
        purgatory_check_and_complete(handler.native_apis.fetch_purgatory, &key)
        partition_release(handler.deferred[i])
