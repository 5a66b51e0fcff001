"""Frames with a context in each request, as a server of another protocol would have, for tests."""
from libc.stdint cimport INT32_MAX, int64_t
from libc.string cimport memset

from kbroker._core.codec.framing cimport Framing, FrameReader, frames_clear, frames_feed, frames_take, framing_from
from kbroker._core.requests.memory_pool cimport MemoryPool
from kbroker._core.requests.request cimport (
    ContextType, Request, RequestCache, request_cache_clear, request_context, request_free, request_free_into,
    request_new, request_reserve, request_room,
)
from kbroker.network._kafka_request cimport KafkaRequest

cdef struct Context:
    int64_t number              # zeroed
    char untouched[40]


cdef int64_t released_numbers = 0
cdef int64_t released_bytes = 0


cdef void release(Request *request) noexcept nogil:
    """Count the state that remains when a request is freed."""
    global released_numbers, released_bytes
    released_numbers += (<Context *>request_context(request)).number
    released_bytes += request.response_bytes


cdef ContextType TYPE
TYPE.size_bytes = sizeof(Context)
TYPE.zeroed_bytes = sizeof(int64_t)
TYPE.release = release


def sizes():
    """Return the size of a request, and the size of Kafka's context after it."""
    return sizeof(Request), sizeof(KafkaRequest)


def frames(bytes data not None):
    """Split length-prefixed frames; each gets its index as its number, and a response of one byte.

    Returns: (payloads, sum of the numbers found in new contexts, sum of the numbers seen by the releases, sum of the
    response bytes seen by them).
    """
    global released_numbers, released_bytes
    cdef Framing framing
    cdef FrameReader reader
    cdef MemoryPool pool = MemoryPool.unlimited()
    cdef Request *frame
    cdef Context *context
    cdef int64_t consumed = 0, found = 0, place = 0
    cdef list payloads = []
    released_numbers = released_bytes = 0
    framing_from(&framing, "length-prefix", None, None)
    framing.context_type = &TYPE
    memset(&reader, 0, sizeof(reader))
    frames_feed(&framing, pool.pool, &reader, <const char *>data, len(data), INT32_MAX, 0, &consumed)
    while True:
        frame = frames_take(&reader)
        if frame is NULL:
            break
        place += 1
        context = <Context *>request_context(frame)
        found += context.number
        context.number = place
        memset(context.untouched, 255, sizeof(context.untouched))
        request_reserve(frame, 1)[0] = 1
        payloads.append(frame.payload[:frame.size_bytes])
        request_free(frame)
    frames_clear(&reader)
    return payloads, found, released_numbers, released_bytes


def recycled(list payloads not None, int held=1):
    """Split frames, of which `held` exist at the same time, with a cache; change everything in them before their end.

    Returns: ([(payload, number of its memory in the order of first use, size of its room)], number of requests in the
    cache at the end, sum of the numbers and of the response bytes found in new requests).
    """
    cdef Framing framing
    cdef FrameReader reader
    cdef RequestCache cache
    cdef MemoryPool pool = MemoryPool.unlimited()
    cdef Request *frame
    cdef Context *context
    cdef char *at_room
    cdef int64_t consumed = 0, found = 0, room = 0
    cdef dict places = {}
    cdef list results = []
    cdef bytes data
    framing_from(&framing, "length-prefix", None, None)
    framing.context_type = &TYPE
    memset(&reader, 0, sizeof(reader))
    memset(&cache, 0, sizeof(cache))
    framing.cache = &cache
    for at in range(0, len(payloads), held):
        data = b"".join([len(payload).to_bytes(4, "big") + payload for payload in payloads[at : at + held]])
        frames_feed(&framing, pool.pool, &reader, <const char *>data, len(data), INT32_MAX, 0, &consumed)
        while True:
            frame = frames_take(&reader)
            if frame is NULL:
                break
            context = <Context *>request_context(frame)
            found += context.number + frame.response_bytes + frame.segment_count
            at_room = request_room(frame, &room)
            memset(at_room, 255, <size_t>room)
            results.append((frame.payload[:frame.size_bytes], places.setdefault(<size_t>frame, len(places)), room))
            context.number = 7
            memset(context.untouched, 255, sizeof(context.untouched))
            memset(request_reserve(frame, 300), 255, 300)
            memset(request_reserve(frame, 300), 255, 300)
            request_free_into(&cache, frame)
    count = cache.count
    request_cache_clear(&cache)
    frames_clear(&reader)
    return results, count, found


def without_context():
    """Create and free a request without a context; return True if no release was called."""
    global released_numbers
    released_numbers = -1
    request_free(request_new(NULL, 10))
    return released_numbers == -1
