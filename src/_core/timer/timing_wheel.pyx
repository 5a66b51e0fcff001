"""Hierarchical timing wheel: Python's view of the C timer.

Deliberate differences from Kafka's:

- one lock instead of a read-write lock, list locks and retry loops;
- a due time between ticks is rounded up, not down;
- a due entry waits in a separate list until the advancing thread takes it, so that it can still be cancelled or
  re-added, and counts as pending until then.

Source: ``SystemTimer``, ``TimingWheel``, ``TimerTaskList``, ``TimerTask``.
"""
# The GIL is released before the lock can block: a short operation tries the lock first, and releases the GIL if that
# fails (its release and acquisition cost more than the operation). A thread that holds the lock never acquires the GIL.
cimport cython
from cpython.exc cimport PyErr_CheckSignals, PyErr_ExceptionMatches, PyErr_WriteUnraisable
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from kbroker._core.clock cimport Clock, borrow_clock, clock_now_ms
from kbroker._core.containers.heap cimport heap_top
from kbroker._core.sync cimport cond_broadcast, mutex_lock, mutex_try_lock, mutex_unlock
from kbroker._core.timer.timer_core cimport (
    Bucket, Timer, TimerEntry, add_locked, bucket_at, cancel_locked, due_after, timer_cancel, timer_close,
    timer_collect, timer_is_closed, timer_is_quiet, timer_new, timer_pending, timer_release, timer_retain,
    timer_take_due_with_gil, unlink_entry,
)

cdef extern from "Python.h":
    PyObject *PyObject_CallNoArgs(object callback)     # new reference, NULL on failure: handled here, not by Cython

cdef enum:
    SIGNAL_CHECK_MS = 100       # longest real wait before a Ctrl-C is handled


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
        """Return whether the task is still pending."""
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
        """Due time in milliseconds of the clock's ``now_ms``."""
        return self.entry.due_ms


cdef TimerTask ENTRY_OFFSET_PROBE = TimerTask.__new__(TimerTask)
cdef Py_ssize_t ENTRY_OFFSET = <char *>&ENTRY_OFFSET_PROBE.entry - <char *><PyObject *>ENTRY_OFFSET_PROBE
ENTRY_OFFSET_PROBE = None


cdef TimerTask owned_task(TimerEntry *entry):
    """Return the task of an entry that has just left the wheel, and release the timer's reference."""
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
    """Run a task like run_task, from a native thread that advances a shared timer."""
    with gil:
        run_task(entry)


cdef int64_t int_argument(object value, str name) except? -1:
    """Return `value` as milliseconds; a value beyond the end of the clock counts as its end."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    try:
        return value
    except OverflowError:
        return INT64_MAX if value > 0 else -INT64_MAX


cdef Timer *borrow_timer(object timer) except NULL:
    if not isinstance(timer, TimerHandle):
        raise TypeError(f"timer must be a Timer, not {type(timer).__name__}")
    return (<TimerHandle>timer).timer


@cython.final
@cython.no_gc                   # its tasks are in C lists; close() or __dealloc__ drops them
cdef class TimerHandle:
    """Timer of callbacks that run after a delay: O(1) add and cancel, exact count, never early.

    Nothing runs on its own: a thread calls ``advance`` in a loop, and callbacks run on that thread, one at a time,
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
        """Wait up to `timeout_ms` for a bucket to become due; run the due tasks.

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
    def is_idle(self) -> bool:
        """Return whether nothing is due, no callback runs, and a thread waits in ``advance``; true once closed."""
        cdef bint quiet
        with nogil:
            quiet = timer_is_quiet(self.timer)
        return quiet

    @property
    def closed(self) -> bool:
        """Return whether ``close`` was called."""
        cdef bint closed
        with nogil:
            closed = timer_is_closed(self.timer)
        return closed

    def close(self) -> None:
        """End every wait and drop all pending tasks unrun. Idempotent."""
        with nogil:
            timer_close(self.timer)
        drop_tasks(self.timer)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def _levels(self) -> list:
        """Return (level, slot, bucket time, due time) of each pending entry, for tests; level 0 holds due entries."""
        return described(self.timer)

    @property
    def _offers(self) -> int:
        """Return the number of times that a bucket was put in the delay queue, for tests."""
        return self.timer.offers

    @property
    def _queued_buckets(self) -> int:
        """Return the number of buckets in the delay queue, for tests."""
        return self.timer.queue.count

    @property
    def _next_delay_ms(self):
        """Return the time until the first bucket is due, 0 if it is, None for an empty delay queue; for tests."""
        if self.timer.queue.count == 0:
            return None
        return max(heap_top(&self.timer.queue).key - clock_now_ms(self.timer.clock), 0)

    @property
    def _clocks(self) -> list:
        """Return the clock of each wheel, lowest first; for tests."""
        return [self.timer.wheels[level].current_ms for level in range(self.timer.levels)]


cdef TimerEntry *unlink_tasks(Timer *timer) noexcept nogil:
    """Take out every Python task, as a chain by `next`; a task is never added again, so nothing else uses its links."""
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
                    unlink_entry(entry)
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
                rows.append((bucket.level, bucket.slot, bucket.expiration.key, entry.due_ms))
                entry = entry.next
    return rows


# The struct has the name Timer in C; Python's class takes it in the module's dictionary.
(<PyTypeObject *>TimerHandle).tp_name = b"kbroker._core.timer.timing_wheel.Timer"
globals()["Timer"] = TimerHandle        # TimerHandle stays too: cimport finds the class by this name
