"""Software of the clients of one network thread (KIP-511): its open connections counted by name and version.

Handlers can look up the software of a connection.

Written by the network thread. ``lock`` is a leaf: the thread takes it for a change, readers take it for a look-up. The
entry at ``Channel.software`` belongs to the table and lives while it counts a connection; its texts never change, so
that the network thread reads them without the lock.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.network.loop_types cimport Channel
from kbroker._core.containers.hash_table cimport HashNode, HashTable
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport Mutex

cdef struct ClientSoftware:     # followed by its two texts
    HashNode node               # first
    int64_t number              # from 1, never reused
    int64_t connections
    int32_t name_bytes
    int32_t version_bytes

cdef struct ClientInformationTable:
    Mutex lock
    HashTable entries           # owned
    uint64_t seed               # secret: clients choose the texts
    int64_t made                # number of entries ever created

cdef inline const char *software_texts(const ClientSoftware *entry) noexcept nogil:
    return <const char *>entry + sizeof(ClientSoftware)

cdef void software_init(ClientInformationTable *table, uint64_t seed) noexcept nogil
cdef void software_destroy(ClientInformationTable *table) noexcept nogil
# Pass a client's information from a handler to the network thread that ends the request; false: out of memory.
cdef bint client_information_announce(
    Request *request, const char *name, int32_t name_bytes, const char *version, int32_t version_bytes
) noexcept nogil
# Network thread only. A new connection is "unknown" until its client sends its software, as in Kafka.
cdef void software_enter(ClientInformationTable *table, Channel *channel) noexcept nogil
cdef void software_settle(ClientInformationTable *table, Channel *channel, const Request *request) noexcept nogil
cdef void software_leave(ClientInformationTable *table, Channel *channel) noexcept nogil
# Any thread with a request of the channel, which keeps the channel alive.
cdef tuple software_of(ClientInformationTable *table, const Channel *channel)   # (name, version)
cdef dict software_counts(ClientInformationTable *table)     # {(name, version): connections}
