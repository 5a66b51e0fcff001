"""A bounded ring of records, and the counted facts of connections; memory only, no thread, no clock."""
cdef extern from *:
    """
    static inline void kb_prefetch_to_write(const void *p) noexcept {
    #if defined(__GNUC__) || defined(__clang__)
        __builtin_prefetch(p, 1);
    #else
        (void)p;
    #endif
    }
    """
    void prefetch_to_write "kb_prefetch_to_write"(const void *p) noexcept nogil     # a hint

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from kbroker._core.requests.request cimport Session, session_release, session_retain
from kbroker._core.sync cimport atomic_add_fetch, atomic_load, atomic_load_relaxed, atomic_store


cdef bint ring_init(RecordRing *ring, int64_t size_bytes) noexcept nogil:
    cdef int64_t size = 4096
    while size * 2 <= size_bytes:
        size *= 2
    ring.data = <char *>malloc(<size_t>size)
    ring.size_bytes = size
    return ring.data != NULL


cdef void ring_destroy(RecordRing *ring) noexcept nogil:
    free(ring.data)
    ring.data = NULL


cdef char *ring_reserve(RecordRing *ring, int64_t size_bytes) noexcept nogil:
    cdef int64_t head = atomic_load_relaxed(&ring.head)
    cdef int64_t offset = head & (ring.size_bytes - 1)
    cdef int64_t padding = ring.size_bytes - offset if ring.size_bytes - offset < size_bytes else 0
    cdef Record *filler
    if head + padding + size_bytes - ring.seen_tail > ring.size_bytes:
        ring.seen_tail = atomic_load(&ring.tail)
        if head + padding + size_bytes - ring.seen_tail > ring.size_bytes:
            atomic_store(&ring.dropped, atomic_load_relaxed(&ring.dropped) + 1)
            return NULL
    if padding > 0:
        filler = <Record *>(ring.data + offset)     # at least 8 bytes: only its first two fields exist
        filler.size_bytes = <int32_t>padding
        filler.kind = RECORD_PADDING
        atomic_store(&ring.head, head + padding)
        offset = 0
    return ring.data + offset


cdef void ring_commit(RecordRing *ring, int64_t size_bytes) noexcept nogil:
    cdef int64_t head = atomic_load_relaxed(&ring.head) + size_bytes
    cdef int64_t i
    atomic_store(&ring.head, head)
    # The ring is larger than a cache, so the cache lines of a next record of the same size are prefetched.
    for i in range(0, min(size_bytes, 512) + 64, 64):
        prefetch_to_write(ring.data + ((head + i) & (ring.size_bytes - 1)))


cdef Record *ring_first(RecordRing *ring, int64_t *at) noexcept nogil:
    cdef int64_t head = atomic_load(&ring.head)
    cdef Record *record
    while at[0] < head:
        record = <Record *>(ring.data + (at[0] & (ring.size_bytes - 1)))
        if record.kind != RECORD_PADDING:
            return record
        at[0] += record.size_bytes
    return NULL


cdef int64_t ring_used(RecordRing *ring) noexcept nogil:
    return atomic_load_relaxed(&ring.head) - atomic_load_relaxed(&ring.tail)


cdef Facts *facts_new(Session *session, const char **texts, int32_t *sizes) noexcept nogil:
    cdef Facts *facts = <Facts *>calloc(1, sizeof(Facts))
    cdef int32_t i, total = 0
    if facts == NULL:
        return NULL
    for i in range(FACTS_TEXTS):
        facts.starts[i] = total
        total += sizes[i]
    facts.starts[FACTS_TEXTS] = total
    facts.texts = <char *>malloc(<size_t>(total or 1))
    if facts.texts == NULL:
        free(facts)
        return NULL
    for i in range(FACTS_TEXTS):
        if sizes[i] > 0:
            memcpy(facts.texts + facts.starts[i], texts[i], <size_t>sizes[i])
    if session != NULL:
        facts.session = session_retain(session)
    atomic_store(&facts.refs, 1)
    return facts


cdef void facts_retain(Facts *facts, int64_t counts) noexcept nogil:
    atomic_add_fetch(&facts.refs, counts)


cdef void facts_release(Facts *facts, int64_t counts) noexcept nogil:
    if facts == NULL or counts == 0 or atomic_add_fetch(&facts.refs, -counts) != 0:
        return
    session_release(facts.session)
    free(facts.texts)
    free(facts.rendered)
    free(facts.folded)
    free(facts)
