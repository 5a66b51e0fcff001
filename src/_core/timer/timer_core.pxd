"""Hierarchical timing wheel with linked buckets and a delay queue of buckets (Kafka's SystemTimer + TimingWheel).

Lock: one mutex per timer (``Timer.lock``); callbacks run outside it, on the thread that advances. O(1) add and cancel;
a cancelled entry is unlinked at once. Never early: a due time between two ticks counts as the later tick.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.clock cimport Clock, Waker
from kbroker._core.containers.heap cimport Heap, HeapEntry
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

cdef enum:
    LARGEST_LEVELS = 64             # with two slots a level doubles the span: no clock reaches 2**63 ms

cdef struct TimerEntry:         # embedded in its owner (zeroed before first use); one timer at a time
    TimerEntry *next
    TimerEntry *prev
    void *bucket                # NULL: not pending
    int64_t due_ms              # absolute, clock_now_ms scale, rounded up to a tick
    void (*fire)(TimerEntry *entry) noexcept nogil    # outside the lock; the entry is no longer pending

# Only this module and timing_wheel use the layout.
cdef struct Bucket:
    HeapEntry expiration            # in the delay queue by the start of its slot in ms; -1: not queued
    TimerEntry root                 # sentinel of a circular list, in order of insertion
    int32_t level
    int32_t slot

cdef struct Wheel:
    int64_t tick_ms
    int64_t interval_ms             # tick * size: span of this wheel beyond its clock
    int64_t current_ms              # clock of this wheel: a multiple of tick, moved only by buckets that became due
    Bucket *buckets

cdef struct Timer:                  # counted
    AtomicI64 refs
    Clock *clock                    # owned count
    Waker waker
    Mutex lock                      # guards all below; wakers of the clock take it, nothing else is taken under it
    int64_t pending                 # entries in buckets and in due
    int32_t waiters
    int32_t levels
    bint closed
    Cond changed                    # signals an earlier bucket, a due entry, a move of the virtual time, the close
    int32_t wheel_size
    int64_t wake_calls              # calls of timer_wake
    int64_t offers                  # buckets put in the queue
    Bucket fresh                    # due when added; joins `due` at the next collect, or a callback could loop forever
    Bucket due                      # expired, not yet taken
    Heap queue                      # the delay queue of buckets, large enough for all of them
    Wheel wheels[LARGEST_LEVELS]

cdef struct TimerFigures:
    int64_t pending
    int64_t offers                  # buckets put in the delay queue since the start
    int64_t queued_buckets          # in the delay queue now
    int64_t live_buckets            # with at least one entry

cdef Timer *timer_new(Clock *clock, int64_t tick_ms, int32_t wheel_size) noexcept nogil
cdef Timer *timer_retain(Timer *timer) noexcept nogil
cdef void timer_release(Timer *timer) noexcept nogil
# Re-adding re-schedules. An entry that is due already fires at the next advance, never on the adding thread.
cdef void timer_add(Timer *timer, TimerEntry *entry, int64_t delay_ms) noexcept nogil
# Cancel an entry. True: it was pending and will not fire. False: it was not added, has fired, or is firing on another
# thread right now; the owner keeps the entry's memory until ``fire`` has run (it counts a reference of the timer).
cdef bint timer_cancel(Timer *timer, TimerEntry *entry) noexcept nogil
cdef int64_t timer_pending(Timer *timer) noexcept nogil                    # exact
# Wait (without the GIL) up to timeout_ms for a bucket to become due, fire the due entries; true if any was polled.
cdef bint timer_advance(Timer *timer, int64_t timeout_ms) noexcept nogil
# Wake and end the waiters; pending entries can only be cancelled.
cdef void timer_close(Timer *timer) noexcept nogil
cdef bint timer_is_closed(Timer *timer) noexcept nogil
# The two halves of timer_advance, for an owner that fires entries itself: wait and collect, then take the due entries
# one by one (NULL: none left). An entry taken is no longer pending and ``fire`` has not run.
cdef bint timer_collect(Timer *timer, int64_t timeout_ms) noexcept nogil
cdef TimerEntry *timer_take_due(Timer *timer) noexcept nogil
cdef TimerEntry *timer_take_due_with_gil(Timer *timer) noexcept       # the same for a caller that holds the GIL
# Take up to `capacity` entries at once, for an owner that need not cancel due entries; 0: none left.
cdef int32_t timer_take_due_batch(Timer *timer, TimerEntry **entries, int32_t capacity) noexcept nogil
cdef void timer_wake(Timer *timer) noexcept nogil                          # every current wait ends as if timed out
# Return whether nothing is due or firing, and a thread waits for the next entry (or the timer is closed).
cdef bint timer_is_quiet(Timer *timer) noexcept nogil
cdef Clock *timer_clock(Timer *timer) noexcept nogil                       # borrowed
cdef void timer_figures(Timer *timer, TimerFigures *figures) noexcept nogil

# For Python's view, which releases the GIL only if the lock is taken. The caller holds the lock, except for due_after.
cdef int64_t due_after(Timer *timer, int64_t delay_ms) noexcept nogil
cdef bint add_locked(Timer *timer, TimerEntry *entry, int64_t due_ms) noexcept nogil   # true: broadcast `changed`
cdef bint cancel_locked(Timer *timer, TimerEntry *entry) noexcept nogil
cdef Bucket *bucket_at(Timer *timer, int32_t level, int32_t slot) noexcept nogil       # level -2: due, -1: fresh


cdef inline void unlink_entry(TimerEntry *entry) noexcept nogil:
    entry.prev.next = entry.next
    entry.next.prev = entry.prev
    entry.next = entry.prev = NULL
    entry.bucket = NULL
