"""Quota events: values that a request's handlers recorded into quota counters, and verdicts; the latest verdicts.

The QuotaEvents of a request (``KafkaRequest.quota_events``) belong to the owner of the request and are freed with it.
They are stored one behind the other in one piece of memory, so that one copy moves them to a record.

Lock: ``VerdictRing.lock``, a leaf; not taken where nothing is throttled. The ring is allocated with its first verdict.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, int8_t
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64, Mutex
from kbroker.common._text cimport Text

cdef enum:
    EVENT_UPDATE = 1
    EVENT_VERDICT = 2
    EVENT_SHADOW = 3            # a verdict too, of a shadow: what an enforced quota would have done
    QUOTA_CONNECTION_RATE = 4   # a type of quota beside the kinds of _client_sensors; its user is an address
    INLINE_EVENT_BYTES = 448

cdef struct QuotaEvent:               # its two texts follow it (or the VerdictEvent that it begins)
    int32_t size_bytes          # with all of it, a multiple of 8
    int8_t kind
    int8_t quota_type           # KIND_PRODUCE ... QUOTA_CONNECTION_RATE
    int8_t level
    int8_t flag                 # update: it was judged; verdict: it refuses
    int32_t user_bytes
    int32_t client_id_bytes
    int64_t sequence            # of an update, within its counter
    int64_t time_ms             # as given to the counter
    double value                # update: what was recorded; verdict: what was observed

cdef struct VerdictEvent:
    QuotaEvent note
    double limit
    int64_t window_ms
    int64_t asked_ms
    int64_t served_ms

cdef struct QuotaEvents:              # in KafkaRequest.quota_events_data
    int32_t size_bytes
    int32_t capacity
    int32_t note_count
    int32_t verdict_count       # those of shadows too
    int32_t published_bytes     # verdicts up to here are in the verdict ring
    char *data                  # inline_data, or owned
    char inline_data[INLINE_EVENT_BYTES]

cdef inline const char *quota_event_texts(const QuotaEvent *note) noexcept nogil:
    return <const char *>note + (sizeof(QuotaEvent) if note.kind == EVENT_UPDATE else sizeof(VerdictEvent))

# One more note, zeroed but for kind, sizes and texts, valid until the next one; NULL: memory is out.
cdef QuotaEvent *quota_events_add(Request *request, int kind, Text user, Text client_id) noexcept nogil
# The first note at or behind a place; NULL: there is none.
cdef QuotaEvent *quota_event_at(QuotaEvents *quota_events, int32_t at) noexcept nogil

cdef enum:
    VERDICT_SLOTS = 1024
    VERDICT_TEXT_BYTES = 128    # a longer name is cut
    VERDICT_HOST_BYTES = 64
    QUOTA_TYPES = 5

cdef struct VerdictSlot:
    VerdictEvent verdict
    int16_t api_key             # -1: none, a connection
    int32_t user_bytes
    int32_t client_tag_bytes
    int32_t principal_bytes
    int32_t client_id_bytes
    int32_t local_port
    int32_t remote_port
    int32_t processor_id
    int32_t connection_index    # -1: no connection yet
    char user[VERDICT_TEXT_BYTES]
    char client_tag[VERDICT_TEXT_BYTES]
    char principal[VERDICT_TEXT_BYTES]
    char client_id[VERDICT_TEXT_BYTES]
    char local_host[VERDICT_HOST_BYTES]
    char remote_host[VERDICT_HOST_BYTES]

cdef struct VerdictRing:
    Mutex lock
    VerdictSlot *slots          # made with the first verdict
    int64_t first               # number of the oldest that is kept
    int64_t next                # number of the next one
    AtomicI64 delays[QUOTA_TYPES]
    AtomicI64 refusals[QUOTA_TYPES]

cdef void verdicts_init(VerdictRing *ring) noexcept nogil
cdef void verdicts_destroy(VerdictRing *ring) noexcept nogil
# The verdicts noted on the request since the last call, those of shadows into their own ring.
cdef void publish_verdicts(VerdictRing *ring, VerdictRing *shadows, Request *request) noexcept nogil
# One without a request: of an address, or of all of them (NULL).
cdef void publish_connection(VerdictRing *ring, const VerdictEvent *verdict, const char *address) noexcept nogil
# (totals by type, the verdicts kept as tuples, oldest first); ``takes`` empties the ring
cdef list verdict_rows(VerdictRing *ring, bint takes)
