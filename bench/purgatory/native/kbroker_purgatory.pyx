"""kbroker's purgatory behind the function table of the study."""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.timer.purgatory cimport (
    Key, Operation, OperationTable, Purgatory, operation_force_complete, operation_init, operation_release,
    purgatory_advance, purgatory_close, purgatory_delayed, purgatory_new, purgatory_release,
    purgatory_try_complete_else_watch,
)
from kbroker._core.sync cimport atomic_add_fetch
from kbroker._core.timer.timer_core cimport Timer
from kbroker._core.timer.watch_lists cimport WatcherBlock, watcher_block_bytes
from purgatory_study.study_request cimport (
    Design, StudyRequest, request_completed, request_expired, request_free, request_is_due,
)

cdef enum:
    MAX_KEYS = 64


cdef struct NewHead:            # followed by the watchers
    Operation op
    StudyRequest *request


cdef inline StudyRequest *request_of(Operation *op) noexcept nogil:
    return (<NewHead *>op).request


cdef inline Operation *operation_of(StudyRequest *request) noexcept nogil:
    return <Operation *>request.head


cdef bint try_complete(Operation *op) noexcept nogil:
    return request_is_due(request_of(op)) and operation_force_complete(op)


cdef void on_complete(Operation *op) noexcept nogil:
    request_completed(request_of(op))


cdef void on_expiration(Operation *op) noexcept nogil:
    request_expired(request_of(op))


cdef void destroy(Operation *op) noexcept nogil:
    request_free(request_of(op), op)


cdef OperationTable TABLE
TABLE.try_complete = try_complete
TABLE.on_complete = on_complete
TABLE.on_expiration = on_expiration
TABLE.destroy = destroy


cdef void prepare(Design *design, StudyRequest *request) noexcept nogil:
    cdef NewHead *head = <NewHead *>request.head
    operation_init(&head.op, &TABLE, request.run.timeout_ms, NULL)
    head.request = request
    head.op.reserved = <WatcherBlock *>(<char *>head + sizeof(NewHead))
    head.op.reserve_for = design.keys


cdef void retain(StudyRequest *request) noexcept nogil:
    atomic_add_fetch(&operation_of(request).refs, 1)


cdef void release(StudyRequest *request) noexcept nogil:
    operation_release(operation_of(request))


cdef bint enqueue(Design *design, StudyRequest *request, int64_t *keys, int32_t count) noexcept nogil:
    cdef Key native[MAX_KEYS]
    cdef int32_t i
    for i in range(count):
        native[i].high = keys[i]
        native[i].low = 0
    return purgatory_try_complete_else_watch(<Purgatory *>design.state, operation_of(request), native, count)


cdef bint force_complete(StudyRequest *request) noexcept nogil:
    return operation_force_complete(operation_of(request))


cdef bint turn(Design *design, int64_t timeout_ms) noexcept nogil:
    return purgatory_advance(<Purgatory *>design.state, timeout_ms)


cdef int64_t pending(Design *design) noexcept nogil:
    return purgatory_delayed(<Purgatory *>design.state)


cdef void stop(Design *design) noexcept nogil:
    purgatory_close(<Purgatory *>design.state)


cdef void free_design(Design *design) noexcept nogil:
    purgatory_release(<Purgatory *>design.state)


cdef bint kbroker_purgatory_init(Design *design, Timer *timer, int64_t keys, int64_t purge_interval) noexcept nogil:
    design.head_bytes = sizeof(NewHead) + watcher_block_bytes(keys)
    design.state = purgatory_new(timer, purge_interval, 512)
    design.keys = keys
    design.prepare = prepare
    design.retain = retain
    design.release = release
    design.enqueue = enqueue
    design.force_complete = force_complete
    design.turn = turn
    design.pending = pending
    design.stop = stop
    design.free = free_design
    return design.state is not NULL
