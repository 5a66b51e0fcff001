# cython: freethreading_compatible=True
"""Purgatory: operations that wait for an event on one of their keys, or for their time-out.

A watcher holds a count of its operation; a completed operation frees its payload at once, so what stays listed until
a check or a purge is small. Iteration works on a counted snapshot, never under the shard lock.
Source: ``DelayedOperationPurgatory``, ``DelayedOperation``.
"""
cimport cython
import threading

from cpython.exc cimport PyErr_CheckSignals, PyErr_WriteUnraisable
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from kbroker._core.clock cimport borrow_clock
from kbroker._core.sync cimport (
    AtomicI64, Mutex, atomic_add, atomic_cas, atomic_load, atomic_load_seq, atomic_store, atomic_store_seq,
    mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.timing_wheel cimport (
    Timer, TimerEntry, borrow_timer, timer_add, timer_advance, timer_cancel, timer_close, timer_collect,
    timer_is_quiet, timer_new, timer_release, timer_retain, timer_take_due_with_gil, timer_wake,
)

cdef extern from "Python.h":
    PyObject *PyObject_CallNoArgs(object callback)     # all report failure by their result
    int PyObject_IsTrue(object value)
    int PySequence_Contains(object items, object item)

cdef enum:
    FIRST_TABLE_SIZE = 8
    STACK_SNAPSHOT = 32         # a list is seldom longer; longer ones allocate
    REAPER_TURN_MS = 200

cdef struct Watcher:
    Watcher *next
    Operation *op               # counted

cdef struct WatchList:
    WatchList *next             # of the same table slot
    Key key
    Watcher *first
    Watcher *last

cdef struct Shard:
    Mutex lock                  # leaf: guards all below
    WatchList **table
    int64_t table_size          # power of two, 0 before the first watch
    int64_t lists
    int64_t watched

cdef struct Purgatory:
    AtomicI64 refs
    AtomicI64 estimated_total   # operations watched, corrected by each purge
    AtomicI64 delayed           # operations in the timer
    AtomicI64 closed
    Timer *timer                # owned count
    int64_t purge_interval
    int32_t shard_count
    Shard *shards


# --- operations

cdef void operation_init(Operation *op, OperationTable *table, int64_t timeout_ms, Mutex *lock) noexcept nogil:
    atomic_store(&op.refs, 1)
    atomic_store(&op.completed, 0)
    op.table = table
    mutex_init(&op.own_lock)
    op.lock = lock if lock is not NULL else &op.own_lock
    op.timer_entry.bucket = NULL
    op.timer_entry.fire = fire_operation
    op.self_ = op
    op.purgatory = NULL
    op.timeout_ms = timeout_ms


cdef void operation_release(Operation *op) noexcept nogil:
    cdef Purgatory *purgatory
    if atomic_add(&op.refs, -1) != 0:
        return
    purgatory = <Purgatory *>op.purgatory
    mutex_destroy(&op.own_lock)
    op.table.destroy(op)
    purgatory_release(purgatory)


cdef bint operation_is_completed(Operation *op) noexcept nogil:
    return atomic_load_seq(&op.completed) != 0


cdef void stop_timeout(Operation *op) noexcept nogil:
    cdef Purgatory *purgatory = <Purgatory *>op.purgatory
    if purgatory is not NULL and timer_cancel(purgatory.timer, &op.timer_entry):
        atomic_add(&purgatory.delayed, -1)
        operation_release(op)       # the timer's count; the caller has one of its own


cdef bint operation_force_complete(Operation *op) noexcept nogil:
    if not atomic_cas(&op.completed, 0, 1):
        return False
    stop_timeout(op)
    op.table.on_complete(op)
    return True


cdef inline Operation *operation_of(TimerEntry *entry) noexcept nogil:
    return (<Operation **>(<char *>entry + sizeof(TimerEntry)))[0]


cdef void fire_operation(TimerEntry *entry) noexcept nogil:
    cdef Operation *op = operation_of(entry)
    atomic_add(&(<Purgatory *>op.purgatory).delayed, -1)
    if atomic_cas(&op.completed, 0, 1):
        op.table.on_complete(op)
        if op.table.on_expiration is not NULL:
            op.table.on_expiration(op)
    operation_release(op)           # the timer's


cdef bint try_under_lock(Operation *op) noexcept nogil:
    cdef bint done
    cdef Mutex *lock = op.lock
    if lock is not NULL:
        mutex_lock(lock)
    done = op.table.try_complete(op)
    if lock is not NULL:
        mutex_unlock(lock)
    return done


# --- watch lists; the shard's lock is held

cdef inline uint64_t key_hash(Key *key) noexcept nogil:
    cdef uint64_t h = <uint64_t>key.high * <uint64_t>0x9E3779B97F4A7C15 + <uint64_t>key.low
    h = (h ^ (h >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * <uint64_t>0x94D049BB133111EB
    return h ^ (h >> 31)


cdef inline Shard *shard_of(Purgatory *purgatory, uint64_t h) noexcept nogil:
    return &purgatory.shards[h % <uint64_t>purgatory.shard_count]


cdef inline int64_t slot_of(Shard *shard, uint64_t h) noexcept nogil:
    return <int64_t>((h >> 32) & <uint64_t>(shard.table_size - 1))


cdef bint grow_table(Shard *shard) noexcept nogil:
    cdef int64_t old_size = shard.table_size, i, slot
    cdef WatchList **old = shard.table
    cdef WatchList *here
    cdef WatchList *after
    cdef int64_t size = old_size * 2 if old_size else FIRST_TABLE_SIZE
    cdef WatchList **table = <WatchList **>calloc(size, sizeof(WatchList *))
    if table is NULL:
        return old_size > 0         # fuller, but it works
    shard.table = table
    shard.table_size = size
    for i in range(old_size):
        here = old[i]
        while here is not NULL:
            after = here.next
            slot = slot_of(shard, key_hash(&here.key))
            here.next = table[slot]
            table[slot] = here
            here = after
    free(old)
    return True


cdef WatchList *find_list(Shard *shard, Key *key, uint64_t h) noexcept nogil:
    cdef WatchList *here
    if shard.table_size == 0:
        return NULL
    here = shard.table[slot_of(shard, h)]
    while here is not NULL and (here.key.high != key.high or here.key.low != key.low):
        here = here.next
    return here


cdef WatchList *get_or_make_list(Shard *shard, Key *key, uint64_t h) noexcept nogil:
    cdef WatchList *found = find_list(shard, key, h)
    cdef int64_t slot
    if found is not NULL:
        return found
    if shard.lists >= shard.table_size and not grow_table(shard):
        return NULL
    found = <WatchList *>calloc(1, sizeof(WatchList))
    if found is NULL:
        return NULL
    found.key.high = key.high
    found.key.low = key.low
    slot = slot_of(shard, h)
    found.next = shard.table[slot]
    shard.table[slot] = found
    shard.lists += 1
    return found


cdef void append_watcher(Shard *shard, WatchList *watchers, Watcher *watcher) noexcept nogil:
    watcher.next = NULL
    if watchers.last is NULL:
        watchers.first = watcher
    else:
        watchers.last.next = watcher
    watchers.last = watcher
    shard.watched += 1


cdef void take_watchers(Shard *shard, WatchList *watchers, bint only_completed, Watcher **chain) noexcept nogil:
    """Move completed (or all) watchers to `chain`, in order of the list."""
    cdef Watcher **link = &watchers.first
    cdef Watcher *last = NULL
    cdef Watcher *here
    while chain[0] is not NULL:
        chain = &chain[0].next
    while link[0] is not NULL:
        here = link[0]
        if only_completed and not operation_is_completed(here.op):
            last = here
            link = &here.next
            continue
        link[0] = here.next
        here.next = NULL
        chain[0] = here
        chain = &here.next
        shard.watched -= 1
    watchers.last = last


cdef void drop_empty(Shard *shard, int64_t slot) noexcept nogil:
    cdef WatchList **link = &shard.table[slot]
    cdef WatchList *here
    while link[0] is not NULL:
        here = link[0]
        if here.first is NULL:
            link[0] = here.next
            shard.lists -= 1
            free(here)
        else:
            link = &here.next


cdef void sweep(Shard *shard, bint only_completed, Watcher **chain) noexcept nogil:
    cdef int64_t slot
    cdef WatchList *here
    for slot in range(shard.table_size):
        here = shard.table[slot]
        while here is not NULL:
            take_watchers(shard, here, only_completed, chain)
            while chain[0] is not NULL:
                chain = &chain[0].next
            here = here.next
        drop_empty(shard, slot)


cdef void take_key(Purgatory *purgatory, Key *key, bint only_completed, Watcher **chain) noexcept nogil:
    """Under its own lock: the watchers of one key; an emptied list goes."""
    cdef uint64_t h = key_hash(key)
    cdef Shard *shard = shard_of(purgatory, h)
    cdef WatchList *watchers
    mutex_lock(&shard.lock)
    watchers = find_list(shard, key, h)
    if watchers is not NULL:
        take_watchers(shard, watchers, only_completed, chain)
        if watchers.first is NULL:
            drop_empty(shard, slot_of(shard, h))
    mutex_unlock(&shard.lock)


cdef void free_watchers(Watcher *chain) noexcept nogil:
    """Without any lock: a last count may run the operation's destroy."""
    cdef Watcher *here
    while chain is not NULL:
        here = chain
        chain = here.next
        operation_release(here.op)
        free(here)


# --- the purgatory

cdef Purgatory *purgatory_new(Timer *timer, int64_t purge_interval, int32_t shards) noexcept nogil:
    cdef int32_t i
    cdef Purgatory *purgatory
    if shards < 1:
        return NULL
    purgatory = <Purgatory *>calloc(1, sizeof(Purgatory))
    if purgatory is NULL:
        return NULL
    purgatory.shards = <Shard *>calloc(shards, sizeof(Shard))
    if purgatory.shards is NULL:
        free(purgatory)
        return NULL
    for i in range(shards):
        mutex_init(&purgatory.shards[i].lock)
    atomic_store(&purgatory.refs, 1)
    purgatory.shard_count = shards
    purgatory.purge_interval = purge_interval
    purgatory.timer = timer_retain(timer)
    return purgatory


cdef Purgatory *purgatory_retain(Purgatory *purgatory) noexcept nogil:
    atomic_add(&purgatory.refs, 1)
    return purgatory


cdef void purgatory_release(Purgatory *purgatory) noexcept nogil:
    cdef int32_t i
    if purgatory is NULL or atomic_add(&purgatory.refs, -1) != 0:
        return
    for i in range(purgatory.shard_count):      # every list is gone: a watched operation would hold a count
        free(purgatory.shards[i].table)
        mutex_destroy(&purgatory.shards[i].lock)
    free(purgatory.shards)
    timer_release(purgatory.timer)
    free(purgatory)


cdef bint watch_all(Purgatory *purgatory, Operation *op, Key *keys, int32_t key_count) noexcept nogil:
    """Steps 4 and 5; false when closed. Without memory a key is not watched: the time-out still comes."""
    cdef int32_t i
    cdef uint64_t h
    cdef Shard *shard
    cdef Watcher *watcher
    cdef WatchList *watchers
    cdef bint closed = False
    if op.purgatory is NULL:        # before anyone else can see the operation
        op.purgatory = purgatory_retain(purgatory)
    for i in range(key_count):
        watcher = <Watcher *>malloc(sizeof(Watcher))
        if watcher is NULL:
            continue
        watcher.op = op
        atomic_add(&op.refs, 1)
        h = key_hash(&keys[i])
        shard = shard_of(purgatory, h)
        watchers = NULL
        mutex_lock(&shard.lock)
        closed = atomic_load_seq(&purgatory.closed) != 0    # under the lock: close empties each shard after saying so
        if not closed:
            watchers = get_or_make_list(shard, &keys[i], h)
            if watchers is not NULL:
                append_watcher(shard, watchers, watcher)
        mutex_unlock(&shard.lock)
        if watchers is NULL:
            atomic_add(&op.refs, -1)                        # never the last: the caller has one
            free(watcher)
        if closed:
            return False
    atomic_add(&purgatory.estimated_total, 1)
    return True


cdef void start_timeout(Purgatory *purgatory, Operation *op) noexcept nogil:
    """Step 7. Whoever completes before timer_add finds no entry to cancel, so completion is tested again after it."""
    if operation_is_completed(op):
        return
    atomic_add(&op.refs, 1)
    atomic_add(&purgatory.delayed, 1)
    timer_add(purgatory.timer, &op.timer_entry, op.timeout_ms)
    if operation_is_completed(op) or atomic_load_seq(&purgatory.closed):
        stop_timeout(op)


cdef bint purgatory_try_complete_else_watch(
        Purgatory *purgatory, Operation *op, Key *keys, int32_t key_count) noexcept nogil:
    cdef bint done, watched = False
    cdef Mutex *lock = op.lock
    if lock is not NULL:
        mutex_lock(lock)
    done = op.table.try_complete(op)
    if not done:
        watched = watch_all(purgatory, op, keys, key_count)
        if watched:
            done = op.table.try_complete(op)
    if lock is not NULL:
        mutex_unlock(lock)
    if done:
        return True
    if not watched:
        return operation_force_complete(op)     # closed: nobody would ever wake it
    start_timeout(purgatory, op)
    return False


cdef int64_t purgatory_check_and_complete(Purgatory *purgatory, Key *key) noexcept nogil:
    cdef Operation *on_stack[STACK_SNAPSHOT]
    cdef Operation **snapshot = on_stack
    cdef Watcher *chain = NULL
    cdef Watcher *here
    cdef uint64_t h = key_hash(key)
    cdef Shard *shard = shard_of(purgatory, h)
    cdef WatchList *watchers
    cdef int64_t length = 0, room = STACK_SNAPSHOT, completed = 0, i
    mutex_lock(&shard.lock)
    watchers = find_list(shard, key, h)
    if watchers is NULL:
        mutex_unlock(&shard.lock)
        return 0
    here = watchers.first
    while here is not NULL:
        length += 1
        here = here.next
    if length > room:
        snapshot = <Operation **>malloc(length * sizeof(Operation *))
        if snapshot is NULL:        # the first ones now; the others have their time-out
            snapshot = on_stack
        else:
            room = length
    length = 0
    here = watchers.first
    while here is not NULL and length < room:
        if not operation_is_completed(here.op):
            atomic_add(&here.op.refs, 1)
            snapshot[length] = here.op
            length += 1
        here = here.next
    mutex_unlock(&shard.lock)
    for i in range(length):
        if not operation_is_completed(snapshot[i]) and try_under_lock(snapshot[i]):
            completed += 1
        operation_release(snapshot[i])
    if snapshot is not on_stack:
        free(snapshot)
    take_key(purgatory, key, True, &chain)
    free_watchers(chain)
    return completed


cdef int64_t purgatory_cancel_for_key(Purgatory *purgatory, Key *key) noexcept nogil:
    cdef Watcher *chain = NULL
    cdef Watcher *here
    cdef int64_t count = 0
    take_key(purgatory, key, False, &chain)
    here = chain
    while here is not NULL:
        stop_timeout(here.op)
        count += 1
        here = here.next
    free_watchers(chain)
    return count


cdef int64_t purgatory_watched(Purgatory *purgatory) noexcept nogil:
    cdef int64_t watched = 0
    cdef int32_t i
    for i in range(purgatory.shard_count):
        mutex_lock(&purgatory.shards[i].lock)
        watched += purgatory.shards[i].watched
        mutex_unlock(&purgatory.shards[i].lock)
    return watched


cdef int64_t purgatory_delayed(Purgatory *purgatory) noexcept nogil:
    return atomic_load(&purgatory.delayed)


cdef void maybe_purge(Purgatory *purgatory) noexcept nogil:
    cdef Watcher *chain
    cdef int32_t i
    cdef int64_t delayed = atomic_load(&purgatory.delayed)
    if atomic_load(&purgatory.estimated_total) - delayed <= purgatory.purge_interval:
        return
    atomic_store(&purgatory.estimated_total, delayed)   # first: completions during the purge leave it a little high
    for i in range(purgatory.shard_count):
        chain = NULL
        mutex_lock(&purgatory.shards[i].lock)
        sweep(&purgatory.shards[i], True, &chain)
        mutex_unlock(&purgatory.shards[i].lock)
        free_watchers(chain)


cdef bint purgatory_advance(Purgatory *purgatory, int64_t timeout_ms) noexcept nogil:
    cdef bint polled = timer_advance(purgatory.timer, timeout_ms)
    maybe_purge(purgatory)
    return polled


cdef void empty(Purgatory *purgatory, bint complete) noexcept nogil:
    """Close, and take every operation out of lists and timer."""
    cdef Watcher *chain
    cdef Watcher *here
    cdef int32_t i
    atomic_store_seq(&purgatory.closed, 1)
    for i in range(purgatory.shard_count):
        chain = NULL
        mutex_lock(&purgatory.shards[i].lock)
        sweep(&purgatory.shards[i], False, &chain)
        mutex_unlock(&purgatory.shards[i].lock)
        here = chain
        while here is not NULL:
            if complete:
                operation_force_complete(here.op)
            else:
                stop_timeout(here.op)
                if here.op.table is &PYTHON_TABLE:
                    with gil:
                        disown_object(here.op)      # struct and object count each other until then
            here = here.next
        free_watchers(chain)
    timer_wake(purgatory.timer)


cdef void purgatory_close(Purgatory *purgatory) noexcept nogil:
    empty(purgatory, True)


# --- Python's view
#
# A Python operation is a struct (lists and timer count it) and an object. From watch to completion the struct owns a
# reference of the object; the struct's own_lock, otherwise unused, guards it. The operation's lock is a Python
# lock: waiting for it drops the GIL, so no GIL is ever taken under a C lock.

cdef struct PythonOperation:
    Operation base
    PyObject *object                # owned while watched and not completed, else NULL


cdef object watched_object(Operation *op):
    """A new reference of the object, or None once it is completed."""
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
    if atomic_cas(&op.completed, 0, 1) and operation is not None:
        disown_object(op)
        reported(operation.on_complete)
        reported(operation.on_expiration)


cdef void fire_python(TimerEntry *entry) noexcept nogil:
    cdef Operation *op = operation_of(entry)
    atomic_add(&(<Purgatory *>op.purgatory).delayed, -1)
    with gil:
        expire_python(op)
    operation_release(op)


cdef void python_destroy(Operation *op) noexcept nogil:
    free(op)                        # the object had a count: it is gone


cdef bint reported(object callback) noexcept:
    """Call; true if the answer is true. One operation's failure never ends the thread that completes them all."""
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


cdef class DelayedOperation:
    """Something that waits in a ``Purgatory`` until it can complete or its time is over; subclass it.

    Override ``try_complete`` (when satisfied: ``return self.force_complete()``), ``on_complete`` and, if wanted,
    ``on_expiration``. A failure in one of them on a thread that only checks or expires goes to ``sys.unraisablehook``.

    Args:
        timeout_ms: milliseconds until it expires, counted from the end of ``try_complete_else_watch``; >= 0.
        lock: a re-entrant lock (``threading.RLock``) held around ``try_complete``; None: one of its own.

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
        if not isinstance(timeout_ms, int):
            raise TypeError(f"timeout_ms must be an integer, not {type(timeout_ms).__name__}")
        if not 0 <= timeout_ms < 1 << 62:
            raise ValueError(f"timeout_ms must be between 0 and 2**62, got {timeout_ms}")
        if lock is not None and not (hasattr(lock, "__enter__") and hasattr(lock, "__exit__")):
            raise TypeError(f"lock must be a lock, not {type(lock).__name__}")
        if self.lock is not None:
            raise RuntimeError("DelayedOperation.__init__ was called before")
        self.op.timeout_ms = timeout_ms
        self.lock = threading.RLock() if lock is None else lock

    def __dealloc__(self):
        if self.op is not NULL:
            operation_release(self.op)
            self.op = NULL

    @property
    def timeout_ms(self) -> int:
        """Milliseconds until it expires."""
        return self.op.timeout_ms

    @property
    def is_completed(self) -> bool:
        """Whether someone has won the completion; ``on_complete`` may still be running."""
        return operation_is_completed(self.op)

    def try_complete(self) -> bool:
        """Test, under the lock; if satisfied return ``self.force_complete()``. Safe to call repeatedly. Override it."""
        raise NotImplementedError("try_complete must be overridden")

    def on_complete(self) -> None:
        """Called exactly once, on the thread that won the completion. Override it."""

    def on_expiration(self) -> None:
        """Called after ``on_complete`` if the time-out won, on the thread that advances the purgatory."""

    def force_complete(self) -> bool:
        """Complete now, whatever ``try_complete`` would say: one single caller wins, stops the time-out and runs
        ``on_complete`` (whose exception it gets).

        Returns: true for the winner.
        """
        cdef bint won
        with nogil:
            won = atomic_cas(&self.op.completed, 0, 1)
            if won:
                stop_timeout(self.op)
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

    Nothing runs by itself: a thread calls ``run_reaper`` (or ``advance`` in a loop), and time-outs run there.

    Args:
        name: for metrics and thread names.
        clock: of its own timer; None is the process's system clock.
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
        if not isinstance(purge_interval, int) or not isinstance(shards, int):
            raise TypeError("purge_interval and shards must be integers")
        if not 0 <= purge_interval < 1 << 62:
            raise ValueError(f"purge_interval must be >= 0, got {purge_interval}")
        if not 1 <= shards <= 65536:
            raise ValueError(f"shards must be between 1 and 65536, got {shards}")
        self.name = name
        if timer is not None:
            if clock is not None:
                raise ValueError("give a clock or a timer, not both")
            self.purgatory = purgatory_new(borrow_timer(timer), purge_interval, shards)
        else:
            own = timer_new(borrow_clock(clock), 1, 20)
            if own is NULL:
                raise MemoryError
            self.owns_timer = True
            self.purgatory = purgatory_new(own, purge_interval, shards)
            timer_release(own)
        if self.purgatory is NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.purgatory is not NULL:
            empty(self.purgatory, False)
            if self.owns_timer:
                timer_close(self.purgatory.timer)
            purgatory_release(self.purgatory)
            self.purgatory = NULL

    def try_complete_else_watch(self, DelayedOperation op not None, keys) -> bool:
        """Complete `op` now, or watch it under `keys` until one is checked or its time is over.

        Args:
            op: an operation that has not been watched before.
            keys: hashable objects, at least one; a key given twice is watched twice.

        Returns: true if completed by this call.

        Raises: TypeError, ValueError for wrong arguments; RuntimeError when closed or watched before; whatever
        ``try_complete`` raises (the operation then stays watched if the first test had passed).
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
                    return False                # completed by another thread, which is its winner
                op.keys = key_tuple
                own_object(op.op, op)
                with nogil:
                    watched = watch_all(self.purgatory, op.op, c_keys, count)
                if operation_is_completed(op.op):
                    disown_object(op.op)        # completed by a thread that came before own_object
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
        cdef Watcher *chain = NULL
        cdef Watcher *here
        cdef list operations = []
        with nogil:
            take_key(self.purgatory, &c_key, False, &chain)
        while chain is not NULL:
            here = chain
            chain = here.next
            operation = watched_object(here.op) if here.op.table is &PYTHON_TABLE else None
            if operation is not None and not is_among(key, (<DelayedOperation>operation).keys):
                rewatch(self.purgatory, &c_key, here)   # another key with the same hash
                operation.safe_try_complete()           # an event may have been missed meanwhile
                continue
            with nogil:
                stop_timeout(here.op)
            if operation is not None:
                operations.append(operation)
            if operation is not None and atomic_add(&here.op.refs, -1) == 1:
                disown_object(here.op)              # listed nowhere else; struct and object counted each other
            elif operation is None:
                operation_release(here.op)
            free(here)
        return operations

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
    def is_quiet(self) -> bool:
        """Whether nothing is due or expiring, and a thread waits in ``run_reaper`` or ``advance`` (or it is closed)."""
        cdef bint quiet
        with nogil:
            quiet = timer_is_quiet(self.purgatory.timer)
        return quiet

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return atomic_load(&self.purgatory.closed) != 0

    def advance(self, timeout_ms) -> bool:
        """One turn of the reaper: wait up to `timeout_ms` for a bucket, expire what is due, purge if it is time to.

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
        """End the reaper and drop all operations, uncompleted; twice does no harm."""
        with nogil:
            empty(self.purgatory, False)
            if self.owns_timer:
                timer_close(self.purgatory.timer)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


cdef void rewatch(Purgatory *purgatory, Key *key, Watcher *watcher) noexcept nogil:
    cdef uint64_t h = key_hash(key)
    cdef Shard *shard = shard_of(purgatory, h)
    cdef WatchList *watchers = NULL
    mutex_lock(&shard.lock)
    if not atomic_load_seq(&purgatory.closed):
        watchers = get_or_make_list(shard, key, h)
        if watchers is not NULL:
            append_watcher(shard, watchers, watcher)
    mutex_unlock(&shard.lock)
    if watchers is NULL:
        watcher.next = NULL
        free_watchers(watcher)


cdef bint is_among(object key, object keys) noexcept:
    """A failing comparison is reported and counts as yes: the other watchers must not be lost."""
    cdef int found = PySequence_Contains(keys, key)
    if found < 0:
        PyErr_WriteUnraisable(key)
    return found != 0


cdef Key key_of(object key) except *:
    """Equal objects have equal keys. Different ones may: then an operation is only tested once more than needed."""
    cdef Key result
    result.high = hash(key)
    result.low = hash((key, 0x6B62))
    return result


# The struct has the name Purgatory in C; Python's class takes it in the module's dictionary.
(<PyTypeObject *>PurgatoryHandle).tp_name = b"kbroker._core.purgatory.Purgatory"
globals()["Purgatory"] = PurgatoryHandle
del globals()["PurgatoryHandle"]
