"""Delayed fetches of a broker that stops, as operations whose completion and end are counted."""
from libc.stdlib cimport calloc, free

from kbroker._core.clock cimport borrow_clock
from kbroker._core.sync cimport AtomicI64, atomic_add_fetch, atomic_load, atomic_store, mutex_init
from kbroker._core.timer.purgatory cimport (
    Key, Operation, OperationTable, operation_init, operation_release, purgatory_close, purgatory_new,
    purgatory_release, purgatory_try_complete_else_watch,
)
from kbroker._core.timer.timer_core cimport Timer
from kbroker._core.timer.timing_wheel cimport timer_close, timer_new, timer_release
from kbroker.apis.api01_fetch._fetch cimport complete_delayed
from kbroker.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.requests._native_types cimport NativeApisCore

cdef AtomicI64 completed, freed
cdef OperationTable COUNTED


cdef bint never(Operation *op) noexcept nogil:
    return False


cdef void count_completion(Operation *op) noexcept nogil:
    cdef FetchState *state = <FetchState *>op
    state.native_apis.delayed = state.delayed_next
    atomic_add_fetch(&completed, 1)


cdef void count_end(Operation *op) noexcept nogil:
    atomic_add_fetch(&freed, 1)
    free(op)


COUNTED.try_complete = never
COUNTED.on_complete = count_completion
COUNTED.destroy = count_end


def complete(clock, int count) -> tuple[int, int]:
    """Let so many fetches wait, complete them as a stop does; return how many were completed, and how many freed."""
    cdef NativeApisCore *native_apis = <NativeApisCore *>calloc(1, sizeof(NativeApisCore))
    cdef Timer *timer = timer_new(borrow_clock(clock), 1, 20)
    cdef FetchState *state
    cdef Key key
    cdef int _i
    mutex_init(&native_apis.delayed_lock)
    native_apis.fetch_purgatory = purgatory_new(timer, 1000, 1)
    atomic_store(&completed, 0)
    atomic_store(&freed, 0)
    key.high, key.low = 1, 0
    with nogil:
        for _i in range(count):
            state = <FetchState *>calloc(1, sizeof(FetchState))
            state.native_apis = native_apis
            state.delayed_next = <FetchState *>native_apis.delayed
            native_apis.delayed = state
            operation_init(&state.op, &COUNTED, 1000, NULL)
            purgatory_try_complete_else_watch(native_apis.fetch_purgatory, &state.op, &key, 1)
            operation_release(&state.op)
        complete_delayed(native_apis)
        purgatory_close(native_apis.fetch_purgatory)
        purgatory_release(native_apis.fetch_purgatory)
        timer_close(timer)
        timer_release(timer)
    free(native_apis)
    return atomic_load(&completed), atomic_load(&freed)
