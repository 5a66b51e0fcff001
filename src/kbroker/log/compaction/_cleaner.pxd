"""Throttle of the bytes per second that cleaner threads read and write together: one account; a thread waits to pay."""
from libc.stdint cimport int64_t
from kbroker._core.clock cimport Clock, Waker
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

cdef struct Throttle:
    Clock *clock                # counted
    Waker waker                 # for a virtual clock
    Mutex lock                  # leaf
    Cond moved                  # signals a change of the clock or the rate, or a stop
    AtomicI64 is_limited        # 0: no limit, and nothing is locked
    double bytes_per_second
    int64_t changes             # number of changes of the rate
    int64_t paid_ns             # time when all charged bytes are paid for


cdef class ByteThrottle:
    cdef Throttle throttle
