# cython: language_level=3
"""Leases that are C structs with an entry of the timing wheel and bytes of the memory pool, not Python objects.

The wheel's and the pool's functions are called without the GIL, as kbroker's own threads do.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.clock cimport borrow_clock
from kbroker._core.requests.memory_pool cimport MemoryPool, Pool, pool_free, pool_decref, pool_retain, pool_try_allocate
from kbroker._core.timer.timing_wheel cimport (
    Timer, TimerEntry, timer_add, timer_advance, timer_cancel, timer_new, timer_pending, timer_release,
)

cdef struct Book:
    Lease *first                # owned: all pending leases
    int64_t expired

cdef struct Lease:
    TimerEntry entry            # first: a pointer to it is a pointer to the lease
    Lease *next
    Lease *prev
    Book *book
    Pool *pool                  # counted
    int64_t size_bytes


cdef void end_lease(Lease *lease) noexcept nogil:
    if lease.prev is not NULL:
        lease.prev.next = lease.next
    else:
        lease.book.first = lease.next
    if lease.next is not NULL:
        lease.next.prev = lease.prev
    pool_free(lease.pool, lease.size_bytes)
    pool_decref(lease.pool)
    free(lease)


cdef void expire(TimerEntry *entry) noexcept nogil:
    cdef Lease *lease = <Lease *>entry
    lease.book.expired += 1
    end_lease(lease)


cdef class Leases:
    """Granter of leases of `size_bytes` until the pool is depleted; an expired lease frees its bytes.

    Threads: one.
    """
    cdef Timer *timer           # owned count
    cdef MemoryPool pool
    cdef Book book

    def __cinit__(self, MemoryPool pool not None, clock=None):
        self.pool = pool
        self.timer = timer_new(borrow_clock(clock), 1, 20)
        if self.timer is NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Lease *lease
        if self.timer is not NULL:
            while self.book.first is not NULL:
                lease = self.book.first
                timer_cancel(self.timer, &lease.entry)
                end_lease(lease)
            timer_release(self.timer)

    @property
    def expired(self):
        """Number of expired leases."""
        return self.book.expired

    def grant(self, int64_t count, int64_t size_bytes, int64_t time_ms):
        """Return the number of granted leases, at most `count` and limited by the bytes of the pool."""
        cdef int64_t granted = 0
        cdef Pool *pool = self.pool.pool
        cdef Lease *lease
        if size_bytes < 1 or size_bytes > pool.max_single_bytes:
            raise ValueError(f"size_bytes must be 1 to {pool.max_single_bytes}, got {size_bytes}")
        with nogil:
            while granted < count and pool_try_allocate(pool, size_bytes):
                lease = <Lease *>calloc(1, sizeof(Lease))
                if lease is NULL:
                    pool_free(pool, size_bytes)
                    break
                lease.entry.fire = expire
                lease.pool = pool_retain(pool)
                lease.size_bytes = size_bytes
                lease.book = &self.book
                lease.next = self.book.first
                if lease.next is not NULL:
                    lease.next.prev = lease
                self.book.first = lease
                timer_add(self.timer, &lease.entry, time_ms)
                granted += 1
        return granted

    def advance(self, int64_t timeout_ms=0):
        """Expire the leases whose time has passed."""
        with nogil:
            timer_advance(self.timer, timeout_ms)

    def __len__(self):
        return timer_pending(self.timer)
