"""Byte budget shared by network threads (KIP-72). Semantics of SimpleMemoryPool, with strictness and depletion."""
from libc.stdint cimport int64_t
from kbroker._core.clock cimport Clock
from kbroker._core.sync cimport AtomicI64, Mutex

cdef struct PoolWaiter:         # a network loop with channels that wait for memory; embedded in it
    PoolWaiter *next
    PoolWaiter *prev
    void (*wake)(void *arg) noexcept nogil      # called under the pool's lock: must take no lock
    void *arg
    bint is_queued

cdef struct Pool:
    AtomicI64 refs
    Clock *clock                # owned count
    int64_t size_bytes          # -1: unlimited (MemoryPool.NONE), every take succeeds and nothing is counted
    int64_t max_single_bytes
    bint strict
    void *depletion             # SensorCore, owned count; records the milliseconds of each depletion; NULL: none
    Mutex lock                  # leaf; guards the rest
    int64_t available
    int64_t depleted_since_ns        # -1: not depleted
    int64_t depleted_total_ns
    int64_t depletion_count
    AtomicI64 first_waiter      # PoolWaiter * that is next, readable without the lock
    PoolWaiter *last_waiter

cdef Pool *pool_new(Clock *clock, int64_t size_bytes, int64_t max_single_bytes, bint strict) noexcept nogil
cdef Pool *pool_retain(Pool *pool) noexcept nogil
cdef void pool_decref(Pool *pool) noexcept nogil
cdef bint pool_try_allocate(Pool *pool, int64_t size_bytes) noexcept nogil     # size already checked by the caller
cdef void pool_free(Pool *pool, int64_t size_bytes) noexcept nogil
cdef int64_t pool_available(Pool *pool) noexcept nogil                 # unlimited: int64 max
cdef bint pool_is_out_of_memory(Pool *pool) noexcept nogil
cdef bint pool_is_low(Pool *pool) noexcept nogil                       # limited and available < size // 10
# Loops that were refused take turns in order of arrival: each release wakes the first one. Otherwise a busy loop would
# take all freed memory, and a sleeping one would never be woken.
cdef void pool_enqueue_waiter(Pool *pool, PoolWaiter *waiter) noexcept nogil     # to the end of the queue, once
cdef void pool_dequeue_waiter(Pool *pool, PoolWaiter *waiter) noexcept nogil    # not queued: nothing
cdef bint pool_is_next(Pool *pool, PoolWaiter *waiter) noexcept nogil  # no other waiter is ahead; advice, not enforced

cdef class MemoryPool:
    cdef Pool *pool             # owned count
