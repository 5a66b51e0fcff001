"""Builder of record batch v2: records are encoded as they are appended, the header when the batch is built.

Source: ``MemoryRecordsBuilder.java``, ``DefaultRecord.java``.
"""
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from kbroker._core.codec.bytes cimport put_varlong, varlong_bytes
from kbroker.protocol._batch_format cimport (
    BATCH_HEADER_BYTES, CODEC_MASK, CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT,
)
from kbroker.protocol._columns cimport Vector, vector_reserve
from kbroker.protocol._compression cimport CODEC_LEVEL, compress
from kbroker.protocol._compression_type cimport ZSTD
from kbroker.protocol._records cimport BatchHeader, batch_put_header


# ---------------------------------------------------------------- encoded records

cdef inline int64_t blob_bytes(int64_t size) noexcept nogil:
    return varlong_bytes(size) + size if size >= 0 else 1


cdef inline uint8_t *put_blob(uint8_t *at, const char *data, int64_t size) noexcept nogil:
    at += put_varlong(at, size if size >= 0 else -1)
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef bint put_header(Vector *to, const char *key, int64_t key_bytes, const char *value,
                     int64_t value_bytes) noexcept nogil:
    cdef uint8_t *at
    if not vector_reserve(to, blob_bytes(key_bytes) + blob_bytes(value_bytes)):
        return False
    at = put_blob(put_blob(<uint8_t *>to.data + to.size, key, key_bytes), value, value_bytes)
    to.size = at - <uint8_t *>to.data
    return True


cdef bint draft_capacity(BatchDraft *draft, int64_t size) noexcept nogil:
    cdef int64_t capacity = draft.capacity * 2
    cdef uint8_t *grown
    if size <= draft.capacity - draft.size:
        return True
    if capacity < draft.size + size:
        capacity = draft.size + size
    if capacity < 256:
        capacity = 256
    grown = <uint8_t *>realloc(draft.data, capacity)
    if grown is NULL:
        return False
    draft.data, draft.capacity = grown, capacity
    return True


cdef int draft_add(BatchDraft *draft, int64_t timestamp_ms, int64_t delta, const char *key, int64_t key_bytes,
                   const char *value, int64_t value_bytes, int64_t header_count, const Vector *headers) noexcept nogil:
    cdef int64_t base = draft.header.base_timestamp_ms if draft.has_base else timestamp_ms
    cdef int64_t since = <int64_t>(<uint64_t>timestamp_ms - <uint64_t>base)
    cdef int64_t body = (1 + varlong_bytes(since) + varlong_bytes(delta) + blob_bytes(key_bytes)
                         + blob_bytes(value_bytes) + varlong_bytes(header_count) + headers.size)
    cdef uint8_t *at
    if delta > INT32_MAX:
        return DRAFT_BAD_DELTA
    if draft.size + body + varlong_bytes(body) > INT32_MAX - BATCH_HEADER_BYTES:
        return DRAFT_TOO_LARGE
    if not draft_capacity(draft, body + varlong_bytes(body)):
        return DRAFT_NO_MEMORY
    at = draft.data + draft.size
    at += put_varlong(at, body)
    at[0] = 0                   # attributes
    at += 1
    at += put_varlong(at, since)
    at += put_varlong(at, delta)
    at = put_blob(put_blob(at, key, key_bytes), value, value_bytes)
    at += put_varlong(at, header_count)
    if headers.size > 0:
        memcpy(at, headers.data, headers.size)
        at += headers.size
    draft.size = at - draft.data
    if not draft.has_base:
        draft.header.base_timestamp_ms = timestamp_ms
        draft.has_base = True
    if timestamp_ms > draft.header.max_timestamp_ms or draft.header.record_count == 0:
        draft.header.max_timestamp_ms = timestamp_ms
    draft.header.record_count += 1
    draft.header.last_offset_delta = <int32_t>delta
    return DRAFT_OK


# ---------------------------------------------------------------- a batch

cdef class RecordBatchBuilder:
    """Builds one batch; see records.build_batch for the arguments.

    Threads: one at a time.
    """

    def __cinit__(self, int32_t compression=0, *, int64_t base_offset=0, base_timestamp_ms=None, int64_t producer_id=-1,
                  int16_t producer_epoch=-1, int32_t base_sequence=-1, bint transactional=False, bint control=False,
                  bint log_append_time=False, int32_t leader_epoch=-1):
        cdef BatchHeader *header = &self.draft.header
        if compression < 0 or compression > ZSTD:
            raise ValueError(f"compression must be 0 to 4, got {compression}")
        header.base_offset, header.leader_epoch = base_offset, leader_epoch
        header.attributes = <int16_t>(compression | LOG_APPEND_TIME_BIT * log_append_time
                                      | TRANSACTIONAL_BIT * transactional | CONTROL_BIT * control)
        header.producer_id, header.producer_epoch = producer_id, producer_epoch
        header.base_sequence = base_sequence
        header.base_timestamp_ms = header.max_timestamp_ms = -1
        self.draft.has_base = base_timestamp_ms is not None
        if self.draft.has_base:
            header.base_timestamp_ms = base_timestamp_ms
        header.last_offset_delta = -1

    def __dealloc__(self):
        free(self.draft.data)

    def __len__(self):
        return self.draft.header.record_count

    @property
    def size_bytes(self):
        """Size of the batch without compression."""
        return BATCH_HEADER_BYTES + self.draft.size

    def append(self, key, value, int64_t timestamp_ms=-1, headers=(), offset_delta=None):
        """Add a record.

        Args:
            key: bytes-like or None.
            value: bytes-like or None (a tombstone).
            timestamp_ms: create time.
            headers: pairs (str, bytes-like or None), or a dict of them.
            offset_delta: offset relative to the base offset, above all earlier ones; default: the next one.

        Raises: ValueError: an invalid delta. TypeError: a wrong type. OverflowError: too large.
            After an error the builder is unchanged.
        """
        cdef int64_t delta = self.draft.header.last_offset_delta + <int64_t>1
        cdef Vector scratch
        if offset_delta is not None:
            if offset_delta < delta:
                raise ValueError(f"offset_delta must be >= {delta}, got {offset_delta}")
            delta = offset_delta
        memset(&scratch, 0, sizeof(Vector))
        try:
            self.add(key, value, timestamp_ms, headers, delta, &scratch)
        finally:
            free(scratch.data)

    cdef int add(self, key, value, int64_t timestamp_ms, headers, int64_t delta, Vector *scratch) except -1:
        cdef Py_buffer keys, values
        cdef int64_t count = 0
        cdef int status
        cdef bint done
        for header_key, header_value in headers.items() if isinstance(headers, dict) else headers:
            borrow(header_key.encode("utf-8", "surrogateescape"), &keys)
            try:
                borrow(header_value, &values)
                done = put_header(scratch, <const char *>keys.buf, keys.len, <const char *>values.buf, values.len)
                give_back(&values)
            finally:
                give_back(&keys)
            if not done:
                raise MemoryError
            count += 1
        borrow(key, &keys)
        try:
            borrow(value, &values)
            status = draft_add(&self.draft, timestamp_ms, delta, <const char *>keys.buf, keys.len,
                               <const char *>values.buf, values.len, count, scratch)
            give_back(&values)
        finally:
            give_back(&keys)
        if status == DRAFT_NO_MEMORY:
            raise MemoryError
        if status == DRAFT_TOO_LARGE:
            raise OverflowError("batch above 2 GiB")
        if status == DRAFT_BAD_DELTA:
            raise OverflowError(f"offset delta {delta} above 2^31 - 1")
        return 0

    def build(self, last_offset_delta=None):
        """Return the batch as bytes; further records may be appended.

        Args:
            last_offset_delta: above the last record's, for a batch whose last records were removed by compaction.
        """
        cdef int32_t last = self.draft.header.last_offset_delta
        if last_offset_delta is not None:
            if last_offset_delta < last:
                raise ValueError(f"last_offset_delta must be >= {last}, got {last_offset_delta}")
            last = last_offset_delta
        cdef bytes records = PyBytes_FromStringAndSize(<char *>self.draft.data, self.draft.size)
        records = compress(self.draft.header.attributes & CODEC_MASK, records, CODEC_LEVEL)
        cdef int64_t size = PyBytes_GET_SIZE(records)
        if size > INT32_MAX - BATCH_HEADER_BYTES:
            raise OverflowError("batch above 2 GiB")
        cdef bytes out = PyBytes_FromStringAndSize(NULL, BATCH_HEADER_BYTES + size)
        cdef char *at = PyBytes_AS_STRING(out)
        cdef BatchHeader header = self.draft.header
        memcpy(at + BATCH_HEADER_BYTES, PyBytes_AS_STRING(records), size)
        header.last_offset_delta = last
        batch_put_header(at, BATCH_HEADER_BYTES + size, &header)
        return out


cdef int borrow(value, Py_buffer *to) except -1:
    """Borrow the bytes of a value; None has the length -1."""
    if value is None:
        to.buf, to.len = NULL, -1
        return 0
    PyObject_GetBuffer(value, to, PyBUF_SIMPLE)
    return 0


cdef inline int give_back(Py_buffer *buffer) except -1:
    if buffer.len >= 0:
        PyBuffer_Release(buffer)
    return 0
