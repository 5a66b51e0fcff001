"""How many bytes a second cleaner threads may read and write together: one account, paid for by waiting."""
from libc.stdint cimport int64_t
from kbroker._core.clock cimport Clock, Waker
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

cdef struct Throttle:
    Clock *clock                # counted
    Waker waker                 # of a virtual clock
    Mutex lock                  # leaf
    Cond moved                  # the clock, the rate, or somebody's stop
    AtomicI64 is_limited        # nothing is locked while there is no limit
    double bytes_per_second
    int64_t changes             # of the rate
    int64_t paid_ns             # when all bytes taken so far are paid for

# Charges bytes and waits until they are paid for, as far as they are more than BURST_NS worth; *stop ends the wait.
cdef void throttle_take(Throttle *throttle, int64_t size_bytes, AtomicI64 *stop) noexcept nogil
cdef void throttle_wake(Throttle *throttle) noexcept nogil      # who waits looks at its *stop

cdef class ByteThrottle:
    cdef Throttle throttle
