"""Quota events of a request in one growing piece of memory, and their verdicts in a bounded ring.

A new verdict replaces the oldest one of a full ring; all are counted by type.
"""
from libc.stdint cimport int32_t, int64_t, int8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strlen

from kbroker._core.network.loop_types cimport Channel
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport atomic_add_fetch, mutex_destroy, mutex_init, mutex_lock, mutex_unlock
from kbroker.network._kafka_request cimport QUOTA_EVENTS_BYTES, KafkaRequest, kafka_request
from kbroker.common._text cimport Text


if sizeof(QuotaEvents) > QUOTA_EVENTS_BYTES:
    raise ImportError("QuotaEvents must fit into the QUOTA_EVENTS_BYTES of a request")


cdef enum:
    MOST_EVENT_BYTES = 1 << 24      # of a request, which may refuse 100,000 mutations of a client id of 32 KB


cdef void quota_events_free(void *given) noexcept nogil:
    cdef QuotaEvents *quota_events = <QuotaEvents *>given
    if quota_events.data != quota_events.inline_data:
        free(quota_events.data)


cdef QuotaEvents *quota_events_of(Request *request) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef QuotaEvents *quota_events = <QuotaEvents *>kafka.quota_events
    if quota_events == NULL:
        quota_events = <QuotaEvents *>kafka.quota_events_data
        quota_events.size_bytes = quota_events.note_count = 0
        quota_events.verdict_count = quota_events.published_bytes = 0
        quota_events.capacity = INLINE_EVENT_BYTES
        quota_events.data = quota_events.inline_data
        kafka.quota_events = quota_events
        kafka.release_quota_events = quota_events_free
    return quota_events


cdef bint make_space(QuotaEvents *quota_events, int32_t size_bytes) noexcept nogil:
    cdef int64_t capacity = quota_events.capacity
    cdef char *grown
    while capacity < <int64_t>quota_events.size_bytes + size_bytes:
        capacity *= 2
    if capacity > MOST_EVENT_BYTES:
        return False
    grown = <char *>malloc(<size_t>capacity)
    if grown == NULL:
        return False
    memcpy(grown, quota_events.data, <size_t>quota_events.size_bytes)
    if quota_events.data != quota_events.inline_data:
        free(quota_events.data)
    quota_events.data = grown
    quota_events.capacity = <int32_t>capacity
    return True


cdef QuotaEvent *quota_events_add(Request *request, int kind, Text user, Text client_id) noexcept nogil:
    cdef QuotaEvents *quota_events = quota_events_of(request)
    cdef QuotaEvent *note
    cdef char *texts
    cdef size_t head = quota_event_head(kind)
    cdef size_t text_bytes = <size_t>user.size_bytes + <size_t>client_id.size_bytes
    cdef int32_t size_bytes = <int32_t>((head + text_bytes + 7) & ~<size_t>7)
    if quota_events.size_bytes + size_bytes > quota_events.capacity and not make_space(quota_events, size_bytes):
        return NULL
    note = <QuotaEvent *>(quota_events.data + quota_events.size_bytes)
    memset(note, 0, head)
    note.size_bytes = size_bytes
    note.kind = <int8_t>kind
    note.user_bytes = user.size_bytes
    note.client_id_bytes = client_id.size_bytes
    texts = <char *>note + head
    if user.size_bytes > 0:
        memcpy(texts, user.data, <size_t>user.size_bytes)
    if client_id.size_bytes > 0:
        memcpy(texts + user.size_bytes, client_id.data, <size_t>client_id.size_bytes)
    quota_events.size_bytes += size_bytes
    quota_events.note_count += 1
    quota_events.verdict_count += kind == EVENT_VERDICT or kind == EVENT_SHADOW
    return note


cdef QuotaEvent *quota_event_at(QuotaEvents *quota_events, int32_t at) noexcept nogil:
    if quota_events == NULL or at >= quota_events.size_bytes:
        return NULL
    return <QuotaEvent *>(quota_events.data + at)


cdef void verdicts_init(VerdictRing *ring) noexcept nogil:
    mutex_init(&ring.lock)


cdef void verdicts_destroy(VerdictRing *ring) noexcept nogil:
    free(ring.slots)
    mutex_destroy(&ring.lock)


cdef inline int32_t cut(char *to, const char *data, int32_t size_bytes) noexcept nogil:
    cdef int32_t n = size_bytes if size_bytes < VERDICT_TEXT_BYTES else VERDICT_TEXT_BYTES
    if n > 0:
        memcpy(to, data, <size_t>n)
    return n if n > 0 else 0


cdef VerdictSlot *next_slot(VerdictRing *ring, const VerdictEvent *verdict) noexcept nogil:
    """Return the slot of the next verdict; under the lock. NULL: out of memory."""
    cdef VerdictSlot *slot
    if ring.slots == NULL:
        ring.slots = <VerdictSlot *>malloc(VERDICT_SLOTS * sizeof(VerdictSlot))
        if ring.slots == NULL:
            return NULL
    slot = &ring.slots[ring.next % VERDICT_SLOTS]
    ring.next += 1
    if ring.next - ring.first > VERDICT_SLOTS:
        ring.first = ring.next - VERDICT_SLOTS
    memset(slot, 0, sizeof(VerdictSlot))
    slot.verdict = verdict[0]
    return slot


cdef inline void count_verdict(VerdictRing *ring, const VerdictEvent *verdict) noexcept nogil:
    if verdict.note.flag:
        atomic_add_fetch(&ring.refusals[verdict.note.quota_type], 1)
    else:
        atomic_add_fetch(&ring.delays[verdict.note.quota_type], 1)


cdef void publish_one(VerdictRing *ring, const VerdictEvent *verdict, Request *request) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef const char *texts = quota_event_texts(&verdict.note)
    cdef Channel *channel = <Channel *>request.channel
    cdef VerdictSlot *slot
    count_verdict(ring, verdict)
    mutex_lock(&ring.lock)
    slot = next_slot(ring, verdict)
    if slot != NULL:
        slot.api_key = kafka.api_key
        slot.user_bytes = cut(slot.user, texts, verdict.note.user_bytes)
        slot.client_tag_bytes = cut(slot.client_tag, texts + verdict.note.user_bytes, verdict.note.client_id_bytes)
        if request.session != NULL:
            slot.principal_bytes = cut(
                slot.principal, request.session.principal, <int32_t>strlen(request.session.principal))
        if kafka.client_id != NULL:
            slot.client_id_bytes = cut(slot.client_id, kafka.client_id, kafka.client_id_bytes)
        slot.connection_index = -1
        if channel != NULL:
            slot.connection_index = channel.metadata.index
            slot.local_port = channel.metadata.local_port
            slot.remote_port = channel.metadata.remote_port
            slot.processor_id = request.responder.processor_id
            memcpy(slot.local_host, channel.metadata.local_host, VERDICT_HOST_BYTES)
            memcpy(slot.remote_host, channel.metadata.remote_host, VERDICT_HOST_BYTES)
    mutex_unlock(&ring.lock)


cdef void publish_verdicts(VerdictRing *ring, VerdictRing *shadows, Request *request) noexcept nogil:
    cdef QuotaEvents *quota_events = <QuotaEvents *>kafka_request(request).quota_events
    cdef QuotaEvent *note
    if quota_events == NULL:
        return
    note = quota_event_at(quota_events, quota_events.published_bytes)
    while note != NULL:
        if note.kind == EVENT_VERDICT or note.kind == EVENT_SHADOW:
            publish_one(shadows if note.kind == EVENT_SHADOW else ring, <VerdictEvent *>note, request)
        quota_events.published_bytes += note.size_bytes
        note = quota_event_at(quota_events, quota_events.published_bytes)


cdef void publish_connection(VerdictRing *ring, const VerdictEvent *verdict, const char *address) noexcept nogil:
    cdef VerdictSlot *slot
    cdef size_t n
    count_verdict(ring, verdict)
    mutex_lock(&ring.lock)
    slot = next_slot(ring, verdict)
    if slot != NULL:
        slot.api_key = -1
        slot.connection_index = -1
        if address != NULL:
            n = strlen(address)
            memcpy(slot.remote_host, address, n if n < VERDICT_HOST_BYTES - 1 else VERDICT_HOST_BYTES - 1)
    mutex_unlock(&ring.lock)


cdef str text(const char *data, int32_t size_bytes):
    return data[:size_bytes].decode("utf-8", "replace")


cdef tuple row_of(const VerdictSlot *slot):
    cdef const VerdictEvent *verdict = &slot.verdict
    cdef str remote = text(slot.remote_host, <int32_t>strlen(slot.remote_host))
    connection = ""
    if slot.connection_index >= 0:
        local = text(slot.local_host, <int32_t>strlen(slot.local_host))
        connection = (
            f"{local}:{slot.local_port}-{remote}:{slot.remote_port}-{slot.processor_id}-{slot.connection_index}")
    return (
        verdict.note.time_ms, text(slot.principal, slot.principal_bytes), text(slot.client_id, slot.client_id_bytes),
        remote, connection, slot.api_key if slot.api_key >= 0 else None, verdict.note.quota_type,
        text(slot.user, slot.user_bytes), text(slot.client_tag, slot.client_tag_bytes), verdict.note.level,
        verdict.note.value, verdict.limit, verdict.window_ms, verdict.asked_ms, verdict.served_ms,
        bool(verdict.note.flag), verdict.note.kind == EVENT_SHADOW)


cdef list verdict_rows(VerdictRing *ring, bint takes):
    cdef VerdictSlot *copies
    cdef int64_t count = 0, i
    with nogil:
        copies = <VerdictSlot *>malloc(VERDICT_SLOTS * sizeof(VerdictSlot))
        if copies != NULL:
            mutex_lock(&ring.lock)
            count = ring.next - ring.first
            for i in range(count):
                copies[i] = ring.slots[(ring.first + i) % VERDICT_SLOTS]
            if takes:
                ring.first = ring.next
            mutex_unlock(&ring.lock)
    if copies == NULL:
        raise MemoryError
    try:
        return [row_of(&copies[i]) for i in range(count)]
    finally:
        free(copies)
