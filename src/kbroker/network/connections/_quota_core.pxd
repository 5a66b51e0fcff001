"""Limits of the number of connections and of the rate of new ones: in total, of a listener, of an address.

Shared by all acceptors and network threads. Lock: ``lock``; only the locks of sensors are taken under it. An acceptor
waits on ``slot_free`` for a slot or for the end of its throttle. Source: ``SocketServer.ConnectionQuotas``, KIP-612.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t

from kbroker._core.clock cimport Clock, Waker
from kbroker._core.containers.hash_table cimport HashNode, HashTable, hash_after
from kbroker._core.metrics.metric_config cimport StatConfig
from kbroker._core.metrics.sensor_core cimport MetricCore, SensorCore, Violation
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

# ---- one native sensor with one metric, made without Python: a rate with an upper quota, or an average. Guarded by its
# owner's lock; the sensor locks itself.

cdef struct Gauge:
    SensorCore *sensor          # owned count
    MetricCore *metric          # borrowed from the sensor

cdef double gauge_measure(Gauge *gauge, int64_t now_ms) noexcept nogil
cdef bint gauge_set_limit(Gauge *gauge, double limit) noexcept nogil                   # false: out of memory

# ---- client addresses: connections, own limits, rate of each. A hash table that grows, keyed by text; an entry lives
# while it has a count, a limit or a rate. Guarded by QuotaCore.lock.

cdef enum:
    ADDRESS_BYTES = 64

cdef struct AddressEntry:
    HashNode node               # first
    int64_t count               # current connections
    int64_t max_count           # own limit of connections, or -1
    int64_t max_rate            # own limit of new connections per second, or -1
    int64_t max_shadow_rate     # the same for the shadow
    Gauge rate                  # made on first use; sensor NULL: not made
    Gauge shadow_rate           # of the shadow, which judges every connection and refuses none
    char address[ADDRESS_BYTES]

cdef struct AddressTable:           # empty when zeroed, except for the seed
    HashTable entries           # owned
    uint64_t seed               # secret: clients choose their addresses

cdef AddressEntry *addresses_find(AddressTable *table, const char *address) noexcept nogil
# Find or create an entry; NULL: out of memory.
cdef AddressEntry *addresses_take(AddressTable *table, const char *address) noexcept nogil
cdef void addresses_drop_if_empty(AddressTable *table, AddressEntry *entry) noexcept nogil  # may free the entry

cdef inline AddressEntry *addresses_after(const AddressTable *table, AddressEntry *entry) noexcept nogil:
    """Return the entry after this one: the first one for NULL, NULL after the last."""
    return <AddressEntry *>hash_after(&table.entries, <HashNode *>entry)

# ---- the limits

cdef enum:
    NO_LIMIT = 2147483647       # if it is the rate of an address, nothing is recorded

cdef enum QuotaVerdict:
    QUOTA_ADMITTED = 0
    QUOTA_TOO_MANY = 1          # from this address, but counted: close it, and call quotas_leave with the entry
    QUOTA_THROTTLED = 2         # the address connects too often: hold the socket until end_ms, then close it
    QUOTA_STOPPED = 3           # the acceptor was stopped while it waited; not counted
    QUOTA_NO_MEMORY = 4         # not counted

cdef struct ConnectionVerdict:  # about a new connection that is delayed, or refused, because of a rate
    const char *address         # the address of the rate; NULL: the rate of the listener or of the server
    double observed
    double limit
    int64_t window_ms
    int64_t asked_ms            # by the formula, before the cap
    int64_t served_ms           # the longer of two delays is served
    int64_t time_ms
    bint is_refused
    bint is_shadow              # and is_refused: an enforced quota would have refused it

cdef struct VerdictObserver:    # has its own count
    void (*verdict)(VerdictObserver *self, const ConnectionVerdict *verdict) noexcept nogil     # under QuotaCore.lock
    void (*release)(VerdictObserver *self) noexcept nogil

cdef struct ListenerQuota:      # lives as long as its QuotaCore
    ListenerQuota *next
    char *name                  # owned
    int64_t own_max_connections  # -1: the broker's
    int64_t own_max_rate        # -1: the broker's
    int64_t count
    int64_t waiting             # acceptors
    AtomicI64 is_protected      # the inter-broker listener, if there are others: the broker's limits do not apply to it
    Gauge rate
    Gauge throttle_ms
    Gauge address_throttle_ms

cdef struct QuotaCore:
    AtomicI64 refs
    Clock *clock                # counted
    Waker waker
    Mutex lock
    Cond slot_free
    int32_t samples
    int64_t window_ms           # of one sample; also the maximum throttle
    int64_t total               # guarded by the lock, like the rest
    int64_t max_connections
    int64_t max_per_address
    int64_t max_rate
    int64_t max_address_rate    # for addresses without a specific rate
    int64_t max_address_shadow_rate
    int64_t next_sweep_ms
    Gauge rate
    AddressTable addresses
    ListenerQuota *listeners
    int64_t listener_count
    VerdictObserver *observer   # one count; NULL: verdicts are not reported
    char *inter_broker          # owned; NULL: no listener is protected
    AtomicI64 exceeded          # total > max_connections, readable without the lock
    AtomicI64 refused           # connections closed for their address's limit
    AtomicI64 throttled         # connections not served for their address's rate

cdef struct Admission:          # result of quotas_enter
    AddressEntry *entry         # of an admitted connection, or one too many, for quotas_leave
    int64_t end_ms              # throttled: the earliest time to close it, by clock_epoch_ms
    int64_t blocked_ns          # time for which the acceptor waited

cdef QuotaCore *quotas_retain(QuotaCore *core) noexcept nogil
cdef void quotas_release(QuotaCore *core) noexcept nogil
# Count a connection; wait for a slot and for the end of the listener's throttle, unless *stopping.
cdef QuotaVerdict quotas_enter(QuotaCore *core, ListenerQuota *listener, const char *address, AtomicI64 *stopping,
                               Admission *admission) noexcept nogil
cdef void quotas_leave(QuotaCore *core, ListenerQuota *listener, AddressEntry *entry) noexcept nogil  # NULLs: no effect
cdef void quotas_wake(QuotaCore *core) noexcept nogil       # waiting acceptors check whether they are stopped
# Return whether network threads of this listener are to close connections because the total exceeds the limit.
cdef bint quotas_exceeded(QuotaCore *core, ListenerQuota *listener) noexcept nogil

cdef bint quotas_init(QuotaCore *core, Clock *clock, int32_t samples, int64_t window_ms, uint64_t seed) noexcept nogil

# ---- the steps of quotas_enter, changes of limits, and functions for ConnectionQuotas; all of them under the lock
cdef int64_t record_connection(QuotaCore *core, ListenerQuota *listener, int64_t now_ms) noexcept nogil
cdef bint has_slot(QuotaCore *core, ListenerQuota *listener) noexcept nogil
cdef QuotaVerdict admit_locked(QuotaCore *core, ListenerQuota *listener, const char *address,
                               Admission *admission) noexcept nogil
cdef bint apply_rates(QuotaCore *core) noexcept nogil       # false: out of memory, some sensors keep the old limit
cdef void forget_own_limits(QuotaCore *core) noexcept nogil     # of connections, by address
cdef void note_total(QuotaCore *core, int64_t change) noexcept nogil
cdef void leave_locked(QuotaCore *core, ListenerQuota *listener, AddressEntry *entry) noexcept nogil
cdef void sweep_addresses(QuotaCore *core) noexcept nogil
cdef ListenerQuota *find_listener(QuotaCore *core, const char *name) noexcept nogil
cdef ListenerQuota *add_listener(QuotaCore *core, const char *name, size_t name_bytes) noexcept nogil
cdef int64_t listener_max_rate(QuotaCore *core, ListenerQuota *listener) noexcept nogil
cdef int64_t address_max_rate(QuotaCore *core, AddressEntry *entry) noexcept nogil
cdef int64_t address_max_shadow_rate(QuotaCore *core, AddressEntry *entry) noexcept nogil
