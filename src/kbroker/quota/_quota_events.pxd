"""Quota events: values that a request's handlers recorded into quota counters, and verdicts; the latest verdicts.

The QuotaEvents of a request (``KafkaRequest.quota_events``) belong to the owner of the request and are freed with it.
They are contiguous in memory, so that one copy moves them to a record.

Lock: ``VerdictRing.lock``, a leaf; used only when there are verdicts. The ring is allocated with its first verdict.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, int8_t
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64, Mutex
from kbroker.common._text cimport Text

cdef enum:
    EVENT_UPDATE = 1
    EVENT_VERDICT = 2
    EVENT_SHADOW = 3            # a shadow's verdict: the decision of an enforced quota of that value
    EVENT_APPEND = 4            # besides the quotas: records that a Produce appended to a partition
    QUOTA_CONNECTION_RATE = 4   # a quota type besides the kinds of _client_sensors; its user is an address
    INLINE_EVENT_BYTES = 448

cdef struct QuotaEvent:               # followed by its two texts (or the first part of a VerdictEvent)
    int32_t size_bytes          # including the texts; a multiple of 8
    int8_t kind
    int8_t quota_type           # KIND_PRODUCE ... QUOTA_CONNECTION_RATE
    int8_t level
    int8_t flag                 # update: it was judged; verdict: it is a refusal
    int32_t user_bytes
    int32_t client_id_bytes
    int64_t sequence            # of an update: number within its counter
    int64_t time_ms             # as passed to the counter
    double value                # update: the recorded value; verdict: the observed value

cdef struct VerdictEvent:
    QuotaEvent note
    double limit
    int64_t window_ms
    int64_t asked_ms
    int64_t served_ms

cdef struct AppendEvent:        # its user is the topic, its sequence the first offset
    QuotaEvent note
    int64_t last_offset
    int64_t partition

cdef struct QuotaEvents:              # stored in KafkaRequest.quota_events_data
    int32_t size_bytes
    int32_t capacity
    int32_t note_count
    int32_t verdict_count       # including shadows
    int32_t published_bytes     # verdicts before this offset are in the verdict ring
    char *data                  # inline_data, or owned
    char inline_data[INLINE_EVENT_BYTES]

cdef inline size_t quota_event_head(int kind) noexcept nogil:
    """Return the bytes of an event before its texts."""
    if kind == EVENT_UPDATE:
        return sizeof(QuotaEvent)
    return sizeof(AppendEvent) if kind == EVENT_APPEND else sizeof(VerdictEvent)

cdef inline const char *quota_event_texts(const QuotaEvent *note) noexcept nogil:
    return <const char *>note + quota_event_head(note.kind)

# Add an event, zeroed except for kind, sizes and texts, and valid until the next one; NULL: out of memory, or the
# events of the request have too many bytes.
cdef QuotaEvent *quota_events_add(Request *request, int kind, Text user, Text client_id) noexcept nogil
# Return the first event at or after an offset, or NULL.
cdef QuotaEvent *quota_event_at(QuotaEvents *quota_events, int32_t at) noexcept nogil

cdef enum:
    VERDICT_SLOTS = 1024
    VERDICT_TEXT_BYTES = 128    # longer names are cut
    VERDICT_HOST_BYTES = 64
    QUOTA_TYPES = 5

cdef struct VerdictSlot:
    VerdictEvent verdict
    int16_t api_key             # -1: a connection, without a request
    int32_t user_bytes
    int32_t client_tag_bytes
    int32_t principal_bytes
    int32_t client_id_bytes
    int32_t local_port
    int32_t remote_port
    int32_t processor_id
    int32_t connection_index    # -1: not connected yet
    char user[VERDICT_TEXT_BYTES]
    char client_tag[VERDICT_TEXT_BYTES]
    char principal[VERDICT_TEXT_BYTES]
    char client_id[VERDICT_TEXT_BYTES]
    char local_host[VERDICT_HOST_BYTES]
    char remote_host[VERDICT_HOST_BYTES]

cdef struct VerdictRing:
    Mutex lock
    VerdictSlot *slots          # allocated with the first verdict
    int64_t first               # number of the oldest verdict in the ring
    int64_t next                # number of the next verdict
    AtomicI64 delays[QUOTA_TYPES]
    AtomicI64 refusals[QUOTA_TYPES]

# Listener that gets each verdict on a connection, like the ring; counts its references itself.
cdef struct VerdictListener:
    void (*verdict)(VerdictListener *self, const VerdictEvent *verdict, const char *address) noexcept nogil
    void (*release)(VerdictListener *self) noexcept nogil

cdef void verdicts_init(VerdictRing *ring) noexcept nogil
cdef void verdicts_destroy(VerdictRing *ring) noexcept nogil
# Publish the verdicts noted on the request since the last call; those of shadows go to their own ring.
cdef void publish_verdicts(VerdictRing *ring, VerdictRing *shadows, Request *request) noexcept nogil
# Publish a verdict without a request: of an address, or of all of them (NULL).
cdef void publish_connection(VerdictRing *ring, const VerdictEvent *verdict, const char *address) noexcept nogil
# Return the verdicts as tuples, oldest first; ``takes`` empties the ring.
cdef list verdict_rows(VerdictRing *ring, bint takes)
