# cython: freethreading_compatible=True
"""Building of record batch v2: records are encoded as they are appended, the header when the batch is built.

Source: ``MemoryRecordsBuilder.java``, ``DefaultRecord.java``.
"""
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from kbroker._core.crc32c cimport crc32c
from kbroker.protocol._compression cimport CODEC_LEVEL, ZSTD, compress
from kbroker.protocol._records cimport (
    BATCH_HEADER_BYTES, CONTROL, CRC_FROM, LENGTH_FROM, LOG_APPEND_TIME, TRANSACTIONAL, store_be)


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
        records = compress(self.header.attributes & 7, records, CODEC_LEVEL)
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
