"""Hierarchical timing wheel with linked buckets and a delay queue of buckets (Kafka's SystemTimer + TimingWheel).

Lock: one mutex per timer (``Timer.lock``); callbacks run outside it, on the thread that advances. O(1) add and cancel;
a cancelled entry is unlinked at once. Never early: a due time between two ticks counts as the later tick.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.clock cimport Clock

cdef struct Timer             # counted; its layout is timing_wheel.pyx's own
cdef struct TimerEntry:         # embedded in its owner (zeroed before first use); one timer at a time
    TimerEntry *next
    TimerEntry *prev
    void *bucket                # NULL: not pending
    int64_t due_ms              # absolute, clock_now_ms scale, rounded up to a tick
    void (*fire)(TimerEntry *entry) noexcept nogil    # outside the lock; the entry is no longer pending

cdef Timer *timer_new(Clock *clock, int64_t tick_ms, int32_t wheel_size) noexcept nogil
cdef Timer *timer_retain(Timer *timer) noexcept nogil
cdef void timer_release(Timer *timer) noexcept nogil
# Re-adding re-schedules. An entry that is due already fires at the next advance, never on the adding thread.
cdef void timer_add(Timer *timer, TimerEntry *entry, int64_t delay_ms) noexcept nogil
# True: it was pending and will not fire. False: it was not added, has fired, or is firing on another thread right now:
# the owner keeps the entry's memory until ``fire`` has run (count what the timer holds).
cdef bint timer_cancel(Timer *timer, TimerEntry *entry) noexcept nogil
cdef int64_t timer_pending(Timer *timer) noexcept nogil                    # exact
# Waits (without the GIL) up to timeout_ms for a bucket to become due, fires what is due; true if anything was polled.
cdef bint timer_advance(Timer *timer, int64_t timeout_ms) noexcept nogil
# Wakes and ends the waiters; pending entries can only be cancelled.
cdef void timer_close(Timer *timer) noexcept nogil
cdef bint timer_is_closed(Timer *timer) noexcept nogil
# The two halves of timer_advance, for an owner that fires in its own way: wait and collect, then take what is due one
# by one (NULL: none left). An entry taken is no longer pending and ``fire`` has not run.
cdef bint timer_collect(Timer *timer, int64_t timeout_ms) noexcept nogil
cdef TimerEntry *timer_take_due(Timer *timer) noexcept nogil
cdef TimerEntry *timer_take_due_with_gil(Timer *timer) noexcept       # the same for a caller that holds the GIL
cdef void timer_wake(Timer *timer) noexcept nogil                          # every wait of now ends as if timed out
# Nothing is due, nothing fires, and a thread waits for what comes (or the timer is closed).
cdef bint timer_is_quiet(Timer *timer) noexcept nogil
cdef Clock *timer_clock(Timer *timer) noexcept nogil                       # borrowed

cdef class TimerHandle:         # ``Timer`` in Python
    cdef Timer *timer           # owned count

cdef Timer *borrow_timer(object timer) except NULL     # TypeError unless an open Timer
