"""The system clock and a virtual clock that a test moves; everything that reads time reads one of these.

Source: Kafka's ``Time`` (SystemTime, MockTime); a wait on a virtual clock ends by a waker, never by real time.
"""
cimport cython
from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free
from kbroker._core.arguments cimport integer
from kbroker._core.sync cimport (
    Cond, Mutex, atomic_add_fetch, atomic_cas, atomic_load, atomic_store, cond_wait, cond_wait_ns, mutex_destroy,
    mutex_init, mutex_lock, mutex_unlock,
)

cdef extern from *:
    """
    #ifdef _WIN32
    #include <chrono>
    static inline int64_t kb_monotonic_ns() noexcept {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    static inline int64_t kb_wall_ns() noexcept {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::system_clock::now().time_since_epoch()).count();
    }
    #else
    #include <ctime>
    static inline int64_t kb_clock_ns(clockid_t clock) {
        timespec now;
        clock_gettime(clock, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    static inline int64_t kb_monotonic_ns() { return kb_clock_ns(CLOCK_MONOTONIC); }
    static inline int64_t kb_wall_ns() { return kb_clock_ns(CLOCK_REALTIME); }
    #endif
    """
    int64_t monotonic_ns "kb_monotonic_ns"() noexcept nogil
    int64_t wall_ns "kb_wall_ns"() noexcept nogil

cdef enum:
    NS_PER_MS = 1000000

cdef int64_t VIRTUAL_START_NS = 1000000000000   # 1000 s: 0 means "not reached" in timestamps, and scales must not mix
cdef int64_t LARGEST_MS = INT64_MAX // NS_PER_MS


cdef inline int64_t floor_ms(int64_t ns) noexcept nogil:
    return ns // NS_PER_MS if ns >= 0 else -((-ns + NS_PER_MS - 1) // NS_PER_MS)


cdef Clock *clock_new_system() noexcept nogil:
    cdef Clock *clock = <Clock *>calloc(1, sizeof(Clock))
    if clock is NULL:
        return NULL
    mutex_init(&clock.lock)
    atomic_store(&clock.refs, 1)
    clock.is_virtual = False
    clock.epoch_offset_ns = wall_ns() - monotonic_ns()
    return clock


cdef Clock *clock_new_virtual(int64_t start_epoch_ms) noexcept nogil:
    cdef Clock *clock = <Clock *>calloc(1, sizeof(Clock))
    if clock is NULL:
        return NULL
    mutex_init(&clock.lock)
    atomic_store(&clock.refs, 1)
    clock.is_virtual = True
    atomic_store(&clock.virtual_ns, VIRTUAL_START_NS)
    clock.epoch_offset_ns = start_epoch_ms * NS_PER_MS - VIRTUAL_START_NS
    return clock


cdef Clock *clock_retain(Clock *clock) noexcept nogil:
    atomic_add_fetch(&clock.refs, 1)
    return clock


cdef void clock_release(Clock *clock) noexcept nogil:
    if clock is not NULL and atomic_add_fetch(&clock.refs, -1) == 0:
        mutex_destroy(&clock.lock)
        free(clock)


cdef int64_t clock_now_ns(Clock *clock) noexcept nogil:
    return atomic_load(&clock.virtual_ns) if clock.is_virtual else monotonic_ns()


cdef int64_t clock_now_ms(Clock *clock) noexcept nogil:
    return floor_ms(clock_now_ns(clock))


cdef int64_t clock_epoch_ms(Clock *clock) noexcept nogil:
    return floor_ms(clock_now_ns(clock) + clock.epoch_offset_ns)


cdef int64_t clock_wall_ms(Clock *clock) noexcept nogil:
    return clock_epoch_ms(clock) if clock.is_virtual else floor_ms(wall_ns())


cdef void clock_advance_ns(Clock *clock, int64_t delta_ns) noexcept nogil:
    cdef Waker *waker
    cdef int64_t now, limit
    if not clock.is_virtual or delta_ns < 0:
        return
    while True:                     # saturates: neither scale may overflow
        now = atomic_load(&clock.virtual_ns)
        limit = INT64_MAX - clock.epoch_offset_ns if clock.epoch_offset_ns > 0 else INT64_MAX
        if atomic_cas(&clock.virtual_ns, now, limit if delta_ns > limit - now else now + delta_ns):
            break
    mutex_lock(&clock.lock)         # time moved first: a waiter either sees it or is woken here
    waker = clock.wakers
    while waker is not NULL:
        waker.wake(waker.arg)
        waker = waker.next
    mutex_unlock(&clock.lock)


cdef void clock_add_waker(Clock *clock, Waker *waker) noexcept nogil:
    if not clock.is_virtual:        # real time needs no waker
        return
    mutex_lock(&clock.lock)
    waker.prev = NULL
    waker.next = clock.wakers
    if waker.next is not NULL:
        waker.next.prev = waker
    clock.wakers = waker
    mutex_unlock(&clock.lock)


cdef void clock_remove_waker(Clock *clock, Waker *waker) noexcept nogil:
    if not clock.is_virtual:
        return
    mutex_lock(&clock.lock)
    if waker.prev is not NULL or clock.wakers is waker:     # else it was not added, or removed before
        if waker.prev is not NULL:
            waker.prev.next = waker.next
        else:
            clock.wakers = waker.next
        if waker.next is not NULL:
            waker.next.prev = waker.prev
        waker.next = waker.prev = NULL
    mutex_unlock(&clock.lock)


cdef bint clock_wait_until(Clock *clock, Cond *cond, Mutex *mutex, int64_t deadline_ns) noexcept nogil:
    cdef int64_t left = deadline_ns - clock_now_ns(clock)
    if left <= 0:
        return False
    if clock.is_virtual or deadline_ns == INT64_MAX:
        cond_wait(cond, mutex)
    else:
        cond_wait_ns(cond, mutex, left)     # the caller loops, so the hour's cap and spurious wake-ups do no harm
    return True


cdef int64_t clock_real_wait_ns(Clock *clock, int64_t deadline_ns) noexcept nogil:
    cdef int64_t left = deadline_ns - clock_now_ns(clock)
    if left <= 0:
        return 0
    return -1 if clock.is_virtual or deadline_ns == INT64_MAX else left


cdef Clock *PROCESS_CLOCK = clock_new_system()      # immutable after import, never freed
if PROCESS_CLOCK is NULL:
    raise MemoryError


cdef Clock *borrow_clock(object clock) except NULL:
    if clock is None:
        return PROCESS_CLOCK
    if not isinstance(clock, BaseClock):
        raise TypeError(f"clock must be a SystemClock, a VirtualClock or None, not {type(clock).__name__}")
    if (<BaseClock>clock).clock is NULL:
        raise TypeError("BaseClock has no time: use SystemClock or VirtualClock")
    return (<BaseClock>clock).clock


@cython.no_gc
cdef class BaseClock:
    """Base of SystemClock and VirtualClock: one counted clock, read from any thread.

    Threads: any. Source: Kafka's ``Time``.
    """

    def __dealloc__(self):
        clock_release(self.clock)
        self.clock = NULL

    def now_ns(self) -> int:
        """Return monotonic nanoseconds; only differences mean something."""
        return clock_now_ns(borrow_clock(self))

    def now_ms(self) -> int:
        """Return monotonic milliseconds, ``now_ns`` rounded down."""
        return clock_now_ms(borrow_clock(self))

    def epoch_ms(self) -> int:
        """Return milliseconds since 1970 by the monotonic clock, which does not jump when the wall clock is set."""
        return clock_epoch_ms(borrow_clock(self))

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 (record timestamps); a virtual clock has only one time."""
        return clock_wall_ms(borrow_clock(self))

    @property
    def is_virtual(self) -> bool:
        """Return whether the time moves only by ``advance_ms`` and ``advance_ns``."""
        return bool(borrow_clock(self).is_virtual)


@cython.final
@cython.no_gc
cdef class SystemClock(BaseClock):
    """The machine's own clocks; all instances are the same process-wide clock.

    Threads: any. Source: Kafka's ``SystemTime``.
    """

    def __cinit__(self):
        self.clock = clock_retain(PROCESS_CLOCK)


@cython.final
@cython.no_gc
cdef class VirtualClock(BaseClock):
    """Clock whose time changes only when it is advanced, which also ends the waits on it.

    Args:
        start_epoch_ms: wall time at the start, milliseconds since 1970, >= 0.
        start_ms: monotonic time at the start, milliseconds, >= 0; differs from the wall time, to show mix-ups.

    Raises: ValueError for a start out of range.

    Threads: any; ``advance_*`` runs the wakers of all waiters on the calling thread, without the GIL.
    Source: Kafka's ``MockTime``.
    """

    def __cinit__(self, start_epoch_ms=1_700_000_000_000, start_ms=None):
        cdef int64_t epoch_ms = integer(start_epoch_ms, "start_epoch_ms", 0, LARGEST_MS)
        cdef int64_t monotonic_ms = VIRTUAL_START_NS // NS_PER_MS
        if start_ms is not None:
            monotonic_ms = integer(start_ms, "start_ms", 0, LARGEST_MS)
        self.clock = clock_new_virtual(epoch_ms)
        if self.clock is NULL:
            raise MemoryError
        self.clock.epoch_offset_ns = (epoch_ms - monotonic_ms) * NS_PER_MS
        atomic_store(&self.clock.virtual_ns, monotonic_ms * NS_PER_MS)

    def advance_ms(self, delta_ms) -> None:
        """Move the time forward by `delta_ms` milliseconds and wake every waiter.

        Raises: ValueError if negative or too large; TypeError if not an integer.
        """
        cdef int64_t delta_ns = integer(delta_ms, "delta_ms", 0, LARGEST_MS) * NS_PER_MS
        with nogil:
            clock_advance_ns(self.clock, delta_ns)

    def advance_ns(self, delta_ns) -> None:
        """Move the time forward by `delta_ns` nanoseconds and wake every waiter.

        Raises: ValueError if negative or too large; TypeError if not an integer.
        """
        cdef int64_t delta = integer(delta_ns, "delta_ns", 0, INT64_MAX)
        with nogil:
            clock_advance_ns(self.clock, delta)
