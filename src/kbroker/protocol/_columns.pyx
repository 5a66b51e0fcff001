"""Reader of record batches into columns in Arrow's layout, in one pass, without the GIL or a Python object per record.

Only the requested columns are filled, and nothing is copied afterwards: Arrow and numpy wrap the buffers as they are.
Source: Arrow columnar format, "Variable-size Binary Layout" and "Validity bitmaps".
"""
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, Py_buffer
from cpython.buffer cimport PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from kbroker._core.codec.bytes cimport load_i64
from kbroker._core.containers.buffer cimport Buffer, buffer_free, buffer_put, buffer_reserve
from kbroker.protocol._batch_format cimport (
    BATCH_HEADER_BYTES, CODEC_MASK, CONTROL_BIT, LENGTH_FROM, LOG_APPEND_TIME_BIT, MAGIC_AT)
from kbroker.protocol._records cimport (
    BatchHeader, HeaderView, RecordView, batch_crc_ok, batch_decompress, batch_parse, header_next, record_next)

from kbroker.common.errors import Errors, ProtocolError
from kbroker.protocol._records import DEFAULT_CAP_BYTES, corrupt

cdef enum:
    BIT_OFFSET = 1
    BIT_TIMESTAMP = 2
    BIT_TIMESTAMP_TYPE = 4
    BIT_KEY = 8
    BIT_VALUE = 16
    BIT_HEADERS = 32
    BIT_MILLISECONDS = 64
    SMALLEST_RECORD_BYTES = 7   # seven varints of one byte each, length and attributes included
    MS_MAX = 9223372036854775   # a larger value overflows as microseconds
    OK = 0
    NO_MEMORY = 1
    BAD_LENGTH = 2
    BAD_MAGIC = 3
    BAD_CRC = 4
    BAD_CODEC = 5
    OVER_CAP = 6
    BAD_RECORD = 7

OFFSET, TIMESTAMP, TIMESTAMP_TYPE = BIT_OFFSET, BIT_TIMESTAMP, BIT_TIMESTAMP_TYPE
KEY, VALUE, HEADERS, MILLISECONDS = BIT_KEY, BIT_VALUE, BIT_HEADERS, BIT_MILLISECONDS

_REASONS = {
    BAD_LENGTH: "batch length below a header's", BAD_CRC: "wrong checksum", BAD_CODEC: "cannot be decompressed",
    OVER_CAP: "more bytes uncompressed than allowed", BAD_RECORD: "damaged record",
}

cdef struct Strings:            # n byte strings: Arrow's binary
    Buffer data
    Buffer ends                 # int32, n + 1 offsets; the first is 0
    Buffer valid                # bitmap; bits beyond its end are valid
    int64_t nulls


cdef inline bint push_i32(Buffer *v, int64_t value) noexcept nogil:
    cdef int32_t narrow = <int32_t>value
    return buffer_put(v, &narrow, 4)


cdef bint clear_bit(Buffer *v, int64_t index) noexcept nogil:
    """Mark a row as null; rows that are not marked are valid. False: out of memory."""
    cdef int64_t need = (index >> 3) + 1
    if need > v.size:
        if not buffer_reserve(v, need - v.size):
            return False
        memset(v.data + v.size, 0xff, need - v.size)
        v.size = need
    v.data[index >> 3] = <char>(<uint8_t>v.data[index >> 3] & ~(1 << (index & 7)))
    return True


cdef inline bint reserve(Buffer *v, int64_t size, int64_t likely) noexcept nogil:
    """Reserve ``size`` more bytes, in growth to ``likely`` bytes in total at once. False: out of memory."""
    if size <= v.capacity - v.size:
        return True
    return buffer_reserve(v, size if size > likely - v.size else likely - v.size)


cdef inline int64_t like(Buffer *v) noexcept nogil:
    """Return the expected size of the next column, judged by this one."""
    return v.size + (v.size >> 3)


cdef inline bint put_string(Strings *s, int64_t row, const char *data, int32_t size) noexcept nogil:
    """Append a string, whose bytes and end must be reserved; a negative size is null. False: out of memory."""
    cdef int32_t end
    if size > 0:
        memcpy(s.data.data + s.data.size, data, size)
        s.data.size += size
    elif size < 0:
        if not clear_bit(&s.valid, row):
            return False
        s.nulls += 1
    end = <int32_t>s.data.size
    memcpy(s.ends.data + s.ends.size, &end, 4)
    s.ends.size += 4
    return True


cdef bint push_string(Strings *s, int64_t row, const char *data, int32_t size) noexcept nogil:
    return (buffer_reserve(&s.data, size if size > 0 else 0) and buffer_reserve(&s.ends, 4)
            and put_string(s, row, data, size))


cdef void free_strings(Strings *s) noexcept nogil:
    buffer_free(&s.data)
    buffer_free(&s.ends)
    buffer_free(&s.valid)


cdef class ArrowColumns:
    """Collector of the records of batches in Arrow buffers, until ``take``.

    Args: ``wanted``: sum of OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, VALUE, HEADERS; with MILLISECONDS, timestamps are
    milliseconds, else microseconds.

    ``row_count`` is the number of collected rows. ``next_offset`` is the offset after the last batch appended, -1
    before the first. ``is_full`` is true when ``append`` stopped at one of its limits.

    Threads: one at a time.
    """
    cdef:
        int wanted              # bits of the requested columns
        Buffer offsets          # int64
        Buffer timestamps       # int64
        Buffer timestamp_types  # int32
        Strings keys
        Strings values
        Buffer header_ends      # int32, n + 1: end of each record's headers
        Buffer header_valid     # bitmap: null for a record without headers
        int64_t header_nulls
        Strings header_keys
        Strings header_values
        int64_t header_count
        int64_t likely_rows     # expected rows of the next ``take``, by the last one; sizes the first allocation
        int64_t likely_key_bytes
        int64_t likely_value_bytes
        int64_t bad_offset
        int bad_magic
        readonly int64_t row_count
        readonly int64_t next_offset
        readonly bint is_full

    def __cinit__(self, int wanted):
        self.wanted, self.next_offset = wanted, -1
        if not self.start():
            raise MemoryError

    def __dealloc__(self):
        buffer_free(&self.offsets)
        buffer_free(&self.timestamps)
        buffer_free(&self.timestamp_types)
        buffer_free(&self.header_ends)
        buffer_free(&self.header_valid)
        free_strings(&self.keys)
        free_strings(&self.values)
        free_strings(&self.header_keys)
        free_strings(&self.header_values)

    cdef bint start(self) noexcept nogil:
        self.row_count = self.header_count = self.header_nulls = 0
        self.keys.nulls = self.values.nulls = self.header_keys.nulls = self.header_values.nulls = 0
        return (push_i32(&self.keys.ends, 0) and push_i32(&self.values.ends, 0) and push_i32(&self.header_ends, 0)
                and push_i32(&self.header_keys.ends, 0) and push_i32(&self.header_values.ends, 0))

    @property
    def size_bytes(self):
        """Number of collected bytes of keys, values and headers."""
        return self.keys.data.size + self.values.data.size + self.header_keys.data.size + self.header_values.data.size

    def append(self, data, int64_t position, int64_t from_offset, int64_t until_offset, *,
               int64_t limit_rows=INT64_MAX, int64_t limit_bytes=INT64_MAX, int64_t cap_bytes=DEFAULT_CAP_BYTES,
               int64_t total_cap_bytes=INT64_MAX, bint include_control=False):
        """Add the records of the batches from ``position`` on; return the position where it stopped.

        It stops after the batch that reached a limit (``is_full``), before a batch that begins at ``until_offset`` or
        later, at an incomplete last batch, and at the end. Checksums are verified.

        Args:
            data: concatenated batches.
            position: position of a batch in ``data``.
            from_offset: records below it are skipped.
            until_offset: records from it on are skipped.
            limit_rows: maximum number of collected rows.
            limit_bytes: maximum number of bytes of keys, values and headers.
            cap_bytes: maximum uncompressed size of a compressed batch.
            total_cap_bytes: maximum uncompressed size of all compressed batches together.
            include_control: include the records of control batches.

        Raises: ValueError for a position outside of the data, and for a cap below 0; ProtocolError CORRUPT_MESSAGE for
            damaged data, UNSUPPORTED_FOR_MESSAGE_FORMAT for message format 0 and 1; the collected rows are then
            unusable.
        """
        cdef Py_buffer buffer
        cdef BatchHeader header
        cdef const char *at
        cdef int64_t left
        cdef int status = OK
        if cap_bytes < 0 or total_cap_bytes < 0:
            raise ValueError(f"cap_bytes must be >= 0, got {min(cap_bytes, total_cap_bytes)}")
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        try:
            if position < 0 or position > buffer.len:
                raise ValueError(f"position {position} is outside the {buffer.len} bytes of data")
            self.is_full = False
            with nogil:
                while position < buffer.len:
                    at, left = <const char *>buffer.buf + position, buffer.len - position
                    if left > MAGIC_AT and at[MAGIC_AT] != 2:
                        self.bad_magic, self.bad_offset = at[MAGIC_AT], load_i64(at)
                        status = BAD_MAGIC
                        break
                    if not batch_parse(at, left, &header):
                        break
                    self.bad_offset = header.base_offset
                    if header.batch_length < BATCH_HEADER_BYTES - LENGTH_FROM:
                        status = BAD_LENGTH
                        break
                    if <int64_t>header.batch_length + LENGTH_FROM > left or header.base_offset >= until_offset:
                        break
                    if not batch_crc_ok(at, &header):
                        status = BAD_CRC
                        break
                    if include_control or not header.attributes & CONTROL_BIT:
                        status = self.add_batch(at, &header, from_offset, until_offset, cap_bytes, &total_cap_bytes)
                        if status != OK:
                            break
                    self.next_offset = header.base_offset + header.last_offset_delta + 1
                    position += <int64_t>header.batch_length + LENGTH_FROM
                    if self.row_count >= limit_rows or (
                            self.keys.data.size + self.values.data.size + self.header_keys.data.size
                            + self.header_values.data.size >= limit_bytes):
                        self.is_full = True
                        break
        finally:
            PyBuffer_Release(&buffer)
        if status == NO_MEMORY:
            raise MemoryError
        if status == BAD_MAGIC and self.bad_magic in (0, 1):
            raise ProtocolError(
                f"the log is in message format {self.bad_magic} (batch at offset {self.bad_offset}), written by or for "
                "clients before Kafka 0.11; only format 2 can be read",
                Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        if status == BAD_MAGIC:
            raise corrupt(f"message format {self.bad_magic} is unknown", self.bad_offset)
        if status != OK:
            raise corrupt(_REASONS[status], self.bad_offset)
        return position

    cdef int add_batch(self, const char *data, BatchHeader *header, int64_t from_offset, int64_t until_offset,
                       int64_t cap, int64_t *total_cap) noexcept nogil:
        cdef char *owned = NULL
        cdef const char *records = data + BATCH_HEADER_BYTES
        cdef int64_t size = <int64_t>header.batch_length + LENGTH_FROM - BATCH_HEADER_BYTES, position = 0, timestamp
        cdef int32_t status, _i, timestamp_type = (header.attributes & LOG_APPEND_TIME_BIT) != 0
        cdef int64_t rows = header.record_count
        cdef int result = OK
        cdef RecordView record
        if header.attributes & CODEC_MASK:
            status = batch_decompress(data, header, min(cap, total_cap[0]), &owned, &size)
            if status != 0:
                return OVER_CAP if status == -2 else BAD_CODEC
            total_cap[0] -= size
            records = owned
        # memory is reserved once per batch; the declared count is bounded by the size of the batch
        if rows < 0 or rows > size // SMALLEST_RECORD_BYTES:
            result = BAD_RECORD
        elif self.keys.data.size + size > INT32_MAX or self.values.data.size + size > INT32_MAX:
            result = OVER_CAP
        elif not (reserve(&self.offsets, rows * 8, self.likely_rows * 8)
                  and reserve(&self.timestamps, rows * 8, self.likely_rows * 8)
                  and (not self.wanted & BIT_TIMESTAMP_TYPE
                       or reserve(&self.timestamp_types, rows * 4, self.likely_rows * 4))
                  and reserve(&self.keys.ends, rows * 4, self.likely_rows * 4)
                  and reserve(&self.values.ends, rows * 4, self.likely_rows * 4)
                  and reserve(&self.keys.data, size if self.wanted & BIT_KEY else 0, self.likely_key_bytes)
                  and reserve(&self.values.data, size if self.wanted & BIT_VALUE else 0, self.likely_value_bytes)):
            result = NO_MEMORY
        for _i in range(header.record_count if result == OK else 0):
            if record_next(records, size, &position, header, &record) != 0:
                result = BAD_RECORD
                break
            if record.offset < from_offset or record.offset >= until_offset:
                continue
            if self.wanted & BIT_OFFSET:
                memcpy(self.offsets.data + self.offsets.size, &record.offset, 8)
                self.offsets.size += 8
            if self.wanted & BIT_TIMESTAMP:
                timestamp = record.timestamp_ms
                if not self.wanted & BIT_MILLISECONDS:
                    if timestamp > MS_MAX or timestamp < -MS_MAX:
                        timestamp = INT64_MAX if timestamp > 0 else INT64_MIN
                    else:
                        timestamp *= 1000
                memcpy(self.timestamps.data + self.timestamps.size, &timestamp, 8)
                self.timestamps.size += 8
            if self.wanted & BIT_TIMESTAMP_TYPE:
                memcpy(self.timestamp_types.data + self.timestamp_types.size, &timestamp_type, 4)
                self.timestamp_types.size += 4
            if ((self.wanted & BIT_KEY and not put_string(&self.keys, self.row_count, record.key, record.key_bytes))
                    or (self.wanted & BIT_VALUE
                        and not put_string(&self.values, self.row_count, record.value, record.value_bytes))):
                result = NO_MEMORY
                break
            if self.wanted & BIT_HEADERS:
                result = self.add_headers(&record, records + position)
                if result != OK:
                    break
            self.row_count += 1
        if result == OK and position != size:
            result = BAD_RECORD
        free(owned)
        return result

    cdef int add_headers(self, RecordView *record, const char *end) noexcept nogil:
        cdef HeaderView header
        cdef int32_t _i
        for _i in range(record.header_count):
            record.headers = header_next(record.headers, end, &header)
            if record.headers is NULL:
                return BAD_RECORD
            if (self.header_keys.data.size + header.key_bytes > INT32_MAX
                    or self.header_values.data.size + header.value_bytes > INT32_MAX):
                return OVER_CAP
            if not (push_string(&self.header_keys, self.header_count, header.key, header.key_bytes)
                    and push_string(&self.header_values, self.header_count, header.value, header.value_bytes)):
                return NO_MEMORY
            self.header_count += 1
        if record.header_count == 0:
            if not clear_bit(&self.header_valid, self.row_count):
                return NO_MEMORY
            self.header_nulls += 1
        return OK if push_i32(&self.header_ends, self.header_count) else NO_MEMORY

    def take(self):
        """Return the collected columns and clear the collector.

        (rows, offsets, timestamps, timestamp_types, keys, values, headers). An int column is a memoryview; a binary one
        (null count, bitmap or None, ends, data); headers (null count, bitmap or None, ends, header count, keys,
        values). A column that was not requested is None.
        """
        cdef int wanted = self.wanted
        cdef int64_t rows = self.row_count
        self.likely_rows = rows + (rows >> 3)
        self.likely_key_bytes, self.likely_value_bytes = like(&self.keys.data), like(&self.values.data)
        taken = (
            rows,
            array_of(&self.offsets, b"q") if wanted & BIT_OFFSET else None,
            array_of(&self.timestamps, b"q") if wanted & BIT_TIMESTAMP else None,
            array_of(&self.timestamp_types, b"i") if wanted & BIT_TIMESTAMP_TYPE else None,
            strings_of(&self.keys, rows) if wanted & BIT_KEY else None,
            strings_of(&self.values, rows) if wanted & BIT_VALUE else None,
            (self.header_nulls, bitmap_of(&self.header_valid, self.header_nulls, rows),
             array_of(&self.header_ends, b"i"), self.header_count, strings_of(&self.header_keys, self.header_count),
             strings_of(&self.header_values, self.header_count)) if wanted & BIT_HEADERS else None,
        )
        self.keys.ends.size = self.values.ends.size = self.header_ends.size = 0
        self.header_keys.ends.size = self.header_values.ends.size = 0
        if not self.start():
            raise MemoryError
        return taken


cdef object bitmap_of(Buffer *valid, int64_t nulls, int64_t rows):
    cdef int64_t need = (rows + 7) >> 3
    if nulls == 0:
        return None
    if need > valid.size:
        if not buffer_reserve(valid, need - valid.size):
            raise MemoryError
        memset(valid.data + valid.size, 0xff, need - valid.size)
        valid.size = need
    return array_of(valid, b"B")


cdef object strings_of(Strings *s, int64_t rows):
    return (s.nulls, bitmap_of(&s.valid, s.nulls, rows), array_of(&s.ends, b"i"), array_of(&s.data, b"B"))


def whole_batches(data):
    """Return the size of the complete batches in ``data``, and the offset after the last one (-1: no batch).

    Only lengths are read; damage is found when the records are read.
    """
    cdef Py_buffer buffer
    cdef BatchHeader header
    cdef int64_t position = 0, next_offset = -1
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        with nogil:
            while batch_parse(<const char *>buffer.buf + position, buffer.len - position, &header):
                if (header.magic != 2 or header.batch_length < BATCH_HEADER_BYTES - LENGTH_FROM
                        or <int64_t>header.batch_length + LENGTH_FROM > buffer.len - position):
                    break
                next_offset = header.base_offset + header.last_offset_delta + 1
                position += <int64_t>header.batch_length + LENGTH_FROM
    finally:
        PyBuffer_Release(&buffer)
    return position, next_offset


cdef class Array:
    """A read-only one-dimensional array behind the buffer protocol. Threads: immutable."""
    cdef:
        Buffer buffer           # owned
        Py_ssize_t shape
        Py_ssize_t stride
        char *format            # "q", "i" or "B"

    def __cinit__(self):
        self.stride, self.format = 1, b"B"     # an empty byte array until a buffer is set

    def __dealloc__(self):
        buffer_free(&self.buffer)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("columns are read-only")
        view.buf = self.buffer.data
        view.obj = self
        view.len = self.buffer.size
        view.itemsize = self.stride
        view.readonly = 1
        view.ndim = 1
        view.format = self.format if flags & PyBUF_FORMAT else NULL
        view.shape = &self.shape if flags & PyBUF_ND else NULL
        view.strides = &self.stride if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL


cdef object array_of(Buffer *buffer, const char *format):
    """Return a read-only memoryview that takes ownership of the buffer's memory; ``format`` is q, i or B."""
    cdef Array out = Array.__new__(Array)
    if not buffer_reserve(buffer, 1):  # some consumers reject a null pointer, even for zero bytes
        raise MemoryError
    out.buffer = buffer[0]
    memset(buffer, 0, sizeof(Buffer))
    out.format = <char *>format
    out.stride = 8 if format[0] == c"q" else 4 if format[0] == c"i" else 1
    out.shape = out.buffer.size // out.stride
    return memoryview(out)


cdef class BinaryColumn:
    """Byte strings, one per row: `data` end to end; `offsets`, int32, one more than rows; `valid`, a bitmap or None.

    The layout is Arrow's "binary". Args: ``rows``: their number; ``column``: a binary column of `ArrowColumns.take`.

    Threads: immutable.
    """
    cdef:
        readonly object data
        readonly object offsets
        readonly object valid
        Py_ssize_t rows
        const uint8_t[::1] bytes_view
        const int32_t[::1] ends_view
        const uint8_t[::1] valid_view

    def __cinit__(self, Py_ssize_t rows, tuple column not None):
        _, self.valid, self.offsets, self.data = column
        self.bytes_view, self.ends_view, self.valid_view = self.data, self.offsets, self.valid
        if not 0 <= rows < self.ends_view.shape[0] or (self.valid is not None and self.valid_view.shape[0] * 8 < rows):
            raise ValueError(f"the column has fewer than {rows} rows")
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, Py_ssize_t row):
        if row < 0:
            row += self.rows
        if row < 0 or row >= self.rows:
            raise IndexError(f"row {row} of {self.rows}")
        if self.valid is not None and not self.valid_view[row >> 3] >> (row & 7) & 1:
            return None
        cdef int32_t start = self.ends_view[row], end = self.ends_view[row + 1]
        if start == end:
            return b""
        if not 0 <= start < end <= self.bytes_view.shape[0]:
            raise ValueError(f"row {row}: an offset points outside of the data")
        return PyBytes_FromStringAndSize(<const char *>&self.bytes_view[start], end - start)
