"""One request from its first byte to the last byte of its response: the struct that crosses threads, and its lists.

Ownership: a Request is made by the network loop, owned by whoever holds the pointer (queue, handler, purgatory),
and always returns to the loop through ``respond``: the loop alone frees it. No lock: one owner at a time. Counted
things hang on it through ``release`` functions. Nothing here is a Python object, unless ``python_state`` says so
(freed with the GIL by its owner before the request goes back).
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from kbroker._core.requests.memory_pool cimport Pool
from kbroker._core.sync cimport AtomicI64

cdef enum:
    INLINE_OUT_BYTES = 320      # small answers (Produce, ApiVersions v0..) need no allocation
    INLINE_SEGMENTS = 4
    THROTTLE_KINDS = 6
    ERROR_KINDS = 4             # different error codes of one response that are told apart
    TRAIL_ROOM_BYTES = 480

cdef enum RequestAction:
    ACTION_SEND = 0             # send the response, then the channel may read on
    ACTION_NO_OP = 1            # no response (acks=0)
    ACTION_CLOSE = 2            # close the connection
    ACTION_RETURN = 3           # not executed: the frame goes back to its channel and is handed over again later
    ACTION_START_THROTTLE = 4   # control messages about a channel (payload unused)
    ACTION_END_THROTTLE = 5

cdef enum RecordFlags:          # for whoever records finished requests
    RECORD_SKIP = 1        # it is not to be recorded
    RECORD_EMPTY_FETCH = 2  # a poll that found nothing: many of them may be recorded as one

cdef enum SegmentKind:
    SEGMENT_MEMORY = 0
    SEGMENT_FILE = 1

cdef struct OpenFile:           # a counted descriptor: a region queued for sending keeps the file open
    AtomicI64 refs
    int fd

cdef OpenFile *open_file_new(int fd) noexcept nogil                   # takes the descriptor, count 1
cdef OpenFile *open_file_retain(OpenFile *file) noexcept nogil
cdef void open_file_release(OpenFile *file) noexcept nogil            # the last count closes

cdef struct Segment:            # a piece of a response, in order
    int kind
    char *data                  # memory: first byte (NULL for file)
    int64_t size_bytes
    OpenFile *file              # file: owned count
    int64_t position            # file: offset of the first byte
    char *owned                 # memory: freed with free() when sent, or NULL

cdef struct ErrorCount:
    int32_t code
    int32_t count

cdef struct Session:            # identity of a connection; immutable after publication, counted
    AtomicI64 refs
    char *principal             # owned, NUL terminated ("User:ANONYMOUS")
    void *keys                  # cached sensor keys of the quota managers
    void (*release_keys)(void *keys) noexcept nogil

cdef Session *session_new(const char *principal) noexcept nogil
cdef Session *session_retain(Session *session) noexcept nogil
cdef void session_release(Session *session) noexcept nogil

cdef struct Responder:          # what a network thread offers to those who answer
    void (*respond)(Responder *self, Request *first) noexcept nogil   # list by ``next``; any thread; never blocks
    # whether its connection is closed, so that nobody waits for its response; from any thread that owns it; may be NULL
    bint (*is_closed)(Request *request) noexcept nogil
    void *owner
    int32_t processor_id
    int32_t listener_id

cdef struct Request:
    Request *next               # link of whichever list holds it
    Request *batch_next           # next frame of the same batch, in order (head's list goes to one handler)
    Responder *responder        # the network thread that owns the connection
    void *channel               # that thread's own; others only pass it back
    int64_t channel_number      # connection id: unique in its network thread, never reused
    int64_t sequence            # order of handing over on its channel; answers are sent in this order
    # the frame
    char *payload               # without its length prefix
    int64_t size_bytes
    char *payload_owned         # malloc'ed payload, or NULL when it lies behind this struct
    int64_t capacity_bytes
    int64_t filled_bytes        # how much of the frame has arrived
    Pool *pool                  # counted; charged pool_charge bytes until the handler releases the payload
    int64_t pool_charge
    # time stamps, nanoseconds of the broker's clock, 0 = not reached
    int64_t start_ns            # frame complete
    int64_t dequeue_ns
    int64_t local_done_ns
    int64_t callback_dequeue_ns
    int64_t callback_done_ns
    int64_t response_ready_ns
    int64_t response_dequeue_ns
    int64_t response_sent_ns
    int64_t network_ns          # network-thread time of its channel since the last request
    int64_t conversion_ns       # within local time: data brought into another form
    int64_t throttle_ms[THROTTLE_KINDS]
    ErrorCount errors[ERROR_KINDS]      # of the response, for metrics; 0 counts too. Forgotten with the response
    int32_t error_kinds
    int32_t metric_slot         # second entry of the request metrics it is counted in; 0: none
    Session *session            # counted
    # header, filled by the first handler
    int16_t api_key
    int16_t api_version
    int32_t correlation_id
    char *client_id             # points into payload, or NULL
    int32_t client_id_bytes
    int32_t header_bytes        # where the body starts
    bint was_examined           # an interceptor has seen it: it is not asked again
    # answer
    int32_t action
    int32_t segment_count
    Segment *segments           # inline_segments, or segments_owned
    Segment *segments_owned
    int32_t segment_capacity
    int32_t inline_used         # bytes of inline_out taken
    Segment inline_segments[INLINE_SEGMENTS]
    int64_t response_bytes      # sum of the segments, without prefix
    char inline_out[INLINE_OUT_BYTES]
    # state of a delayed request, and the hooks
    void *state
    void (*release_state)(Request *request) noexcept nogil
    void (*on_complete)(Request *request, void *arg) noexcept nogil   # once, on the network thread, after the last byte
    void *on_complete_arg
    # Once, when the request is freed: after on_complete, with network_ns known. Gives network_account back; NULL:
    # nobody is charged with the network threads' time.
    void (*charge_network)(Request *request) noexcept nogil
    void *network_account
    void *quota_events                 # what its handlers have noted for a record; NULL: nothing
    void (*release_quota_events)(void *quota_events) noexcept nogil
    void *announced             # owned, malloc'ed: what its client says of itself, for the network thread; or NULL
    int32_t record_flags        # RecordFlags
    char *client_id_owned       # copy that client_id points at once the payload is gone
    # asked with the response, before the network thread has it; true: it keeps the request and responds later (or
    # never)
    bint (*set_response_hook)(Request *request) noexcept nogil
    void *response_hook           # a count of it
    void (*release_diverted)(void *response_hook) noexcept nogil
    # For what `quota_events` points at: a piece of memory that goes from one thread to another with each request costs
    # more
    # than what is written into it. The only part that is not zeroed; the payload lies behind it.
    char quota_events_capacity[TRAIL_ROOM_BYTES]

cdef inline void request_mark_error(Request *request, int32_t code, int32_t times) noexcept nogil:
    """Notes an error code of the response; one kind too many is counted with the last."""
    cdef int32_t i = 0
    while i < request.error_kinds and request.errors[i].code != code:
        i += 1
    if i == ERROR_KINDS:
        i = ERROR_KINDS - 1
    elif i == request.error_kinds:
        request.errors[i].code = code
        request.errors[i].count = 0
        request.error_kinds += 1
    request.errors[i].count += times

cdef Request *request_new(int64_t payload_bytes) noexcept nogil       # zeroed; payload behind the struct
cdef void request_free(Request *request) noexcept nogil               # everything it owns, the pool's charge too
cdef void request_charge_network(Request *request) noexcept nogil      # once; request_free does it if nobody has
cdef void request_release_payload(Request *request) noexcept nogil    # early: frees memory and charge; payload = NULL.
# client_id stays.
# A fresh region of the response: small ones from inline_out, others malloc'ed. NULL when memory is out.
cdef char *request_reserve(Request *request, int64_t size_bytes) noexcept nogil
cdef bint request_add_memory(Request *request, char *data, int64_t size_bytes, char *owned) noexcept nogil
# takes the count
cdef bint request_add_file(Request *request, OpenFile *file, int64_t position, int64_t size_bytes) noexcept nogil
cdef void request_clear_response(Request *request) noexcept nogil
