"""Hierarchical timing wheel with linked buckets and a delay queue of buckets (Kafka's SystemTimer + TimingWheel).

Lock: one mutex per timer (``Timer.lock``); callbacks run outside it, on the thread that advances. O(1) add and cancel; a
cancelled entry is unlinked at once. Never early: a due time between two ticks counts as the later tick.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.clock cimport Clock
from kbroker._core.sync cimport AtomicI64

cdef struct Timer             # private layout in the .pyx's own section below
cdef struct TimerEntry:         # embedded in its owner (zeroed before first use); one timer at a time
    TimerEntry *next
    TimerEntry *prev
    void *bucket                # NULL: not pending
    int64_t due_ms              # absolute, clock_now_ms scale
    void (*fire)(TimerEntry *entry) noexcept nogil    # outside the lock; the entry is no longer pending

cdef Timer *timer_new(Clock *clock, int64_t tick_ms, int32_t wheel_size) noexcept nogil
cdef Timer *timer_retain(Timer *timer) noexcept nogil
cdef void timer_release(Timer *timer) noexcept nogil
cdef void timer_add(Timer *timer, TimerEntry *entry, int64_t delay_ms) noexcept nogil  # re-adding re-schedules
cdef bint timer_cancel(Timer *timer, TimerEntry *entry) noexcept nogil    # true: it was pending and will not fire
cdef int64_t timer_pending(Timer *timer) noexcept nogil                    # exact
# Waits (without the GIL) up to timeout_ms for a bucket to become due, fires what is due; true if anything was polled.
cdef bint timer_advance(Timer *timer, int64_t timeout_ms) noexcept nogil
cdef void timer_close(Timer *timer) noexcept nogil                         # wakes and ends the waiters
