"""Which software the clients of one network thread are (KIP-511): its open connections counted by name and version.

Written by the network thread; ``lock`` is a leaf, taken by it for a change and by those who look. The entry that a
channel points at (``Channel.software``) belongs to the table, lives while a connection is counted by it, and its texts
never change: the network thread reads them without the lock.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.network.loop_types cimport Channel
from kbroker._core.containers.hash_table cimport HashNode, HashTable
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport Mutex

cdef struct ClientSoftware:     # its two texts lie behind it
    HashNode node               # first
    int64_t number              # from 1, never again
    int64_t connections
    int32_t name_bytes
    int32_t version_bytes

cdef struct ClientInformationTable:
    Mutex lock
    HashTable entries           # owned
    uint64_t seed               # secret: clients choose what they say
    int64_t made                # entries there ever were

cdef inline const char *software_texts(const ClientSoftware *entry) noexcept nogil:
    return <const char *>entry + sizeof(ClientSoftware)

cdef void software_init(ClientInformationTable *table, uint64_t seed) noexcept nogil
cdef void software_destroy(ClientInformationTable *table) noexcept nogil
# What a handler learnt of a request's client, for the network thread that ends the request; false: memory is out.
cdef bint client_information_announce(
    Request *request, const char *name, int32_t name_bytes, const char *version, int32_t version_bytes
) noexcept nogil
# The network thread's. A new connection is "unknown" until an announcement, as in Kafka.
cdef void software_enter(ClientInformationTable *table, Channel *channel) noexcept nogil
cdef void software_settle(ClientInformationTable *table, Channel *channel, const Request *request) noexcept nogil
cdef void software_leave(ClientInformationTable *table, Channel *channel) noexcept nogil
cdef dict software_counts(ClientInformationTable *table)     # {(name, version): connections}
