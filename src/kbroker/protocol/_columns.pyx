"""Reads record batches as columns in one pass, without the GIL or a Python object per record.

The layout (offsets of n + 1 entries, data end to end) is Arrow's large_binary, so that numpy and Arrow wrap it as is;
only the null masks have a byte per record instead of a bit.
"""
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, Py_buffer
from cpython.buffer cimport PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from kbroker.protocol._batch_format cimport BATCH_HEADER_BYTES, CODEC_MASK, CONTROL_BIT, LENGTH_FROM
from kbroker.protocol._records cimport (
    BatchHeader, HeaderView, RecordView, batch_crc_ok, batch_decompress, batch_parse, header_next, record_next)

from kbroker.protocol._records import DEFAULT_CAP_BYTES, corrupt

cdef enum:
    OK = 0
    NO_MEMORY = 1
    CUT = 2
    BAD_LENGTH = 3
    BAD_MAGIC = 4
    BAD_CRC = 5
    BAD_CODEC = 6
    OVER_CAP = 7
    BAD_RECORD = 8

_REASONS = {
    BAD_LENGTH: "batch length below a header's", BAD_MAGIC: "magic is not 2", BAD_CRC: "wrong checksum",
    BAD_CODEC: "cannot be decompressed", OVER_CAP: "more bytes uncompressed than allowed", BAD_RECORD: "damaged record",
}


cdef struct Columns_:
    Vector offsets
    Vector timestamps
    Blobs keys
    Blobs values
    Vector header_ends          # int64, n + 1: end of each record's headers
    Blobs header_keys
    Blobs header_values
    int64_t count
    int64_t header_count
    int64_t bad_offset          # base offset of the rejected batch
    int64_t next_offset         # after the last batch read; -1: no batch


cdef bint vector_reserve(Vector *v, int64_t size) noexcept nogil:
    cdef int64_t capacity
    cdef char *grown
    if size <= v.capacity - v.size:
        return True
    capacity = v.capacity * 2
    if capacity < v.size + size:
        capacity = v.size + size
    if capacity < 64:
        capacity = 64
    grown = <char *>realloc(v.data, capacity)
    if grown is NULL:
        return False
    v.data, v.capacity = grown, capacity
    return True


cdef inline bint push_i64(Vector *v, int64_t value) noexcept nogil:
    if not vector_reserve(v, 8):
        return False
    memcpy(v.data + v.size, &value, 8)
    v.size += 8
    return True


cdef inline bint push_blob(Blobs *b, const char *data, int32_t size) noexcept nogil:
    if not vector_reserve(&b.nulls, 1):
        return False
    b.nulls.data[b.nulls.size] = size < 0
    b.nulls.size += 1
    if size > 0:
        if not vector_reserve(&b.data, size):
            return False
        memcpy(b.data.data + b.data.size, data, size)
        b.data.size += size
    return push_i64(&b.ends, b.data.size)


cdef bint start_columns(Columns_ *c) noexcept nogil:
    memset(c, 0, sizeof(Columns_))
    c.next_offset = -1
    return (push_i64(&c.keys.ends, 0) and push_i64(&c.values.ends, 0) and push_i64(&c.header_ends, 0)
            and push_i64(&c.header_keys.ends, 0) and push_i64(&c.header_values.ends, 0))


cdef void free_blobs(Blobs *b) noexcept nogil:
    free(b.data.data)
    free(b.ends.data)
    free(b.nulls.data)


cdef void free_columns(Columns_ *c) noexcept nogil:
    free(c.offsets.data)
    free(c.timestamps.data)
    free(c.header_ends.data)
    free_blobs(&c.keys)
    free_blobs(&c.values)
    free_blobs(&c.header_keys)
    free_blobs(&c.header_values)


cdef int add_record(Columns_ *c, RecordView *record, const char *end) noexcept nogil:
    cdef HeaderView header
    cdef int32_t _i
    if not (push_i64(&c.offsets, record.offset) and push_i64(&c.timestamps, record.timestamp_ms)
            and push_blob(&c.keys, record.key, record.key_bytes)
            and push_blob(&c.values, record.value, record.value_bytes)):
        return NO_MEMORY
    for _i in range(record.header_count):
        record.headers = header_next(record.headers, end, &header)
        if record.headers is NULL:
            return BAD_RECORD
        if not (push_blob(&c.header_keys, header.key, header.key_bytes)
                and push_blob(&c.header_values, header.value, header.value_bytes)):
            return NO_MEMORY
    c.header_count += record.header_count
    if not push_i64(&c.header_ends, c.header_count):
        return NO_MEMORY
    c.count += 1
    return OK


cdef int add_batch(Columns_ *c, const char *data, BatchHeader *header, int64_t min_offset, int64_t *cap) noexcept nogil:
    cdef char *owned = NULL
    cdef const char *records = data + BATCH_HEADER_BYTES
    cdef int64_t size = <int64_t>header.batch_length + LENGTH_FROM - BATCH_HEADER_BYTES, position = 0
    cdef RecordView record
    cdef int32_t _i, status
    cdef int result = OK
    if header.attributes & CODEC_MASK:
        status = batch_decompress(data, header, cap[0], &owned, &size)
        if status != 0:
            return OVER_CAP if status == -2 else BAD_CODEC
        cap[0] -= size
        records = owned
    for _i in range(header.record_count):
        if record_next(records, size, &position, header, &record) != 0:
            result = BAD_RECORD
            break
        if record.offset >= min_offset:
            result = add_record(c, &record, records + position)
            if result != OK:
                break
    if result == OK and (position != size or header.record_count < 0):
        result = BAD_RECORD
    free(owned)
    return result


cdef int add_batches(Columns_ *c, const char *data, int64_t size, int64_t min_offset, bint include_control,
                     int64_t cap) noexcept nogil:
    cdef BatchHeader header
    cdef int64_t position = 0
    cdef int result
    while position < size:
        c.bad_offset = -1
        if not batch_parse(data + position, size - position, &header):
            return CUT
        c.bad_offset = header.base_offset
        if header.batch_length < BATCH_HEADER_BYTES - LENGTH_FROM:
            return BAD_LENGTH
        if <int64_t>header.batch_length + LENGTH_FROM > size - position:
            return CUT
        if header.magic != 2:
            return BAD_MAGIC
        if not batch_crc_ok(data + position, &header):
            return BAD_CRC
        if include_control or not header.attributes & CONTROL_BIT:
            result = add_batch(c, data + position, &header, min_offset, &cap)
            if result != OK:
                return result
        c.next_offset = header.base_offset + header.last_offset_delta + 1
        position += <int64_t>header.batch_length + LENGTH_FROM
    return OK


cdef class Array:
    """A read-only one-dimensional array behind the buffer protocol. Threads: immutable."""

    def __cinit__(self):
        self.stride, self.format = 1, b"B"     # an empty byte array until a vector is set

    def __dealloc__(self):
        free(self.vector.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("columns are read-only")
        view.buf = self.vector.data
        view.obj = self
        view.len = self.vector.size
        view.itemsize = self.stride
        view.readonly = 1
        view.ndim = 1
        view.format = self.format if flags & PyBUF_FORMAT else NULL
        view.shape = &self.shape if flags & PyBUF_ND else NULL
        view.strides = &self.stride if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL


cdef object array_of(Vector *v, bint is_int64):
    """Return a memoryview that takes ownership of the vector's memory."""
    cdef Array out = Array.__new__(Array)
    if not vector_reserve(v, 1):  # some consumers reject a null pointer, even for zero bytes
        raise MemoryError
    out.vector = v[0]
    memset(v, 0, sizeof(Vector))
    out.stride = 8 if is_int64 else 1
    out.shape = out.vector.size // out.stride
    out.format = b"q" if is_int64 else b"B"
    return memoryview(out)


cdef class BinaryColumn:
    """Byte strings, one per row: `data` end to end, `offsets` (int64, one more than rows), `nulls` (1 where null).

    Threads: immutable.
    """

    def __len__(self):
        return self.nulls_view.shape[0]

    def __getitem__(self, Py_ssize_t row):
        if row < 0:
            row += self.nulls_view.shape[0]
        if row < 0 or row >= self.nulls_view.shape[0]:
            raise IndexError(f"row {row} of {self.nulls_view.shape[0]}")
        if self.nulls_view[row]:
            return None
        cdef int64_t start = self.offsets_view[row], size = self.offsets_view[row + 1] - self.offsets_view[row]
        if size == 0:
            return b""
        return PyBytes_FromStringAndSize(<const char *>&self.bytes_view[start], size)


cdef BinaryColumn binary_of(Blobs *b):
    cdef BinaryColumn out = BinaryColumn.__new__(BinaryColumn)
    out.data, out.offsets, out.nulls = array_of(&b.data, False), array_of(&b.ends, True), array_of(&b.nulls, False)
    out.bytes_view, out.offsets_view, out.nulls_view = out.data, out.offsets, out.nulls
    return out


def read_columns(data, int64_t min_offset=0, bint allow_truncated=False, bint include_control=False,
                 int64_t cap_bytes=DEFAULT_CAP_BYTES):
    """Return the columns of `data` as a tuple; records.columns names them.

    (offsets, timestamps, keys, values, header_offsets, header_keys, header_values, next_offset)
    """
    cdef Py_buffer buffer
    cdef Columns_ c
    cdef int status
    if cap_bytes < 0:
        raise ValueError(f"cap_bytes must be >= 0, got {cap_bytes}")
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        with nogil:
            status = NO_MEMORY
            if start_columns(&c):
                status = add_batches(&c, <const char *>buffer.buf, buffer.len, min_offset, include_control, cap_bytes)
        if status == NO_MEMORY:
            raise MemoryError
        if status == CUT and not allow_truncated:
            raise corrupt("the last batch is cut")
        if status != OK and status != CUT:
            raise corrupt(_REASONS[status], c.bad_offset)
        return (array_of(&c.offsets, True), array_of(&c.timestamps, True), binary_of(&c.keys), binary_of(&c.values),
                array_of(&c.header_ends, True), binary_of(&c.header_keys), binary_of(&c.header_values), c.next_offset)
    finally:
        free_columns(&c)
        PyBuffer_Release(&buffer)
