"""Codecs of record batches, in both directions: gzip, snappy (raw and the snappy-java stream), LZ4 and zstd.

Source: ``org.apache.kafka.common.compress``. Every length is checked against the remaining bytes.
"""
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from kbroker._core.codec.bytes cimport load_i32
from kbroker.protocol._compression_type cimport GZIP, LZ4, NONE, SNAPPY, ZSTD

cdef enum:
    FIRST_STEP_BYTES = 1 << 16      # output of the first step; each further step may be four times as large
    XERIAL_HEADER_BYTES = 16
    INFLATE_IN_BYTES = 1 << 16      # zlib copies its unread input at each step, so the pieces are small
    INFLATE_OUT_BYTES = 1 << 18
    LZ4_BLOCK_CHECKSUMS = 0x10      # flags of an LZ4 frame
    LZ4_CONTENT_SIZE = 0x08
    LZ4_CONTENT_CHECKSUM = 0x04
    LZ4_DICTIONARY = 0x01


# ---------------------------------------------------------------------------------------------- decompression

cdef int32_t records_decompress(int codec, const char *packed, int64_t packed_bytes, int64_t cap_bytes, char **out,
                                int64_t *out_bytes) noexcept nogil:
    cdef int32_t status = records_prefix(codec, packed, packed_bytes, cap_bytes, out, out_bytes)
    if status != 1:
        return status
    free(out[0])
    out[0] = NULL
    out_bytes[0] = 0
    return -2


cdef int32_t records_prefix(int codec, const char *packed, int64_t packed_bytes, int64_t cap_bytes, char **out,
                            int64_t *out_bytes) noexcept nogil:
    cdef int32_t status
    out[0] = NULL
    out_bytes[0] = 0
    if packed_bytes < 0 or codec < 0 or codec > ZSTD:
        return -1
    if codec == NONE:
        out_bytes[0] = min(packed_bytes, cap_bytes)
        out[0] = <char *>malloc(out_bytes[0] + 1)
        if out[0] is NULL:
            return -2
        memcpy(out[0], packed, out_bytes[0])
        return 1 if packed_bytes > cap_bytes else 0
    with gil:
        try:
            status = decompress(codec, packed, packed_bytes, cap_bytes, out, out_bytes)
        except MemoryError:
            status = -2
        except BaseException:
            status = -1
    if status < 0:
        free(out[0])
        out[0] = NULL
        out_bytes[0] = 0
    return status


cdef int32_t decompress(int codec, const char *data, int64_t size, int64_t cap, char **out,
                        int64_t *out_bytes) except? -9:
    """Decompress at most `cap` bytes; a library's decoder stops there, so a bomb costs no more.

    Returns: 0; 1 for a part; -1 for damaged data.
    """
    if codec == GZIP:
        return inflate(data, size, cap, out, out_bytes)
    import cramjam

    if codec == SNAPPY:
        if size >= 8 and memcmp(data, b"\x82SNAPPY\x00", 8) == 0:
            return decompress_xerial(cramjam.snappy.decompress_raw_into, data, size, cap, out, out_bytes)
        return snappy_block(cramjam.snappy.decompress_raw_into, data, size, cap, out, out_bytes)
    if codec == LZ4:
        if lz4_frame_bytes(data, size) != size:     # exactly one frame: some versions of cramjam ignore bytes after it
            return -1
        return in_steps(cramjam.lz4.decompress_into, data, size, cap, out, out_bytes)
    return in_steps(cramjam.zstd.decompress_into, data, size, cap, out, out_bytes)


cdef int reserve(char **out, int64_t size) except -1:
    cdef char *grown = <char *>realloc(out[0], size + 1)
    if grown is NULL:
        raise MemoryError
    out[0] = grown
    return 0


cdef object view_of(const char *data, int64_t size):
    return PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ)


cdef int32_t in_steps(decoder, const char *data, int64_t size, int64_t cap, char **out, int64_t *out_bytes) except? -9:
    cdef int64_t capacity = FIRST_STEP_BYTES
    source = view_of(data, size)
    while capacity < size * 4:
        capacity *= 4
    while True:
        capacity = min(capacity, cap)
        free(out[0])
        out[0] = NULL
        reserve(out, capacity)
        try:
            out_bytes[0] = decoder(source, PyMemoryView_FromMemory(out[0], capacity, PyBUF_WRITE))
            return 0
        except Exception as e:  # only the message distinguishes a full output from invalid input
            if "write whole buffer" not in str(e):
                return -1
        if capacity >= cap:     # the output is full
            out_bytes[0] = capacity
            return 1
        capacity *= 4


cdef int32_t inflate(const char *data, int64_t size, int64_t cap, char **out, int64_t *out_bytes) except? -9:
    """Inflate consecutive gzip members in bounded steps; cramjam 2.11 inflates all of them before it checks a limit."""
    import zlib
    cdef int64_t at = 0, capacity = 0, got
    cdef bint is_cut
    cdef bytes piece
    if size == 0:
        return -1
    reserve(out, 0)
    while at < size:
        member = zlib.decompressobj(31)
        while not member.eof:
            source = view_of(data + at, min(size - at, <int64_t>INFLATE_IN_BYTES))
            piece = member.decompress(source, min(<int64_t>INFLATE_OUT_BYTES, cap - out_bytes[0] + 1))
            at += len(source) - len(member.unconsumed_tail) - len(member.unused_data)
            got = PyBytes_GET_SIZE(piece)
            if got == 0 and at == size and not member.eof:
                return -1                   # incomplete
            is_cut = got > cap - out_bytes[0]
            if is_cut:
                got = cap - out_bytes[0]
            if got > capacity - out_bytes[0]:
                capacity = min(max(capacity * 2, max(out_bytes[0] + got, <int64_t>FIRST_STEP_BYTES)), cap)
                reserve(out, capacity)
            memcpy(out[0] + out_bytes[0], PyBytes_AS_STRING(piece), got)
            out_bytes[0] += got
            if is_cut:
                return 1
    return 0


cdef int64_t lz4_frame_bytes(const char *data, int64_t size) noexcept nogil:
    """Return the length of the LZ4 frame at `data`, its blocks unchecked; -1: not an LZ4 frame, or incomplete."""
    cdef uint8_t flags
    cdef int64_t at, block
    if size < 7 or memcmp(data, b"\x04\x22\x4d\x18", 4) != 0:
        return -1
    flags = <uint8_t>data[4]
    at = 7 + (8 if flags & LZ4_CONTENT_SIZE else 0) + (4 if flags & LZ4_DICTIONARY else 0)
    while True:
        if size - at < 4:
            return -1
        block = (<uint8_t>data[at] | <uint8_t>data[at + 1] << 8 | <uint8_t>data[at + 2] << 16
                 | (<uint8_t>data[at + 3] & 0x7f) << 24)
        at += 4
        if block == 0:
            break
        if flags & LZ4_BLOCK_CHECKSUMS:
            block += 4
        if block > size - at:
            return -1
        at += block
    if flags & LZ4_CONTENT_CHECKSUM:
        at += 4
    return at if at <= size else -1


cdef int32_t snappy_block(decoder, const char *data, int64_t size, int64_t cap, char **out,
                          int64_t *out_bytes) except? -9:
    """Append one raw block; its first bytes are its length, and a copy of 3 bytes yields at most 64."""
    cdef uint64_t claimed = 0
    cdef int shift = 0
    cdef int64_t i
    for i in range(min(size, 5)):
        claimed |= <uint64_t>(<uint8_t>data[i] & 0x7f) << shift
        shift += 7
        if <uint8_t>data[i] < 0x80:
            break
    else:
        return -1
    if claimed > <uint64_t>(size * 22 + 64):
        return -1
    if <int64_t>claimed > cap - out_bytes[0]:
        reserve(out, out_bytes[0])
        return 1                # a block is whole or absent: the part before it, which may be empty
    reserve(out, out_bytes[0] + <int64_t>claimed)
    if claimed == 0:
        return 0 if i + 1 == size else -1
    try:
        target = PyMemoryView_FromMemory(out[0] + out_bytes[0], claimed, PyBUF_WRITE)
        out_bytes[0] += decoder(view_of(data, size), target)
    except Exception:
        return -1
    return 0


cdef int32_t decompress_xerial(decoder, const char *data, int64_t size, int64_t cap, char **out,
                               int64_t *out_bytes) except? -9:
    """Decompress the snappy-java stream: a header, then blocks of an int32 length and a raw snappy block."""
    cdef int64_t at = XERIAL_HEADER_BYTES, length
    cdef int32_t status
    if size < XERIAL_HEADER_BYTES:
        return -1
    reserve(out, 0)
    while at < size:
        if size - at < 4:
            return -1
        length = load_i32(data + at)
        at += 4
        if length <= 0 or length > size - at:
            return -1
        status = snappy_block(decoder, data + at, length, cap, out, out_bytes)
        if status != 0:
            return status
        at += length
    return 0


# ---------------------------------------------------------------------------------------------- compression

cdef bytes compress(int codec, bytes records, int32_t level):
    if codec == NONE:
        return records
    import cramjam

    if codec == GZIP:
        return bytes(cramjam.gzip.compress(records, level=6 if level in (CODEC_LEVEL, -1) else level))
    if codec == LZ4:
        # Java does not read linked blocks, and Kafka's level 9, its default, is the fast compressor
        encoder = cramjam.lz4.Compressor(level=1 if level in (CODEC_LEVEL, 9) else level, content_checksum=False,
                                         block_linked=False)
        encoder.compress(records)
        return bytes(encoder.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(records, level=3 if level == CODEC_LEVEL else level))
    # The snappy-java stream, which every client reads; blocks have Java's size.
    out = [b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"]
    for start in range(0, len(records), 32768):
        block = bytes(cramjam.snappy.compress_raw(records[start:start + 32768]))
        out.append(len(block).to_bytes(4, "big"))
        out.append(block)
    return b"".join(out)


cdef int32_t records_compress(int codec, int32_t level, const char *records, int64_t records_bytes,
                              int64_t reserved_bytes, char **out, int64_t *packed_bytes) noexcept nogil:
    out[0] = NULL
    packed_bytes[0] = 0
    if codec < 0 or codec > ZSTD or records_bytes < 0 or records_bytes > INT32_MAX - reserved_bytes:
        return -1
    if codec != NONE:
        with gil:
            try:
                return compress_behind(codec, level, records, records_bytes, reserved_bytes, out, packed_bytes)
            except MemoryError:
                return -2
            except BaseException:
                return -1
    out[0] = <char *>malloc(reserved_bytes + records_bytes)
    if out[0] is NULL:
        return -2
    memcpy(out[0] + reserved_bytes, records, records_bytes)
    packed_bytes[0] = records_bytes
    return 0


cdef int32_t compress_behind(int codec, int32_t level, const char *records, int64_t records_bytes,
                             int64_t reserved_bytes, char **out, int64_t *packed_bytes) except? -9:
    cdef bytes packed = compress(codec, PyBytes_FromStringAndSize(records, records_bytes), level)
    cdef int64_t size = PyBytes_GET_SIZE(packed)
    if size > INT32_MAX - reserved_bytes:
        return -2
    out[0] = <char *>malloc(reserved_bytes + size)
    if out[0] is NULL:
        return -2
    memcpy(out[0] + reserved_bytes, PyBytes_AS_STRING(packed), size)
    packed_bytes[0] = size
    return 0


def decompress_bounded(int codec, const unsigned char[::1] data not None, int64_t cap_bytes):
    """Return decompressed data of at most ``cap_bytes``. Raises: ValueError if it is larger or cannot be decoded."""
    cdef char *out = NULL
    cdef int64_t out_bytes = 0
    cdef const char *packed = <const char *>&data[0] if data.shape[0] else NULL
    cdef int32_t status
    with nogil:
        status = records_decompress(codec, packed, data.shape[0], cap_bytes, &out, &out_bytes)
    if status == -2:
        raise ValueError(f"expected at most {cap_bytes} bytes after decompression, found more")
    if status != 0:
        raise ValueError(f"expected data compressed with codec {codec}, found other data")
    try:
        return out[:out_bytes]
    finally:
        free(out)
