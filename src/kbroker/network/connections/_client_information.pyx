"""Connections counted by their clients' software; see the contract in the .pxd.

Source: KIP-511, ``Selector.SelectorChannelMetadataRegistry``.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from kbroker._core.network.loop_types cimport Channel
from kbroker._core.containers.hash_table cimport (
    HashNode, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport hash_seeded, mix_hash
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport mutex_destroy, mutex_init, mutex_lock, mutex_unlock
from kbroker.network._kafka_request cimport KafkaRequest, kafka_request

cdef enum:
    MAX_BYTES = 4096           # maximum size of a name or a version; longer ones are not kept

cdef struct Announcement:       # followed by its two texts
    int32_t name_bytes
    int32_t version_bytes


cdef void software_init(ClientInformationTable *table, uint64_t seed) noexcept nogil:
    mutex_init(&table.lock)
    table.seed = seed


cdef void software_destroy(ClientInformationTable *table) noexcept nogil:
    cdef HashNode *node = hash_after(&table.entries, NULL)
    cdef HashNode *following
    while node is not NULL:
        following = hash_after(&table.entries, node)
        free(node)
        node = following
    hash_clear(&table.entries)
    mutex_destroy(&table.lock)


cdef bint client_information_announce(
    Request *request, const char *name, int32_t name_bytes, const char *version, int32_t version_bytes
) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef Announcement *said
    if name_bytes > MAX_BYTES or version_bytes > MAX_BYTES:
        return True             # as if its client had sent no name
    said = <Announcement *>malloc(sizeof(Announcement) + <size_t>name_bytes + <size_t>version_bytes)
    if said is NULL:
        return False
    said.name_bytes = name_bytes
    said.version_bytes = version_bytes
    memcpy(<char *>said + sizeof(Announcement), name, <size_t>name_bytes)
    memcpy(<char *>said + sizeof(Announcement) + name_bytes, version, <size_t>version_bytes)
    free(kafka.client_information)
    kafka.client_information = said
    return True


cdef inline int64_t entry_bytes(const ClientSoftware *entry) noexcept nogil:
    return <int64_t>sizeof(ClientSoftware) + entry.name_bytes + entry.version_bytes


cdef inline bint is_equal(const ClientSoftware *entry, const char *texts, int32_t name_bytes,
                          int32_t version_bytes) noexcept nogil:
    return (entry.name_bytes == name_bytes and entry.version_bytes == version_bytes
            and memcmp(software_texts(entry), texts, <size_t>name_bytes + <size_t>version_bytes) == 0)


cdef ClientSoftware *take(ClientInformationTable *table, const char *texts, int32_t name_bytes,
                          int32_t version_bytes) noexcept nogil:
    """Find or create the entry and count one connection, under the lock; NULL: out of memory."""
    cdef int64_t size = <int64_t>name_bytes + version_bytes
    cdef uint64_t h = hash_seeded(texts, size, table.seed ^ mix_hash(<uint64_t>name_bytes))
    cdef HashNode *node = hash_first(&table.entries, h)
    cdef ClientSoftware *entry
    while node is not NULL and not is_equal(<ClientSoftware *>node, texts, name_bytes, version_bytes):
        node = hash_next(node)
    entry = <ClientSoftware *>node
    if entry is NULL:
        if not hash_reserve(&table.entries):
            return NULL
        entry = <ClientSoftware *>malloc(sizeof(ClientSoftware) + <size_t>size)
        if entry is NULL:
            return NULL
        table.made += 1
        entry.number = table.made
        entry.connections = 0
        entry.name_bytes = name_bytes
        entry.version_bytes = version_bytes
        memcpy(<char *>entry + sizeof(ClientSoftware), texts, <size_t>size)
        hash_add(&table.entries, &entry.node, h)
    entry.connections += 1
    return entry


cdef void drop(ClientInformationTable *table, ClientSoftware *entry) noexcept nogil:
    """Uncount one connection, and free the entry if it was the last, under the lock."""
    entry.connections -= 1
    if entry.connections == 0:
        hash_remove(&table.entries, &entry.node)
        free(entry)


cdef void move_to(ClientInformationTable *table, Channel *channel, const char *texts, int32_t name_bytes,
                  int32_t version_bytes) noexcept nogil:
    cdef ClientSoftware *old = <ClientSoftware *>channel.software
    cdef ClientSoftware *new
    mutex_lock(&table.lock)
    new = take(table, texts, name_bytes, version_bytes)
    if new is not NULL:
        channel.software = new
        if old is not NULL:
            drop(table, old)
    mutex_unlock(&table.lock)


cdef void software_enter(ClientInformationTable *table, Channel *channel) noexcept nogil:
    move_to(table, channel, b"unknownunknown", 7, 7)


cdef void software_settle(ClientInformationTable *table, Channel *channel, const Request *request) noexcept nogil:
    cdef const Announcement *said = <const Announcement *>kafka_request(request).client_information
    cdef const char *texts = <const char *>said + sizeof(Announcement)
    if channel.software is NULL:        # closed, or never counted for lack of memory
        return
    if not is_equal(<ClientSoftware *>channel.software, texts, said.name_bytes, said.version_bytes):
        move_to(table, channel, texts, said.name_bytes, said.version_bytes)


cdef void software_leave(ClientInformationTable *table, Channel *channel) noexcept nogil:
    cdef ClientSoftware *entry = <ClientSoftware *>channel.software
    channel.software = NULL
    mutex_lock(&table.lock)
    if entry is not NULL:
        drop(table, entry)
    mutex_unlock(&table.lock)


cdef tuple software_of(ClientInformationTable *table, const Channel *channel):
    cdef const ClientSoftware *entry
    cdef char *copy = NULL
    cdef int64_t name_bytes = 0, version_bytes = 0
    with nogil:
        mutex_lock(&table.lock)
        entry = <const ClientSoftware *>channel.software
        if entry is not NULL:           # it is not freed while the lock is held
            name_bytes = entry.name_bytes
            version_bytes = entry.version_bytes
            copy = <char *>malloc(<size_t>(name_bytes + version_bytes) + 1)
            if copy is not NULL:
                memcpy(copy, software_texts(entry), <size_t>(name_bytes + version_bytes))
        mutex_unlock(&table.lock)
    if copy is NULL:
        return "unknown", "unknown"
    try:
        return (copy[:name_bytes].decode("utf-8", "replace"),
                copy[name_bytes:name_bytes + version_bytes].decode("utf-8", "replace"))
    finally:
        free(copy)


cdef char *copied(ClientInformationTable *table, int64_t *size_bytes) noexcept nogil:
    """Return a copy of all entries in sequence, made under the lock; NULL: out of memory."""
    cdef HashNode *node
    cdef char *copy
    cdef int64_t size = 0, n
    mutex_lock(&table.lock)
    node = hash_after(&table.entries, NULL)
    while node is not NULL:
        size += entry_bytes(<ClientSoftware *>node)
        node = hash_after(&table.entries, node)
    copy = <char *>malloc(<size_t>size + 1)
    size_bytes[0] = 0
    node = hash_after(&table.entries, NULL) if copy is not NULL else NULL
    while node is not NULL:
        n = entry_bytes(<ClientSoftware *>node)
        memcpy(copy + size_bytes[0], node, <size_t>n)
        size_bytes[0] += n
        node = hash_after(&table.entries, node)
    mutex_unlock(&table.lock)
    return copy


cdef dict software_counts(ClientInformationTable *table):
    cdef ClientSoftware entry
    cdef const char *texts
    cdef char *copy
    cdef int64_t size, at = 0
    cdef dict found = {}
    with nogil:             # a network thread that needs the lock never waits for the GIL
        copy = copied(table, &size)
    if copy is NULL:
        raise MemoryError
    try:
        while at < size:
            memcpy(&entry, copy + at, sizeof(ClientSoftware))
            texts = copy + at + sizeof(ClientSoftware)
            name = texts[:entry.name_bytes].decode("utf-8", "replace")
            version = texts[entry.name_bytes:entry.name_bytes + entry.version_bytes].decode("utf-8", "replace")
            found[name, version] = entry.connections
            at += entry_bytes(&entry)
    finally:
        free(copy)
    return found
