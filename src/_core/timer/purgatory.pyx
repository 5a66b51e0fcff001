"""Purgatory: operations that wait for an event on one of their keys, or for their time-out.

An operation that completes leaves its watch lists and the timer at once and is freed; a count of it stays in each list
until a check of that key or a purge, so that ``watched`` is the length that Kafka reports.
Source: ``DelayedOperationPurgatory``, ``DelayedOperation``.
"""
# A Python operation is a struct (lists and timer count it) and an object. From watch to completion the struct owns a
# reference of the object; the struct's own_lock, otherwise unused, guards it. The operation's lock is a Python
# lock: waiting for it releases the GIL, so the GIL is never acquired under a C lock.
cimport cython
import threading

from cpython.exc cimport PyErr_CheckSignals, PyErr_WriteUnraisable
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport borrow_clock, clock_now_ns
from kbroker._core.timer.purgatory_core cimport (
    Operation, OperationTable, Purgatory, PurgatorySnapshot, WaitingEntry, leave_all_lists, maybe_purge,
    operation_due_ms, operation_init, operation_is_completed, operation_of, operation_release,
    purgatory_check_and_complete, purgatory_delayed, purgatory_empty, purgatory_new, purgatory_of, purgatory_release,
    purgatory_snapshot_free, purgatory_snapshot_take, purgatory_watched, rewatch, start_timeout, stop_timeout,
    take_watchers, watch_all, win_completion,
)
from kbroker._core.sync cimport atomic_add_fetch, atomic_cas, atomic_load, mutex_lock, mutex_unlock
from kbroker._core.timer.timer_core cimport (
    Timer, TimerEntry, timer_close, timer_collect, timer_is_quiet, timer_new, timer_release, timer_take_due_with_gil,
)
from kbroker._core.timer.timing_wheel cimport borrow_timer
from kbroker._core.timer.watch_lists cimport Key, Watcher, owner_of

cdef extern from "Python.h":
    PyObject *PyObject_CallNoArgs(object callback)     # all report failure by their result
    int PyObject_IsTrue(object value)
    int PySequence_Contains(object items, object item)

cdef enum:
    REAPER_TURN_MS = 200

cdef int64_t LARGEST = (<int64_t>1 << 62) - 1

cdef struct PythonOperation:
    Operation base
    PyObject *object                # owned while watched and not completed, else NULL


cdef object watched_object(Operation *op):
    """Return a new reference to the object, or None once it is completed."""
    cdef PythonOperation *self = <PythonOperation *>op
    result = None
    mutex_lock(&op.own_lock)        # held for these lines only, by threads that do not wait meanwhile
    if self.object is not NULL:
        result = <object>self.object
    mutex_unlock(&op.own_lock)
    return result


cdef void own_object(Operation *op, object operation) noexcept:
    cdef PythonOperation *self = <PythonOperation *>op
    Py_INCREF(operation)
    mutex_lock(&op.own_lock)
    self.object = <PyObject *>operation
    mutex_unlock(&op.own_lock)


cdef void disown_object(Operation *op) noexcept:
    cdef PythonOperation *self = <PythonOperation *>op
    cdef PyObject *operation
    mutex_lock(&op.own_lock)
    operation = self.object
    self.object = NULL
    mutex_unlock(&op.own_lock)
    if operation is not NULL:
        Py_DECREF(<object>operation)


cdef bint python_try_complete(Operation *op) noexcept nogil:
    with gil:
        operation = watched_object(op)
        if operation is None:
            return False
        return reported(operation.safe_try_complete)


cdef void python_on_complete(Operation *op) noexcept nogil:
    with gil:
        operation = watched_object(op)
        if operation is not None:
            disown_object(op)
            reported(operation.on_complete)


cdef void expire_python(Operation *op) noexcept:
    operation = watched_object(op)
    if not win_completion(op):
        return
    if operation is not None:
        disown_object(op)
        reported(operation.on_complete)
        reported(operation.on_expiration)
    with nogil:
        leave_all_lists(op)


cdef void fire_python(TimerEntry *entry) noexcept nogil:
    cdef Operation *op = operation_of(entry)
    atomic_add_fetch(&purgatory_of(op).delayed, -1)
    with gil:
        expire_python(op)
    operation_release(op)


cdef void drop_python(Operation *op) noexcept nogil:
    """Drop an operation that is not completed when its purgatory closes; struct and object had counts of each other."""
    if op.table is &PYTHON_TABLE:
        with gil:
            disown_object(op)


cdef void python_destroy(Operation *op) noexcept nogil:
    free(op)                        # the object had a count of it, so the object was freed before


cdef void python_let_go(Operation *op) noexcept nogil:
    """Release a count; the last ones may be those that struct and object have of each other (cancel_for_key)."""
    cdef int64_t refs = atomic_load(&op.refs)
    while refs > 2:                     # another count besides the object's remains, so the GIL is not needed
        if atomic_cas(&op.refs, refs, refs - 1):
            return
        refs = atomic_load(&op.refs)
    with gil:
        watched = watched_object(op)
        operation_release(op)           # not the last count if the object exists, since the object has one
        if watched is not None and atomic_load(&op.refs) == 1:
            disown_object(op)


cdef bint reported(object callback) noexcept:
    """Return whether a callback returns a true value; an exception is reported, and ends no thread."""
    cdef PyObject *result = PyObject_CallNoArgs(callback)
    cdef int truth = -1
    if result is not NULL:
        truth = PyObject_IsTrue(<object>result)
        Py_DECREF(<object>result)
    if truth < 0:
        PyErr_WriteUnraisable(callback)
    return truth > 0


cdef OperationTable PYTHON_TABLE
PYTHON_TABLE.try_complete = python_try_complete
PYTHON_TABLE.on_complete = python_on_complete
PYTHON_TABLE.on_expiration = NULL
PYTHON_TABLE.destroy = python_destroy
PYTHON_TABLE.let_go = python_let_go


cdef class DelayedOperation:
    """Operation that waits in a ``Purgatory`` until it can complete or expires; subclass it.

    Override ``try_complete`` (when satisfied: ``return self.force_complete()``), ``on_complete`` and, if wanted,
    ``on_expiration``. A failure in one of them on a thread that only checks or expires goes to ``sys.unraisablehook``.

    Args:
        timeout_ms: milliseconds until it expires, counted from the end of ``try_complete_else_watch``; >= 0.
        lock: a re-entrant lock (``threading.RLock``) held around ``try_complete``; None: a new one.

    Raises: TypeError, ValueError for wrong arguments.

    Threads: any. Source: ``DelayedOperation``.
    """
    cdef Operation *op              # owned count
    cdef readonly object lock
    cdef tuple keys                 # while watched

    def __cinit__(self, *args, **kwargs):
        self.op = <Operation *>calloc(1, sizeof(PythonOperation))
        if self.op is NULL:
            raise MemoryError
        operation_init(self.op, &PYTHON_TABLE, 0, NULL)
        self.op.lock = NULL
        self.op.timer_entry.fire = fire_python

    def __init__(self, timeout_ms, lock=None):
        cdef int64_t checked_ms = integer(timeout_ms, "timeout_ms", 0, LARGEST)
        if lock is not None and not (hasattr(lock, "__enter__") and hasattr(lock, "__exit__")):
            raise TypeError(f"lock must be a lock, not {type(lock).__name__}")
        if self.lock is not None:
            raise RuntimeError("DelayedOperation.__init__ was called before")
        self.op.timeout_ms = checked_ms
        self.lock = threading.RLock() if lock is None else lock

    def __dealloc__(self):
        if self.op is not NULL:
            operation_release(self.op)
            self.op = NULL

    @property
    def timeout_ms(self) -> int:
        """Milliseconds from the end of ``try_complete_else_watch`` until it expires."""
        return self.op.timeout_ms

    @property
    def is_completed(self) -> bool:
        """Return whether a caller has won the completion; ``on_complete`` may still be running."""
        return operation_is_completed(self.op)

    def try_complete(self) -> bool:
        """Test, under the lock; if satisfied return ``self.force_complete()``. Safe to call repeatedly. Override it."""
        raise NotImplementedError("try_complete must be overridden")

    def on_complete(self) -> None:
        """Handle the completion. Called exactly once, on the thread that completed the operation; override it."""

    def on_expiration(self) -> None:
        """Handle the expiry. Called after ``on_complete`` if the time-out completed it, on the advancing thread."""

    def force_complete(self) -> bool:
        """Complete now, without ``try_complete``. Return True to the first caller only.

        That caller stops the time-out, runs ``on_complete`` and gets its exception.
        """
        cdef bint won
        with nogil:
            won = win_completion(self.op)
            if won:
                stop_timeout(self.op)
                leave_all_lists(self.op)
        if won:
            try:
                self.on_complete()
            finally:
                disown_object(self.op)
        return won

    def safe_try_complete(self) -> bool:
        """``try_complete`` under the lock. Raises: RuntimeError if ``__init__`` was not called."""
        if self.lock is None:
            raise RuntimeError("DelayedOperation.__init__ was not called")
        with self.lock:
            return self.try_complete()


@cython.final
cdef class PurgatoryHandle:
    """Delayed operations watched by key, completed once, expired by a timing wheel.

    Nothing runs on its own: a thread calls ``run_reaper`` (or ``advance`` in a loop), and time-outs run there.

    Args:
        name: for metrics and thread names.
        clock: for the timer that it makes; None is the process's system clock.
        purge_interval: completed operations that may stay listed before a purge, >= 0.
        shards: locks that the keys are spread over, 1 to 65536.
        timer: a ``Timer`` to share; then `clock` must be None, and ``close`` leaves the timer open.

    Raises: TypeError, ValueError for wrong arguments.

    Threads: any; call ``check_and_complete`` holding no lock that an operation's completion needs.
    Source: ``DelayedOperationPurgatory``.
    """
    cdef Purgatory *purgatory       # owned count
    cdef bint owns_timer
    cdef readonly str name

    def __cinit__(self, str name not None, clock=None, purge_interval=1000, shards=512, timer=None):
        cdef Timer *own
        cdef int64_t interval = integer(purge_interval, "purge_interval", 0, LARGEST)
        cdef int32_t shard_count = <int32_t>integer(shards, "shards", 1, 65536)
        self.name = name
        if timer is not None:
            if clock is not None:
                raise ValueError("give a clock or a timer, not both")
            self.purgatory = purgatory_new(borrow_timer(timer), interval, shard_count)
        else:
            own = timer_new(borrow_clock(clock), 1, 20)
            if own is NULL:
                raise MemoryError
            self.owns_timer = True
            self.purgatory = purgatory_new(own, interval, shard_count)
            timer_release(own)
        if self.purgatory is NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.purgatory is not NULL:
            purgatory_empty(self.purgatory, drop_python)
            if self.owns_timer:
                timer_close(self.purgatory.timer)
            purgatory_release(self.purgatory)
            self.purgatory = NULL

    def try_complete_else_watch(self, DelayedOperation op not None, keys) -> bool:
        """Complete `op` now, or watch it under `keys` until one is checked or it expires.

        Args:
            op: an operation that has not been watched before.
            keys: hashable objects, at least one; a key given twice is watched twice.

        Returns: true if completed by this call.

        Raises: TypeError, ValueError for wrong arguments; RuntimeError when closed or watched before; the exceptions
        of ``try_complete``, which is called again once the operation is watched: it stays watched if that call fails.
        """
        cdef tuple key_tuple = tuple(keys)
        cdef int32_t count = <int32_t>len(key_tuple), i
        cdef Key *c_keys
        cdef bint watched, done = False
        if count == 0:
            raise ValueError("keys must not be empty")
        if op.lock is None:
            raise RuntimeError("DelayedOperation.__init__ was not called")
        if atomic_load(&self.purgatory.closed):
            raise RuntimeError("the Purgatory is closed")
        c_keys = <Key *>malloc(count * sizeof(Key))
        if c_keys is NULL:
            raise MemoryError
        try:
            for i in range(count):
                c_keys[i] = key_of(key_tuple[i])
            with op.lock:
                if op.keys is not None:
                    raise RuntimeError("the operation was watched before")
                if op.try_complete():
                    return True
                if operation_is_completed(op.op):
                    return False                # another thread has completed it
                op.keys = key_tuple
                own_object(op.op, op)
                with nogil:
                    watched = watch_all(self.purgatory, op.op, c_keys, count)
                if operation_is_completed(op.op):
                    disown_object(op.op)        # completed by another thread before own_object
                try:
                    if watched:
                        done = op.try_complete()
                    else:
                        done = op.force_complete()
                except BaseException:
                    with nogil:
                        start_timeout(self.purgatory, op.op)
                    raise
        finally:
            free(c_keys)
        if done:
            return True
        with nogil:
            start_timeout(self.purgatory, op.op)
        return False

    def check_and_complete(self, key) -> int:
        """Try every operation watched under `key`; return how many this call completed."""
        cdef Key c_key = key_of(key)
        cdef int64_t completed
        with nogil:
            completed = purgatory_check_and_complete(self.purgatory, &c_key)
        return completed

    def cancel_for_key(self, key) -> list:
        """Stop watching `key` and the time-outs of its operations; return them. They are not completed."""
        cdef Key c_key = key_of(key)
        cdef Watcher *chain
        cdef Watcher *here
        cdef Operation *op
        cdef int64_t traces = 0
        cdef list operations = []
        with nogil:
            chain = take_watchers(self.purgatory, &c_key, &traces)
        while chain is not NULL:
            here = chain
            chain = here.next
            op = <Operation *>owner_of(here)
            operation = watched_object(op) if op.table is &PYTHON_TABLE else None
            if operation is not None and not is_among(key, (<DelayedOperation>operation).keys):
                with nogil:
                    rewatch(self.purgatory, &c_key, here)   # another key with the same hash
                operation.safe_try_complete()           # an event may have been missed meanwhile
                continue
            with nogil:
                stop_timeout(op)
            if operation is not None:
                operations.append(operation)
            if operation is not None and atomic_add_fetch(&op.refs, -1) == 1:
                disown_object(op)                   # listed nowhere else; struct and object had counts of each other
            elif operation is None:
                operation_release(op)
        return operations

    def snapshot(self, limit=1000) -> dict:
        """Return the delayed operations, without stopping anything.

        Args: ``limit``: operations at most, 1 to 100000.

        Returns: ``watched`` and ``delayed``, as the properties; ``is_truncated``: more wait than are shown; and
        ``operations``: for each its ``operation``, ``keys`` (those it waits under), ``timeout_ms``, ``age_ms`` and
        ``time_left_ms`` (both None while its time does not run), by the clock of the timer.

        Raises: TypeError, ValueError for a wrong limit; MemoryError.
        """
        cdef PurgatorySnapshot taken
        cdef WaitingEntry *entry
        cdef DelayedOperation operation
        cdef int64_t i, due_ms, now_ms, most = integer(limit, "limit", 1, 100000)
        cdef bint made
        with nogil:
            made = purgatory_snapshot_take(&taken, self.purgatory, most)
        if not made:
            raise MemoryError
        found = {}
        try:
            now_ms = clock_now_ns(self.purgatory.timer.clock) // 1000000
            for i in range(taken.count):
                entry = &taken.entries[i]
                if <int64_t>entry.op in found or entry.op.table is not &PYTHON_TABLE:
                    continue
                waiting = watched_object(entry.op)
                if waiting is None:
                    continue
                if len(found) == most:
                    taken.is_truncated = True
                    break
                operation = <DelayedOperation>waiting
                with nogil:
                    due_ms = operation_due_ms(self.purgatory, entry.op)
                found[<int64_t>entry.op] = {
                    "operation": operation,
                    "keys": operation.keys,
                    "timeout_ms": entry.op.timeout_ms,
                    "age_ms": None if due_ms < 0 else max(0, now_ms - due_ms + entry.op.timeout_ms),
                    "time_left_ms": None if due_ms < 0 else max(0, due_ms - now_ms),
                }
        finally:
            purgatory_snapshot_free(&taken)
        return {
            "watched": self.watched,
            "delayed": self.delayed,
            "is_truncated": bool(taken.is_truncated),
            "operations": list(found.values()),
        }

    @property
    def watched(self) -> int:
        """Sum of the lengths of all watch lists; completed operations count until a check or a purge removes them."""
        cdef int64_t watched
        with nogil:
            watched = purgatory_watched(self.purgatory)
        return watched

    @property
    def delayed(self) -> int:
        """Number of operations whose time-out is running."""
        return purgatory_delayed(self.purgatory)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is due and a thread waits in `run_reaper` or `advance`; true once closed."""
        cdef bint quiet
        with nogil:
            quiet = timer_is_quiet(self.purgatory.timer)
        return quiet

    @property
    def closed(self) -> bool:
        """Return whether ``close`` was called."""
        return atomic_load(&self.purgatory.closed) != 0

    def advance(self, timeout_ms) -> bool:
        """Take a turn of the reaper: wait up to `timeout_ms` for a bucket, expire due operations, purge if that is due.

        Returns: true if a bucket was polled.

        Threads: waits without the GIL.
        """
        cdef int64_t timeout
        cdef bint polled
        cdef TimerEntry *entry
        cdef Timer *timer = self.purgatory.timer
        if not isinstance(timeout_ms, int):
            raise TypeError(f"timeout_ms must be an integer, not {type(timeout_ms).__name__}")
        timeout = max(0, min(timeout_ms, 1 << 62))
        with nogil:
            polled = timer_collect(timer, timeout)
        while polled:
            entry = timer_take_due_with_gil(timer)
            if entry is NULL:
                break
            if entry.fire is fire_python:       # needs the GIL anyway and takes no lock
                entry.fire(entry)
            else:
                with nogil:
                    entry.fire(entry)
        with nogil:
            maybe_purge(self.purgatory)
        return polled

    def run_reaper(self) -> None:
        """Advance until the purgatory is closed: the body of an ``ExpirationReaper`` thread."""
        while not atomic_load(&self.purgatory.closed):
            self.advance(REAPER_TURN_MS)
            PyErr_CheckSignals()

    def close(self) -> None:
        """End the reaper and drop all operations, uncompleted. Idempotent."""
        with nogil:
            purgatory_empty(self.purgatory, drop_python)
            if self.owns_timer:
                timer_close(self.purgatory.timer)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


cdef bint is_among(object key, object keys) noexcept:
    """Return whether a key is in ``keys``; a failing comparison is reported and counts as true: watchers stay."""
    cdef int found = PySequence_Contains(keys, key)
    if found < 0:
        PyErr_WriteUnraisable(key)
    return found != 0


cdef Key key_of(object key) except *:
    """Return the key of an object. Objects that differ may have equal keys: an operation is then tested needlessly."""
    cdef Key result
    result.high = hash(key)
    result.low = hash((key, 0x6B62))
    return result


# The struct has the name Purgatory in C; Python's class takes it in the module's dictionary.
(<PyTypeObject *>PurgatoryHandle).tp_name = b"kbroker._core.timer.purgatory.Purgatory"
globals()["Purgatory"] = PurgatoryHandle
del globals()["PurgatoryHandle"]
