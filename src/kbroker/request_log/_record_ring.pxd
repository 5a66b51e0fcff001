"""Finished requests between a network thread and the writer: C records in a bounded ring of bytes.

One producer, one consumer. A record that does not fit is dropped and counted; the producer never waits.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.requests.request cimport Session
from kbroker._core.sync cimport AtomicI64

cdef enum:                      # kinds of record
    RECORD_PADDING = 0          # fills the ring up to its end
    RECORD_REQUEST = 1
    RECORD_VERDICT = 2          # a verdict without a request
    RECORD_REFUSAL = 3          # a request whose connection was closed without a response

cdef enum:                      # texts of a connection
    FACTS_CONNECTION = 0
    FACTS_ADDRESS = 1
    FACTS_PRINCIPAL = 2
    FACTS_LISTENER = 3
    FACTS_PROTOCOL = 4
    FACTS_SOFTWARE_NAME = 5
    FACTS_SOFTWARE_VERSION = 6
    FACTS_TEXTS = 7

cdef struct Facts               # of a connection, shared by its records

cdef struct Record:             # followed by its client id, transactional id and events
    int32_t size_bytes          # including the data after it, a multiple of 8
    int16_t kind
    int16_t api_key             # -1: none
    int16_t api_version
    int16_t error_code
    int32_t error_count
    int32_t correlation_id
    int32_t client_id_bytes
    int32_t transactional_id_bytes  # 0: none
    int32_t notes_bytes
    int32_t throttle_ms
    int32_t may_fold            # an empty poll without error, throttle or verdict
    int32_t repeated
    int32_t refusal             # RefusalReason, for RECORD_REFUSAL; its api_key and api_version are guesses, -1: none
    Facts *facts                # one count; NULL: no connection
    int64_t time_us             # since 1970
    int64_t request_bytes
    int64_t response_bytes
    int64_t queue_us
    int64_t local_us
    int64_t remote_us
    int64_t response_queue_us
    int64_t send_us
    int64_t total_us
    int64_t network_us
    double sampling

cdef struct Facts:
    AtomicI64 refs
    Session *session            # counted
    char *texts                 # owned, concatenated
    int32_t starts[FACTS_TEXTS + 1]
    char before_writer[64]      # the fields below belong to the writer
    Facts *touched_next
    bint is_touched
    int64_t to_release          # counts of written records
    char *rendered              # owned: its part of a JSON line
    int64_t rendered_bytes
    Record *folded              # owned copy: the idle polls of one second so far; holds a count
    Facts *folding_next
    Facts *folding_prev
    char behind_writer[64]

cdef struct RecordRing:
    char *data
    int64_t size_bytes          # a power of two
    int64_t seen_tail           # used by the producer
    char apart[64]
    AtomicI64 head              # bytes ever written; set by the producer
    AtomicI64 dropped           # records that did not fit; set by the producer
    char also_apart[64]
    AtomicI64 tail              # bytes ever read; set by the consumer
    int64_t seen_dropped        # used by the consumer

cdef inline const char *record_client_id(const Record *record) noexcept nogil:
    return <const char *>record + sizeof(Record)

cdef inline const char *record_transactional_id(const Record *record) noexcept nogil:
    return record_client_id(record) + record.client_id_bytes

cdef inline int64_t padded(int64_t n) noexcept nogil:
    return (n + 7) & ~<int64_t>7

cdef inline const char *record_notes(const Record *record) noexcept nogil:
    return <const char *>record + sizeof(Record) + padded(record.client_id_bytes + record.transactional_id_bytes)

cdef bint ring_init(RecordRing *ring, int64_t size_bytes) noexcept nogil     # false: out of memory
cdef void ring_destroy(RecordRing *ring) noexcept nogil
# Reserve a record; NULL: the ring is full, and the record is counted as dropped
cdef char *ring_reserve(RecordRing *ring, int64_t size_bytes) noexcept nogil
cdef void ring_commit(RecordRing *ring, int64_t size_bytes) noexcept nogil
# Return the first record at or after `at`, which moves to it
cdef Record *ring_first(RecordRing *ring, int64_t *at) noexcept nogil

cdef int64_t ring_used(RecordRing *ring) noexcept nogil      # bytes
cdef Facts *facts_new(Session *session, const char **texts, int32_t *sizes) noexcept nogil     # with one count
cdef void facts_retain(Facts *facts, int64_t counts) noexcept nogil
cdef void facts_release(Facts *facts, int64_t counts) noexcept nogil
