"""Mutated frames put into a broker's request queue without sockets, with checks of the responses, for tests.

A frame is a copy of a frame of the corpus with a few mutations: bits, bytes, numbers at their limits, wrong lengths and
counts, and parts that are removed, copied or replaced from another frame. The same seed gives the same frames.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset, strcpy

from kbroker._core.codec.bytes cimport load_i32, put_uvarint, store_16, store_32, store_64
from kbroker._core.network.loop_types cimport Channel
from kbroker._core.requests.request cimport (
    ACTION_CLOSE, ACTION_END_THROTTLE, ACTION_RETURN, ACTION_SEND, ACTION_START_THROTTLE, Request, Responder, Session,
    request_free, request_new, session_new, session_release, session_retain,
)
from kbroker._core.requests.request_queue cimport Queue, request_queue_put
from kbroker._core.sync cimport AtomicI64, atomic_add_fetch, atomic_load
from kbroker.network._kafka_request cimport kafka_context_type
from kbroker.network.connections._client_information cimport software_destroy, software_init
from kbroker.network.processor._processor_core cimport ProcessorCore, is_closed

cdef enum:
    MAX_MUTATIONS = 4
    GROWTH_BYTES = 64           # per mutation of a frame
    HEADER_BYTES = 8            # key, version, correlation id: rarely mutated, or the rest would not be read

cdef uint64_t[16] NUMBERS = [
    0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000U, 0xFFFFFFFFU, 1000000,
    0x7FFFFFFFFFFFFFFFU, 0x8000000000000000U, 0xFFFFFFFFFFFFFFFFU,
]

cdef struct Peer:               # simulated end of a connection that counts and frees responses
    Responder responder
    ProcessorCore *core         # state that handlers read: client software and watched connections
    Channel *channel
    AtomicI64 outstanding       # frames without a response
    AtomicI64 responses
    AtomicI64 closed
    AtomicI64 returned
    AtomicI64 mismatched        # responses with a correlation id other than their request's


cdef void respond(Responder *self, Request *first) noexcept nogil:
    cdef Peer *peer = <Peer *>self
    cdef Request *request
    while first != NULL:
        request = first
        first = first.next
        if request.action == ACTION_START_THROTTLE or request.action == ACTION_END_THROTTLE:
            request_free(request)
            continue
        if request.action == ACTION_CLOSE:
            atomic_add_fetch(&peer.closed, 1)
        elif request.action == ACTION_RETURN:
            atomic_add_fetch(&peer.returned, 1)
        else:
            atomic_add_fetch(&peer.responses, 1)
            if request.action == ACTION_SEND and (
                    request.segment_count == 0 or request.segments[0].data == NULL or request.segments[0].size_bytes < 4
                    or load_i32(request.segments[0].data) != <int32_t>request.sequence):
                atomic_add_fetch(&peer.mismatched, 1)
        request_free(request)
        atomic_add_fetch(&peer.outstanding, -1)


cdef uint32_t draw(uint64_t *state, uint32_t below) noexcept nogil:
    """Return a number below a limit (xorshift64*)."""
    state[0] ^= state[0] >> 12
    state[0] ^= state[0] << 25
    state[0] ^= state[0] >> 27
    return <uint32_t>((state[0] * 0x2545F4914F6CDD1DU) >> 32) % below


cdef void overwrite(uint64_t *state, char *frame, int64_t size, int64_t at) noexcept nogil:
    """Change a number to one of its limits, if the number is in range."""
    cdef uint64_t number = NUMBERS[draw(state, 16)]
    cdef uint32_t width = draw(state, 4)
    if width == 0 and at + 2 <= size:
        store_16(frame + at, number)
    elif width == 1 and at + 4 <= size:
        store_32(frame + at, number)
    elif width == 2 and at + 8 <= size:
        store_64(frame + at, number)
    else:
        frame[at] = <char>number


cdef int64_t replace(char *frame, int64_t size, int64_t at, int64_t removed,
                     const char *data, int64_t added) noexcept nogil:
    """Replace bytes and return the new size; the buffer must be large enough."""
    memmove(frame + at + added, frame + at + removed, size - at - removed)
    memcpy(frame + at, data, added)
    return size + added - removed


cdef int64_t mutate(uint64_t *state, char *frame, int64_t size, const char *other, int64_t other_size) noexcept nogil:
    """Mutate a frame once and return the new size, which grows by GROWTH_BYTES at most."""
    cdef char[GROWTH_BYTES] data
    cdef int64_t at, count
    cdef uint32_t kind = draw(state, 16)
    if size == 0:
        return 0
    at = draw(state, size)
    if at < HEADER_BYTES and draw(state, 8) != 0:
        if size <= HEADER_BYTES:
            return size
        at = HEADER_BYTES + draw(state, size - HEADER_BYTES)
    count = 1 + draw(state, GROWTH_BYTES)
    if kind < 3:
        frame[at] ^= <char>(1 << draw(state, 8))
    elif kind < 5:
        frame[at] = <char>draw(state, 256)
    elif kind < 9:
        overwrite(state, frame, size, at)
    elif kind < 11:             # a compact count or length instead of one byte
        count = put_uvarint(data, NUMBERS[draw(state, 16)])
        size = replace(frame, size, at, 1, data, count)
    elif kind == 11:
        size = replace(frame, size, at, min(count, size - at), frame, 0)
    elif kind == 12:            # a copy of bytes
        count = min(count, size - at)
        memcpy(data, frame + at, count)
        size = replace(frame, size, at, 0, data, count)
    elif kind == 13:            # bytes of another frame
        count = min(count, other_size)
        memcpy(data, other + draw(state, other_size - count + 1), count)
        size = replace(frame, size, at, min(count, size - at) if draw(state, 2) else 0, data, count)
    elif kind == 14:
        memset(data, 0xFF if draw(state, 2) else 0, count)
        size = replace(frame, size, at, min(count, size - at), data, count)
    else:
        size = at
    return size


cdef class MutatedFrames:
    """Source of frames for one broker.

    Args: ``frames`` are requests without their length prefix.
    """
    cdef:
        Queue queue
        list frames
        uint64_t state
        Peer *peer
        Session *session

    def __cinit__(self, Queue queue not None, list frames not None, uint64_t seed):
        self.queue = queue
        self.frames = frames
        self.state = seed * 2 + 1
        self.peer = <Peer *>calloc(1, sizeof(Peer))
        self.session = session_new("User:ANONYMOUS")
        if self.peer == NULL or self.session == NULL:
            raise MemoryError
        self.peer.channel = <Channel *>calloc(1, sizeof(Channel))
        self.peer.core = <ProcessorCore *>calloc(1, sizeof(ProcessorCore))
        if self.peer.channel == NULL or self.peer.core == NULL:
            raise MemoryError
        software_init(&self.peer.core.software, seed)
        self.peer.responder.respond = respond
        self.peer.responder.is_closed = is_closed
        self.peer.responder.owner = self.peer.core
        strcpy(self.peer.channel.metadata.local_host, "127.0.0.1")
        strcpy(self.peer.channel.metadata.remote_host, "127.0.0.1")
        self.peer.channel.metadata.listener_name = "PLAINTEXT"

    def put(self, int64_t count):
        """Put mutated frames into the queue. Returns: False once the queue is closed."""
        cdef int64_t _i
        cdef bytes chosen, other
        cdef Request *request
        cdef bint is_open = True
        for _i in range(count):
            chosen = self.frames[draw(&self.state, <uint32_t>len(self.frames))]
            other = self.frames[draw(&self.state, <uint32_t>len(self.frames))]
            request = self.mutated(chosen, other)
            atomic_add_fetch(&self.peer.outstanding, 1)
            with nogil:
                is_open = request_queue_put(self.queue.queue, &request, False)
            if not is_open:
                request_free(request)
                atomic_add_fetch(&self.peer.outstanding, -1)
                return False
        return True

    cdef Request *mutated(self, bytes chosen, bytes other) except NULL:
        """Return a request whose payload ends at the end of its memory, so that a sanitizer detects reads beyond it."""
        cdef int64_t size = len(chosen)
        cdef char *frame = <char *>malloc(size + MAX_MUTATIONS * GROWTH_BYTES)
        cdef Request *request
        cdef uint32_t _i
        if frame == NULL:
            raise MemoryError
        memcpy(frame, <const char *>chosen, size)
        for _i in range(draw(&self.state, MAX_MUTATIONS + 1)):
            size = mutate(&self.state, frame, size, <const char *>other, len(other))
        request = request_new(kafka_context_type(), size)
        if request == NULL:
            free(frame)
            raise MemoryError
        memcpy(request.payload, frame, size)
        free(frame)
        request.sequence = load_i32(request.payload + 4) if size >= 8 else 0
        request.responder = &self.peer.responder
        request.channel = self.peer.channel
        request.channel_number = 1 + draw(&self.state, 100)
        request.session = session_retain(self.session)
        return request

    def take(self):
        """Return the next frame, to be sent in another way."""
        cdef Request *request = self.mutated(
            self.frames[draw(&self.state, <uint32_t>len(self.frames))],
            self.frames[draw(&self.state, <uint32_t>len(self.frames))])
        cdef bytes frame = request.payload[:request.size_bytes]
        request_free(request)
        return frame

    @property
    def outstanding(self):
        """Number of frames without a response."""
        return atomic_load(&self.peer.outstanding)

    def counts(self):
        """Return the numbers of responses, closed connections, and responses with a wrong correlation id."""
        return (atomic_load(&self.peer.responses), atomic_load(&self.peer.closed), atomic_load(&self.peer.mismatched))

    def __dealloc__(self):
        session_release(self.session)
        if self.peer != NULL:
            if self.peer.core != NULL:
                software_destroy(&self.peer.core.software)
            free(self.peer.core)
            free(self.peer.channel)
            free(self.peer)
