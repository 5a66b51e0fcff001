"""A signal of appends to partitions that a Python thread watches.

An append costs one load while no partition is watched, and a look-up under a leaf lock otherwise. A watch ends with the
next append, so that a busy partition wakes the thread only as often as it is watched again.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from kbroker._core.containers.hash_table cimport (
    HashNode, HashTable, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport mix_hash
from kbroker._core.guarded cimport guarded_value
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_load, atomic_store, atomic_store_seq, cond_broadcast, cond_destroy, cond_init, cond_signal,
    cond_wait, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.log._partition cimport Partition, partition_release, partition_retain
from kbroker.log._partition_log cimport PartitionLog


cdef struct WatchedPartition:
    HashNode node               # of the table, or of the list of those that had an append
    Partition *partition        # counted


cdef WatchedPartition *find(AppendSignalCore *signal, Partition *partition) noexcept nogil:
    cdef HashNode *node = hash_first(&signal.table, mix_hash(<uint64_t>partition))
    while node != NULL and (<WatchedPartition *>node).partition != partition:
        node = hash_next(node)
    return <WatchedPartition *>node


cdef void drop(WatchedPartition *watched) noexcept nogil:
    partition_release(watched.partition)
    free(watched)


cdef AppendSignalCore *append_signal_retain(AppendSignalCore *signal) noexcept nogil:
    atomic_add_fetch(&signal.refs, 1)
    return signal


cdef void append_signal_release(AppendSignalCore *signal) noexcept nogil:
    if atomic_add_fetch(&signal.refs, -1) == 0:     # close() came before the handle's end: it is empty
        cond_destroy(&signal.changed)
        mutex_destroy(&signal.lock)
        free(signal)


cdef void append_signal_raise(AppendSignalCore *signal, Partition *partition) noexcept nogil:
    cdef WatchedPartition *watched
    mutex_lock(&signal.lock)
    watched = find(signal, partition)
    if watched != NULL:
        hash_remove(&signal.table, &watched.node)
        atomic_store(&signal.watched, signal.table.count)
        if signal.last == NULL:
            signal.first = watched
        else:
            signal.last.node.next = &watched.node
        signal.last = watched
        cond_signal(&signal.changed)
    mutex_unlock(&signal.lock)


cdef bint add(AppendSignalCore *signal, Partition *partition) noexcept nogil:
    """Watch a partition; false: no memory."""
    cdef WatchedPartition *watched = NULL
    cdef bint is_good = True
    mutex_lock(&signal.lock)
    if not signal.is_closed and find(signal, partition) == NULL:
        watched = <WatchedPartition *>calloc(1, sizeof(WatchedPartition))
        is_good = watched != NULL and hash_reserve(&signal.table)
        if is_good:
            watched.partition = partition_retain(partition)
            hash_add(&signal.table, &watched.node, mix_hash(<uint64_t>partition))
            atomic_store_seq(&signal.watched, signal.table.count)
        else:
            free(watched)
    mutex_unlock(&signal.lock)
    return is_good


cdef WatchedPartition *take(AppendSignalCore *signal) noexcept nogil:
    """Wait for appends; return their partitions, chained; NULL once closed."""
    cdef WatchedPartition *found
    mutex_lock(&signal.lock)
    while signal.first == NULL and not signal.is_closed:
        cond_wait(&signal.changed, &signal.lock)
    found = signal.first
    signal.first = signal.last = NULL
    mutex_unlock(&signal.lock)
    return found


cdef void close_signal(AppendSignalCore *signal) noexcept nogil:
    cdef WatchedPartition *chain
    cdef WatchedPartition *watched
    mutex_lock(&signal.lock)
    signal.is_closed = True
    chain = signal.first
    signal.first = signal.last = NULL
    watched = <WatchedPartition *>hash_after(&signal.table, NULL)
    while watched != NULL:
        hash_remove(&signal.table, &watched.node)
        watched.node.next = <HashNode *>chain
        chain = watched
        watched = <WatchedPartition *>hash_after(&signal.table, NULL)
    hash_clear(&signal.table)
    atomic_store(&signal.watched, 0)
    cond_broadcast(&signal.changed)
    mutex_unlock(&signal.lock)
    while chain != NULL:
        watched = chain
        chain = <WatchedPartition *>watched.node.next
        drop(watched)


@cython.final
cdef class AppendSignal:
    """See _append_signal.pyi for the contract of each method."""

    def __cinit__(self):
        self.core = <AppendSignalCore *>calloc(1, sizeof(AppendSignalCore))
        if self.core == NULL:
            raise MemoryError
        atomic_store(&self.core.refs, 1)
        mutex_init(&self.core.lock)
        cond_init(&self.core.changed)

    def __dealloc__(self):
        if self.core != NULL:
            with nogil:
                close_signal(self.core)
                append_signal_release(self.core)

    def watch(self, PartitionLog log not None):
        cdef Partition *partition = log.partition
        cdef bint is_good
        with nogil:
            is_good = add(self.core, partition)
        if not is_good:
            raise MemoryError

    def wait(self):
        cdef WatchedPartition *chain
        cdef WatchedPartition *watched
        cdef list found = []
        with nogil:
            chain = take(self.core)
        while chain != NULL:
            watched = chain
            chain = <WatchedPartition *>watched.node.next
            found.append(((<char *>watched.partition.topic_id)[:16], watched.partition.index))
            with nogil:
                drop(watched)
        return found

    def close(self):
        with nogil:
            close_signal(self.core)

    @property
    def watched(self):
        return guarded_value(&self.core.lock, &self.core.table.count)
