"""Blocking queue ordered by deadline (java.util.concurrent.DelayQueue): a heap, one lock, one condition.

The queue has the requests to be completed, and is the timer of the old design.
"""
from libc.stdint cimport int64_t
from kbroker._core.clock cimport Clock
from kbroker._core.sync cimport Cond, Mutex

cdef struct DeadlineItem:
    int64_t at_ms
    void *item

cdef struct DeadlineQueue:
    Mutex lock                  # guards the fields below
    Cond earlier                # a new first item, or close
    Clock *clock                # borrowed
    void *memory                # of the heap
    DeadlineItem *heap          # four children of an item are in one cache line
    int64_t count
    int64_t room
    void *next_item             # the consumer's: first item at the end of its last poll
    bint waiting
    bint closed

cdef void deadline_queue_init(DeadlineQueue *queue, Clock *clock) noexcept nogil
cdef void deadline_queue_destroy(DeadlineQueue *queue) noexcept nogil
cdef bint deadline_queue_add(DeadlineQueue *queue, int64_t at_ms, void *item) noexcept nogil    # false if out of memory
# Waits up to timeout_ms for the first due item (one thread only); returns NULL if no item is due.
cdef void *deadline_queue_poll(DeadlineQueue *queue, int64_t timeout_ms) noexcept nogil
cdef void *deadline_queue_take_any(DeadlineQueue *queue) noexcept nogil         # an item, due or not; NULL if empty
# Removes the items for which `is_closed` returns true, in one pass under the lock, calls `drop` for each, and returns
# their number.
cdef int64_t deadline_queue_purge(
    DeadlineQueue *queue, bint (*is_closed)(void *item) noexcept nogil, void (*drop)(void *item) noexcept nogil
) noexcept nogil
cdef void deadline_queue_close(DeadlineQueue *queue) noexcept nogil
