"""What a request's handlers note for its record: values recorded into quota counters, and verdicts.

A quota_events hangs on its Request (``Request.quota_events``), belongs to whoever owns that, and goes with it. Notes
lie one behind
the other in one piece of memory, so that a record takes them over by one copy.
"""
from libc.stdint cimport int8_t, int32_t, int64_t
from kbroker._core.requests.request cimport Request
from kbroker.server.quota._entities cimport Text

cdef enum:
    EVENT_UPDATE = 1
    EVENT_VERDICT = 2
    QUOTA_CONNECTION_RATE = 4   # a type of quota beside the kinds of _counters; its user is an address
    TRAIL_INLINE_BYTES = 448

cdef struct QuotaEvent:               # its two texts lie behind it (behind a VerdictEvent where it is one)
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

cdef struct QuotaEvents:              # lies in its Request (quota_events_capacity)
    int32_t size_bytes
    int32_t capacity
    int32_t note_count
    int32_t verdict_count
    int32_t published_bytes     # verdicts up to here are in the verdict ring
    char *data                  # inline_data, or owned
    char inline_data[TRAIL_INLINE_BYTES]

cdef inline const char *quota_event_texts(const QuotaEvent *note) noexcept nogil:
    return <const char *>note + (sizeof(VerdictEvent) if note.kind == EVENT_VERDICT else sizeof(QuotaEvent))

# One more note, zeroed but for kind, sizes and texts, valid until the next one; NULL: memory is out.
cdef QuotaEvent *quota_events_add(Request *request, int kind, Text user, Text client_id) noexcept nogil
# The first note at or behind a place; NULL: there is none.
cdef QuotaEvent *quota_event_at(QuotaEvents *quota_events, int32_t at) noexcept nogil
