"""Frame state machine. Memory grows with the arriving bytes; the pool is charged with the declared size."""
cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from kbroker._core.arguments cimport integer
from kbroker._core.codec.bytes cimport load_i32
from kbroker._core.requests.memory_pool cimport MemoryPool, Pool, pool_free, pool_retain, pool_try_allocate
from kbroker._core.requests.request cimport Request, request_free, request_new, request_new_from
from kbroker._core.sync cimport atomic_add_fetch

cdef enum:
    INLINE_PAYLOAD_BYTES = 16384    # up to here the payload is after the struct: one allocation per frame
    FIRST_CHUNK_BYTES = 65536       # larger frames start with this much and double as bytes arrive


cdef inline void stage(FrameReader *reader, Request *frame, int64_t now_ns) noexcept nogil:
    frame.start_ns = now_ns
    frame.next = NULL
    if reader.staged_last is NULL:
        reader.staged_first = frame
    else:
        reader.staged_last.next = frame
    reader.staged_last = frame
    reader.staged_count += 1


cdef Request *new_frame(Framing *framing, int64_t size_bytes) noexcept nogil:
    cdef Request *frame
    if size_bytes <= INLINE_PAYLOAD_BYTES:
        return request_new_from(framing.cache, framing.context_type, size_bytes)
    frame = request_new(framing.context_type, 0)
    if frame is NULL:
        return NULL
    frame.size_bytes = size_bytes
    frame.capacity_bytes = size_bytes if size_bytes < FIRST_CHUNK_BYTES else FIRST_CHUNK_BYTES
    frame.payload_owned = <char *>malloc(<size_t>frame.capacity_bytes)
    frame.payload = frame.payload_owned
    if frame.payload_owned is NULL:
        request_free(frame)
        return NULL
    return frame


cdef bint ensure_capacity(Request *frame, int64_t limit) noexcept nogil:
    """Make at least one free byte, doubling the capacity up to ``limit``; false: out of memory."""
    cdef int64_t capacity
    cdef char *grown
    if frame.filled_bytes < frame.capacity_bytes:
        return True
    capacity = frame.capacity_bytes * 2
    if capacity > limit:
        capacity = limit
    grown = <char *>realloc(frame.payload_owned, <size_t>capacity)
    if grown is NULL:
        return False
    frame.payload_owned = grown
    frame.payload = grown
    frame.capacity_bytes = capacity
    return True


cdef inline int64_t fill(Request *frame, const char *data, int64_t size_bytes, int64_t limit) noexcept nogil:
    """Append bytes to a frame of at most ``limit`` bytes; return their number, which is lower if malloc failed."""
    cdef int64_t n, at = 0
    while at < size_bytes and ensure_capacity(frame, limit):
        n = frame.capacity_bytes - frame.filled_bytes
        if n > size_bytes - at:
            n = size_bytes - at
        memcpy(frame.payload + frame.filled_bytes, data + at, <size_t>n)
        frame.filled_bytes += n
        at += n
    return at


cdef inline int head_complete(Framing *framing, FrameReader *reader) noexcept nogil:
    cdef int32_t declared = load_i32(reader.head)
    if declared < 0 or declared > (reader.limit_bytes if reader.limit_bytes > 0 else framing.max_size_bytes):
        return FEED_INVALID
    reader.declared_bytes = declared
    reader.size_known = True
    return FEED_MORE


cdef inline void charge(FrameReader *reader, int64_t size_bytes) noexcept nogil:
    """Note bytes of the pool that are charged to the frame being filled."""
    reader.partial.pool_charge += size_bytes
    reader.partial.charge_account = &reader.charged_bytes
    atomic_add_fetch(&reader.charged_bytes, size_bytes)


cdef int begin_frame(Framing *framing, Pool *pool, FrameReader *reader) noexcept nogil:
    """Charge the pool for a frame of known size, and create the frame; return a FeedResult."""
    cdef int64_t size_bytes = reader.declared_bytes
    cdef bint charged = size_bytes > 0 and pool.size_bytes >= 0 and reader.limit_bytes == 0
    if charged and not pool_try_allocate(pool, size_bytes):
        return FEED_MEMORY
    reader.partial = new_frame(framing, size_bytes)
    if reader.partial is NULL:
        if charged:
            pool_free(pool, size_bytes)
        return FEED_NO_MEMORY
    if charged:
        reader.partial.pool = pool_retain(pool)
        charge(reader, size_bytes)
    reader.size_known = False
    reader.head_filled = 0
    return FEED_MORE


cdef int feed_prefixed(
        Framing *framing, Pool *pool, FrameReader *reader, const char *data, int64_t size_bytes, int32_t limit,
        int64_t now_ns, int64_t *consumed) noexcept nogil:
    cdef int64_t at = 0, n, added
    cdef int result = FEED_MORE
    cdef Request *frame
    while True:
        if reader.partial is NULL:
            if at < size_bytes and reader.staged_count >= limit:
                result = FEED_FULL
                break
            if not reader.size_known:
                while reader.head_filled < 4 and at < size_bytes:
                    reader.head[reader.head_filled] = <unsigned char>data[at]
                    reader.head_filled += 1
                    at += 1
                if reader.head_filled < 4:
                    break
                result = head_complete(framing, reader)
                if result != FEED_MORE:
                    break
            result = begin_frame(framing, pool, reader)
            if result != FEED_MORE:
                break
        frame = reader.partial
        n = frame.size_bytes - frame.filled_bytes
        if n > size_bytes - at:
            n = size_bytes - at
        added = fill(frame, data + at, n, frame.size_bytes)
        at += added
        if added < n:
            result = FEED_NO_MEMORY
            break
        if frame.filled_bytes < frame.size_bytes:
            break
        reader.partial = NULL
        stage(reader, frame, now_ns)
    consumed[0] = at
    return result


cdef int grow_partial(
        Framing *framing, Pool *pool, FrameReader *reader, const char *data, int64_t size_bytes) noexcept nogil:
    """Append to a frame whose size is not known yet, charging the appended bytes; return a FeedResult."""
    cdef Request *frame = reader.partial
    if frame is NULL:
        frame = new_frame(framing, INLINE_PAYLOAD_BYTES + 1)    # with its own memory, to grow
        if frame is NULL:
            return FEED_NO_MEMORY
        reader.partial = frame
    if frame.filled_bytes + size_bytes > framing.max_size_bytes + framing.delimiter_bytes:
        return FEED_INVALID
    if pool.size_bytes >= 0:
        if not pool_try_allocate(pool, size_bytes):
            return FEED_MEMORY
        if frame.pool is NULL:
            frame.pool = pool_retain(pool)
        charge(reader, size_bytes)
    if fill(frame, data, size_bytes, framing.max_size_bytes + framing.delimiter_bytes) < size_bytes:
        return FEED_NO_MEMORY
    return FEED_MORE


cdef int feed_delimited(
        Framing *framing, Pool *pool, FrameReader *reader, const char *data, int64_t size_bytes, int32_t limit,
        int64_t now_ns, int64_t *consumed) noexcept nogil:
    cdef int64_t at = 0, n
    cdef int result = FEED_MORE
    cdef int32_t d = framing.delimiter_bytes
    cdef Request *frame
    cdef const char *found
    while at < size_bytes:
        if reader.partial is NULL and reader.staged_count >= limit:
            result = FEED_FULL
            break
        found = <const char *>memchr(data + at, framing.delimiter[d - 1], <size_t>(size_bytes - at))
        n = size_bytes - at if found is NULL else found - (data + at) + 1
        result = grow_partial(framing, pool, reader, data + at, n)
        if result != FEED_MORE:
            break
        at += n
        frame = reader.partial
        if (frame.filled_bytes >= d
                and memcmp(frame.payload + frame.filled_bytes - d, framing.delimiter, <size_t>d) == 0):
            frame.size_bytes = frame.filled_bytes - d
            frame.filled_bytes = frame.size_bytes
            reader.partial = NULL
            stage(reader, frame, now_ns)
        elif frame.filled_bytes >= framing.max_size_bytes + d:
            result = FEED_INVALID
            break
    consumed[0] = at
    return result


cdef int frames_feed(
        Framing *framing, Pool *pool, FrameReader *reader, const char *data, int64_t size_bytes, int32_t limit,
        int64_t now_ns, int64_t *consumed) noexcept nogil:
    cdef int64_t at = 0, n
    cdef int result = FEED_MORE
    if framing.kind == FRAMING_LENGTH_PREFIX:
        return feed_prefixed(framing, pool, reader, data, size_bytes, limit, now_ns, consumed)
    if framing.kind == FRAMING_DELIMITER:
        return feed_delimited(framing, pool, reader, data, size_bytes, limit, now_ns, consumed)
    while at < size_bytes:
        if reader.staged_count >= limit:
            result = FEED_FULL
            break
        n = size_bytes - at
        if n > framing.max_size_bytes:
            n = framing.max_size_bytes
        reader.declared_bytes = n
        result = begin_frame(framing, pool, reader)
        if result != FEED_MORE:
            break
        if fill(reader.partial, data + at, n, n) < n:
            result = FEED_NO_MEMORY
            break
        at += n
        stage(reader, reader.partial, now_ns)
        reader.partial = NULL
    consumed[0] = at
    return result


cdef int frames_target(
        Framing *framing, Pool *pool, FrameReader *reader, char **into, int64_t *size_bytes) noexcept nogil:
    cdef Request *frame
    cdef int result
    if reader.partial is NULL:
        if not reader.size_known:
            into[0] = <char *>reader.head + reader.head_filled
            size_bytes[0] = 4 - reader.head_filled
            return FEED_MORE
        result = begin_frame(framing, pool, reader)
        if result != FEED_MORE:
            return result
    frame = reader.partial
    if frame.size_bytes > 0 and not ensure_capacity(frame, frame.size_bytes):
        return FEED_NO_MEMORY
    into[0] = frame.payload + frame.filled_bytes
    size_bytes[0] = frame.capacity_bytes - frame.filled_bytes     # 0: an empty frame, complete at once
    return FEED_MORE


cdef int frames_filled(Framing *framing, FrameReader *reader, int64_t size_bytes, int64_t now_ns) noexcept nogil:
    cdef Request *frame = reader.partial
    if frame is NULL:
        reader.head_filled += <int32_t>size_bytes
        return head_complete(framing, reader) if reader.head_filled == 4 else FEED_MORE
    frame.filled_bytes += size_bytes
    if frame.filled_bytes == frame.size_bytes:
        reader.partial = NULL
        stage(reader, frame, now_ns)
    return FEED_MORE


cdef Request *frames_take(FrameReader *reader) noexcept nogil:
    cdef Request *frame = reader.staged_first
    if frame is not NULL:
        reader.staged_first = frame.next
        if reader.staged_first is NULL:
            reader.staged_last = NULL
        reader.staged_count -= 1
        frame.next = NULL
    return frame


cdef void frames_put_back(FrameReader *reader, Request *first, Request *last, int32_t count) noexcept nogil:
    last.next = reader.staged_first
    if reader.staged_first is NULL:
        reader.staged_last = last
    reader.staged_first = first
    reader.staged_count += count


cdef void frames_clear(FrameReader *reader) noexcept nogil:
    cdef Request *frame
    while True:
        frame = frames_take(reader)
        if frame is NULL:
            break
        request_free(frame)
    request_free(reader.partial)
    reader.partial = NULL
    reader.head_filled = 0
    reader.size_known = False       # charged_bytes stays: frames in flight leave the account, on other threads


cdef int framing_from(Framing *framing, object kind, object max_size_bytes, object delimiter) except -1:
    cdef dict kinds = {
        "length-prefix": FRAMING_LENGTH_PREFIX, "delimiter": FRAMING_DELIMITER, "raw": FRAMING_RAW}
    cdef int64_t limit = INT32_MAX
    cdef bytes mark = b""
    if max_size_bytes is not None:
        limit = integer(max_size_bytes, "the largest frame", 1, INT32_MAX)
    if delimiter is not None:
        mark = bytes(memoryview(delimiter))     # bytes(5) would be five zeros
    if not isinstance(kind, str):
        raise TypeError(f"framing must be a str, not {type(kind).__name__}")
    if kind not in kinds:
        raise ValueError(f"framing must be one of {', '.join(kinds)}, got {kind!r}")
    if (kind == "delimiter") != (1 <= len(mark) <= MAX_DELIMITER_BYTES):
        raise ValueError(f"delimiter framing, and no other, needs a delimiter of 1 to {MAX_DELIMITER_BYTES} bytes")
    memset(framing, 0, sizeof(Framing))
    framing.kind = kinds[kind]
    framing.max_size_bytes = limit
    framing.delimiter_bytes = <int32_t>len(mark)
    memcpy(framing.delimiter, <const char *>mark, len(mark))
    return 0


@cython.final
cdef class Framer:
    """Splitter of a byte stream into frames, as in a network loop for each channel.

    Args:
        framing: "length-prefix" (int32, big endian), "delimiter" or "raw".
        max_size_bytes: the largest frame, 1 to 2**31 - 1 (the default).
        delimiter: 1 to 16 bytes, for framing "delimiter" only.
        pool: charged with each frame until ``feed`` returns it; None: unlimited.
    Raises: ValueError, TypeError for wrong arguments.
    Threads: one.
    """
    cdef Framing framing
    cdef FrameReader reader
    cdef MemoryPool pool
    cdef int failure                    # result that ended the division for good: no memory, or an invalid frame
    cdef readonly int64_t bytes_read    # bytes taken so far

    def __cinit__(self, framing="length-prefix", max_size_bytes=None, delimiter=None, MemoryPool pool=None):
        framing_from(&self.framing, framing, max_size_bytes, delimiter)
        self.pool = MemoryPool.unlimited() if pool is None else pool

    def __dealloc__(self):
        frames_clear(&self.reader)

    def feed(self, const unsigned char[::1] data not None):
        """Take bytes; return (frames completed by them, number of bytes taken).

        Fewer bytes are taken than given when the pool refuses a frame, or a frame after the returned ones is invalid:
        feed the rest again later.
        Raises: ValueError for a negative or too large size, MemoryError, once the complete frames before it were
        returned: the rest of the stream cannot be divided into frames.
        """
        cdef int64_t consumed = 0
        cdef int result = FEED_MORE
        cdef Request *frame
        cdef list frames = []
        if self.failure != FEED_MORE:
            result = self.failure
        elif data.shape[0]:
            result = frames_feed(&self.framing, self.pool.pool, &self.reader, <const char *>&data[0], data.shape[0],
                                 INT32_MAX, 0, &consumed)
        if result == FEED_NO_MEMORY or result == FEED_INVALID:
            self.failure = result
        self.bytes_read += consumed
        while True:
            frame = frames_take(&self.reader)
            if frame is NULL:
                break
            try:
                frames.append(frame.payload[:frame.size_bytes])
            finally:
                request_free(frame)
        if frames:                      # else they would be lost with the error, which the next call raises
            return frames, consumed
        if result == FEED_NO_MEMORY:
            raise MemoryError
        if result == FEED_INVALID:
            raise ValueError(f"a frame is negative or larger than {self.framing.max_size_bytes} bytes")
        return frames, consumed

    @property
    def is_partial(self):
        """True between the first and the last byte of a frame."""
        return self.reader.partial is not NULL or self.reader.size_known or self.reader.head_filled > 0
