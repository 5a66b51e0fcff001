"""How many connections there may be: in all, and from one address. Shared by all acceptors and network threads.

Lock: ``lock``, a leaf. Source: ``SocketServer.ConnectionQuotas`` (counts; the creation rates are not here).
"""
from libc.stdint cimport int64_t
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

cdef enum QuotaVerdict:
    QUOTA_ADMITTED = 0
    QUOTA_TOO_MANY = 1          # from this address: close it
    QUOTA_FULL = 2              # in all, for as long as was waited: ask again

cdef enum:
    ADDRESS_BYTES = 64
    ADDRESS_BUCKETS = 256

cdef struct AddressCount:       # lives while count > 0
    AddressCount *next
    int64_t count
    char address[ADDRESS_BYTES]

cdef struct AddressLimit:
    int64_t limit
    char address[ADDRESS_BYTES]

cdef struct QuotaCore:
    AtomicI64 refs
    Mutex lock
    Cond room
    int64_t total               # the rest under the lock
    int64_t max_connections
    int64_t max_per_address
    AddressLimit *limits        # owned
    int64_t limit_count
    AddressCount *buckets[ADDRESS_BUCKETS]
    AtomicI64 exceeded          # total > max_connections, to be read without the lock
    AtomicI64 refused

cdef QuotaCore *quotas_retain(QuotaCore *core) noexcept nogil
cdef void quotas_release(QuotaCore *core) noexcept nogil
# Counts a connection from address (text) and gives what to leave by; waits at most wait_ns for room.
cdef QuotaVerdict quotas_enter(QuotaCore *core, const char *address, int64_t wait_ns,
                               AddressCount **entry) noexcept nogil
cdef void quotas_leave(QuotaCore *core, AddressCount *entry) noexcept nogil     # entry NULL: nothing

cdef class ConnectionQuotas:
    cdef QuotaCore *core        # owned count
