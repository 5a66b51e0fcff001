"""Framing of bytes: int32 length prefix, delimiter, or raw. Frames are Requests, so a frame never moves again.

No lock: a FrameReader belongs to one channel, which belongs to one loop. The reader outlives the frames it has charged,
or they leave its account (``request_leave_account``).
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.requests.memory_pool cimport Pool
from kbroker._core.requests.request cimport ContextType, Request, RequestCache
from kbroker._core.sync cimport AtomicI64

cdef enum FramingKind:
    FRAMING_LENGTH_PREFIX = 0   # int32, big endian, not counted in itself
    FRAMING_DELIMITER = 1       # the delimiter is not part of the frame
    FRAMING_RAW = 2             # the bytes of one read

cdef enum:
    MAX_DELIMITER_BYTES = 16

cdef enum FeedResult:
    FEED_MORE = 0               # all bytes taken
    FEED_FULL = 1               # enough complete frames wait: the rest was not taken
    FEED_MEMORY = 2             # the pool refused: the rest was not taken, the declared size is remembered
    FEED_INVALID = 3            # negative or too large: close the connection
    FEED_NO_MEMORY = 4          # malloc failed: close the connection

cdef struct Framing:
    int kind
    int32_t delimiter_bytes
    int64_t max_size_bytes
    const ContextType *context_type     # of each frame; NULL, as after framing_from: none
    RequestCache *cache         # for the memory of small frames; NULL, as after framing_from: none
    unsigned char delimiter[MAX_DELIMITER_BYTES]

cdef struct FrameReader:
    unsigned char head[4]
    int32_t head_filled
    bint size_known             # the size is read, its memory is not allocated yet
    int32_t staged_count
    int64_t declared_bytes
    int64_t limit_bytes         # above 0: replaces the framing's, and the pool is not charged (length prefix only)
    AtomicI64 charged_bytes     # of the pool, for frames of this reader that are not released yet
    Request *partial            # owned: the frame being filled
    Request *staged_first       # owned: complete frames in order, linked by next
    Request *staged_last

# Consume bytes up to the end, until ``limit`` frames are staged, or until a FeedResult other than FEED_MORE; *consumed
# is the number of bytes.
cdef int frames_feed(
    Framing *framing, Pool *pool, FrameReader *reader, const char *data, int64_t size_bytes, int32_t limit,
    int64_t now_ns, int64_t *consumed) noexcept nogil
# Length prefix only: set the address of the next bytes of the frame (in prefix or body) and their maximum number;
# return a FeedResult.
cdef int frames_target(
    Framing *framing, Pool *pool, FrameReader *reader, char **into, int64_t *size_bytes) noexcept nogil
cdef int frames_filled(Framing *framing, FrameReader *reader, int64_t size_bytes, int64_t now_ns) noexcept nogil
cdef Request *frames_take(FrameReader *reader) noexcept nogil            # first staged frame or NULL
cdef void frames_put_back(FrameReader *reader, Request *first, Request *last, int32_t count) noexcept nogil
cdef void frames_clear(FrameReader *reader) noexcept nogil
cdef int framing_from(Framing *framing, object kind, object max_size_bytes, object delimiter) except -1
