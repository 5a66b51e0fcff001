# cython: freethreading_compatible=True
"""Hierarchical timing wheel: the C timer, and Python's view of it.

Differences from Kafka's, each on purpose: one lock instead of a read-write lock, list locks and retry loops; a due time
between ticks is rounded up, not down; what is due waits in a list of its own until the advancing thread takes it, entry
by entry, so that it can still be cancelled or re-added, and counts as pending until then.
Source: ``SystemTimer``, ``TimingWheel``, ``TimerTaskList``, ``TimerTask``.
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals, PyErr_ExceptionMatches, PyErr_WriteUnraisable
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free, realloc
from kbroker._core.clock cimport (
    Clock, Waker, borrow_clock, clock_add_waker, clock_now_ms, clock_now_ns, clock_release, clock_remove_waker,
    clock_retain, clock_wait_until,
)
from kbroker._core.sync cimport (
    AtomicI64, Cond, Mutex, atomic_add, atomic_store, cond_broadcast, cond_destroy, cond_init, mutex_destroy,
    mutex_init, mutex_lock, mutex_try_lock, mutex_unlock,
)

cdef extern from "Python.h":
    PyObject *PyObject_CallNoArgs(object callback)     # new reference, NULL on failure: handled here, not by Cython

cdef enum:
    NS_PER_MS = 1000000
    LARGEST_LEVELS = 64             # with two slots a level doubles the span: 2**63 ms is out of any clock's reach

cdef int64_t LARGEST_MS = INT64_MAX // NS_PER_MS    # 292 years: the end of the clock, and of every due time


cdef struct Bucket:
    TimerEntry root                 # sentinel of a circular list, in order of insertion
    int64_t expiration_ms           # start of its slot while queued; -1: not queued
    int32_t level
    int32_t slot

cdef struct Wheel:
    int64_t tick_ms
    int64_t interval_ms             # tick * size: what this wheel can hold beyond its clock
    int64_t current_ms              # clock of this wheel: a multiple of tick, moved only by buckets that came due
    Bucket *buckets

cdef struct Timer:
    AtomicI64 refs
    Clock *clock                    # owned count
    Waker waker
    Mutex lock                      # guards all below; wakers of the clock take it, nothing else is taken under it
    Cond changed                    # an earlier bucket, something due, the virtual time, close
    int32_t waiters
    bint closed
    int32_t wheel_size
    int32_t levels
    int64_t pending                 # entries in buckets and in due
    int64_t wake_calls              # of timer_wake
    int64_t offers                  # buckets put in the queue, for tests
    Bucket fresh                    # due when added; joins `due` at the next collect: a callback that adds ends
    Bucket due                      # expired, not yet taken
    Bucket **heap                   # the delay queue; room for every bucket there is
    int64_t queued
    Wheel wheels[LARGEST_LEVELS]


# --- lists of entries

cdef inline void bucket_init(Bucket *bucket, int32_t level, int32_t slot) noexcept nogil:
    bucket.root.next = bucket.root.prev = &bucket.root
    bucket.expiration_ms = -1
    bucket.level = level
    bucket.slot = slot


cdef inline void append(Bucket *bucket, TimerEntry *entry) noexcept nogil:
    cdef TimerEntry *root = &bucket.root
    entry.bucket = bucket
    entry.next = root
    entry.prev = root.prev
    root.prev.next = entry
    root.prev = entry


cdef inline void unlink(TimerEntry *entry) noexcept nogil:
    entry.prev.next = entry.next
    entry.next.prev = entry.prev
    entry.next = entry.prev = NULL
    entry.bucket = NULL


cdef void splice_due(Timer *timer, Bucket *bucket) noexcept nogil:
    """All of a lowest-level bucket is due at once: O(1). Its entries keep a stale `bucket`: that only says pending."""
    cdef TimerEntry *first = bucket.root.next
    cdef TimerEntry *last = bucket.root.prev
    cdef TimerEntry *root = &timer.due.root
    if first is &bucket.root:
        return
    bucket.root.next = bucket.root.prev = &bucket.root
    first.prev = root.prev
    root.prev.next = first
    last.next = root
    root.prev = last


# --- the delay queue: a binary heap of buckets by expiration

cdef void heap_push(Timer *timer, Bucket *bucket) noexcept nogil:
    cdef int64_t i = timer.queued
    cdef int64_t parent
    timer.queued += 1
    timer.offers += 1
    while i > 0:
        parent = (i - 1) // 2
        if timer.heap[parent].expiration_ms <= bucket.expiration_ms:
            break
        timer.heap[i] = timer.heap[parent]
        i = parent
    timer.heap[i] = bucket


cdef Bucket *heap_pop(Timer *timer) noexcept nogil:
    cdef Bucket *top = timer.heap[0]
    cdef Bucket *last
    cdef int64_t i = 0, child
    timer.queued -= 1
    last = timer.heap[timer.queued]
    while True:
        child = 2 * i + 1
        if child >= timer.queued:
            break
        if child + 1 < timer.queued and timer.heap[child + 1].expiration_ms < timer.heap[child].expiration_ms:
            child += 1
        if last.expiration_ms <= timer.heap[child].expiration_ms:
            break
        timer.heap[i] = timer.heap[child]
        i = child
    timer.heap[i] = last
    return top


# --- the wheels

cdef bint add_wheel(Timer *timer) noexcept nogil:
    """Put one more wheel above the others; false when there is no room or no memory."""
    cdef int32_t level = timer.levels, slot
    cdef Wheel *wheel = &timer.wheels[level]
    cdef Wheel *below
    cdef void *heap
    cdef int64_t buckets = <int64_t>(level + 1) * timer.wheel_size
    if level == LARGEST_LEVELS:
        return False
    if level > 0:
        below = &timer.wheels[level - 1]
        wheel.tick_ms = below.interval_ms
        wheel.current_ms = timer.wheels[0].current_ms
    heap = realloc(timer.heap, buckets * sizeof(Bucket *))
    if heap is NULL:
        return False
    timer.heap = <Bucket **>heap
    wheel.buckets = <Bucket *>calloc(timer.wheel_size, sizeof(Bucket))
    if wheel.buckets is NULL:
        return False
    for slot in range(timer.wheel_size):
        bucket_init(&wheel.buckets[slot], level + 1, slot)
    wheel.current_ms -= wheel.current_ms % wheel.tick_ms
    if wheel.tick_ms > INT64_MAX // timer.wheel_size:
        wheel.interval_ms = INT64_MAX
    else:
        wheel.interval_ms = wheel.tick_ms * timer.wheel_size
    timer.levels = level + 1
    return True


cdef bint place(Timer *timer, TimerEntry *entry, Bucket *fresh) noexcept nogil:
    """Link an entry by its due time, into `fresh` if that has come; true if a waiting thread must look again."""
    cdef int32_t level = 0
    cdef int64_t slot_number, left = entry.due_ms - timer.wheels[0].current_ms
    cdef Wheel *wheel = &timer.wheels[0]
    cdef Bucket *bucket
    if left < wheel.tick_ms:
        append(fresh, entry)
        return True
    while left >= wheel.interval_ms:
        level += 1
        if level == timer.levels and not add_wheel(timer):
            break
        wheel = &timer.wheels[level]
        left = entry.due_ms - wheel.current_ms
    if level < timer.levels:
        slot_number = entry.due_ms // wheel.tick_ms
    else:   # no memory for a wheel: the farthest slot there is, from where it is placed again
        slot_number = wheel.current_ms // wheel.tick_ms + timer.wheel_size - 1
    bucket = &wheel.buckets[slot_number % timer.wheel_size]
    append(bucket, entry)
    slot_number *= wheel.tick_ms
    if bucket.expiration_ms == slot_number:
        return False
    bucket.expiration_ms = slot_number      # it was -1: the clock passes a slot only by taking its bucket
    heap_push(timer, bucket)
    return timer.heap[0] is bucket


cdef void expire(Timer *timer, Bucket *bucket) noexcept nogil:
    """Move the clocks of the wheels to a bucket's time and empty it: into finer buckets, or to what is due."""
    cdef int32_t level
    cdef int64_t now_ms = bucket.expiration_ms
    cdef Wheel *wheel
    cdef TimerEntry *entry
    for level in range(timer.levels):
        wheel = &timer.wheels[level]
        if now_ms < wheel.current_ms + wheel.tick_ms:
            break
        wheel.current_ms = now_ms - now_ms % wheel.tick_ms
    if bucket.level == 1:
        splice_due(timer, bucket)
    else:
        while bucket.root.next is not &bucket.root:
            entry = bucket.root.next
            unlink(entry)
            place(timer, entry, &timer.due)
    bucket.expiration_ms = -1


cdef int64_t due_after(Timer *timer, int64_t delay_ms) noexcept nogil:
    """The tick at or after now + delay: neither a started millisecond nor a started tick counts."""
    cdef int64_t tick_ms = timer.wheels[0].tick_ms
    cdef int64_t due_ms, now_ns
    if delay_ms <= 0:
        return clock_now_ms(timer.clock)
    now_ns = clock_now_ns(timer.clock)
    due_ms = now_ns // NS_PER_MS + (now_ns % NS_PER_MS != 0)
    due_ms = LARGEST_MS if delay_ms >= LARGEST_MS - due_ms else due_ms + delay_ms
    if tick_ms > 1 and due_ms % tick_ms and due_ms <= LARGEST_MS - tick_ms:
        due_ms += tick_ms - due_ms % tick_ms
    return due_ms


cdef inline bint add_locked(Timer *timer, TimerEntry *entry, int64_t due_ms) noexcept nogil:
    if entry.bucket is not NULL:
        unlink(entry)
    else:
        timer.pending += 1
    entry.due_ms = due_ms
    return place(timer, entry, &timer.fresh) and timer.waiters > 0


cdef inline bint cancel_locked(Timer *timer, TimerEntry *entry) noexcept nogil:
    if entry.bucket is NULL:
        return False
    unlink(entry)
    timer.pending -= 1
    return True


cdef inline TimerEntry *take_due_locked(Timer *timer) noexcept nogil:
    cdef TimerEntry *entry = timer.due.root.next
    if entry is &timer.due.root or timer.closed:
        return NULL
    unlink(entry)
    timer.pending -= 1
    return entry


# --- the contract of timing_wheel.pxd

cdef void wake_waiters(void *arg) noexcept nogil:
    cdef Timer *timer = <Timer *>arg
    mutex_lock(&timer.lock)         # a waiter that has just read the old time is inside its wait once the lock is ours
    cond_broadcast(&timer.changed)
    mutex_unlock(&timer.lock)


cdef Timer *timer_new(Clock *clock, int64_t tick_ms, int32_t wheel_size) noexcept nogil:
    cdef Timer *timer
    if tick_ms < 1 or wheel_size < 2:
        return NULL
    timer = <Timer *>calloc(1, sizeof(Timer))
    if timer is NULL:
        return NULL
    timer.wheel_size = wheel_size
    timer.wheels[0].tick_ms = tick_ms
    timer.wheels[0].current_ms = clock_now_ms(clock)
    bucket_init(&timer.due, 0, 0)
    bucket_init(&timer.fresh, 0, 0)
    if not add_wheel(timer):
        free(timer.heap)
        free(timer)
        return NULL
    mutex_init(&timer.lock)
    cond_init(&timer.changed)
    atomic_store(&timer.refs, 1)
    timer.clock = clock_retain(clock)
    timer.waker.wake = wake_waiters
    timer.waker.arg = timer
    clock_add_waker(clock, &timer.waker)
    return timer


cdef Timer *timer_retain(Timer *timer) noexcept nogil:
    atomic_add(&timer.refs, 1)
    return timer


cdef void timer_release(Timer *timer) noexcept nogil:
    cdef int32_t level
    if timer is NULL or atomic_add(&timer.refs, -1) != 0:
        return
    clock_remove_waker(timer.clock, &timer.waker)
    clock_release(timer.clock)
    for level in range(timer.levels):
        free(timer.wheels[level].buckets)
    free(timer.heap)
    cond_destroy(&timer.changed)
    mutex_destroy(&timer.lock)
    free(timer)


cdef void timer_add(Timer *timer, TimerEntry *entry, int64_t delay_ms) noexcept nogil:
    cdef int64_t due_ms = due_after(timer, delay_ms)
    cdef bint wake
    mutex_lock(&timer.lock)
    wake = add_locked(timer, entry, due_ms)
    mutex_unlock(&timer.lock)
    if wake:
        cond_broadcast(&timer.changed)


cdef bint timer_cancel(Timer *timer, TimerEntry *entry) noexcept nogil:
    cdef bint was_pending
    mutex_lock(&timer.lock)
    was_pending = cancel_locked(timer, entry)
    mutex_unlock(&timer.lock)
    return was_pending


cdef int64_t timer_pending(Timer *timer) noexcept nogil:
    cdef int64_t pending
    mutex_lock(&timer.lock)
    pending = timer.pending
    mutex_unlock(&timer.lock)
    return pending


cdef bint timer_collect(Timer *timer, int64_t timeout_ms) noexcept nogil:
    cdef int64_t now_ns = clock_now_ns(timer.clock)
    cdef int64_t deadline_ns, wake_ns, wake_calls
    if timeout_ms <= 0:
        deadline_ns = now_ns
    elif timeout_ms >= (INT64_MAX - now_ns) // NS_PER_MS:
        deadline_ns = INT64_MAX
    else:
        deadline_ns = now_ns + timeout_ms * NS_PER_MS
    mutex_lock(&timer.lock)
    wake_calls = timer.wake_calls
    while True:
        if timer.closed:
            mutex_unlock(&timer.lock)
            return False
        if timer.due.root.next is not &timer.due.root or timer.fresh.root.next is not &timer.fresh.root:
            break
        now_ns = clock_now_ns(timer.clock)
        wake_ns = deadline_ns
        if timer.queued > 0:
            wake_ns = min(wake_ns, timer.heap[0].expiration_ms * NS_PER_MS)
            if now_ns >= timer.heap[0].expiration_ms * NS_PER_MS:
                break
        if now_ns >= deadline_ns or timer.wake_calls != wake_calls:
            mutex_unlock(&timer.lock)
            return False
        timer.waiters += 1
        clock_wait_until(timer.clock, &timer.changed, &timer.lock, wake_ns)
        timer.waiters -= 1
    now_ns = clock_now_ns(timer.clock)
    while timer.queued > 0 and timer.heap[0].expiration_ms * NS_PER_MS <= now_ns:
        expire(timer, heap_pop(timer))
    splice_due(timer, &timer.fresh)
    mutex_unlock(&timer.lock)
    return True


cdef TimerEntry *timer_take_due(Timer *timer) noexcept nogil:
    cdef TimerEntry *entry
    mutex_lock(&timer.lock)
    entry = take_due_locked(timer)
    mutex_unlock(&timer.lock)
    return entry


cdef TimerEntry *timer_take_due_with_gil(Timer *timer) noexcept:
    cdef TimerEntry *entry
    if mutex_try_lock(&timer.lock):
        entry = take_due_locked(timer)
        mutex_unlock(&timer.lock)
    else:
        with nogil:
            entry = timer_take_due(timer)
    return entry


cdef bint timer_advance(Timer *timer, int64_t timeout_ms) noexcept nogil:
    cdef TimerEntry *entry
    if not timer_collect(timer, timeout_ms):
        return False
    while True:
        entry = timer_take_due(timer)
        if entry is NULL:
            return True
        entry.fire(entry)


cdef void timer_close(Timer *timer) noexcept nogil:
    mutex_lock(&timer.lock)
    timer.closed = True
    mutex_unlock(&timer.lock)
    cond_broadcast(&timer.changed)


cdef void timer_wake(Timer *timer) noexcept nogil:
    mutex_lock(&timer.lock)
    timer.wake_calls += 1
    mutex_unlock(&timer.lock)
    cond_broadcast(&timer.changed)


cdef bint timer_is_closed(Timer *timer) noexcept nogil:
    cdef bint closed
    mutex_lock(&timer.lock)
    closed = timer.closed
    mutex_unlock(&timer.lock)
    return closed


cdef bint timer_is_quiet(Timer *timer) noexcept nogil:
    cdef bint quiet
    mutex_lock(&timer.lock)
    quiet = timer.closed or (
        timer.waiters > 0
        and timer.due.root.next is &timer.due.root
        and timer.fresh.root.next is &timer.fresh.root
        and (timer.queued == 0 or timer.heap[0].expiration_ms * NS_PER_MS > clock_now_ns(timer.clock)))
    mutex_unlock(&timer.lock)
    return quiet


cdef Clock *timer_clock(Timer *timer) noexcept nogil:
    return timer.clock


# --- Python's view
#
# The GIL is dropped before the lock can block: a short operation tries the lock first, and drops the GIL if that fails
# (dropping and taking it costs more than the operation). Whoever holds the lock never asks for the GIL.

cdef enum:
    SIGNAL_CHECK_MS = 100       # longest real wait before a Ctrl-C is seen


@cython.final
@cython.no_gc                   # a pending task is owned by its timer, and any other has dropped its callback: no cycle
@cython.freelist(256)           # a heartbeat adds one and drops one; bursts of a few hundred stay off the allocator
cdef class TimerTask:
    """A callback waiting in a ``Timer``; made by ``Timer.add``.

    Threads: any. Source: ``TimerTask``.
    """
    cdef TimerEntry entry
    cdef Timer *timer           # owned count
    cdef object callback        # dropped when cancelled or fired

    def __init__(self):
        raise TypeError("a TimerTask is made by Timer.add")

    def __dealloc__(self):
        timer_release(self.timer)

    @cython.binding(False)      # a method descriptor: the interpreter has a short cut for those
    def cancel(self) -> bool:
        """Take the task out of its timer. O(1); its memory and its callback are dropped at once.

        Returns: true if it was pending and now never runs; false if it has run, is running, or was cancelled before.
        """
        cdef Timer *timer = self.timer
        cdef bint was_pending
        if timer is NULL:
            return False
        if mutex_try_lock(&timer.lock):
            was_pending = cancel_locked(timer, &self.entry)
            mutex_unlock(&timer.lock)
        else:
            with nogil:
                was_pending = timer_cancel(timer, &self.entry)
        if was_pending:
            self.callback = None
            Py_DECREF(self)     # the timer's
        return was_pending

    @property
    def is_pending(self) -> bool:
        """Whether the task still waits."""
        cdef bint pending
        if self.timer is NULL:
            return False
        with nogil:
            mutex_lock(&self.timer.lock)
            pending = self.entry.bucket is not NULL
            mutex_unlock(&self.timer.lock)
        return pending

    @property
    def due_ms(self) -> int:
        """When it is due, in the milliseconds of the clock's ``now_ms``."""
        return self.entry.due_ms


cdef TimerTask ENTRY_OFFSET_PROBE = TimerTask.__new__(TimerTask)
cdef Py_ssize_t ENTRY_OFFSET = <char *>&ENTRY_OFFSET_PROBE.entry - <char *><PyObject *>ENTRY_OFFSET_PROBE
ENTRY_OFFSET_PROBE = None


cdef TimerTask owned_task(TimerEntry *entry):
    """The task of an entry that has just left the wheel, with the timer's reference given back."""
    cdef TimerTask task = <TimerTask><PyObject *>(<char *>entry - ENTRY_OFFSET)
    Py_DECREF(task)
    return task


cdef int run_task(TimerEntry *entry) except -1:
    cdef TimerTask task = owned_task(entry)
    callback = task.callback
    task.callback = None
    cdef PyObject *result = PyObject_CallNoArgs(callback)
    if result is not NULL:
        Py_DECREF(<object>result)
    elif PyErr_ExceptionMatches(Exception):     # one task's failure never ends the thread that runs them all
        PyErr_WriteUnraisable(callback)
    else:
        return -1               # KeyboardInterrupt, SystemExit
    return 0


cdef void fire_task(TimerEntry *entry) noexcept nogil:
    """As run_task, from a native thread that advances a shared timer."""
    with gil:
        run_task(entry)


cdef int64_t int_argument(object value, str name) except? -1:
    """`value` as milliseconds; beyond the end of the clock counts as its end."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    try:
        return value
    except OverflowError:
        return INT64_MAX if value > 0 else -INT64_MAX


cdef Timer *borrow_timer(object timer) except NULL:
    if not isinstance(timer, TimerHandle):
        raise TypeError(f"timer must be a Timer, not {type(timer).__name__}")
    if (<TimerHandle>timer).timer is NULL:
        raise ValueError("the Timer was not made")
    return (<TimerHandle>timer).timer


@cython.final
@cython.no_gc                   # its tasks are in C lists; close() or __dealloc__ drops them
cdef class TimerHandle:
    """Runs callbacks after a delay: O(1) add and cancel, exact count, never early.

    Nothing runs by itself: a thread calls ``advance`` in a loop, and callbacks run on that thread, one at a time,
    outside every lock, in the order of their buckets and within a bucket in the order they were put there. An exception
    in a callback goes to ``sys.unraisablehook``; the others still run. A callback may add and cancel.

    Args:
        clock: a SystemClock or VirtualClock; None is the process's system clock.
        tick_ms: resolution, >= 1; a due time between two ticks counts as the later one.
        wheel_size: slots per level, 2 to 65536. Level k spans tick_ms * wheel_size ** k; levels are made on demand.

    Raises: TypeError, ValueError for wrong arguments.

    Threads: any may add, cancel and advance. Source: ``SystemTimer``, ``TimingWheel``.
    """

    def __cinit__(self, clock=None, tick_ms=1, wheel_size=20):
        cdef Clock *borrowed = borrow_clock(clock)
        cdef int64_t tick = int_argument(tick_ms, "tick_ms")
        cdef int64_t size = int_argument(wheel_size, "wheel_size")
        if not 1 <= tick <= 86_400_000:
            raise ValueError(f"tick_ms must be between 1 and 86400000, got {tick_ms}")
        if not 2 <= size <= 65536:
            raise ValueError(f"wheel_size must be between 2 and 65536, got {wheel_size}")
        self.timer = timer_new(borrowed, tick, <int32_t>size)
        if self.timer is NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.timer is not NULL:
            drop_tasks(self.timer)
            timer_release(self.timer)
            self.timer = NULL

    @cython.binding(False)
    def add(self, delay_ms, callback) -> TimerTask:
        """Have `callback()` run once when `delay_ms` have passed.

        Args:
            delay_ms: milliseconds; zero or less is due at once (and still runs on the advancing thread).
            callback: called without arguments.

        Raises: TypeError for wrong arguments; RuntimeError when closed.
        """
        cdef Timer *timer = self.timer
        cdef int64_t delay = int_argument(delay_ms, "delay_ms")
        cdef int64_t due_ms
        cdef bint wake = False, closed
        cdef TimerTask task
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {type(callback).__name__}")
        task = TimerTask.__new__(TimerTask)
        task.timer = timer_retain(timer)
        task.callback = callback
        task.entry.fire = fire_task
        Py_INCREF(task)         # the timer's, until it is cancelled or fires
        due_ms = due_after(timer, delay)
        if mutex_try_lock(&timer.lock):
            closed = timer.closed
            if not closed:
                wake = add_locked(timer, &task.entry, due_ms)
            mutex_unlock(&timer.lock)
        else:
            with nogil:
                mutex_lock(&timer.lock)
                closed = timer.closed
                if not closed:
                    wake = add_locked(timer, &task.entry, due_ms)
                mutex_unlock(&timer.lock)
        if closed:
            Py_DECREF(task)
            raise RuntimeError("the Timer is closed")
        if wake:
            cond_broadcast(&timer.changed)
        return task

    def advance(self, timeout_ms) -> bool:
        """Wait up to `timeout_ms` for a bucket to become due; run what is due.

        Returns: true if a bucket was polled (it may have held only cancelled tasks), false on time-out and when closed.

        Threads: waits without the GIL. On a virtual clock only another thread moving the clock, an earlier task or
        ``close`` ends the wait.
        """
        cdef Timer *timer = self.timer
        cdef Clock *clock = timer.clock
        cdef int64_t timeout = int_argument(timeout_ms, "timeout_ms"), waited, start_ms = clock_now_ms(clock)
        cdef bint polled
        cdef TimerEntry *entry
        while True:
            waited = clock_now_ms(clock) - start_ms
            with nogil:
                polled = timer_collect(timer, timeout if clock.is_virtual else min(timeout - waited, SIGNAL_CHECK_MS))
            if polled:
                break
            PyErr_CheckSignals()
            if clock.is_virtual or clock_now_ms(clock) - start_ms >= timeout or timer_is_closed(timer):
                return False
        while True:
            entry = timer_take_due_with_gil(timer)
            if entry is NULL:
                return True
            if entry.fire is fire_task:
                run_task(entry)
            else:
                with nogil:
                    entry.fire(entry)

    @property
    def size(self) -> int:
        """Number of pending tasks: added, neither cancelled nor started."""
        cdef int64_t pending
        with nogil:
            pending = timer_pending(self.timer)
        return pending

    def __len__(self):
        return self.size

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is due, no callback runs, and a thread waits in ``advance`` (true once closed, too)."""
        cdef bint quiet
        with nogil:
            quiet = timer_is_quiet(self.timer)
        return quiet

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        cdef bint closed
        with nogil:
            closed = timer_is_closed(self.timer)
        return closed

    def close(self) -> None:
        """End every wait and drop all pending tasks unrun; twice does no harm."""
        with nogil:
            timer_close(self.timer)
        drop_tasks(self.timer)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def _levels(self) -> list:
        """For tests: (level, slot, bucket time, due time) of each pending entry; level 0 holds what is due."""
        return described(self.timer)

    @property
    def _offers(self) -> int:
        """For tests: how often a bucket was put in the delay queue."""
        return self.timer.offers

    @property
    def _queued_buckets(self) -> int:
        """For tests: buckets in the delay queue now."""
        return self.timer.queued

    @property
    def _next_delay_ms(self):
        """For tests: time until the first bucket of the delay queue is due, 0 if it is; None if the queue is empty."""
        if self.timer.queued == 0:
            return None
        return max(self.timer.heap[0].expiration_ms - clock_now_ms(self.timer.clock), 0)

    @property
    def _clocks(self) -> list:
        """For tests: the clock of each wheel, lowest first."""
        return [self.timer.wheels[level].current_ms for level in range(self.timer.levels)]


cdef Bucket *bucket_at(Timer *timer, int32_t level, int32_t slot) noexcept nogil:
    """The lists of a timer in the order in which they come due."""
    if level < 0:
        return &timer.due if level == -2 else &timer.fresh
    return &timer.wheels[level].buckets[slot]


cdef TimerEntry *unlink_tasks(Timer *timer) noexcept nogil:
    """Take out every Python task, as a chain by `next`; a task is never added again, so nobody else uses its links."""
    cdef TimerEntry *chain = NULL
    cdef TimerEntry *entry
    cdef TimerEntry *after
    cdef int32_t level, slot
    cdef Bucket *bucket
    mutex_lock(&timer.lock)
    for level in range(-2, timer.levels):
        for slot in range(timer.wheel_size if level >= 0 else 1):
            bucket = bucket_at(timer, level, slot)
            entry = bucket.root.next
            while entry is not &bucket.root:
                after = entry.next
                if entry.fire is fire_task:
                    unlink(entry)
                    timer.pending -= 1
                    entry.next = chain
                    chain = entry
                entry = after
    mutex_unlock(&timer.lock)
    return chain


cdef int drop_tasks(Timer *timer) except -1:
    cdef TimerEntry *entry
    cdef TimerEntry *chain
    cdef TimerTask task
    with nogil:
        chain = unlink_tasks(timer)
    while chain is not NULL:
        entry = chain
        chain = entry.next
        entry.next = NULL
        task = owned_task(entry)
        task.callback = None
    return 0


cdef list described(Timer *timer):
    cdef list rows = []
    cdef int32_t level, slot
    cdef Bucket *bucket
    cdef TimerEntry *entry
    for level in range(-2, timer.levels):
        for slot in range(timer.wheel_size if level >= 0 else 1):
            bucket = bucket_at(timer, level, slot)
            entry = bucket.root.next
            while entry is not &bucket.root:
                rows.append((bucket.level, bucket.slot, bucket.expiration_ms, entry.due_ms))
                entry = entry.next
    return rows


# The struct has the name Timer in C; Python's class takes it in the module's dictionary.
(<PyTypeObject *>TimerHandle).tp_name = b"kbroker._core.timing_wheel.Timer"
globals()["Timer"] = TimerHandle        # and keeps the other one, by which cimport finds the class
