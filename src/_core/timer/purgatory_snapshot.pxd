"""Snapshot of a purgatory: a copy of its watch lists, made in short turns under the lock of one shard, then of the
timer.

A turn looks at LOOKS_PER_TURN watchers at most. A list that is longer, or more than was asked for, is cut, and the
snapshot says so. An operation that completes meanwhile is left out.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.timer.purgatory_core cimport Operation, Purgatory
from kbroker._core.timer.watch_lists cimport Key

cdef enum:
    LOOKS_PER_TURN = 256        # some 10 us
    ENTRIES_PER_OPERATION = 4   # of the room for entries

cdef struct WaitingEntry:       # an operation under one of its keys
    Operation *op               # counted
    Key key
    int32_t key_count           # of the operation

cdef struct PurgatorySnapshot:
    int64_t capacity            # of entries
    int64_t count
    bint is_truncated
    WaitingEntry *entries       # owned

# False: no memory. Of each operation up to ENTRIES_PER_OPERATION entries on average find room.
cdef bint purgatory_snapshot_take(PurgatorySnapshot *into, Purgatory *purgatory, int64_t operations) noexcept nogil
cdef void purgatory_snapshot_free(PurgatorySnapshot *snapshot) noexcept nogil
# When the operation's time is over, by the timer's clock in ms; -1: its time does not run (yet, or any more).
cdef int64_t operation_due_ms(Purgatory *purgatory, Operation *op) noexcept nogil
