"""Kafka's Throttler for the log cleaner, with an injected clock.

Kafka checks every 300 ms how much was done since the last check and sleeps off the excess. Here bytes are charged to an
account as they are read and written, and a thread waits when it is more than 300 ms ahead: the same rate, without
bursts of a second's work of a fast disk.
"""
cimport cython
from libc.math cimport isfinite
from libc.stdint cimport INT64_MAX, int64_t
from kbroker._core.clock cimport (
    borrow_clock, clock_add_waker, clock_now_ns, clock_release, clock_remove_waker, clock_retain, clock_wait_until,
)
from kbroker._core.sync cimport (
    AtomicI64, atomic_load, atomic_store, cond_broadcast, cond_destroy, cond_init, mutex_destroy, mutex_init,
    mutex_lock, mutex_unlock,
)

cdef enum:
    BURST_NS = 300000000        # Kafka's checkIntervalMs
    NS_PER_S = 1000000000

cdef AtomicI64 never            # stays 0: a change of the rate ends the wait
atomic_store(&never, 0)

cdef double LONGEST_NS = 9e18   # limit of the wait that a rate near zero adds to a time stamp


cdef void throttle_take(Throttle *throttle, int64_t size_bytes, AtomicI64 *stop) noexcept nogil:
    cdef int64_t now, changes, due
    cdef double cost
    if atomic_load(&throttle.is_limited) == 0 or size_bytes <= 0:
        return
    mutex_lock(&throttle.lock)
    now = clock_now_ns(throttle.clock)
    if throttle.paid_ns < now:
        throttle.paid_ns = now
    cost = <double>size_bytes * NS_PER_S / throttle.bytes_per_second
    if cost > LONGEST_NS - <double>throttle.paid_ns:
        throttle.paid_ns = INT64_MAX
    else:
        throttle.paid_ns += <int64_t>cost
    due = throttle.paid_ns
    changes = throttle.changes
    if due - now > BURST_NS:
        while not atomic_load(stop) and changes == throttle.changes and clock_wait_until(
                throttle.clock, &throttle.moved, &throttle.lock, due):
            pass
    mutex_unlock(&throttle.lock)


cdef void throttle_wake(Throttle *throttle) noexcept nogil:
    mutex_lock(&throttle.lock)
    cond_broadcast(&throttle.moved)
    mutex_unlock(&throttle.lock)


cdef void wake(void *arg) noexcept nogil:
    throttle_wake(<Throttle *>arg)


@cython.final
cdef class ByteThrottle:
    """Rate that cleaner threads share. See _throttle.pyi."""

    def __cinit__(self, clock, double bytes_per_second=0.0):
        mutex_init(&self.throttle.lock)
        cond_init(&self.throttle.moved)
        self.throttle.clock = clock_retain(borrow_clock(clock))
        self.throttle.waker.wake = wake
        self.throttle.waker.arg = &self.throttle
        clock_add_waker(self.throttle.clock, &self.throttle.waker)
        self.set_rate(bytes_per_second)

    def __dealloc__(self):
        if self.throttle.clock is not NULL:
            clock_remove_waker(self.throttle.clock, &self.throttle.waker)
            clock_release(self.throttle.clock)
        cond_destroy(&self.throttle.moved)
        mutex_destroy(&self.throttle.lock)

    def set_rate(self, double bytes_per_second):
        cdef bint is_limited = isfinite(bytes_per_second) and 0 < bytes_per_second < 1e18
        with nogil:
            mutex_lock(&self.throttle.lock)
            self.throttle.bytes_per_second = bytes_per_second
            self.throttle.changes += 1
            self.throttle.paid_ns = 0
            atomic_store(&self.throttle.is_limited, is_limited)
            cond_broadcast(&self.throttle.moved)
            mutex_unlock(&self.throttle.lock)

    def take(self, int64_t size_bytes):
        with nogil:
            throttle_take(&self.throttle, size_bytes, &never)
