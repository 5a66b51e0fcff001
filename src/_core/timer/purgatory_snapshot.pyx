"""Copies of what waits in a purgatory; see the contract in the .pxd."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from kbroker._core.sync cimport atomic_add_fetch, mutex_lock, mutex_lock_spinning, mutex_unlock
from kbroker._core.timer.purgatory_core cimport Operation, Purgatory, operation_is_completed, operation_release
from kbroker._core.timer.watch_lists cimport Shard, Watcher, WatcherBlock, WatchList, owner_of


cdef inline int32_t key_count_of(Watcher *watcher) noexcept nogil:
    cdef Watcher *first = watcher - watcher.index
    return (<WatcherBlock *>(<char *>first - (sizeof(WatcherBlock) - sizeof(Watcher)))).count


cdef void copy_shard(PurgatorySnapshot *into, Shard *shard) noexcept nogil:
    """Copy the watch lists of a shard; the caller holds its lock."""
    cdef int32_t slot, looks = 0
    cdef WatchList *watchers
    cdef Watcher *here
    cdef WaitingEntry *entry
    for slot in range(shard.table_size):
        watchers = shard.table[slot]
        while watchers is not NULL:
            here = watchers.root.next
            while here is not &watchers.root:
                if looks == LOOKS_PER_TURN or into.count == into.capacity:
                    into.is_truncated = True
                    return
                looks += 1
                entry = &into.entries[into.count]
                entry.op = <Operation *>owner_of(here)
                entry.key = watchers.key
                entry.key_count = key_count_of(here)
                atomic_add_fetch(&entry.op.refs, 1)     # the list has a count: it is not the last
                into.count += 1
                here = here.next
            watchers = watchers.root.list


cdef bint purgatory_snapshot_take(PurgatorySnapshot *into, Purgatory *purgatory, int64_t operations) noexcept nogil:
    cdef int32_t i
    cdef Shard *shard
    into.capacity = operations * ENTRIES_PER_OPERATION
    into.count = 0
    into.is_truncated = False
    into.entries = <WaitingEntry *>malloc(<size_t>(into.capacity if into.capacity > 0 else 1) * sizeof(WaitingEntry))
    if into.entries is NULL:
        return False
    for i in range(purgatory.lists.shard_count):
        shard = &purgatory.lists.shards[i]
        mutex_lock_spinning(&shard.lock)
        copy_shard(into, shard)
        mutex_unlock(&shard.lock)
    return True


cdef void purgatory_snapshot_free(PurgatorySnapshot *snapshot) noexcept nogil:
    cdef int64_t i
    for i in range(snapshot.count):
        operation_release(snapshot.entries[i].op)
    free(snapshot.entries)
    snapshot.entries = NULL
    snapshot.count = 0


cdef int64_t operation_due_ms(Purgatory *purgatory, Operation *op) noexcept nogil:
    cdef int64_t due_ms = -1
    if operation_is_completed(op):
        return -1
    mutex_lock(&purgatory.timer.lock)
    if op.timer_entry.bucket is not NULL:
        due_ms = op.timer_entry.due_ms
    mutex_unlock(&purgatory.timer.lock)
    return due_ms
