"""Nodes of one process with native operations, whose first check waits for a gate that a test holds."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.clock cimport borrow_clock
from kbroker._core.sync cimport (
    AtomicI64, Mutex, atomic_add_fetch, atomic_load, atomic_store, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.timer.purgatory cimport (
    Key, Operation, OperationTable, operation_force_complete, operation_init, operation_release,
    purgatory_check_and_complete, purgatory_close, purgatory_new, purgatory_release, purgatory_try_complete_else_watch,
)
from kbroker._core.timer.timer_core cimport Timer
from kbroker._core.timer.timing_wheel cimport timer_close, timer_new, timer_release
from kbroker.requests._native_types cimport NativeApisCore
from kbroker.requests._peers cimport peers_check_fetches, peers_join, peers_leave, peers_release

cdef enum:
    FIRST_CHECK = 3             # the watch tries twice

cdef struct SlowOperation:
    Operation base              # first

cdef Mutex gate
cdef AtomicI64 tries, satisfied, completions
cdef OperationTable SLOW
mutex_init(&gate)


cdef bint try_slowly(Operation *op) noexcept nogil:
    cdef bint is_satisfied = atomic_load(&satisfied) != 0       # an event after this needs another try
    if atomic_add_fetch(&tries, 1) == FIRST_CHECK:
        mutex_lock(&gate)
        mutex_unlock(&gate)
    return is_satisfied and operation_force_complete(op)


cdef void count_completion(Operation *op) noexcept nogil:
    atomic_add_fetch(&completions, 1)


cdef void destroy(Operation *op) noexcept nogil:
    free(op)


SLOW.try_complete = try_slowly
SLOW.on_complete = count_completion
SLOW.destroy = destroy


def hold():
    """Close the gate until ``release``, which the same thread calls."""
    with nogil:
        mutex_lock(&gate)
    atomic_store(&tries, 0)
    atomic_store(&satisfied, 0)
    atomic_store(&completions, 0)


def release():
    with nogil:
        mutex_unlock(&gate)


def satisfy():
    """Make the next try complete the operation."""
    atomic_store(&satisfied, 1)


def counts():
    """Return the number of tries and of completions."""
    return atomic_load(&tries), atomic_load(&completions)


cdef class Node:
    """Node with a purgatory of fetches. Args: ``peer``: another node of the process."""

    cdef NativeApisCore *core
    cdef Timer *timer

    def __cinit__(self, clock, Node peer=None):
        self.core = <NativeApisCore *>calloc(1, sizeof(NativeApisCore))
        self.timer = timer_new(borrow_clock(clock), 1, 20)
        self.core.fetch_purgatory = purgatory_new(self.timer, 1000, 1)
        if peer is not None and not peers_join(self.core, peer.core):
            raise MemoryError

    def __dealloc__(self):
        with nogil:
            peers_leave(self.core)
            peers_release(self.core)
            purgatory_close(self.core.fetch_purgatory)
            purgatory_release(self.core.fetch_purgatory)
            timer_close(self.timer)
            timer_release(self.timer)
        free(self.core)

    def watch(self, int64_t number):
        """Watch a slow operation by this key."""
        cdef SlowOperation *op = <SlowOperation *>calloc(1, sizeof(SlowOperation))
        cdef Key key
        key.high, key.low = number, 0
        operation_init(&op.base, &SLOW, 1000000, NULL)
        with nogil:
            purgatory_try_complete_else_watch(self.core.fetch_purgatory, &op.base, &key, 1)
            operation_release(&op.base)

    def check(self, int64_t number):
        """Check the operations of all nodes by this key, as an event at this node does."""
        cdef Key key
        key.high, key.low = number, 0
        with nogil:
            purgatory_check_and_complete(self.core.fetch_purgatory, &key)
            peers_check_fetches(self.core, &key)

    def leave(self):
        """Leave the other nodes."""
        with nogil:
            peers_leave(self.core)
