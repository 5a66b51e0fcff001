"""Limits of connections: the rules behind ConnectionQuotas; see the contract in the .pxd.

Source: ``SocketServer.ConnectionQuotas``.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strcmp, strlen, strncpy

from kbroker._core.clock cimport (
    Clock, clock_add_waker, clock_epoch_ms, clock_now_ns, clock_release, clock_remove_waker, clock_retain,
    clock_wait_until,
)
from kbroker._core.containers.hash_table cimport (
    HashNode, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport hash_seeded
from kbroker._core.metrics.metric_config cimport QUOTA_NONE, QUOTA_UPPER, UNIT_SECONDS, StatConfig
from kbroker._core.metrics.sensor_core cimport (
    RECORD_ACCEPTED, Violation, metric_get_config, metric_measure, metric_set_config, sensor_add_metric,
    sensor_add_stat, sensor_has_expired, sensor_new, sensor_record, sensor_release,
)
from kbroker._core.metrics.stats cimport FORM_RATE, FORM_SAMPLED, PART_WHOLE, SAMPLE_AVG, SAMPLE_SUM, Stat, StatShape
from kbroker._core.sync cimport (
    AtomicI64, atomic_add_fetch, atomic_load, atomic_store, cond_broadcast, cond_destroy, cond_init, mutex_destroy,
    mutex_init, mutex_lock, mutex_unlock,
)


# ---- gauges

cdef void gauge_config(StatConfig *config, int32_t samples, int64_t window_ms, double limit) noexcept nogil:
    """Fill the config for samples of window_ms; a limit makes it an upper quota, a negative limit none."""
    config.samples = samples
    config.window_ms = window_ms
    config.event_window = INT64_MAX
    config.quota_kind = QUOTA_NONE if limit < 0 else QUOTA_UPPER
    config.bound = limit


cdef bint make(Gauge *gauge, int32_t form, int32_t sample_kind, const StatConfig *config, int64_t expiration_ms,
               int64_t now_ms) noexcept nogil:
    cdef StatShape shape
    cdef Stat *stat = NULL
    memset(&shape, 0, sizeof(shape))
    shape.form = form
    shape.sample_kind = sample_kind
    shape.unit = UNIT_SECONDS
    gauge.metric = NULL
    gauge.sensor = sensor_new(NULL, 0, expiration_ms, True, now_ms)
    if gauge.sensor is not NULL:
        stat = sensor_add_stat(gauge.sensor, &shape, config)
    if stat is not NULL:
        gauge.metric = sensor_add_metric(gauge.sensor, stat, PART_WHOLE, 0.0, config, False)
    if gauge.metric is NULL:
        gauge_clear(gauge)
        return False
    return True


cdef bint gauge_make_rate(Gauge *gauge, const StatConfig *config, int64_t expiration_ms,
                          int64_t now_ms) noexcept nogil:
    """Create a gauge of a rate; false: out of memory."""
    return make(gauge, FORM_RATE, SAMPLE_SUM, config, expiration_ms, now_ms)


cdef bint gauge_make_avg(Gauge *gauge, const StatConfig *config, int64_t now_ms) noexcept nogil:
    """Create a gauge of an average; false: out of memory."""
    return make(gauge, FORM_SAMPLED, SAMPLE_AVG, config, INT64_MAX, now_ms)


cdef void gauge_clear(Gauge *gauge) noexcept nogil:
    sensor_release(gauge.sensor)
    gauge.sensor = NULL
    gauge.metric = NULL


cdef int64_t gauge_count_one(Gauge *gauge, int64_t now_ms, int64_t cap_ms, Violation *violation) noexcept nogil:
    """Record 1 and fill in a violation; return its delay, at most cap_ms (below 0: no cap), else 0."""
    violation.throttle_ms = 0
    if sensor_record(gauge.sensor, 1.0, now_ms, True, violation) == RECORD_ACCEPTED or violation.throttle_ms < 0:
        return 0
    return cap_ms if 0 <= cap_ms < violation.throttle_ms else violation.throttle_ms


cdef void gauge_record(Gauge *gauge, double value, int64_t now_ms) noexcept nogil:
    """Record a value unchecked."""
    sensor_record(gauge.sensor, value, now_ms, False, NULL)


cdef double gauge_measure(Gauge *gauge, int64_t now_ms) noexcept nogil:
    return metric_measure(gauge.metric, now_ms)


cdef bint gauge_set_limit(Gauge *gauge, double limit) noexcept nogil:
    cdef StatConfig config
    metric_get_config(gauge.metric, &config)
    config.bound = limit
    return metric_set_config(gauge.metric, &config)


# ---- addresses

cdef void free_entry(AddressEntry *entry) noexcept nogil:
    gauge_clear(&entry.rate)
    gauge_clear(&entry.shadow_rate)
    free(entry)


cdef void addresses_destroy(AddressTable *table) noexcept nogil:
    cdef HashNode *node = hash_after(&table.entries, NULL)
    cdef HashNode *following
    while node is not NULL:
        following = hash_after(&table.entries, node)
        free_entry(<AddressEntry *>node)
        node = following
    hash_clear(&table.entries)


cdef inline uint64_t hash_of(const AddressTable *table, const char *address) noexcept nogil:
    return hash_seeded(address, <int64_t>strlen(address), table.seed)


cdef AddressEntry *addresses_find(AddressTable *table, const char *address) noexcept nogil:
    cdef HashNode *node = hash_first(&table.entries, hash_of(table, address))
    while node is not NULL and strcmp((<AddressEntry *>node).address, address) != 0:
        node = hash_next(node)
    return <AddressEntry *>node


cdef AddressEntry *addresses_take(AddressTable *table, const char *address) noexcept nogil:
    cdef AddressEntry *entry = addresses_find(table, address)
    if entry is not NULL:
        return entry
    if not hash_reserve(&table.entries):
        return NULL
    entry = <AddressEntry *>calloc(1, sizeof(AddressEntry))
    if entry is NULL:
        return NULL
    strncpy(entry.address, address, ADDRESS_BYTES - 1)
    entry.max_count = -1
    entry.max_rate = -1
    entry.max_shadow_rate = -1
    hash_add(&table.entries, &entry.node, hash_of(table, entry.address))
    return entry


cdef void addresses_drop_if_empty(AddressTable *table, AddressEntry *entry) noexcept nogil:
    if entry.count != 0 or entry.max_count >= 0 or entry.max_rate >= 0 or entry.max_shadow_rate >= 0:
        return
    if entry.rate.sensor is not NULL or entry.shadow_rate.sensor is not NULL:
        return
    hash_remove(&table.entries, &entry.node)
    free_entry(entry)


cdef enum:
    ADDRESS_EXPIRY_MS = 3600000
    SWEEP_MS = 30000
    THROTTLE_SAMPLES = 2            # the defaults of metrics.num.samples and metrics.sample.window.ms
    THROTTLE_WINDOW_MS = 30000


# ---- creation and end

cdef bint quotas_init(QuotaCore *core, Clock *clock, int32_t samples, int64_t window_ms, uint64_t seed) noexcept nogil:
    """Initialize zeroed memory as a QuotaCore with one count and no limits; false: out of memory, but release it."""
    cdef StatConfig config
    atomic_store(&core.refs, 1)
    mutex_init(&core.lock)
    cond_init(&core.slot_free)
    core.clock = clock_retain(clock)
    core.samples = samples
    core.window_ms = window_ms
    core.max_connections = NO_LIMIT
    core.max_per_address = NO_LIMIT
    core.max_rate = NO_LIMIT
    core.max_address_rate = NO_LIMIT
    core.max_address_shadow_rate = NO_LIMIT
    core.waker.wake = wake_for_clock
    core.waker.arg = core
    clock_add_waker(clock, &core.waker)
    gauge_config(&config, samples, window_ms, <double>core.max_rate)
    core.addresses.seed = seed
    return gauge_make_rate(&core.rate, &config, INT64_MAX, clock_epoch_ms(clock))


cdef QuotaCore *quotas_retain(QuotaCore *core) noexcept nogil:
    if core is not NULL:
        atomic_add_fetch(&core.refs, 1)
    return core


cdef void quotas_release(QuotaCore *core) noexcept nogil:
    cdef ListenerQuota *listener
    if core is NULL or atomic_add_fetch(&core.refs, -1) != 0:
        return
    clock_remove_waker(core.clock, &core.waker)
    while core.listeners is not NULL:
        listener = core.listeners
        core.listeners = listener.next
        free_listener(listener)
    addresses_destroy(&core.addresses)
    gauge_clear(&core.rate)
    if core.observer is not NULL:
        core.observer.release(core.observer)
    free(core.inter_broker)
    cond_destroy(&core.slot_free)
    mutex_destroy(&core.lock)
    clock_release(core.clock)
    free(core)


cdef void free_listener(ListenerQuota *listener) noexcept nogil:
    gauge_clear(&listener.rate)
    gauge_clear(&listener.throttle_ms)
    gauge_clear(&listener.address_throttle_ms)
    free(listener.name)
    free(listener)


cdef void quotas_wake(QuotaCore *core) noexcept nogil:
    if core is NULL:
        return
    mutex_lock(&core.lock)
    cond_broadcast(&core.slot_free)
    mutex_unlock(&core.lock)


cdef void wake_for_clock(void *arg) noexcept nogil:
    quotas_wake(<QuotaCore *>arg)


# ---- under the lock

cdef inline int64_t listener_max_connections(QuotaCore *core, ListenerQuota *listener) noexcept nogil:
    return core.max_connections if listener.own_max_connections < 0 else listener.own_max_connections


cdef int64_t listener_max_rate(QuotaCore *core, ListenerQuota *listener) noexcept nogil:
    return core.max_rate if listener.own_max_rate < 0 else listener.own_max_rate


cdef bint has_slot(QuotaCore *core, ListenerQuota *listener) noexcept nogil:
    if listener.count >= listener_max_connections(core, listener):
        return False
    return atomic_load(&listener.is_protected) != 0 or core.total < core.max_connections


cdef void note_total(QuotaCore *core, int64_t change) noexcept nogil:
    core.total += change
    atomic_store(&core.exceeded, core.total > core.max_connections)


cdef void report(QuotaCore *core, const char *address, const Violation *violation, int64_t served_ms, int64_t now_ms,
                 bint is_refused, bint is_shadow=False) noexcept nogil:
    cdef ConnectionVerdict verdict
    if core.observer is NULL or violation.throttle_ms <= 0:
        return
    verdict.address = address
    verdict.observed = violation.observed
    verdict.limit = violation.bound
    verdict.window_ms = violation.window_ms
    verdict.asked_ms = violation.throttle_ms
    verdict.served_ms = served_ms
    verdict.time_ms = now_ms
    verdict.is_refused = is_refused
    verdict.is_shadow = is_shadow
    core.observer.verdict(core.observer, &verdict)


cdef int64_t record_connection(QuotaCore *core, ListenerQuota *listener, int64_t now_ms) noexcept nogil:
    """Step 1: record the connection in the broker's rate and the listener's; return the larger delay.

    The connection stays recorded.
    """
    cdef int64_t throttle_ms = 0
    cdef int64_t own_ms
    cdef Violation of_all, of_listener
    of_all.throttle_ms = 0
    if not atomic_load(&listener.is_protected):
        throttle_ms = gauge_count_one(&core.rate, now_ms, core.window_ms, &of_all)
    own_ms = gauge_count_one(&listener.rate, now_ms, core.window_ms, &of_listener)
    report(core, NULL, &of_all, throttle_ms if throttle_ms >= own_ms else 0, now_ms, False)
    report(core, NULL, &of_listener, own_ms if own_ms > throttle_ms else 0, now_ms, False)
    if own_ms > throttle_ms:
        throttle_ms = own_ms
    if throttle_ms > 0:
        gauge_record(&listener.throttle_ms, <double>throttle_ms, now_ms)
    return throttle_ms


cdef bint wait_for_slot(QuotaCore *core, ListenerQuota *listener, int64_t end_ms,
                        AtomicI64 *stopping) noexcept nogil:
    """Step 2: wait until the throttle ends and a slot is free; false when stopped. Other acceptors are not blocked."""
    cdef int64_t now_ms = clock_epoch_ms(core.clock)
    cdef int64_t deadline_ns
    listener.waiting += 1
    while now_ms < end_ms or not has_slot(core, listener):
        if stopping is not NULL and atomic_load(stopping):
            listener.waiting -= 1
            return False
        deadline_ns = INT64_MAX
        if now_ms < end_ms:
            deadline_ns = clock_now_ns(core.clock) + (end_ms - now_ms) * 1000000
        clock_wait_until(core.clock, &core.slot_free, &core.lock, deadline_ns)
        now_ms = clock_epoch_ms(core.clock)
    listener.waiting -= 1
    return True


cdef int64_t address_max_rate(QuotaCore *core, AddressEntry *entry) noexcept nogil:
    return core.max_address_rate if entry is NULL or entry.max_rate < 0 else entry.max_rate


cdef int64_t address_max_shadow_rate(QuotaCore *core, AddressEntry *entry) noexcept nogil:
    return core.max_address_shadow_rate if entry is NULL or entry.max_shadow_rate < 0 else entry.max_shadow_rate


cdef bint make_address_rate(QuotaCore *core, Gauge *gauge, int64_t limit, int64_t now_ms) noexcept nogil:
    """Make a rate of an address unless it exists; false: out of memory."""
    cdef StatConfig config
    if gauge.sensor is not NULL:
        return True
    gauge_config(&config, core.samples, core.window_ms, <double>limit)
    return gauge_make_rate(gauge, &config, ADDRESS_EXPIRY_MS, now_ms)


cdef void judge_shadow(QuotaCore *core, const char *address, int64_t limit) noexcept nogil:
    """Step 3 for the shadow: judge every connection that reaches this step, whatever the enforced quotas decide.

    A connection that the shadow would have refused is subtracted from the shadow's rate again, and from no other.
    """
    cdef AddressEntry *entry = addresses_take(&core.addresses, address)
    cdef int64_t now_ms = clock_epoch_ms(core.clock)
    cdef int64_t throttle_ms
    cdef Violation violation
    if entry is NULL:
        return
    if not make_address_rate(core, &entry.shadow_rate, limit, now_ms):
        addresses_drop_if_empty(&core.addresses, entry)
        return
    throttle_ms = gauge_count_one(&entry.shadow_rate, now_ms, core.window_ms, &violation)
    if throttle_ms > 0:
        report(core, address, &violation, throttle_ms, now_ms, True, True)
        gauge_record(&entry.shadow_rate, -1.0, now_ms)


cdef QuotaVerdict record_address(QuotaCore *core, ListenerQuota *listener, const char *address,
                                 Admission *admission) noexcept nogil:
    """Step 3: apply the rate of the address, if limited. A refused connection is subtracted from every rate."""
    cdef AddressEntry *entry = addresses_find(&core.addresses, address)
    cdef Violation violation
    cdef int64_t now_ms, throttle_ms
    cdef int64_t limit = address_max_rate(core, entry)
    cdef int64_t shadow_limit = address_max_shadow_rate(core, entry)
    if shadow_limit != NO_LIMIT:
        judge_shadow(core, address, shadow_limit)
    if limit == NO_LIMIT:
        return QUOTA_ADMITTED
    now_ms = clock_epoch_ms(core.clock)
    entry = addresses_take(&core.addresses, address)
    if entry is NULL:
        return QUOTA_NO_MEMORY
    if not make_address_rate(core, &entry.rate, limit, now_ms):
        addresses_drop_if_empty(&core.addresses, entry)
        return QUOTA_NO_MEMORY
    throttle_ms = gauge_count_one(&entry.rate, now_ms, core.window_ms, &violation)
    if throttle_ms <= 0:
        return QUOTA_ADMITTED
    report(core, address, &violation, throttle_ms, now_ms, True)
    gauge_record(&entry.rate, -1.0, now_ms)
    if not atomic_load(&listener.is_protected):
        gauge_record(&core.rate, -1.0, now_ms)
    gauge_record(&listener.address_throttle_ms, <double>throttle_ms, now_ms)
    gauge_record(&listener.rate, -1.0, now_ms)
    atomic_add_fetch(&core.throttled, 1)
    admission.end_ms = now_ms + throttle_ms
    return QUOTA_THROTTLED


cdef QuotaVerdict count_connection(QuotaCore *core, ListenerQuota *listener, const char *address,
                                   Admission *admission) noexcept nogil:
    """Step 4: count the connection, even one too many; the caller that closes it uncounts it."""
    cdef AddressEntry *entry = addresses_take(&core.addresses, address)
    cdef int64_t limit
    if entry is NULL:
        return QUOTA_NO_MEMORY
    limit = core.max_per_address if entry.max_count < 0 else entry.max_count
    entry.count += 1
    listener.count += 1
    note_total(core, 1)
    admission.entry = entry
    if entry.count > limit:
        atomic_add_fetch(&core.refused, 1)
        return QUOTA_TOO_MANY
    return QUOTA_ADMITTED


cdef QuotaVerdict admit_locked(QuotaCore *core, ListenerQuota *listener, const char *address,
                               Admission *admission) noexcept nogil:
    cdef QuotaVerdict verdict = record_address(core, listener, address, admission)
    if verdict == QUOTA_ADMITTED:
        verdict = count_connection(core, listener, address, admission)
    return verdict


cdef inline bint forget_if_idle(Gauge *gauge, int64_t now_ms) noexcept nogil:
    if gauge.sensor is NULL or not sensor_has_expired(gauge.sensor, now_ms):
        return False
    gauge_clear(gauge)
    return True


cdef void sweep_addresses(QuotaCore *core) noexcept nogil:
    """Drop the rates of addresses without a new connection for an hour; at most every 30 s."""
    cdef int64_t now_ms = clock_epoch_ms(core.clock)
    cdef AddressEntry *entry = addresses_after(&core.addresses, NULL)
    cdef AddressEntry *following
    if now_ms < core.next_sweep_ms:
        return
    core.next_sweep_ms = now_ms + SWEEP_MS
    while entry is not NULL:
        following = addresses_after(&core.addresses, entry)
        if forget_if_idle(&entry.rate, now_ms) | forget_if_idle(&entry.shadow_rate, now_ms):
            addresses_drop_if_empty(&core.addresses, entry)
        entry = following


# ---- for acceptors and network threads

cdef QuotaVerdict quotas_enter(QuotaCore *core, ListenerQuota *listener, const char *address, AtomicI64 *stopping,
                               Admission *admission) noexcept nogil:
    cdef QuotaVerdict verdict
    cdef int64_t now_ms, throttle_ms, started_ns
    admission.entry = NULL
    admission.end_ms = 0
    admission.blocked_ns = 0
    mutex_lock(&core.lock)
    sweep_addresses(core)
    now_ms = clock_epoch_ms(core.clock)
    throttle_ms = record_connection(core, listener, now_ms)
    if throttle_ms > 0 or not has_slot(core, listener):
        started_ns = clock_now_ns(core.clock)
        if not wait_for_slot(core, listener, now_ms + throttle_ms, stopping):
            mutex_unlock(&core.lock)
            return QUOTA_STOPPED
        admission.blocked_ns = clock_now_ns(core.clock) - started_ns
    verdict = admit_locked(core, listener, address, admission)
    mutex_unlock(&core.lock)
    return verdict


cdef void leave_locked(QuotaCore *core, ListenerQuota *listener, AddressEntry *entry) noexcept nogil:
    entry.count -= 1
    addresses_drop_if_empty(&core.addresses, entry)
    listener.count -= 1
    note_total(core, -1)
    cond_broadcast(&core.slot_free)


cdef void quotas_leave(QuotaCore *core, ListenerQuota *listener, AddressEntry *entry) noexcept nogil:
    if core is NULL or entry is NULL:
        return
    mutex_lock(&core.lock)
    leave_locked(core, listener, entry)
    mutex_unlock(&core.lock)


cdef bint quotas_exceeded(QuotaCore *core, ListenerQuota *listener) noexcept nogil:
    return core is not NULL and atomic_load(&core.exceeded) != 0 and not atomic_load(&listener.is_protected)


# ---- limits that change

cdef bint apply_rates(QuotaCore *core) noexcept nogil:
    """Set the current limit of every sensor; false when memory ran out (some keep the old limit)."""
    cdef ListenerQuota *listener = core.listeners
    cdef AddressEntry *entry = addresses_after(&core.addresses, NULL)
    cdef bint done = gauge_set_limit(&core.rate, <double>core.max_rate)
    while listener is not NULL:
        done = gauge_set_limit(&listener.rate, <double>listener_max_rate(core, listener)) and done
        listener = listener.next
    while entry is not NULL:
        if entry.rate.sensor is not NULL:
            done = gauge_set_limit(&entry.rate, <double>address_max_rate(core, entry)) and done
        if entry.shadow_rate.sensor is not NULL:
            done = gauge_set_limit(&entry.shadow_rate, <double>address_max_shadow_rate(core, entry)) and done
        entry = addresses_after(&core.addresses, entry)
    return done


cdef void forget_own_limits(QuotaCore *core) noexcept nogil:
    cdef AddressEntry *entry = addresses_after(&core.addresses, NULL)
    cdef AddressEntry *following
    while entry is not NULL:
        following = addresses_after(&core.addresses, entry)
        entry.max_count = -1
        addresses_drop_if_empty(&core.addresses, entry)
        entry = following


cdef void protect_listener(QuotaCore *core) noexcept nogil:
    cdef ListenerQuota *listener = core.listeners
    cdef bint is_inter_broker
    while listener is not NULL:
        is_inter_broker = core.inter_broker is not NULL and strcmp(listener.name, core.inter_broker) == 0
        atomic_store(&listener.is_protected, is_inter_broker and core.listener_count > 1)
        listener = listener.next


cdef ListenerQuota *find_listener(QuotaCore *core, const char *name) noexcept nogil:
    cdef ListenerQuota *listener = core.listeners
    while listener is not NULL and strcmp(listener.name, name) != 0:
        listener = listener.next
    return listener


cdef ListenerQuota *add_listener(QuotaCore *core, const char *name, size_t name_bytes) noexcept nogil:
    """Add a listener; NULL: out of memory."""
    cdef StatConfig config
    cdef int64_t now_ms = clock_epoch_ms(core.clock)
    cdef ListenerQuota *listener = <ListenerQuota *>calloc(1, sizeof(ListenerQuota))
    if listener is NULL:
        return NULL
    listener.own_max_connections = -1
    listener.own_max_rate = -1
    listener.name = <char *>calloc(1, name_bytes + 1)
    gauge_config(&config, core.samples, core.window_ms, <double>core.max_rate)
    if listener.name is NULL or not gauge_make_rate(&listener.rate, &config, INT64_MAX, now_ms):
        free_listener(listener)
        return NULL
    gauge_config(&config, THROTTLE_SAMPLES, THROTTLE_WINDOW_MS, -1)
    if (not gauge_make_avg(&listener.throttle_ms, &config, now_ms)
            or not gauge_make_avg(&listener.address_throttle_ms, &config, now_ms)):
        free_listener(listener)
        return NULL
    memcpy(listener.name, name, name_bytes)
    listener.next = core.listeners
    core.listeners = listener
    core.listener_count += 1
    protect_listener(core)
    return listener
