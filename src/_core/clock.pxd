"""The only source of time: a C struct, passed to all code that waits, expires or records times.

Threads: every function may be called from any thread, without the GIL. Lock: ``Clock.lock`` guards the waker list
and is a leaf except that wakers run under it (a waker may take its owner's lock, so no owner holds its lock while
calling into the clock's add/remove/advance).
"""
from libc.stdint cimport int64_t
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

ctypedef void (*waker_fn)(void *arg) noexcept nogil

cdef struct Waker:              # embedded in its owner; woken whenever a virtual clock moves
    waker_fn wake
    void *arg
    Waker *next
    Waker *prev

cdef struct Clock:
    AtomicI64 refs
    bint is_virtual
    AtomicI64 virtual_ns        # monotonic nanoseconds of a virtual clock
    int64_t epoch_offset_ns     # wall = monotonic + this, fixed at creation
    Mutex lock
    Waker *wakers

cdef Clock *clock_new_system() noexcept nogil
cdef Clock *clock_new_virtual(int64_t start_epoch_ms) noexcept nogil
cdef Clock *clock_retain(Clock *clock) noexcept nogil
cdef void clock_release(Clock *clock) noexcept nogil
cdef int64_t clock_now_ns(Clock *clock) noexcept nogil      # monotonic
cdef int64_t clock_now_ms(Clock *clock) noexcept nogil      # monotonic, floor of now_ns / 1e6
# Return the monotonic time in milliseconds since the epoch, which never jumps (for quota sensors).
cdef int64_t clock_epoch_ms(Clock *clock) noexcept nogil
# Return the time of the wall clock (for record timestamps); of a virtual clock, clock_epoch_ms.
cdef int64_t clock_wall_ms(Clock *clock) noexcept nogil
cdef void clock_advance_ns(Clock *clock, int64_t delta_ns) noexcept nogil   # virtual only; runs all wakers
cdef void clock_add_waker(Clock *clock, Waker *waker) noexcept nogil
cdef void clock_remove_waker(Clock *clock, Waker *waker) noexcept nogil
# Wait on cond (mutex held) until it is notified or deadline_ns (clock time) has passed; false if the deadline passed.
# On a virtual clock the wait has no real-time limit: the owner's waker must broadcast cond.
cdef bint clock_wait_until(Clock *clock, Cond *cond, Mutex *mutex, int64_t deadline_ns) noexcept nogil
# Return the maximum real wait (epoll, kqueue) for a clock deadline, in nanoseconds; 0 if it is due; -1: no limit, since
# a waker ends the wait.
cdef int64_t clock_real_wait_ns(Clock *clock, int64_t deadline_ns) noexcept nogil

cdef class BaseClock:
    cdef Clock *clock           # owned count

# Return the C clock of a BaseClock, or for None the process's system clock; TypeError for other objects.
cdef Clock *borrow_clock(object clock) except NULL
