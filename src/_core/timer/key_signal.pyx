"""Python's handle of a signal of events about watched keys."""
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

from kbroker._core.containers.hash_table cimport (
    HashNode, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport mix_hash
from kbroker._core.guarded cimport guarded_value
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_store, atomic_store_seq, cond_broadcast, cond_destroy, cond_init, cond_signal, cond_wait,
    mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)


cdef struct WatchedKey:
    HashNode node               # in the table, or in the list of keys that had an event
    int64_t high
    int64_t low


cdef uint64_t hash_of(int64_t high, int64_t low) noexcept nogil:
    return mix_hash(<uint64_t>high * <uint64_t>0x9E3779B97F4A7C15 + <uint64_t>low)


cdef WatchedKey *find(KeySignalCore *signal, int64_t high, int64_t low) noexcept nogil:
    cdef HashNode *node = hash_first(&signal.table, hash_of(high, low))
    while node != NULL and ((<WatchedKey *>node).high != high or (<WatchedKey *>node).low != low):
        node = hash_next(node)
    return <WatchedKey *>node


cdef KeySignalCore *key_signal_retain(KeySignalCore *signal) noexcept nogil:
    atomic_add_fetch(&signal.refs, 1)
    return signal


cdef void key_signal_release(KeySignalCore *signal) noexcept nogil:
    if signal != NULL and atomic_add_fetch(&signal.refs, -1) == 0:      # closed with the handle, so it is empty
        cond_destroy(&signal.changed)
        mutex_destroy(&signal.lock)
        free(signal)


cdef void key_signal_raise(KeySignalCore *signal, int64_t high, int64_t low) noexcept nogil:
    cdef WatchedKey *watched
    mutex_lock(&signal.lock)
    watched = find(signal, high, low)
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


cdef bint add(KeySignalCore *signal, int64_t high, int64_t low) noexcept nogil:
    """Watch a key, unless the signal is closed; false: no memory."""
    cdef WatchedKey *watched = NULL
    cdef bint is_good = True
    mutex_lock(&signal.lock)
    if not signal.is_closed and find(signal, high, low) == NULL:
        watched = <WatchedKey *>calloc(1, sizeof(WatchedKey))
        is_good = watched != NULL and hash_reserve(&signal.table)
        if is_good:
            watched.high, watched.low = high, low
            hash_add(&signal.table, &watched.node, hash_of(high, low))
            atomic_store_seq(&signal.watched, signal.table.count)
        else:
            free(watched)
    mutex_unlock(&signal.lock)
    return is_good


cdef void remove(KeySignalCore *signal, int64_t high, int64_t low) noexcept nogil:
    cdef WatchedKey *watched
    mutex_lock(&signal.lock)
    watched = find(signal, high, low)
    if watched != NULL:
        hash_remove(&signal.table, &watched.node)
        atomic_store(&signal.watched, signal.table.count)
        free(watched)
    mutex_unlock(&signal.lock)


cdef WatchedKey *take_events(KeySignalCore *signal, bint waits) noexcept nogil:
    """Return the keys that had events, chained; wait for the first one if ``waits``. NULL: none, or closed."""
    cdef WatchedKey *found
    mutex_lock(&signal.lock)
    while waits and signal.first == NULL and not signal.is_closed:
        cond_wait(&signal.changed, &signal.lock)
    found = signal.first
    signal.first = signal.last = NULL
    mutex_unlock(&signal.lock)
    return found


cdef void close_signal(KeySignalCore *signal) noexcept nogil:
    cdef WatchedKey *chain
    cdef WatchedKey *watched
    cdef WatchedKey *following
    mutex_lock(&signal.lock)
    signal.is_closed = True
    chain = signal.first
    signal.first = signal.last = NULL
    watched = <WatchedKey *>hash_after(&signal.table, NULL)
    while watched != NULL:
        following = <WatchedKey *>hash_after(&signal.table, &watched.node)
        watched.node.next = <HashNode *>chain
        chain = watched
        watched = following
    hash_clear(&signal.table)
    atomic_store(&signal.watched, 0)
    cond_broadcast(&signal.changed)
    mutex_unlock(&signal.lock)
    while chain != NULL:
        watched = chain
        chain = <WatchedKey *>watched.node.next
        free(watched)


@cython.final
cdef class KeySignal:
    """See key_signal.pyi for the contract of each method."""

    def __cinit__(self):
        self.core = <KeySignalCore *>calloc(1, sizeof(KeySignalCore))
        if self.core == NULL:
            raise MemoryError
        atomic_store(&self.core.refs, 1)
        mutex_init(&self.core.lock)
        cond_init(&self.core.changed)

    def __dealloc__(self):
        if self.core != NULL:
            with nogil:
                close_signal(self.core)
                key_signal_release(self.core)

    def watch(self, int64_t high, int64_t low):
        cdef bint is_good
        with nogil:
            is_good = add(self.core, high, low)
        if not is_good:
            raise MemoryError

    def unwatch(self, int64_t high, int64_t low):
        with nogil:
            remove(self.core, high, low)

    def wait(self):
        return self.taken(True)

    def take(self):
        return self.taken(False)

    cdef list taken(self, bint waits):
        cdef WatchedKey *chain
        cdef WatchedKey *watched
        cdef list found = []
        with nogil:
            chain = take_events(self.core, waits)
        while chain != NULL:
            watched = chain
            chain = <WatchedKey *>watched.node.next
            found.append((watched.high, watched.low))
            free(watched)
        return found

    def close(self):
        with nogil:
            close_signal(self.core)

    @property
    def watched(self):
        return guarded_value(&self.core.lock, &self.core.table.count)
