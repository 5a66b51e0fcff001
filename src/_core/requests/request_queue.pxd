"""Bounded queue of request batches between network threads and handlers (Kafka's RequestChannel.requestQueue).

Each frame of a batch counts. A network thread may help: it takes batches from the queue as a handler would, while few
wait. The taker that slept last is woken first: its caches are warm. Lock: ``RequestQueue.lock``, a leaf. Waits never
hold the GIL.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.clock cimport Clock, Waker
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

cdef struct Sleeper:            # a taker that waits for a batch
    Sleeper *below              # the taker that slept before it, or the next free Sleeper
    Cond woken
    bint is_woken

cdef struct Executor:           # executes request batches for one thread, as a handler would
    # Return whether the batch can be executed without a long wait. Under the queue's lock: takes none.
    bint (*ends_soon)(Executor *self, Request *batch) noexcept nogil
    # Execute the batch, at the latest in finish. False: it would wait for those gathered before; call finish first.
    bint (*execute)(Executor *self, Request *batch) noexcept nogil
    void (*finish)(Executor *self) noexcept nogil
    void (*rest)(Executor *self) noexcept nogil     # after a pass of the network thread that executed nothing

cdef struct RequestQueue:
    AtomicI64 refs
    Clock *clock
    Waker waker
    Mutex lock
    Cond not_full
    Request *head               # batches, linked by next
    Request *tail
    int64_t count               # frames, all of every batch
    AtomicI64 depth             # mirrors count, to be read without the lock
    int64_t capacity
    Sleeper *sleeping           # the latest, which is woken first
    Sleeper *free_sleepers      # freed with the queue: a late signal may reach one
    int32_t sleepers
    int32_t signalled           # takers that were woken and have not run yet
    int32_t busy                # takers that have a batch and have not returned, and helpers
    int32_t helpers             # network threads between request_queue_put and the last batch of their help
    int32_t finishing           # network threads between that last batch and request_queue_end_help
    int32_t awake_target        # 0: wake a sleeper for each batch; else see wakes_due
    int64_t waiting_batches
    int64_t last_take_ns
    int32_t blocked_putters
    bint closed
    AtomicI64 idle_ns           # summed over all takers, less the time of helpers
    int64_t wakeups             # of sleepers
    int64_t takes               # batches taken
    int64_t looked_takes        # value of takes at the latest call of request_queue_unstick
    int64_t put_blocked_ns

cdef RequestQueue *request_queue_new(Clock *clock, int64_t capacity) noexcept nogil
cdef RequestQueue *request_queue_retain(RequestQueue *queue) noexcept nogil
cdef void request_queue_release(RequestQueue *queue) noexcept nogil
# Put all batches of a list (by next) in order under one lock; wait while full; false when closed (the remaining batches
# are still the caller's: *first then points at them). Wakes takers, see wakes_due. ``helps``: the caller is a helper
# from now on, whether batches were put or not, and calls request_queue_help until that returns NULL, then
# request_queue_end_help.
cdef bint request_queue_put(RequestQueue *queue, Request **first, bint helps) noexcept nogil
# Take the first batch as a helper; NULL: it takes no more, because no batch waits, the first one may block, the queue
# is closed, or ``goes_on`` is false. Takers are then woken for the batches that stay.
cdef Request *request_queue_help(RequestQueue *queue, Executor *executor, bint goes_on) noexcept nogil
cdef void request_queue_put_back(RequestQueue *queue, Request *batch) noexcept nogil    # the helper's latest, as first
cdef void request_queue_end_help(RequestQueue *queue) noexcept nogil     # once all batches that it took are executed
# Return whether a batch waits, and wake takers if none was taken since the previous call: those awake are stuck. Called
# every few milliseconds, it bounds the wait of a batch for which no taker was woken.
cdef bint request_queue_unstick(RequestQueue *queue) noexcept nogil
# Take one batch; NULL: time-out, or closed and empty. A negative time-out waits until the queue is closed.
cdef Request *request_queue_take(RequestQueue *queue, int64_t timeout_ns) noexcept nogil
cdef void request_queue_close(RequestQueue *queue) noexcept nogil
cdef bint request_queue_is_closed(RequestQueue *queue) noexcept nogil
cdef bint request_queue_nearly_full(RequestQueue *queue) noexcept nogil    # above 3/4 of its capacity

cdef void reject_batch(Request *batch) noexcept nogil       # respond to every frame with ACTION_CLOSE
cdef void request_queue_refuse_all(RequestQueue *queue) noexcept nogil     # queued requests return as ACTION_CLOSE

cdef class Queue:
    cdef RequestQueue *queue    # owned count

cdef class RequestExecutor:
    cdef Executor *executor     # set by the class that extends it, which owns it
