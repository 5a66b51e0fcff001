"""Bounded queue of batches between network threads and handlers (Kafka's RequestChannel.requestQueue).

Lock: ``RequestQueue.lock``, a leaf. Waits never hold the GIL. Each frame of a batch counts.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.clock cimport Clock, Waker
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

cdef struct RequestQueue:
    AtomicI64 refs
    Clock *clock
    Waker waker
    Mutex lock
    Cond not_empty
    Cond not_full
    Request *head               # batches, linked by next
    Request *tail
    int64_t count               # frames, all of every batch
    AtomicI64 depth             # mirrors count, to be read without the lock
    int64_t capacity
    int32_t sleepers
    int32_t signalled           # sleepers that were woken and have not run yet
    int32_t busy                # takers that left with a batch and have not come back
    int32_t awake_target        # 0: wake a sleeper for each batch; else see wakes_due
    int64_t waiting_batches
    int64_t last_take_ns
    int32_t blocked_putters
    bint closed
    AtomicI64 idle_ns           # summed over all takers
    int64_t put_blocked_ns

cdef RequestQueue *request_queue_new(Clock *clock, int64_t capacity) noexcept nogil
cdef RequestQueue *request_queue_retain(RequestQueue *queue) noexcept nogil
cdef void request_queue_release(RequestQueue *queue) noexcept nogil
# Puts all batches of a list (by next) in order under one lock; waits while full; false when closed (what was not put is
# still the caller's: *first then points at it). Signals min(sleepers, batches put).
cdef bint request_queue_put(RequestQueue *queue, Request **first) noexcept nogil
# One batch; NULL: time-out, or closed and empty. A negative time-out waits until the queue is closed.
cdef Request *request_queue_take(RequestQueue *queue, int64_t timeout_ns) noexcept nogil
cdef void request_queue_close(RequestQueue *queue) noexcept nogil
cdef bint request_queue_is_closed(RequestQueue *queue) noexcept nogil
cdef bint request_queue_nearly_full(RequestQueue *queue) noexcept nogil    # above 3/4 of its capacity

cdef void request_queue_refuse_all(RequestQueue *queue) noexcept nogil     # what is queued goes back as ACTION_CLOSE

cdef class Queue:
    cdef RequestQueue *queue    # owned count
