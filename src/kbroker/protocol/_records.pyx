# cython: freethreading_compatible=True
"""Record batch v2, the byte grammar: headers, checksum, records, decompression, building.

Source: ``DefaultRecordBatch.java``, ``DefaultRecord.java``. Every length is checked against the bytes that are there.
"""
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove

from kbroker._core.crc32c cimport crc32c

from kbroker.common.errors import Errors, ProtocolError

cdef enum:
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40
    CRC_FROM = 21                   # the checksum covers attributes to end
    LENGTH_FROM = 12                # batch_length counts from here
    FIRST_STEP_BYTES = 1 << 16      # output room of the first try; each further step has four times the room
    XERIAL_HEADER_BYTES = 16
    INFLATE_IN_BYTES = 1 << 16      # zlib copies what it has not read yet at each step, so it sees little at once
    INFLATE_OUT_BYTES = 1 << 18
    LZ4_BLOCK_CHECKSUMS = 0x10      # flags of an LZ4 frame
    LZ4_CONTENT_SIZE = 0x08
    LZ4_CONTENT_CHECKSUM = 0x04
    LZ4_DICTIONARY = 0x01

DEFAULT_CAP_BYTES = 1 << 30


# ---------------------------------------------------------------------------------------------- native: reading

cdef inline uint64_t load_be(const char *at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | <uint8_t>at[i]
    return value


cdef bint batch_parse(const char *data, int64_t size_bytes, BatchHeader *out) noexcept nogil:
    if size_bytes < BATCH_HEADER_BYTES:
        return False
    out.base_offset = <int64_t>load_be(data, 8)
    out.batch_length = <int32_t>load_be(data + 8, 4)
    out.leader_epoch = <int32_t>load_be(data + 12, 4)
    out.magic = <int8_t>data[16]
    out.crc = <uint32_t>load_be(data + 17, 4)
    out.attributes = <int16_t>load_be(data + 21, 2)
    out.last_offset_delta = <int32_t>load_be(data + 23, 4)
    out.base_timestamp_ms = <int64_t>load_be(data + 27, 8)
    out.max_timestamp_ms = <int64_t>load_be(data + 35, 8)
    out.producer_id = <int64_t>load_be(data + 43, 8)
    out.producer_epoch = <int16_t>load_be(data + 51, 2)
    out.base_sequence = <int32_t>load_be(data + 53, 4)
    out.record_count = <int32_t>load_be(data + 57, 4)
    return True


cdef bint batch_crc_ok(const char *data, const BatchHeader *header) noexcept nogil:
    cdef int64_t size = <int64_t>header.batch_length + LENGTH_FROM - CRC_FROM
    if size < BATCH_HEADER_BYTES - CRC_FROM:
        return False
    return crc32c(0, data + CRC_FROM, size) == header.crc


cdef inline int64_t read_varlong(const char *data, int64_t end, int64_t position, int last_shift,
                                 int64_t *out) noexcept nogil:
    """Zigzag varint; last_shift 28 for 32 bits, 63 for 64. Position after it, or -1."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while position < end and shift <= last_shift:
        byte = <uint8_t>data[position]
        position += 1
        value |= <uint64_t>(byte & 0x7f) << shift
        if byte < 0x80:
            if last_shift == 28:
                value &= 0xffffffffu
            out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            return position
        shift += 7
    return -1


cdef inline int64_t read_blob(const char *data, int64_t end, int64_t position, const char **blob,
                              int32_t *size) noexcept nogil:
    """Varint length and bytes; any negative length is null. Position after it, or -1."""
    cdef int64_t length = 0
    position = read_varlong(data, end, position, 28, &length)
    if position < 0 or length > end - position:
        return -1
    if length < 0:
        blob[0] = NULL
        size[0] = -1
        return position
    blob[0] = data + position
    size[0] = <int32_t>length
    return position + length


cdef int32_t record_next(const char *records, int64_t size_bytes, int64_t *position, const BatchHeader *header,
                         RecordView *out) noexcept nogil:
    cdef int64_t at = position[0], end, length = 0, delta = 0, count = 0, _i
    cdef const char *blob
    cdef int32_t blob_bytes = 0
    if at < 0 or at >= size_bytes:
        return -1
    at = read_varlong(records, size_bytes, at, 28, &length)
    if at < 0 or length < 0 or length > size_bytes - at:
        return -1
    end = at + length
    at += 1  # attributes: none is defined
    if at > end:
        return -1
    at = read_varlong(records, end, at, 63, &delta)
    if at < 0:
        return -1
    if header.attributes & LOG_APPEND_TIME:
        out.timestamp_ms = header.max_timestamp_ms
    else:
        out.timestamp_ms = <int64_t>(<uint64_t>header.base_timestamp_ms + <uint64_t>delta)
    at = read_varlong(records, end, at, 28, &delta)
    if at < 0:
        return -1
    out.offset = <int64_t>(<uint64_t>header.base_offset + <uint64_t>delta)
    at = read_blob(records, end, at, &out.key, &out.key_bytes)
    if at < 0:
        return -1
    at = read_blob(records, end, at, &out.value, &out.value_bytes)
    if at < 0:
        return -1
    at = read_varlong(records, end, at, 28, &count)
    if at < 0 or count < 0 or count * 2 > end - at:
        return -1
    out.headers = records + at
    out.header_count = <int32_t>count
    for _i in range(count):
        at = read_blob(records, end, at, &blob, &blob_bytes)
        if at < 0 or blob_bytes < 0:
            return -1
        at = read_blob(records, end, at, &blob, &blob_bytes)
        if at < 0:
            return -1
    if at != end:
        return -1
    position[0] = end
    return 0


cdef const char *header_next(const char *at, const char *end, HeaderView *out) noexcept nogil:
    cdef int64_t position = read_blob(at, end - at, 0, &out.key, &out.key_bytes)
    if position < 0 or out.key_bytes < 0:
        return NULL
    position = read_blob(at, end - at, position, &out.value, &out.value_bytes)
    if position < 0:
        return NULL
    return at + position


# ---------------------------------------------------------------------------------------------- decompression

cdef int32_t batch_decompress(const char *data, const BatchHeader *header, int64_t cap_bytes, char **out,
                              int64_t *out_bytes) noexcept nogil:
    cdef int64_t size = <int64_t>header.batch_length + LENGTH_FROM - BATCH_HEADER_BYTES
    cdef int codec = header.attributes & 7
    cdef int32_t status
    out[0] = NULL
    out_bytes[0] = 0
    if size < 0 or codec > ZSTD:
        return -1
    if codec == 0:
        if size > cap_bytes:
            return -2
        out[0] = <char *>malloc(size + 1)
        if out[0] is NULL:
            return -2
        memcpy(out[0], data + BATCH_HEADER_BYTES, size)
        out_bytes[0] = size
        return 0
    with gil:
        try:
            status = decompress(codec, data + BATCH_HEADER_BYTES, size, cap_bytes, out, out_bytes)
        except MemoryError:
            status = -2
        except BaseException:
            status = -1
    if status != 0:
        free(out[0])
        out[0] = NULL
        out_bytes[0] = 0
    return status


cdef int32_t decompress(int codec, const char *data, int64_t size, int64_t cap, char **out,
                        int64_t *out_bytes) except? -9:
    """A library decoder stops where the room it is given ends, so a bomb costs at most `cap` bytes."""
    if codec == GZIP:
        return inflate(data, size, cap, out, out_bytes)
    import cramjam

    if codec == SNAPPY:
        if size >= 8 and memcmp(data, b"\x82SNAPPY\x00", 8) == 0:
            return decompress_xerial(cramjam.snappy.decompress_raw_into, data, size, cap, out, out_bytes)
        return snappy_block(cramjam.snappy.decompress_raw_into, data, size, cap, out, out_bytes)
    if codec == LZ4:
        if lz4_frame_bytes(data, size) != size:     # one frame and nothing else: not every cramjam looks behind it
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
    cdef int64_t room = FIRST_STEP_BYTES
    source = view_of(data, size)
    while room < size * 4:
        room *= 4
    while True:
        room = min(room, cap)
        free(out[0])
        out[0] = NULL
        reserve(out, room)
        try:
            out_bytes[0] = decoder(source, PyMemoryView_FromMemory(out[0], room, PyBUF_WRITE))
            return 0
        except Exception as e:  # the library tells a full output from bad input by its words alone
            if "write whole buffer" not in str(e):
                return -1
        if room >= cap:
            return -2
        room *= 4


cdef int32_t inflate(const char *data, int64_t size, int64_t cap, char **out, int64_t *out_bytes) except? -9:
    """Gzip members, one behind the other, in bounded steps; cramjam 2.11 inflates all of it before it gives up."""
    import zlib
    cdef int64_t at = 0, room = 0, got
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
                return -1                   # cut
            if got > cap - out_bytes[0]:
                return -2
            if got > room - out_bytes[0]:
                room = min(max(room * 2, max(out_bytes[0] + got, <int64_t>FIRST_STEP_BYTES)), cap)
                reserve(out, room)
            memcpy(out[0] + out_bytes[0], PyBytes_AS_STRING(piece), got)
            out_bytes[0] += got
    return 0


cdef int64_t lz4_frame_bytes(const char *data, int64_t size) noexcept nogil:
    """Length of the LZ4 frame that begins here, its blocks not looked into; -1: it is none, or is cut."""
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
    """Append one raw block; its first bytes say how long it is, and a copy yields at most 64 bytes for 3."""
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
        return -2
    reserve(out, out_bytes[0] + <int64_t>claimed)
    if claimed == 0:
        return 0 if i + 1 == size else -1
    try:
        room = PyMemoryView_FromMemory(out[0] + out_bytes[0], claimed, PyBUF_WRITE)
        out_bytes[0] += decoder(view_of(data, size), room)
    except Exception:
        return -1
    return 0


cdef int32_t decompress_xerial(decoder, const char *data, int64_t size, int64_t cap, char **out,
                               int64_t *out_bytes) except? -9:
    """The snappy-java stream: a header, then blocks of int32 length and a raw snappy block."""
    cdef int64_t at = XERIAL_HEADER_BYTES, length
    cdef int32_t status
    if size < XERIAL_HEADER_BYTES:
        return -1
    reserve(out, 0)
    while at < size:
        if size - at < 4:
            return -1
        length = <int32_t>load_be(data + at, 4)
        at += 4
        if length <= 0 or length > size - at:
            return -1
        status = snappy_block(decoder, data + at, length, cap, out, out_bytes)
        if status != 0:
            return status
        at += length
    return 0


# ---------------------------------------------------------------------------------------------- Python: reading

def corrupt(why, offset=None):
    """Return the error of damaged record data."""
    where = "" if offset is None else f" (batch at offset {offset})"
    return ProtocolError(f"{why}{where}", Errors.CORRUPT_MESSAGE)


cdef class RecordBatch:
    """One batch inside a buffer, which it keeps alive; made by iter_batches.

    Threads: immutable; the buffer must not change.
    """

    def __cinit__(self):
        self.held = False

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)

    @property
    def base_offset(self):
        return self.header.base_offset

    @property
    def last_offset(self):
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def last_offset_delta(self):
        return self.header.last_offset_delta

    @property
    def size_bytes(self):
        """The whole batch, header included."""
        return <int64_t>self.header.batch_length + LENGTH_FROM

    @property
    def leader_epoch(self):
        return self.header.leader_epoch

    @property
    def magic(self):
        return self.header.magic

    @property
    def crc(self):
        return self.header.crc

    @property
    def attributes(self):
        return self.header.attributes

    @property
    def compression(self):
        """Number of the codec; 5 to 7 are undefined."""
        return self.header.attributes & 7

    @property
    def is_log_append_time(self):
        return self.header.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self):
        return self.header.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self):
        return self.header.attributes & CONTROL != 0

    @property
    def has_delete_horizon(self):
        return self.header.attributes & DELETE_HORIZON != 0

    @property
    def base_timestamp_ms(self):
        return self.header.base_timestamp_ms

    @property
    def max_timestamp_ms(self):
        return self.header.max_timestamp_ms

    @property
    def producer_id(self):
        return self.header.producer_id

    @property
    def producer_epoch(self):
        return self.header.producer_epoch

    @property
    def base_sequence(self):
        return self.header.base_sequence

    @property
    def record_count(self):
        return self.header.record_count

    @property
    def is_crc_valid(self):
        return batch_crc_ok(self.data, &self.header)

    @property
    def raw(self):
        """The bytes of the batch, a view."""
        return memoryview(self.source).cast("B")[self.position:self.position + self.size_bytes]

    def records(self, int64_t cap_bytes=DEFAULT_CAP_BYTES):
        """Return the records as tuples (offset, timestamp_ms, key, value, headers); headers are (str, bytes or None).

        Raises: ProtocolError: wrong checksum, magic or codec, damaged records, or more than `cap_bytes` uncompressed.
        """
        cdef char *owned = NULL
        cdef const char *at
        cdef const char *end
        cdef int64_t size = self.size_bytes - BATCH_HEADER_BYTES, position = 0
        cdef int32_t status, i, _j
        cdef RecordView record
        cdef HeaderView header
        cdef list out = []
        if self.header.magic != 2:
            raise corrupt(f"magic {self.header.magic} instead of 2", self.header.base_offset)
        if not batch_crc_ok(self.data, &self.header):
            raise corrupt("wrong checksum", self.header.base_offset)
        at = self.data + BATCH_HEADER_BYTES
        if self.header.attributes & 7:
            with nogil:
                status = batch_decompress(self.data, &self.header, cap_bytes, &owned, &size)
            if status == -2:
                raise corrupt(f"more than {cap_bytes} bytes uncompressed", self.header.base_offset)
            if status != 0:
                raise corrupt("cannot be decompressed", self.header.base_offset)
            at = owned
        try:
            for i in range(self.header.record_count):
                if record_next(at, size, &position, &self.header, &record) != 0:
                    raise corrupt(f"record {i} is damaged", self.header.base_offset)
                headers = []
                end = at + position
                for _j in range(record.header_count):
                    record.headers = header_next(record.headers, end, &header)
                    headers.append((PyUnicode_DecodeUTF8(header.key, header.key_bytes, "surrogateescape"),
                                    blob_or_none(header.value, header.value_bytes)))
                out.append((record.offset, record.timestamp_ms, blob_or_none(record.key, record.key_bytes),
                            blob_or_none(record.value, record.value_bytes), headers))
            if position != size or self.header.record_count < 0:
                raise corrupt("bytes after the last record", self.header.base_offset)
            return out
        finally:
            free(owned)

    def __repr__(self):
        return (f"<RecordBatch offsets {self.base_offset}-{self.last_offset}, {self.record_count} records, "
                f"{self.size_bytes} bytes>")


cdef object blob_or_none(const char *data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(data, size)


def batch_at(data, int64_t position=0):
    """Return the RecordBatch at `position` of `data`, or None when the data ends before the batch does.

    Raises: ProtocolError: its length field is below the size of a header.
    """
    cdef RecordBatch batch = RecordBatch.__new__(RecordBatch)
    PyObject_GetBuffer(data, &batch.buffer, PyBUF_SIMPLE)
    batch.held = True
    batch.source, batch.position = data, position
    if position < 0 or position > batch.buffer.len:
        raise ValueError(f"position {position} is outside the {batch.buffer.len} bytes of data")
    batch.data = <const char *>batch.buffer.buf + position
    cdef int64_t left = batch.buffer.len - position, length
    if left >= LENGTH_FROM:
        length = <int32_t>load_be(batch.data + 8, 4)
        if length < BATCH_HEADER_BYTES - LENGTH_FROM:
            raise corrupt(f"batch length {length} is below a header's {BATCH_HEADER_BYTES - LENGTH_FROM}")
    if not batch_parse(batch.data, left, &batch.header):
        return None
    if <int64_t>batch.header.batch_length + LENGTH_FROM > left:
        return None
    return batch


# ---------------------------------------------------------------------------------------------- building

cdef class RecordBatchBuilder:
    """Builds one batch; see records.build_batch for the arguments.

    Threads: one at a time.
    """

    def __cinit__(self, int32_t compression=0, *, int64_t base_offset=0, base_timestamp_ms=None, int64_t producer_id=-1,
                  int16_t producer_epoch=-1, int32_t base_sequence=-1, bint transactional=False, bint control=False,
                  bint log_append_time=False, int32_t leader_epoch=-1):
        if compression < 0 or compression > ZSTD:
            raise ValueError(f"compression must be 0 to 4, got {compression}")
        self.header.base_offset, self.header.leader_epoch = base_offset, leader_epoch
        self.header.attributes = <int16_t>(compression | LOG_APPEND_TIME * log_append_time
                                           | TRANSACTIONAL * transactional | CONTROL * control)
        self.header.producer_id, self.header.producer_epoch = producer_id, producer_epoch
        self.header.base_sequence = base_sequence
        self.header.base_timestamp_ms = self.header.max_timestamp_ms = -1
        self.has_base = base_timestamp_ms is not None
        if self.has_base:
            self.header.base_timestamp_ms = base_timestamp_ms
        self.header.last_offset_delta = -1

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.header.record_count

    @property
    def size_bytes(self):
        """Size of the batch as it would be without compression."""
        return BATCH_HEADER_BYTES + self.size

    def append(self, key, value, int64_t timestamp_ms=-1, headers=(), offset_delta=None):
        """Add a record.

        Args:
            key: bytes-like or None.
            value: bytes-like or None (a tombstone).
            timestamp_ms: create time.
            headers: pairs (str, bytes-like or None), or a dict of them.
            offset_delta: place relative to the base offset, above all earlier ones; the next one when left out.

        Raises: ValueError: a wrong delta. TypeError: a wrong type. OverflowError: too large.
            The builder stays as it was.
        """
        cdef int64_t start = self.size
        try:
            self.add(key, value, timestamp_ms, headers, offset_delta)
        except BaseException:
            self.size = start
            raise

    cdef int add(self, key, value, int64_t timestamp_ms, headers, offset_delta) except -1:
        cdef int64_t delta = self.header.last_offset_delta + <int64_t>1, body, start = self.size
        cdef int64_t base = self.header.base_timestamp_ms if self.has_base else timestamp_ms
        cdef int prefix
        cdef bytes name
        if offset_delta is not None:
            if offset_delta < delta:
                raise ValueError(f"offset_delta must be >= {delta}, got {offset_delta}")
            delta = offset_delta
        if delta > INT32_MAX:
            raise OverflowError(f"offset delta {delta} above 2^31 - 1")
        self.room(1)[0] = 0
        self.write_varlong(<int64_t>(<uint64_t>timestamp_ms - <uint64_t>base))
        self.write_varlong(delta)
        self.put_blob(key)
        self.put_blob(value)
        pairs = list(headers.items()) if isinstance(headers, dict) else list(headers)
        self.write_varlong(len(pairs))
        for header_key, header_value in pairs:
            name = header_key.encode("utf-8", "surrogateescape")
            self.put_blob(name)
            self.put_blob(header_value)
        body = self.size - start
        prefix = varlong_bytes(body)
        self.room(prefix)
        memmove(self.data + start + prefix, self.data + start, body)
        put_varlong(self.data + start, body)
        if not self.has_base:
            self.header.base_timestamp_ms = timestamp_ms
            self.has_base = True
        if timestamp_ms > self.header.max_timestamp_ms or self.header.record_count == 0:
            self.header.max_timestamp_ms = timestamp_ms
        self.header.record_count += 1
        self.header.last_offset_delta = <int32_t>delta
        return 0

    cdef uint8_t *room(self, int64_t size) except NULL:
        cdef int64_t capacity
        cdef uint8_t *grown
        if size > self.capacity - self.size:
            if self.size + size > INT32_MAX - BATCH_HEADER_BYTES:
                raise OverflowError("batch above 2 GiB")
            capacity = max(self.capacity * 2, self.size + size, 256)
            grown = <uint8_t *>realloc(self.data, capacity)
            if grown is NULL:
                raise MemoryError
            self.data, self.capacity = grown, capacity
        self.size += size
        return self.data + self.size - size

    cdef int write_varlong(self, int64_t value) except -1:
        put_varlong(self.room(varlong_bytes(value)), value)
        return 0

    cdef int put_blob(self, value) except -1:
        cdef Py_buffer buffer
        if value is None:
            return self.write_varlong(-1)
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
        try:
            self.write_varlong(buffer.len)
            memcpy(self.room(buffer.len), buffer.buf, buffer.len)
        finally:
            PyBuffer_Release(&buffer)
        return 0

    def build(self, last_offset_delta=None):
        """Return the batch as bytes; the builder may go on.

        Args:
            last_offset_delta: above the last record's, for a batch that lost its last records to compaction.
        """
        cdef int32_t last = self.header.last_offset_delta
        if last_offset_delta is not None:
            if last_offset_delta < last:
                raise ValueError(f"last_offset_delta must be >= {last}, got {last_offset_delta}")
            last = last_offset_delta
        cdef bytes records = PyBytes_FromStringAndSize(<char *>self.data, self.size)
        records = compress(self.header.attributes & 7, records)
        cdef int64_t size = PyBytes_GET_SIZE(records)
        if size > INT32_MAX - BATCH_HEADER_BYTES:
            raise OverflowError("batch above 2 GiB")
        cdef bytes out = PyBytes_FromStringAndSize(NULL, BATCH_HEADER_BYTES + size)
        cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(out)
        memcpy(at + BATCH_HEADER_BYTES, PyBytes_AS_STRING(records), size)
        store_be(at, <uint64_t>self.header.base_offset, 8)
        store_be(at + 8, <uint64_t>(BATCH_HEADER_BYTES - LENGTH_FROM + size), 4)
        store_be(at + 12, <uint64_t>self.header.leader_epoch, 4)
        at[16] = 2
        store_be(at + 21, <uint64_t>self.header.attributes, 2)
        store_be(at + 23, <uint64_t>last, 4)
        store_be(at + 27, <uint64_t>self.header.base_timestamp_ms, 8)
        store_be(at + 35, <uint64_t>self.header.max_timestamp_ms, 8)
        store_be(at + 43, <uint64_t>self.header.producer_id, 8)
        store_be(at + 51, <uint64_t>self.header.producer_epoch, 2)
        store_be(at + 53, <uint64_t>self.header.base_sequence, 4)
        store_be(at + 57, <uint64_t>self.header.record_count, 4)
        store_be(at + 17, crc32c(0, <char *>at + CRC_FROM, BATCH_HEADER_BYTES - CRC_FROM + size), 4)
        return out


cdef inline void store_be(uint8_t *at, uint64_t value, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        at[i] = <uint8_t>(value >> (8 * (size - 1 - i)))


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int varlong_bytes(int64_t value) noexcept nogil:
    cdef uint64_t bits = zigzag(value)
    cdef int size = 1
    while bits >= 0x80:
        bits >>= 7
        size += 1
    return size


cdef inline void put_varlong(uint8_t *at, int64_t value) noexcept nogil:
    cdef uint64_t bits = zigzag(value)
    while bits >= 0x80:
        at[0] = <uint8_t>(bits | 0x80)
        at += 1
        bits >>= 7
    at[0] = <uint8_t>bits


cdef bytes compress(int codec, bytes records, int32_t level=CODEC_LEVEL):
    if codec == 0:
        return records
    import cramjam

    if codec == GZIP:
        return bytes(cramjam.gzip.compress(records, level=6 if level in (CODEC_LEVEL, -1) else level))
    if codec == LZ4:
        # Java reads no linked blocks, and Kafka's level 9, its default, is the fast compressor
        encoder = cramjam.lz4.Compressor(level=1 if level in (CODEC_LEVEL, 9) else level, content_checksum=False,
                                         block_linked=False)
        encoder.compress(records)
        return bytes(encoder.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(records, level=3 if level == CODEC_LEVEL else level))
    # The snappy-java stream, which every client reads; blocks as large as Java writes them.
    out = [b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"]
    for start in range(0, len(records), 32768):
        block = bytes(cramjam.snappy.compress_raw(records[start:start + 32768]))
        out.append(len(block).to_bytes(4, "big"))
        out.append(block)
    return b"".join(out)


# ---------------------------------------------------------------------------------------------- another codec

cdef int32_t batch_recompress(const char *data, const char *records, int64_t records_bytes, int codec, int32_t level,
                              char **out, int64_t *out_bytes) noexcept nogil:
    cdef int64_t size = records_bytes
    cdef int32_t status = 0
    out[0] = NULL
    out_bytes[0] = 0
    if codec < 0 or codec > ZSTD or records_bytes < 0 or records_bytes > INT32_MAX - BATCH_HEADER_BYTES:
        return -1
    if codec == 0:
        out[0] = <char *>malloc(BATCH_HEADER_BYTES + size)
        if out[0] is NULL:
            return -2
        memcpy(out[0] + BATCH_HEADER_BYTES, records, size)
    else:
        with gil:
            try:
                status = compress_behind_header(codec, level, records, records_bytes, out, &size)
            except MemoryError:
                status = -2
            except BaseException:
                status = -1
    if status != 0:
        return status
    memcpy(out[0], data, BATCH_HEADER_BYTES)
    store_be(<uint8_t *>out[0] + 8, <uint64_t>(BATCH_HEADER_BYTES - LENGTH_FROM + size), 4)
    out[0][22] = <char>((data[22] & ~7) | codec)
    size += BATCH_HEADER_BYTES
    store_be(<uint8_t *>out[0] + 17, crc32c(0, out[0] + CRC_FROM, size - CRC_FROM), 4)
    out_bytes[0] = size
    return 0


cdef int32_t compress_behind_header(int codec, int32_t level, const char *records, int64_t records_bytes, char **out,
                                    int64_t *packed_bytes) except? -9:
    cdef bytes packed = compress(codec, PyBytes_FromStringAndSize(records, records_bytes), level)
    cdef int64_t size = PyBytes_GET_SIZE(packed)
    if size > INT32_MAX - BATCH_HEADER_BYTES:
        return -2
    out[0] = <char *>malloc(BATCH_HEADER_BYTES + size)
    if out[0] is NULL:
        return -2
    memcpy(out[0] + BATCH_HEADER_BYTES, PyBytes_AS_STRING(packed), size)
    packed_bytes[0] = size
    return 0
