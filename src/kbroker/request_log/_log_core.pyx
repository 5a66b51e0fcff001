"""One C record per finished request, created on the network thread that ends it. See _log_core.pxd for the contract."""
cimport cython
import os

from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strlen

from kbroker._core.network.loop_types cimport Channel
from kbroker._core.clock cimport (
    borrow_clock, clock_add_waker, clock_now_ns, clock_release, clock_remove_waker, clock_retain, clock_wait_until,
)
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_load, atomic_load_relaxed, atomic_store, cond_broadcast, cond_destroy, cond_init,
    mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.network._kafka_request cimport RECORD_EMPTY_FETCH, RECORD_SKIP, KafkaRequest, kafka_request, or_before
from kbroker.network.connections._client_information cimport ClientSoftware, software_texts
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.quota._client_quotas cimport ClientQuotaManagers, observe_verdicts
from kbroker.quota._client_sensors cimport THROTTLE_SERVED
from kbroker.quota._quota_events cimport QuotaEvents, VerdictEvent
from kbroker.request_log._record_ring cimport (
    FACTS_ADDRESS, FACTS_CONNECTION, FACTS_LISTENER, FACTS_PRINCIPAL, FACTS_PROTOCOL, FACTS_SOFTWARE_NAME,
    FACTS_SOFTWARE_VERSION, FACTS_TEXTS, RECORD_REFUSAL, RECORD_REQUEST, RECORD_VERDICT, Facts, Record, RecordRing,
    facts_new, facts_release, facts_retain, padded, ring_commit, ring_destroy, ring_first, ring_init, ring_reserve,
    ring_used,
)

from kbroker.network.connections._refused_requests import REASONS as _REASONS

cdef enum:
    API_VERSIONS = 18
    COUNTS_AT_ONCE = 4096       # counts taken at once on a connection's facts
    LATE_BYTES = 1 << 18
    LARGEST_RECORD = 1 << 20


# ------------------------------------------------------------ lifetime

cdef LogCore *log_retain(LogCore *log) noexcept nogil:
    atomic_add_fetch(&log.refs, 1)
    return log


cdef void log_release(LogCore *log) noexcept nogil:
    cdef ThreadRecorder *thread
    if log == NULL or atomic_add_fetch(&log.refs, -1) != 0:
        return
    clock_remove_waker(log.clock, &log.waker)
    while log.threads != NULL:
        thread = log.threads
        log.threads = thread.next
        give_back(&thread.ring)
        ring_destroy(&thread.ring)
        free(thread)
    give_back(&log.late)
    ring_destroy(&log.late)
    cond_destroy(&log.wake)
    mutex_destroy(&log.wake_lock)
    mutex_destroy(&log.late_lock)
    clock_release(log.clock)
    free(log)


cdef void give_back(RecordRing *ring) noexcept nogil:
    """Release the counts of records that are still in the ring."""
    cdef int64_t at = atomic_load(&ring.tail)
    cdef Record *record
    if ring.data == NULL:
        return
    record = ring_first(ring, &at)
    while record != NULL:
        facts_release(record.facts, 1)
        at += record.size_bytes
        record = ring_first(ring, &at)


cdef void wake_for_clock(void *arg) noexcept nogil:
    cdef LogCore *log = <LogCore *>arg
    mutex_lock(&log.wake_lock)
    cond_broadcast(&log.wake)
    mutex_unlock(&log.wake_lock)


cdef void wake_writer(LogCore *log) noexcept nogil:
    mutex_lock(&log.wake_lock)
    log.is_woken = True
    cond_broadcast(&log.wake)
    mutex_unlock(&log.wake_lock)


# ---------------------------------------------------------------- the facts of a connection

cdef void release_observed(void *given) noexcept nogil:
    cdef MetricSources *observed = <MetricSources *>given
    facts_release(observed.facts, observed.spare + 1)
    free(observed)


cdef Facts *make_facts(ThreadRecorder *self, Channel *channel, Request *request) noexcept nogil:
    """Create the facts of the request's session, and of its client's software if it is known."""
    cdef const char *texts[FACTS_TEXTS]
    cdef int32_t sizes[FACTS_TEXTS]
    cdef char connection[256]
    cdef const ClientSoftware *software = <const ClientSoftware *>channel.software
    cdef int32_t i
    snprintf(connection, sizeof(connection), b"%s:%d-%s:%d-%d-%d", channel.metadata.local_host,
             <int>channel.metadata.local_port, channel.metadata.remote_host, <int>channel.metadata.remote_port,
             <int>request.responder.processor_id, <int>channel.metadata.index)
    for i in range(FACTS_TEXTS):
        texts[i] = b"unknown"           # Kafka's name for unknown software
    texts[FACTS_CONNECTION] = connection
    texts[FACTS_ADDRESS] = channel.metadata.remote_host
    texts[FACTS_PROTOCOL] = self.protocol
    if request.session != NULL:
        texts[FACTS_PRINCIPAL] = request.session.principal
    if channel.metadata.listener_name != NULL:
        texts[FACTS_LISTENER] = channel.metadata.listener_name
    for i in range(FACTS_TEXTS):
        sizes[i] = <int32_t>strlen(texts[i])
    if software != NULL:
        texts[FACTS_SOFTWARE_NAME] = software_texts(software)
        sizes[FACTS_SOFTWARE_NAME] = software.name_bytes
        texts[FACTS_SOFTWARE_VERSION] = software_texts(software) + software.name_bytes
        sizes[FACTS_SOFTWARE_VERSION] = software.version_bytes
    return facts_new(request.session, texts, sizes)


cdef Facts *facts_of(ThreadRecorder *self, Request *request) noexcept nogil:
    """Return a counted reference to the facts of the request's connection, for its record; NULL: out of memory."""
    cdef Channel *channel = <Channel *>request.channel
    cdef MetricSources *observed = <MetricSources *>channel.observed
    cdef Facts *facts
    cdef int64_t software = observed.software if observed != NULL else 0
    if observed == NULL:
        observed = <MetricSources *>calloc(1, sizeof(MetricSources))
        if observed == NULL:
            return NULL
        channel.observed = observed
        channel.release_observed = release_observed
    # A closed channel has no software information, so its remaining requests keep the existing facts.
    if channel.software != NULL:
        software = (<ClientSoftware *>channel.software).number
    if observed.facts == NULL or observed.facts.session != request.session or software != observed.software:
        facts = make_facts(self, channel, request)
        if facts == NULL:
            return NULL
        facts_release(observed.facts, observed.spare + 1)
        observed.facts = facts
        observed.software = software
        observed.spare = 0
    if observed.spare == 0:
        facts_retain(observed.facts, COUNTS_AT_ONCE)
        observed.spare = COUNTS_AT_ONCE
    observed.spare -= 1
    return observed.facts


# ---------------------------------------------------------------- a record

cdef inline bint is_sampled(ThreadRecorder *self) noexcept nogil:
    cdef uint64_t x = self.random
    x ^= x << 13
    x ^= x >> 7
    x ^= x << 17
    self.random = x
    return <double>(x >> 11) * (1.0 / 9007199254740992.0) < self.log.sampling


cdef inline int64_t us(int64_t ns) noexcept nogil:
    return ns // 1000 if ns > 0 else 0


cdef void fill(Record *record, Request *request, const LogCore *log) noexcept nogil:
    """Fill all fields except kind, size, facts and the data after the struct."""
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int64_t dequeued = request.dequeue_ns
    cdef int64_t local = or_before(kafka.local_done_ns, dequeued)
    cdef int64_t ready = or_before(request.response_ready_ns, local)
    cdef int64_t picked = or_before(request.response_dequeue_ns, ready)
    cdef int64_t asynchronous = kafka.callback_done_ns - kafka.callback_dequeue_ns
    cdef int32_t i
    record.api_key = kafka.api_key
    record.api_version = kafka.api_version
    record.correlation_id = kafka.correlation_id
    record.error_code = 0
    record.error_count = 0
    for i in range(kafka.error_kinds):
        if kafka.errors[i].code != 0 and kafka.errors[i].count > 0:
            record.error_code = <int16_t>kafka.errors[i].code
            record.error_count = kafka.errors[i].count
            break
    record.throttle_ms = <int32_t>kafka.throttle_ms[THROTTLE_SERVED]
    record.repeated = 1
    record.time_us = (request.response_sent_ns + log.clock.epoch_offset_ns) // 1000
    record.request_bytes = request.size_bytes
    record.response_bytes = request.response_bytes
    record.queue_us = us(dequeued - request.start_ns)
    record.local_us = us(local - dequeued + asynchronous)
    record.remote_us = us(ready - local - asynchronous)
    record.response_queue_us = us(picked - ready)
    record.send_us = us(request.response_sent_ns - picked)
    record.total_us = us(request.response_sent_ns - request.start_ns)
    record.network_us = us(request.network_ns)


cdef void write_record(ThreadRecorder *self, RecordRing *ring, Request *request, double sampling) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef QuotaEvents *quota_events = <QuotaEvents *>kafka.quota_events
    cdef int32_t client_bytes = kafka.client_id_bytes if kafka.client_id != NULL else 0
    cdef int32_t transactional_bytes = kafka.transactional_id_bytes if kafka.transactional_id != NULL else 0
    cdef int32_t notes_bytes = quota_events.size_bytes if quota_events != NULL else 0
    cdef int64_t size = <int64_t>sizeof(Record) + padded(client_bytes + transactional_bytes) + notes_bytes
    cdef Record *record
    if size > LARGEST_RECORD:           # a client id has at most 32 KiB, so the events are too large: drop them
        size -= notes_bytes
        notes_bytes = 0
    record = <Record *>ring_reserve(ring, size)
    if record == NULL:
        return
    record.size_bytes = <int32_t>size
    record.kind = RECORD_REQUEST
    record.refusal = 0
    record.client_id_bytes = client_bytes
    record.transactional_id_bytes = transactional_bytes
    record.notes_bytes = notes_bytes
    record.sampling = sampling
    record.facts = facts_of(self, request)
    fill(record, request, self.log)
    record.may_fold = (
        (kafka.record_flags & RECORD_EMPTY_FETCH) != 0 and notes_bytes == 0 and record.error_code == 0
        and record.throttle_ms == 0)
    if client_bytes > 0:
        memcpy(<char *>record + sizeof(Record), kafka.client_id, <size_t>client_bytes)
    if transactional_bytes > 0:
        memcpy(<char *>record + sizeof(Record) + client_bytes, kafka.transactional_id, <size_t>transactional_bytes)
    if notes_bytes > 0:
        memcpy(<char *>record + size - notes_bytes, quota_events.data, <size_t>notes_bytes)
    ring_commit(ring, size)


cdef void record_request(Recorder *recorder, Request *request, bint is_late) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef ThreadRecorder *self = <ThreadRecorder *>recorder
    cdef LogCore *log = self.log
    cdef QuotaEvents *quota_events = <QuotaEvents *>kafka.quota_events
    cdef double sampling = log.sampling
    if request.dequeue_ns == 0 or kafka.record_flags & RECORD_SKIP or not 0 <= kafka.api_key < KNOWN_APIS:
        return                          # never handled, or excluded from the log
    if not log.is_known[kafka.api_key] or (kafka.header_bytes == 0 and kafka.api_key != API_VERSIONS):
        return                          # its API is unknown, or its header was refused
    if is_late:
        mutex_lock(&log.late_lock)
    if quota_events != NULL and quota_events.verdict_count > 0:
        sampling = 1.0                  # a request that was throttled, or would be by a shadow, is always recorded
    if sampling >= 1.0 or is_sampled(self):
        write_record(self, &log.late if is_late else &self.ring, request, sampling)
        if not is_late and atomic_load_relaxed(&self.ring.head) - self.ring.seen_tail > self.ring.size_bytes // 4:
            self.ring.seen_tail = atomic_load(&self.ring.tail)
            if (atomic_load_relaxed(&self.ring.head) - self.ring.seen_tail > self.ring.size_bytes // 4
                    and atomic_load(&log.is_waiting)):
                wake_writer(log)
    if is_late:
        mutex_unlock(&log.late_lock)


cdef void log_connection(LogCore *log, const VerdictEvent *verdict, const char *address) noexcept nogil:
    """Record a verdict on a new connection; any thread."""
    cdef size_t address_bytes = strlen(address) if address != NULL else 0
    cdef int64_t notes = padded(<int64_t>(sizeof(VerdictEvent) + address_bytes))
    cdef int64_t size = <int64_t>sizeof(Record) + notes
    cdef Record *record
    cdef VerdictEvent *note
    mutex_lock(&log.late_lock)
    record = <Record *>ring_reserve(&log.late, size)
    if record != NULL:
        memset(record, 0, <size_t>size)
        record.size_bytes = <int32_t>size
        record.kind = RECORD_VERDICT
        record.api_key = -1
        record.notes_bytes = <int32_t>notes
        record.repeated = 1
        record.sampling = 1.0
        record.time_us = verdict.note.time_ms * 1000
        note = <VerdictEvent *>(<char *>record + sizeof(Record))
        note[0] = verdict[0]
        note.note.size_bytes = <int32_t>notes
        note.note.user_bytes = <int32_t>address_bytes
        note.note.client_id_bytes = 0
        if address_bytes > 0:
            memcpy(<char *>note + sizeof(VerdictEvent), address, address_bytes)
        ring_commit(&log.late, size)
    mutex_unlock(&log.late_lock)


cdef void log_refusal(LogCore *log, Facts *facts, int reason, int api_key, int api_version,
                      int32_t repeated) noexcept nogil:
    """Record a refusal; takes the count on ``facts``, which may be NULL."""
    cdef Record *record
    mutex_lock(&log.late_lock)
    record = <Record *>ring_reserve(&log.late, sizeof(Record))
    if record != NULL:
        memset(record, 0, sizeof(Record))
        record.size_bytes = sizeof(Record)
        record.kind = RECORD_REFUSAL
        record.api_key = <int16_t>api_key
        record.api_version = <int16_t>api_version
        record.refusal = reason
        record.repeated = repeated
        record.sampling = 1.0
        record.facts = facts
        record.time_us = (clock_now_ns(log.clock) + log.clock.epoch_offset_ns) // 1000
        ring_commit(&log.late, sizeof(Record))
    else:
        facts_release(facts, 1)
    mutex_unlock(&log.late_lock)


cdef void log_record(VerdictListener *listener, const VerdictEvent *verdict, const char *address) noexcept nogil:
    log_connection(<LogCore *>listener, verdict, address)


cdef void forget_log(VerdictListener *listener) noexcept nogil:
    log_release(<LogCore *>listener)


# ---------------------------------------------------------------- Python's view

cdef void recorder_retain(Recorder *recorder) noexcept nogil:
    log_retain((<ThreadRecorder *>recorder).log)


cdef void recorder_release(Recorder *recorder) noexcept nogil:
    log_release((<ThreadRecorder *>recorder).log)


cdef class RequestLogRecorder(RequestRecorder):
    """Recorder of the requests of one network thread. Created by ``RequestLogCore.recorder``."""

    def __init__(self):
        raise TypeError("a RequestLogRecorder is made by RequestLogCore.recorder")


@cython.final
cdef class RequestLogCore:
    """Rings of finished requests' records until the writer takes them.

    Args:
        clock: the broker's.
        api_keys: requests of these are recorded.
        sampling: the share of requests that is recorded, 0 to 1; those with a verdict always are.
    Raises: ValueError for a sampling outside 0 to 1, MemoryError.
    Threads: any.
    """

    def __cinit__(self, clock, api_keys, double sampling=1.0):
        cdef LogCore *log
        cdef int key
        if not 0.0 <= sampling <= 1.0:
            raise ValueError(f"sampling must be 0 to 1, got {sampling}")
        borrow_clock(clock)
        log = <LogCore *>calloc(1, sizeof(LogCore))
        if log == NULL:
            raise MemoryError
        atomic_store(&log.refs, 1)
        mutex_init(&log.late_lock)
        mutex_init(&log.wake_lock)
        cond_init(&log.wake)
        log.clock = clock_retain(borrow_clock(clock))
        log.listener.verdict = log_record
        log.listener.release = forget_log
        log.sampling = sampling
        log.waker.wake = wake_for_clock
        log.waker.arg = log
        clock_add_waker(log.clock, &log.waker)
        self.log = log
        self._clock = clock
        for number in api_keys:
            key = number
            if not 0 <= key < KNOWN_APIS:
                raise ValueError(f"API key must be 0 to {KNOWN_APIS - 1}, got {key}")
            log.is_known[key] = True
        if not ring_init(&log.late, LATE_BYTES):
            raise MemoryError

    def __dealloc__(self):
        cdef LogCore *log = self.log
        with nogil:
            log_release(log)

    def recorder(self, str protocol not None, int64_t buffer_bytes, seed=None) -> RequestLogRecorder:
        """Create and register the recorder of one network thread.

        Args: protocol: the listener's security protocol. buffer_bytes: size of its ring, rounded down to a power of
        two, at least 4096. seed: of the sampling, for tests; None: a random one.
        """
        cdef RequestLogRecorder handle = RequestLogRecorder.__new__(RequestLogRecorder)
        cdef bytes name = protocol.encode()[:PROTOCOL_BYTES - 1]
        cdef LogCore *log = self.log
        cdef uint64_t random = (int.from_bytes(os.urandom(8), "little") if seed is None else seed) | 1
        cdef ThreadRecorder *thread = <ThreadRecorder *>calloc(1, sizeof(ThreadRecorder))
        if thread == NULL or not ring_init(&thread.ring, buffer_bytes):
            free(thread)
            raise MemoryError
        thread.recorder.record = record_request
        thread.recorder.retain = recorder_retain
        thread.recorder.release = recorder_release
        thread.log = log
        thread.random = random
        memcpy(thread.protocol, <const char *>name, len(name))
        with nogil:
            mutex_lock(&log.late_lock)
            thread.next = log.threads
            log.threads = thread
            mutex_unlock(&log.late_lock)
        handle.recorder = &thread.recorder
        handle.owner = self
        return handle

    def observe(self, ClientQuotaManagers quotas not None, ConnectionQuotas connections not None,
                bint appends=False) -> None:
        """Make requests collect their quota events, and record verdicts on new connections in this log too.

        Args: ``appends``: whether Produce requests collect the offsets of their records.
        """
        quotas.note_updates(True, appends)
        log_retain(self.log)
        observe_verdicts(connections, quotas.quotas, &self.log.listener)

    def note_refusal(self, refusal, int32_t repeated=1) -> None:
        """Record a request whose connection was closed without a response.

        Args: ``refusal``: a ``Refusal``; without a connection id it represents several, ``repeated`` in number.
        Raises: ValueError for an unknown reason, MemoryError.
        """
        cdef LogCore *log = self.log
        cdef const char *texts[FACTS_TEXTS]
        cdef int32_t sizes[FACTS_TEXTS]
        cdef Facts *facts = NULL
        cdef int reason = _REASONS.index(refusal.reason)
        cdef int api_key = refusal.api_key
        cdef int api_version = refusal.api_version
        cdef bytes connection = refusal.connection_id.encode("utf-8", "replace")
        cdef bytes address = refusal.address.encode("utf-8", "replace")
        cdef bytes listener = refusal.listener.encode("utf-8", "replace")
        cdef int i
        if connection:
            for i in range(FACTS_TEXTS):
                texts[i] = b""
                sizes[i] = 0
            texts[FACTS_CONNECTION] = connection
            sizes[FACTS_CONNECTION] = <int32_t>len(connection)
            texts[FACTS_ADDRESS] = address
            sizes[FACTS_ADDRESS] = <int32_t>len(address)
            texts[FACTS_LISTENER] = listener
            sizes[FACTS_LISTENER] = <int32_t>len(listener)
            facts = facts_new(NULL, texts, sizes)
            if facts == NULL:
                raise MemoryError
        with nogil:
            log_refusal(log, facts, reason, api_key, api_version, repeated)

    def wait(self, int64_t timeout_ms) -> None:
        """Wait until the timeout has passed on the clock, a ring is a quarter full, or ``wake`` is called."""
        cdef LogCore *log = self.log
        cdef int64_t deadline_ns
        with nogil:
            deadline_ns = clock_now_ns(log.clock) + timeout_ms * 1000000
            mutex_lock(&log.wake_lock)
            atomic_store(&log.is_waiting, 1)
            while not log.is_woken:
                if not clock_wait_until(log.clock, &log.wake, &log.wake_lock, deadline_ns):
                    break
            log.is_woken = False
            atomic_store(&log.is_waiting, 0)
            mutex_unlock(&log.wake_lock)

    def wake(self) -> None:
        """End a ``wait`` in progress, or the next one."""
        with nogil:
            wake_writer(self.log)

    @property
    def queued_bytes(self) -> int:
        """Bytes of records that wait for the writer."""
        cdef LogCore *log = self.log
        cdef ThreadRecorder *thread
        cdef int64_t used
        with nogil:
            mutex_lock(&log.late_lock)
            used = ring_used(&log.late)
            thread = log.threads
            while thread != NULL:
                used += ring_used(&thread.ring)
                thread = thread.next
            mutex_unlock(&log.late_lock)
        return used

    @property
    def dropped(self) -> int:
        """Number of records that did not fit into their ring."""
        cdef LogCore *log = self.log
        cdef ThreadRecorder *thread
        cdef int64_t dropped
        with nogil:
            mutex_lock(&log.late_lock)
            dropped = atomic_load_relaxed(&log.late.dropped)
            thread = log.threads
            while thread != NULL:
                dropped += atomic_load_relaxed(&thread.ring.dropped)
                thread = thread.next
            mutex_unlock(&log.late_lock)
        return dropped
