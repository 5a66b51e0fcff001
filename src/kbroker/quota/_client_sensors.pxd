"""The client quotas of a broker: a manager per type, a counter per pair of tags, and the channels they have throttled.

A type has a second manager for its shadow quotas, which judge and count like enforced ones and delay nothing. It has
its own entities, counters and generation, so the eight levels are resolved separately, and neither manager affects the
other. Both run the same code.

Locks, in order: ``QuotaManager.lock`` (entities, table of counters) -> a sensor's lock; ``ClientQuotas.throttled_lock``
(list of throttled channels) -> the timer's lock. No other lock is taken under them, and neither under the other.
Without a quota of a type only its ``enabled`` is read: one atomic load.

Ownership: ``ClientQuotas`` is counted (the Python handle, each native_apis, each throttled channel); counters that
outlive these users keep its memory. ``ClientSensors`` are counted too: by the table, the caches of handler threads, and
requests whose network time is still to be charged. A counter that has expired or was evicted is marked in its sensor
and replaced when its client returns.

Clients can invent client ids, so the counters of those that no quota names are limited to
``QuotaManager.most_made_up``: a new one then replaces the least recently recorded one.

Any thread that owns a request throttles its channel, which stays muted until its throttle time has passed (KIP-219);
one thread runs ``throttled_advance``.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t

from kbroker._core.clock cimport Clock
from kbroker._core.containers.hash_table cimport HashNode, HashTable
from kbroker._core.containers.heap cimport Heap, HeapEntry
from kbroker._core.containers.linked_list cimport Chain, ChainNode
from kbroker._core.metrics.metric_config cimport StatConfig
from kbroker._core.metrics.sensor_core cimport MetricCore, SensorCore
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64, Mutex, atomic_load
from kbroker._core.timer.timing_wheel cimport Timer
from kbroker.common._quota_counter cimport KINDS, KIND_FETCH, KIND_MUTATION, KIND_PRODUCE, KIND_REQUEST, Judgement
from kbroker.common._text cimport Text
from kbroker.quota._entities cimport EntityTable, Match
from kbroker.quota._quota_events cimport VerdictRing

cdef enum:
    # in ClientQuotas.enabled_types: added for each type with a shadow; smaller values count the enforced types
    SHADOW_TYPE = 16

cdef enum:
    THROTTLE_SERVED = 4  # index in Request.throttle_ms after those of the types: the throttle time sent to the client

cdef double PERCENT_PER_NS

cdef struct ClientSensors:      # a counter, named by its tags, and the throttle times it caused
    HashNode node               # first; guarded by QuotaManager.lock, like the following five
    HeapEntry recency           # second; in QuotaManager.made_up if no quota names its client id
    ChainNode unpublished            # third; in QuotaManager.unpublished
    bint is_unpublished
    ClientSensors *next         # next in a list of removed counters
    Text user                   # after the struct
    Text client_id
    SensorCore *quota           # counted
    SensorCore *throttle_time   # counted
    MetricCore *limited         # in quota: the metric with the limit
    AtomicI64 level             # level of the quota that applies, 1 to 8; 0: none
    QuotaManager *manager       # its memory is counted by ClientQuotas.holders
    char before_refs[64]  # handlers read the fields above, network threads change those below: no shared cache line
    AtomicI64 refs
    char behind_refs[64]

cdef struct QuotaManager:
    int32_t kind
    bint is_shadow
    int32_t place               # index among all managers: kind, or KINDS + kind for a shadow
    AtomicI64 enabled           # EnabledBits
    AtomicI64 generation        # changes with every change of a quota
    ClientQuotas *quotas        # its owner
    Mutex lock
    EntityTable entities
    HashTable counters
    Chain unpublished                # each counted; the oldest first
    ClientSensors *evicted      # each counted; still known to the metrics registry
    Heap made_up                # keys are at or before the time of the latest record; updated on look-up
    int64_t most_made_up
    StatConfig limited          # samples and their length; each counter has its own bound
    StatConfig unlimited        # the registry's default
    int64_t cap_ms              # maximum throttle time, or NO_CAP
    double window_s             # (samples - 1) x seconds: the time that a rate's maximum covers
    SensorCore *delay_queue     # counted; NULL for a shadow

cdef struct ClientQuotas:
    AtomicI64 refs              # of its users; at 0 it drops its counters
    AtomicI64 holders           # one count for all users, one for each counter; at 0 its memory is freed
    # number of types among Produce, Fetch and Request with a quota; plus SHADOW_TYPE for each shadow
    AtomicI64 enabled_types
    Clock *clock                # counted
    QuotaManager managers[KINDS]
    QuotaManager shadows[KINDS]
    SensorCore *exempt          # counted
    Timer *timer                # counted
    Mutex throttled_lock
    void *throttled             # list of ThrottledChannel, throttled_lock
    AtomicI64 is_closed
    AtomicI64 notes_updates     # 1: requests note the values recorded into counters, for a request log
    AtomicI64 notes_appends     # 1: and the offsets of the records that they append
    VerdictRing verdicts
    VerdictRing shadow_verdicts     # separate: many shadow verdicts must not displace the others

cdef inline int64_t epoch_ms_of(Clock *clock, int64_t ns) noexcept nogil:
    """Return the quota time of a clock reading: monotonic, offset to the epoch."""
    return (ns + clock.epoch_offset_ns) // 1000000

cdef inline QuotaManager *manager_at(ClientQuotas *quotas, int place) noexcept nogil:
    return &quotas.managers[place] if place < KINDS else &quotas.shadows[place - KINDS]

cdef inline bint is_enabled(QuotaManager *manager) noexcept nogil:
    return atomic_load(&manager.enabled) != 0

# Create quotas without limits. ``unlimited``: the registry's default; ``client``, ``controller``: samples and their
# length; ``seed``: secret. NULL: out of memory.
cdef ClientQuotas *quotas_new(Clock *clock, const StatConfig *unlimited, const StatConfig *client,
                              const StatConfig *controller, int64_t most_made_up, uint64_t seed) noexcept nogil
cdef ClientQuotas *quotas_retain(ClientQuotas *quotas) noexcept nogil
cdef bint quotas_retain_used(ClientQuotas *quotas) noexcept nogil    # False: it no longer has users
cdef void quotas_release(ClientQuotas *quotas) noexcept nogil
cdef ClientSensors *sensors_retain(ClientSensors *sensors) noexcept nogil
cdef void sensors_release(ClientSensors *sensors) noexcept nogil
cdef void give_counts(ClientSensors *sensors, int64_t counts) noexcept nogil     # releases several at once
# Return the counter of a user and a client id, created if absent; counted. NULL: out of memory.
cdef ClientSensors *client_sensors(QuotaManager *manager, Text user, Text client_id, int64_t now_ms) noexcept nogil
# Return the same counter if it exists, and the client's quota in either case, without a change. Counted.
cdef ClientSensors *find_client_sensors(QuotaManager *manager, Text user, Text client_id, Match *match) noexcept nogil
# Record with a check; return a delay in milliseconds as Java's int32, so a huge one may be negative. A mutation is
# checked first, and not recorded where its quota is violated.
cdef int32_t record_and_judge(QuotaManager *manager, ClientSensors *sensors, double value, int64_t now_ms,
                              Judgement *judgement) noexcept nogil
cdef int32_t record_and_get_throttle(QuotaManager *manager, ClientSensors *sensors, double value,
                                     int64_t now_ms) noexcept nogil
cdef double max_value_in_window(QuotaManager *manager, ClientSensors *sensors) noexcept nogil
# Set a quota of an entity (see _entities), or remove it (``removes``). Existing counters keep their values. False: out
# of memory.
cdef bint update_quota(ClientQuotas *quotas, QuotaManager *manager, int user_part, int client_part, Text user,
                       Text client_id, double limit, bint removes) noexcept nogil
# Remove and mark the counters that were idle for an hour; return a list by ``next`` of counted references.
cdef ClientSensors *take_expired(QuotaManager *manager, int64_t now_ms) noexcept nogil
# Return a counted reference to a counter that is not in the metrics registry yet; NULL: all are.
cdef ClientSensors *take_unpublished(QuotaManager *manager) noexcept nogil
# Drop a counter that was registered in another way.
cdef void forget_unpublished(QuotaManager *manager, ClientSensors *sensors) noexcept nogil
# Return the evicted counters that the registry may have: a list by ``next`` of counted references.
cdef ClientSensors *take_evicted(QuotaManager *manager) noexcept nogil

# ----------------------------------------------- throttled channels
# Mute the request's channel for throttle_ms from now. Call it once, before the response: StartThrottling has been
# handed to the network thread when this returns. Nothing happens when memory is exhausted or after throttled_close.
cdef void throttle_channel(ClientQuotas *quotas, QuotaManager *manager, ClientSensors *sensors, Request *request,
                           int64_t throttle_ms, int64_t now_ms) noexcept nogil
# End the throttles that are due; wait for one up to timeout_ms. False: none was due.
cdef bint throttled_advance(ClientQuotas *quotas, int64_t timeout_ms) noexcept nogil
# End all throttles and prevent others. The thread of throttled_advance must have ended.
cdef void throttled_close(ClientQuotas *quotas) noexcept nogil
