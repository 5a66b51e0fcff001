"""Delayed operations watched by key, completed once, expired by a timing wheel (Kafka's DelayedOperationPurgatory).

An operation is any struct that begins with ``Operation`` and has a table of functions. Lock order: operation's lock
(its own, or one supplied) -> shard lock; operation's lock -> timer lock; no shard lock is held with the timer's.
Functions of a table run under no lock but the operation's. check_and_complete is called with none of them held.

try_complete may wait for a disk, and with it on_complete. A check that finds the operation's own lock taken does not
wait: it leaves a mark, and the thread with the lock tests again. So no event is missed, and a thread that checks waits
for its own tests alone. A supplied lock is waited for.

A snapshot copies the watch lists in short turns under the lock of one shard, then of the timer. A turn reads
LOOKS_PER_TURN watchers at most. A longer list, or more than the requested number of operations, is cut, and
``is_truncated`` is set. An operation that completes meanwhile is left out.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.sync cimport AtomicI64, Mutex
from kbroker._core.timer.timer_core cimport Timer, TimerEntry
from kbroker._core.timer.watch_lists cimport Key, WatchTable, Watcher, WatcherBlock

cdef struct Operation
cdef struct OperationTable:
    # Called under the operation's lock. True if satisfied AND this call won operation_force_complete. May be repeated.
    bint (*try_complete)(Operation *op) noexcept nogil
    # Called exactly once, on the winner's thread; under the operation's lock if try_complete won, else under none.
    void (*on_complete)(Operation *op) noexcept nogil
    void (*on_expiration)(Operation *op) noexcept nogil     # after on_complete, only if the time-out won; may be NULL
    void (*destroy)(Operation *op) noexcept nogil           # after the last count; the payload was freed at completion
    void (*let_go)(Operation *op) noexcept nogil           # release a check's count of a waiting operation; may be NULL

cdef struct Operation:
    AtomicI64 refs              # caller, each watch list, timer
    AtomicI64 completed         # 0 -> 1 once
    AtomicI64 block             # its WatcherBlock, from the watch on: an operation is watched once
    TimerEntry timer_entry      # in one cache line with the three before it; the operation is found through ``self_``
    Operation *self_            # directly after timer_entry
    OperationTable *table
    int64_t timeout_ms
    WatcherBlock *reserved      # in the owner's memory, for up to reserve_for watchers; NULL: allocated at the watch
    int64_t reserve_for            # both set between operation_init and the watch
    AtomicI64 is_pending        # a check found own_lock taken: its owner tests again
    Mutex *lock                 # &own_lock or the supplied one; NULL: try_complete locks for itself (Python operations)
    Mutex own_lock

cdef struct Purgatory:          # counted: by its makers, and by each operation that was watched
    AtomicI64 refs
    AtomicI64 estimated_total   # operations watched, corrected by each purge
    AtomicI64 delayed           # operations in the timer
    AtomicI64 closed
    Timer *timer                # owned count
    int64_t purge_interval
    WatchTable lists

cdef Purgatory *purgatory_new(Timer *timer, int64_t purge_interval, int32_t shards) noexcept nogil
cdef Purgatory *purgatory_retain(Purgatory *purgatory) noexcept nogil
cdef void purgatory_release(Purgatory *purgatory) noexcept nogil
# Count 1, the caller's; lock NULL: its own.
cdef void operation_init(Operation *op, OperationTable *table, int64_t timeout_ms, Mutex *lock) noexcept nogil
cdef void operation_release(Operation *op) noexcept nogil
cdef bint operation_force_complete(Operation *op) noexcept nogil
cdef bint operation_is_completed(Operation *op) noexcept nogil
# The caller keeps its own count on op, which was not watched before. True: this call completed it. It is completed at
# once if there is no memory to watch it, and after close.
cdef bint purgatory_try_complete_else_watch(
    Purgatory *purgatory, Operation *op, Key *keys, int32_t key_count) noexcept nogil
cdef int64_t purgatory_check_and_complete(Purgatory *purgatory, Key *key) noexcept nogil
cdef int64_t purgatory_cancel_for_key(Purgatory *purgatory, Key *key) noexcept nogil   # number of ops; completes none
cdef int64_t purgatory_watched(Purgatory *purgatory) noexcept nogil
cdef int64_t purgatory_delayed(Purgatory *purgatory) noexcept nogil
# Take one turn of the reaper: advance the timer, then maybe purge.
cdef bint purgatory_advance(Purgatory *purgatory, int64_t timeout_ms) noexcept nogil
# Complete all waiting operations (on_complete frees payloads), wake the reaper and refuse to watch from now on. The
# timer stays open: it may serve others. An owner must call it: watched operations hold a count of their purgatory.
cdef void purgatory_close(Purgatory *purgatory) noexcept nogil

# Win the completion of an operation, for Python's view, which completes operations itself.
cdef bint win_completion(Operation *op) noexcept nogil                 # true for one caller only
cdef void stop_timeout(Operation *op) noexcept nogil
cdef void leave_all_lists(Operation *op) noexcept nogil                # op is completed; the caller has a count
cdef Purgatory *purgatory_of(Operation *op) noexcept nogil             # NULL before the watch
cdef bint watch_all(Purgatory *purgatory, Operation *op, Key *keys, int32_t key_count) noexcept nogil
cdef void start_timeout(Purgatory *purgatory, Operation *op) noexcept nogil
cdef Watcher *take_watchers(Purgatory *purgatory, Key *key, int64_t *traces) noexcept nogil
cdef void rewatch(Purgatory *purgatory, Key *key, Watcher *watcher) noexcept nogil     # of take_watchers
cdef void maybe_purge(Purgatory *purgatory) noexcept nogil
# Close; every operation leaves its lists and the timer and is passed to `drop`, or completed if that is NULL.
cdef void purgatory_empty(Purgatory *purgatory, void (*drop)(Operation *op) noexcept nogil) noexcept nogil


cdef inline Operation *operation_of(TimerEntry *entry) noexcept nogil:
    return (<Operation **>(<char *>entry + sizeof(TimerEntry)))[0]

# --------------------------------------------------- snapshots

cdef enum:
    LOOKS_PER_TURN = 256        # some 10 us
    ENTRIES_PER_OPERATION = 4   # average that the capacity allows

cdef struct WaitingEntry:       # an operation under one of its keys
    Operation *op               # counted
    Key key
    int32_t key_count           # of the operation

cdef struct PurgatorySnapshot:
    int64_t capacity            # of entries
    int64_t count
    bint is_truncated
    WaitingEntry *entries       # owned

# Take a snapshot of at most ``operations`` operations; false: out of memory. The capacity is ENTRIES_PER_OPERATION
# entries for each operation on average.
cdef bint purgatory_snapshot_take(PurgatorySnapshot *into, Purgatory *purgatory, int64_t operations) noexcept nogil
cdef void purgatory_snapshot_free(PurgatorySnapshot *snapshot) noexcept nogil
# Return the operation's due time by the timer's clock in ms; -1: its timer is not running (yet, or any more).
cdef int64_t operation_due_ms(Purgatory *purgatory, Operation *op) noexcept nogil
