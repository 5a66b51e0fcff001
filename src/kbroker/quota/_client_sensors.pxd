"""The client quotas of a broker: a manager per type, a counter per pair of tags, and the channels they have throttled.

A type has a second manager for its shadow quotas, which judge and count like enforced ones and delay nothing: entities,
counters and generation are its own, so that the eight levels are resolved apart, and what one of them holds never
touches the other. Both run the same code.

Locks, in order: ``QuotaManager.lock`` (entities, table of counters) -> a sensor's lock; ``ClientQuotas.throttled_lock``
(list of throttled channels) -> the timer's lock. Nothing else is taken under them, and neither under the other. Where
no quota of a type is set, its ``enabled`` is all that is looked at: one atomic load.

Ownership: ``ClientQuotas`` is counted (the Python handle, each native_apis, each throttled channel). ``ClientSensors``
are counted too: by the table, the caches of handler threads, and requests whose network time is still to be charged.
A counter that has expired or was evicted is marked in its sensor and replaced when its client comes back.

Clients can invent the client ids that a default quota covers, so their counters are limited to
``QuotaManager.most_made_up``: a further one replaces the one least recently recorded to.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.containers.linked_list cimport Chain, ChainNode
from kbroker._core.clock cimport Clock
from kbroker._core.containers.hash_table cimport HashNode, HashTable
from kbroker._core.containers.heap cimport Heap, HeapEntry
from kbroker._core.metrics.metric_config cimport StatConfig
from kbroker._core.metrics.sensor_core cimport MetricCore, SensorCore
from kbroker._core.sync cimport AtomicI64, Mutex, atomic_load
from kbroker._core.timer.timing_wheel cimport Timer
from kbroker.common._quota_counter cimport (
    KIND_FETCH, KIND_MUTATION, KIND_PRODUCE, KIND_REQUEST, KINDS, Judgement,
)
from kbroker.common._text cimport Text
from kbroker.quota._entities cimport EntityTable, Match
from kbroker.quota._quota_events cimport VerdictRing

cdef enum:
    SHADOW_TYPE = 16            # in ClientQuotas.enabled_types, each type with a shadow; below it the enforced ones

cdef enum:
    THROTTLE_SERVED = 4         # in Request.throttle_ms, behind those of each type: the one sent to the client

cdef double PERCENT_PER_NS

cdef struct ClientSensors:      # a counter, named by its tags, and the throttle times it caused
    HashNode node               # first; QuotaManager.lock, and so are the following five
    HeapEntry recency           # second; in QuotaManager.made_up where a default client id's quota made it
    ChainNode unpublished            # third; in QuotaManager.unpublished
    bint is_unpublished
    ClientSensors *next         # of a list of those that were taken out
    Text user                   # behind the struct
    Text client_id
    SensorCore *quota           # owned count
    SensorCore *throttle_time   # owned count
    MetricCore *limited         # of quota: what has the limit
    AtomicI64 level             # of the eight: where the limit comes from, 0 none
    Clock *clock                # owned count
    char before_refs[64]        # handlers read what is above, network threads change what is below: no shared line
    AtomicI64 refs
    char behind_refs[64]

cdef struct QuotaManager:
    int32_t kind
    bint is_shadow
    int32_t place               # among all managers: kind, of a shadow KINDS + kind
    AtomicI64 enabled           # EnabledBits
    AtomicI64 generation        # changes with every change of a quota
    Clock *clock                # of its ClientQuotas
    Mutex lock
    EntityTable entities
    HashTable counters
    Chain unpublished                # counted each; the oldest first
    ClientSensors *evicted      # counted each; known to the metrics registry still
    Heap made_up                # by a time no later than that of the latest record, brought up where it is looked at
    int64_t most_made_up
    StatConfig limited          # samples and their length; the bound is each counter's own
    StatConfig unlimited        # the registry's default
    int64_t cap_ms              # longest throttle, or NO_CAP
    double window_s             # (samples - 1) x seconds: what of a rate fits into the window
    SensorCore *delay_queue     # owned count; of a shadow NULL

cdef struct ClientQuotas:
    AtomicI64 refs
    AtomicI64 enabled_types     # how many of Produce, Fetch and Request have a quota; SHADOW_TYPE for a shadow
    Clock *clock                # owned count
    QuotaManager managers[KINDS]
    QuotaManager shadows[KINDS]
    SensorCore *exempt          # owned count
    Timer *timer                # owned count
    Mutex throttled_lock
    void *throttled             # list of ThrottledChannel, throttled_lock
    AtomicI64 is_closed
    AtomicI64 notes_updates     # 1: what is recorded into counters is noted on the requests, for a request log
    VerdictRing verdicts
    VerdictRing shadow_verdicts     # apart: many of them must not displace the others

cdef inline int64_t epoch_ms_of(Clock *clock, int64_t ns) noexcept nogil:
    """The quota time of a reading of the clock: monotonic, offset to the epoch."""
    return (ns + clock.epoch_offset_ns) // 1000000

cdef inline QuotaManager *manager_at(ClientQuotas *quotas, int place) noexcept nogil:
    return &quotas.managers[place] if place < KINDS else &quotas.shadows[place - KINDS]

cdef inline bint is_enabled(QuotaManager *manager) noexcept nogil:
    return atomic_load(&manager.enabled) != 0

# Unlimited yet. ``unlimited``: the registry's default; ``client``, ``controller``: samples and their length; ``seed``:
# secret. NULL: memory is out.
cdef ClientQuotas *quotas_new(Clock *clock, const StatConfig *unlimited, const StatConfig *client,
                              const StatConfig *controller, int64_t most_made_up, uint64_t seed) noexcept nogil
cdef ClientQuotas *quotas_retain(ClientQuotas *quotas) noexcept nogil
cdef void quotas_release(ClientQuotas *quotas) noexcept nogil
cdef ClientSensors *sensors_retain(ClientSensors *sensors) noexcept nogil
cdef void sensors_release(ClientSensors *sensors) noexcept nogil
cdef void give_counts(ClientSensors *sensors, int64_t counts) noexcept nogil     # several at once
# The counter of a user and a client id, made if there is none; counted, NULL: memory is out.
cdef ClientSensors *client_sensors(QuotaManager *manager, Text user, Text client_id, int64_t now_ms) noexcept nogil
# The same counter if there is one, and what holds for the client either way: makes none, and changes none. Counted.
cdef ClientSensors *find_client_sensors(QuotaManager *manager, Text user, Text client_id, Match *match) noexcept nogil
# Record with check; a delay in milliseconds as an int32 of Java's, so a huge one may be negative. A mutation is checked
# first, and not recorded where its quota is violated.
cdef int32_t record_and_judge(QuotaManager *manager, ClientSensors *sensors, double value, int64_t now_ms,
                              Judgement *judgement) noexcept nogil
cdef int32_t record_and_get_throttle(QuotaManager *manager, ClientSensors *sensors, double value,
                                     int64_t now_ms) noexcept nogil
cdef double max_value_in_window(QuotaManager *manager, ClientSensors *sensors) noexcept nogil
# A quota of an entity (see _entities); `removes` takes it away. Counters that exist keep what they hold. False: memory
# is out.
cdef bint update_quota(ClientQuotas *quotas, QuotaManager *manager, int user_part, int client_part, Text user,
                       Text client_id, double limit, bint removes) noexcept nogil
# Takes the counters out that were idle for an hour, and marks them; a list by `next`, each with a count.
cdef ClientSensors *take_expired(QuotaManager *manager, int64_t now_ms) noexcept nogil
# One counter that the metrics registry does not know yet, with a count; NULL: it knows all.
cdef ClientSensors *take_unpublished(QuotaManager *manager) noexcept nogil
# it is made known otherwise
cdef void forget_unpublished(QuotaManager *manager, ClientSensors *sensors) noexcept nogil
# The counters that were evicted and that the registry may know; a list by `next`, each with a count.
cdef ClientSensors *take_evicted(QuotaManager *manager) noexcept nogil
