"""Help of a network thread for the handlers; see the contract in the .pxd."""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.network.event_loop cimport loop_wake
from kbroker._core.requests.request cimport Request
from kbroker._core.requests.request_queue cimport request_queue_end_help, request_queue_help, request_queue_put_back
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_cas, atomic_load, atomic_load_seq, atomic_store, atomic_store_seq, cond_broadcast,
    cond_signal, cond_wait, mutex_lock, mutex_unlock,
)
from kbroker.network.processor._processor_core cimport (
    ROLE_OWN, ROLE_PASSED_ON, ROLE_STAND_IN, ROLE_WANTED_BACK, STAGE_END, STAGE_RETIRE, ProcessorCore, Watch,
)

cdef enum:
    HELP_BATCHES = 256          # executed before the sockets are polled again


cdef void wake_watch(Watch *watch) noexcept nogil:
    mutex_lock(&watch.lock)
    atomic_store(&watch.is_asleep, 0)
    cond_signal(&watch.changed)
    mutex_unlock(&watch.lock)


cdef void help_handlers(ProcessorCore *core) noexcept nogil:
    cdef Request *batch
    cdef int32_t executed = 0
    cdef int64_t ended, started = clock_now_ns(core.loop.clock)
    cdef bint has_loop = True
    core.batch_number += 1
    atomic_store_seq(&core.role, core.batch_number)
    if core.watch is not NULL and atomic_load_seq(&core.watch.is_asleep) != 0:
        wake_watch(core.watch)
    batch = request_queue_help(core.queue, core.executor, True)
    while batch is not NULL:
        if core.executor.execute(core.executor, batch):
            executed += 1
        else:                       # a handler can take it during the long append
            request_queue_put_back(core.queue, batch)
            core.executor.finish(core.executor)
        has_loop = has_loop and atomic_cas(&core.role, core.batch_number, core.batch_number + 1)
        core.batch_number += has_loop
        batch = request_queue_help(core.queue, core.executor, has_loop and executed < HELP_BATCHES)
    core.executor.finish(core.executor)
    request_queue_end_help(core.queue)
    ended = clock_now_ns(core.loop.clock)
    atomic_add_fetch(&core.queue.idle_ns, started - ended)
    if not atomic_cas(&core.role, core.batch_number, ROLE_OWN):
        take_loop_back(core)


cdef void take_loop_back(ProcessorCore *core) noexcept nogil:
    """Wait until a stand-in that has entered the loop has left it."""
    if atomic_cas(&core.role, ROLE_PASSED_ON, ROLE_OWN):
        return
    mutex_lock(&core.role_lock)
    if atomic_load(&core.role) == ROLE_STAND_IN:
        atomic_store_seq(&core.role, ROLE_WANTED_BACK)
        loop_wake(&core.loop)
    while atomic_load(&core.role) != ROLE_OWN:
        cond_wait(&core.role_changed, &core.role_lock)
    mutex_unlock(&core.role_lock)


cdef bint enter_loop(ProcessorCore *core) noexcept nogil:
    return atomic_cas(&core.role, ROLE_PASSED_ON, ROLE_STAND_IN)


cdef bint stands_in(ProcessorCore *core) noexcept nogil:
    cdef int64_t stage = atomic_load(&core.stage)
    return atomic_load(&core.role) == ROLE_STAND_IN and stage != STAGE_END and stage != STAGE_RETIRE


cdef void leave_loop(ProcessorCore *core) noexcept nogil:
    mutex_lock(&core.role_lock)
    atomic_store(&core.role, ROLE_OWN)
    cond_broadcast(&core.role_changed)
    mutex_unlock(&core.role_lock)
