"""A blocking queue ordered by deadline (java.util.concurrent.DelayQueue): a heap, one lock, one condition.

It holds what is to be completed, and is the timer of the old design.
"""
from libc.stdint cimport int64_t
from kbroker._core.clock cimport Clock
from kbroker._core.sync cimport Cond, Mutex

cdef struct DeadlineItem:
    int64_t at_ms
    void *item

cdef struct DeadlineQueue:
    Mutex lock                  # guards all below
    Cond earlier                # a new first item, or close
    Clock *clock                # borrowed
    void *memory                # of the heap
    DeadlineItem *heap          # four children to an item, in one cache line
    int64_t count
    int64_t room
    void *next_item             # the consumer's: what was first when its last poll was over
    bint waiting
    bint closed

cdef void deadline_queue_init(DeadlineQueue *queue, Clock *clock) noexcept nogil
cdef void deadline_queue_destroy(DeadlineQueue *queue) noexcept nogil
cdef bint deadline_queue_add(DeadlineQueue *queue, int64_t at_ms, void *item) noexcept nogil    # false: no memory
# Waits up to timeout_ms for the first item to be due (one thread only); NULL: none came due.
cdef void *deadline_queue_poll(DeadlineQueue *queue, int64_t timeout_ms) noexcept nogil
cdef void *deadline_queue_take_any(DeadlineQueue *queue) noexcept nogil         # due or not; NULL: empty
# Takes out what `is_closed` says of, in one pass, with `drop` for each; how many. The lock is held throughout.
cdef int64_t deadline_queue_purge(
    DeadlineQueue *queue, bint (*is_closed)(void *item) noexcept nogil, void (*drop)(void *item) noexcept nogil
) noexcept nogil
cdef void deadline_queue_close(DeadlineQueue *queue) noexcept nogil
