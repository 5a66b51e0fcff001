# cython: freethreading_compatible=True
"""Counts of connections and their limits; see the contract in the .pxd."""
cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strcmp, strncpy

from kbroker._core.sync cimport (
    atomic_add, atomic_load, atomic_store, cond_broadcast, cond_destroy, cond_init, cond_wait_ns, mutex_destroy,
    mutex_init, mutex_lock, mutex_unlock,
)

UNLIMITED = 2147483647


cdef QuotaCore *quotas_retain(QuotaCore *core) noexcept nogil:
    if core is not NULL:
        atomic_add(&core.refs, 1)
    return core


cdef void quotas_release(QuotaCore *core) noexcept nogil:
    cdef int slot
    cdef AddressCount *entry
    if core is NULL or atomic_add(&core.refs, -1) != 0:
        return
    for slot in range(ADDRESS_BUCKETS):
        while core.buckets[slot] is not NULL:
            entry = core.buckets[slot]
            core.buckets[slot] = entry.next
            free(entry)
    free(core.limits)
    cond_destroy(&core.room)
    mutex_destroy(&core.lock)
    free(core)


cdef inline int bucket_of(const char *address) noexcept nogil:
    cdef uint32_t hashed = 2166136261u
    while address[0] != 0:
        hashed = (hashed ^ <unsigned char>address[0]) * <uint32_t>16777619
        address += 1
    return <int>(hashed % ADDRESS_BUCKETS)


cdef inline int64_t limit_of(QuotaCore *core, const char *address) noexcept nogil:
    cdef int64_t slot
    for slot in range(core.limit_count):
        if strcmp(core.limits[slot].address, address) == 0:
            return core.limits[slot].limit
    return core.max_per_address


cdef inline void note_total(QuotaCore *core, int64_t change) noexcept nogil:
    core.total += change
    atomic_store(&core.exceeded, core.total > core.max_connections)


cdef QuotaVerdict quotas_enter(QuotaCore *core, const char *address, int64_t wait_ns,
                               AddressCount **entry) noexcept nogil:
    cdef AddressCount *found
    cdef int slot = bucket_of(address)
    entry[0] = NULL
    mutex_lock(&core.lock)
    if core.total >= core.max_connections and wait_ns > 0:
        cond_wait_ns(&core.room, &core.lock, wait_ns)
    if core.total >= core.max_connections:
        mutex_unlock(&core.lock)
        return QUOTA_FULL
    found = core.buckets[slot]
    while found is not NULL and strcmp(found.address, address) != 0:
        found = found.next
    if (0 if found is NULL else found.count) >= limit_of(core, address):
        mutex_unlock(&core.lock)
        atomic_add(&core.refused, 1)
        return QUOTA_TOO_MANY
    if found is NULL:
        found = <AddressCount *>calloc(1, sizeof(AddressCount))
        if found is NULL:
            mutex_unlock(&core.lock)
            return QUOTA_TOO_MANY
        strncpy(found.address, address, ADDRESS_BYTES - 1)
        found.next = core.buckets[slot]
        core.buckets[slot] = found
    found.count += 1
    note_total(core, 1)
    mutex_unlock(&core.lock)
    entry[0] = found
    return QUOTA_ADMITTED


cdef void quotas_leave(QuotaCore *core, AddressCount *entry) noexcept nogil:
    cdef AddressCount **link
    if core is NULL or entry is NULL:
        return
    mutex_lock(&core.lock)
    entry.count -= 1
    if entry.count == 0:
        link = &core.buckets[bucket_of(entry.address)]
        while link[0] is not entry:
            link = &link[0].next
        link[0] = entry.next
        free(entry)
    note_total(core, -1)
    cond_broadcast(&core.room)
    mutex_unlock(&core.lock)


@cython.final
cdef class ConnectionQuotas:
    """Limits of the connections of one server.

    Args:
        max_connections: at once, >= 0; an acceptor waits while there are so many.
        max_per_address: at once from one address, >= 0; one more is closed.
        overrides: address (as text) to its own limit.
    Raises: ValueError for a negative limit or an address that is too long.
    Threads: any.
    Source: ``SocketServer.ConnectionQuotas``.
    """

    def __cinit__(self, int64_t max_connections=UNLIMITED, int64_t max_per_address=UNLIMITED, overrides=None):
        cdef QuotaCore *core = <QuotaCore *>calloc(1, sizeof(QuotaCore))
        if core is NULL:
            raise MemoryError
        atomic_store(&core.refs, 1)
        mutex_init(&core.lock)
        cond_init(&core.room)
        self.core = core
        self.update(max_connections, max_per_address, overrides)

    def __dealloc__(self):
        with nogil:
            quotas_release(self.core)

    def update(self, int64_t max_connections, int64_t max_per_address, overrides=None):
        """Other limits; connections above them stay, but for those that exceed `max_connections`."""
        cdef QuotaCore *core = self.core
        cdef AddressLimit *fresh
        cdef AddressLimit *old
        cdef int64_t slot = 0
        given = {} if overrides is None else {str(name).encode(): int(limit) for name, limit in overrides.items()}
        if max_connections < 0 or max_per_address < 0 or any(limit < 0 for limit in given.values()):
            raise ValueError("limits of connections must be >= 0")
        if any(len(name) >= ADDRESS_BYTES for name in given):
            raise ValueError("an address is too long")
        fresh = <AddressLimit *>calloc(len(given) + 1, sizeof(AddressLimit))
        if fresh is NULL:
            raise MemoryError
        for name, limit in given.items():
            memcpy(fresh[slot].address, <const char *>name, len(name))
            fresh[slot].limit = limit
            slot += 1
        with nogil:
            mutex_lock(&core.lock)
            old = core.limits
            core.limits = fresh
            core.limit_count = slot
            core.max_connections = max_connections
            core.max_per_address = max_per_address
            note_total(core, 0)
            cond_broadcast(&core.room)
            mutex_unlock(&core.lock)
            free(old)

    def count(self, str address=None):
        """Connections there are, in all or from one address."""
        cdef QuotaCore *core = self.core
        cdef AddressCount *found
        cdef int64_t total
        cdef bytes name
        cdef const char *text
        if address is None:
            with nogil:
                mutex_lock(&core.lock)
                total = core.total
                mutex_unlock(&core.lock)
            return total
        name = address.encode()
        text = name
        with nogil:
            mutex_lock(&core.lock)
            found = core.buckets[bucket_of(text)]
            while found is not NULL and strcmp(found.address, text) != 0:
                found = found.next
            total = 0 if found is NULL else found.count
            mutex_unlock(&core.lock)
        return total

    @property
    def refused(self):
        """Connections closed because of their address's limit."""
        return atomic_load(&self.core.refused)
