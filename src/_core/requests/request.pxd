"""One request from its first byte to the last byte of its response: the struct that crosses threads.

Ownership: a Request is created by the network loop, owned by the holder of the pointer (queue, handler, purgatory),
and always returns to the loop through ``respond``: the loop alone frees it. No lock: one owner at a time. Its
``release`` functions release the counts that it holds. It holds no Python object.

The data that a protocol keeps in each of its requests (a parsed header, figures for its metrics) is the request's
context: a block of the size that its ``ContextType`` states, allocated with the request.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.clock cimport Clock, Waker
from kbroker._core.open_file cimport OpenFile
from kbroker._core.requests.memory_pool cimport Pool
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

cdef enum:
    INLINE_OUT_BYTES = 320      # small responses need no allocation
    INLINE_SEGMENTS = 4

cdef enum RequestAction:
    ACTION_SEND = 0             # send the response, then the channel may read on
    ACTION_NO_OP = 1            # no response
    ACTION_CLOSE = 2            # close the connection
    ACTION_RETURN = 3           # not executed: the frame goes back to its channel and is handed over again later
    # Control messages about a channel (payload unused). A start has the time at which the throttle is due to end in
    # response_ready_ns, 0 if unknown, and the sender's number of the kind of throttle in sequence.
    ACTION_START_THROTTLE = 4
    ACTION_END_THROTTLE = 5

cdef enum SegmentKind:
    SEGMENT_MEMORY = 0
    SEGMENT_FILE = 1

cdef struct Segment:            # a piece of a response, in order
    int kind
    char *data                  # memory: first byte (NULL for file)
    int64_t size_bytes
    OpenFile *file              # file: owned count
    int64_t position            # file: offset of the first byte
    char *owned                 # memory: freed with free() when sent, or NULL

cdef struct Session:            # identity of a connection; immutable after publication, counted
    AtomicI64 refs
    char *principal             # owned, NUL terminated ("User:ANONYMOUS")
    int32_t kind                # number that its creator gives to the way the client was identified; 0 by default

cdef Session *session_new(const char *principal) noexcept nogil
cdef Session *session_retain(Session *session) noexcept nogil
cdef void session_release(Session *session) noexcept nogil

cdef struct Responder:          # interface of the network thread for its handlers
    void (*respond)(Responder *self, Request *first) noexcept nogil   # list by ``next``; any thread; never blocks
    # Return whether the connection is closed, so that no response is needed. Any thread that owns the request may
    # call it. May be NULL.
    bint (*is_closed)(Request *request) noexcept nogil
    void *owner
    int32_t processor_id
    int32_t listener_id

cdef struct ContextType:        # type of a context, in which a loop's owner keeps data; outlives its requests
    int64_t size_bytes          # of the context, a multiple of 8
    int64_t zeroed_bytes        # its first bytes, zeroed with the request; the others have any value
    # Called once, when the request is freed: after on_complete, while session and response still exist. May be NULL.
    void (*release)(Request *request) noexcept nogil

cdef struct Request:
    # Not zeroed, and in front: the zeroed fields are contiguous with the beginning of the context after the struct.
    Segment inline_segments[INLINE_SEGMENTS]
    char inline_out[INLINE_OUT_BYTES]
    Request *next               # zeroed from here on; link of whichever list holds it
    Request *batch_next         # next frame of the same batch, in order (head's list goes to one handler)
    Responder *responder        # the network thread that owns the connection
    void *channel               # of that thread; others only pass it back
    int64_t channel_number      # connection id: unique in its network thread, never reused
    int64_t sequence            # order of handing over on its channel; responses are sent in this order
    const ContextType *context_type     # NULL: it has no context
    # the frame
    char *payload               # without its length prefix
    int64_t size_bytes
    char *payload_owned         # malloc'ed payload, or NULL when it is after this struct and its context
    bint is_recyclable          # from a RequestCache: room follows its payload, whose size_bytes do not change
    int64_t capacity_bytes
    int64_t filled_bytes        # received bytes of the frame
    Pool *pool                  # counted; charged pool_charge bytes until the handler releases the payload
    int64_t pool_charge
    AtomicI64 *charge_account   # account of the frame's reader, including pool_charge; NULL: none
    # timestamps, nanoseconds of the loop's clock, 0 = not reached
    int64_t start_ns            # frame complete
    int64_t dequeue_ns
    int64_t response_ready_ns
    int64_t response_dequeue_ns
    int64_t response_sent_ns
    int64_t network_ns          # network-thread time of its channel since the last request
    Session *session            # counted
    bint is_for_takers          # a helper must leave its batch to the takers of the queue
    bint was_examined           # an interceptor has received it and does not receive it again
    # response
    int32_t action              # RequestAction
    int32_t segment_count
    int32_t segment_capacity
    int32_t inline_used         # bytes of inline_out taken
    Segment *segments           # inline_segments, or segments_owned
    Segment *segments_owned
    int64_t response_bytes      # sum of the segments, without prefix
    # state of a delayed request, and the hooks
    void *state
    void (*release_state)(Request *request) noexcept nogil
    void (*on_complete)(Request *request, void *arg) noexcept nogil   # once, on the network thread, after the last byte
    void *on_complete_arg
    # Called with the response, before the network thread has it; true: the hook keeps the request and responds later,
    # or never.
    bint (*response_hook)(Request *request) noexcept nogil
    void *response_hook_arg     # owned count
    void (*release_response_hook)(void *arg) noexcept nogil
    # The context is after the struct, the payload after the context, the room after the payload.

cdef struct RequestCache:       # memory of a loop's freed requests, which have one type; owner: the loop's thread
    Request *first              # by next
    int32_t count

cdef inline void *request_context(const Request *request) noexcept nogil:
    """Return the context; only for a request that has one."""
    return <void *>(request + 1)

# Create a request, zeroed as the context's type requires. ``type`` NULL: no context. Returns NULL: out of memory.
cdef Request *request_new(const ContextType *type, int64_t payload_bytes) noexcept nogil
# Do the same with memory of the cache, where a small payload allows it; ``cache`` NULL: request_new.
cdef Request *request_new_from(
    RequestCache *cache, const ContextType *type, int64_t payload_bytes) noexcept nogil
# Return a message about the channel of a request, to be passed to its responder; NULL: out of memory.
cdef Request *control_message(const Request *about, int action) noexcept nogil
cdef void request_free(Request *request) noexcept nogil               # everything it owns, the pool's charge too
# Do the same on the thread of the cache, which may keep the memory; not for NULL.
cdef void request_free_into(RequestCache *cache, Request *request) noexcept nogil
cdef void request_cache_clear(RequestCache *cache) noexcept nogil
# Free memory and charge early. A payload after the struct stays readable until request_free, at the address that it
# had; ``payload`` is NULL.
cdef void request_release_payload(Request *request) noexcept nogil
# Remove the frame, which outlives its reader, from the reader's account.
cdef void request_leave_account(Request *request) noexcept nogil
# Return the request's own memory for a response that is encoded at once, valid until its end: inline_out, or a larger
# room behind a small payload. Sets its size.
cdef char *request_room(Request *request, int64_t *size_bytes) noexcept nogil
# Add a region to the response: a small one in inline_out, others malloc'ed. NULL: out of memory.
cdef char *request_reserve(Request *request, int64_t size_bytes) noexcept nogil
cdef bint request_add_memory(Request *request, char *data, int64_t size_bytes, char *owned) noexcept nogil
# Add a region of a file, and take over the caller's count of it; false: out of memory, the count stays the caller's.
cdef bint request_add_file(Request *request, OpenFile *file, int64_t position, int64_t size_bytes) noexcept nogil
cdef void request_clear_response(Request *request) noexcept nogil
