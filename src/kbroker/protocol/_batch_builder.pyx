"""Builder of record batch v2: records are encoded as they are appended, the header when the batch is built.

Source: ``MemoryRecordsBuilder.java``, ``DefaultRecord.java``.
"""
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memset

from kbroker._core.containers.buffer cimport Buffer, buffer_free, buffer_reserve
from kbroker.protocol._batch_format cimport (
    BATCH_HEADER_BYTES, CODEC_MASK, CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT,
)
from kbroker.protocol._compression cimport CODEC_LEVEL, compress
from kbroker.protocol._compression_type cimport NONE, ZSTD
from kbroker.protocol._records cimport (
    PUT_BAD_DELTA, PUT_NO_MEMORY, PUT_OK, PUT_TOO_LARGE, BatchHeader, batch_put_header, header_put, record_put,
)


cdef bint draft_start(BatchDraft *draft) noexcept nogil:
    draft.batch.size = 0
    if not buffer_reserve(&draft.batch, BATCH_HEADER_BYTES):
        return False
    draft.batch.size = BATCH_HEADER_BYTES
    draft.has_base = False
    memset(&draft.header, 0, sizeof(BatchHeader))
    draft.header.leader_epoch = draft.header.base_sequence = draft.header.last_offset_delta = -1
    draft.header.producer_id = draft.header.producer_epoch = -1
    draft.header.base_timestamp_ms = draft.header.max_timestamp_ms = -1
    return True


cdef int draft_add(BatchDraft *draft, int64_t timestamp_ms, int64_t delta, const char *key, int64_t key_bytes,
                   const char *value, int64_t value_bytes, int64_t header_count, const Buffer *headers) noexcept nogil:
    cdef BatchHeader *header = &draft.header
    cdef int64_t base = header.base_timestamp_ms if draft.has_base else timestamp_ms
    cdef int status
    if delta > INT32_MAX:
        return PUT_BAD_DELTA
    status = record_put(&draft.batch, <int64_t>(<uint64_t>timestamp_ms - <uint64_t>base), delta, key, key_bytes, value,
                        value_bytes, header_count, headers.data if headers != NULL else NULL,
                        headers.size if headers != NULL else 0)
    if status != PUT_OK:
        return status
    if not draft.has_base:
        header.base_timestamp_ms = timestamp_ms
        draft.has_base = True
    if timestamp_ms > header.max_timestamp_ms or header.record_count == 0:
        header.max_timestamp_ms = timestamp_ms
    header.record_count += 1
    header.last_offset_delta = <int32_t>delta
    return PUT_OK


cdef class RecordBatchBuilder:
    """Builder of one batch; see records.build_batch for the arguments.

    Threads: one at a time.
    """

    def __cinit__(self, int32_t compression=0, *, int64_t base_offset=0, base_timestamp_ms=None, int64_t producer_id=-1,
                  int16_t producer_epoch=-1, int32_t base_sequence=-1, bint transactional=False, bint control=False,
                  bint log_append_time=False, int32_t leader_epoch=-1):
        cdef BatchHeader *header = &self.draft.header
        if compression < 0 or compression > ZSTD:
            raise ValueError(f"compression must be 0 to 4, got {compression}")
        if not draft_start(&self.draft):
            raise MemoryError
        header.base_offset, header.leader_epoch = base_offset, leader_epoch
        header.attributes = <int16_t>(compression | LOG_APPEND_TIME_BIT * log_append_time
                                      | TRANSACTIONAL_BIT * transactional | CONTROL_BIT * control)
        header.producer_id, header.producer_epoch = producer_id, producer_epoch
        header.base_sequence = base_sequence
        if base_timestamp_ms is not None:
            header.base_timestamp_ms, self.draft.has_base = base_timestamp_ms, True

    def __dealloc__(self):
        buffer_free(&self.draft.batch)

    def __len__(self):
        return self.draft.header.record_count

    @property
    def size_bytes(self):
        """Size of the batch without compression."""
        return self.draft.batch.size

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
        cdef Buffer scratch
        if offset_delta is not None:
            if offset_delta < delta:
                raise ValueError(f"offset_delta must be >= {delta}, got {offset_delta}")
            delta = offset_delta
        memset(&scratch, 0, sizeof(Buffer))
        try:
            self.add(key, value, timestamp_ms, headers, delta, &scratch)
        finally:
            buffer_free(&scratch)

    cdef int add(self, key, value, int64_t timestamp_ms, headers, int64_t delta, Buffer *scratch) except -1:
        cdef Py_buffer keys, values
        cdef int64_t count = 0
        cdef bint done
        for header_key, header_value in headers.items() if isinstance(headers, dict) else headers:
            borrow(str.encode(header_key, "utf-8", "surrogateescape"), &keys)
            try:
                borrow(header_value, &values)
                done = header_put(scratch, <const char *>keys.buf, keys.len, <const char *>values.buf, values.len)
                give_back(&values)
            finally:
                give_back(&keys)
            if not done:
                raise MemoryError
            count += 1
        return draft_put(&self.draft, key, value, timestamp_ms, delta, count, scratch)

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
        return draft_bytes(&self.draft, last)


def key_value_batch(records, int64_t timestamp_ms, int64_t producer_id=-1, int16_t producer_epoch=-1):
    """Build one batch without compression of keys and values, all with the same timestamp.

    Args:
        records: pairs of bytes-like; None is a tombstone's value, or a missing key.
        timestamp_ms: create time of each.
        producer_id, producer_epoch: of the transaction that they belong to, else -1.

    Raises: TypeError: a wrong type. OverflowError: too large for a batch.
    """
    cdef BatchDraft draft
    cdef int64_t delta = 0
    memset(&draft, 0, sizeof(BatchDraft))
    try:
        if not draft_start(&draft):
            raise MemoryError
        draft.header.producer_id, draft.header.producer_epoch = producer_id, producer_epoch
        if producer_id >= 0:
            draft.header.attributes = TRANSACTIONAL_BIT
            draft.header.base_sequence = 0  # as Kafka's coordinators do; the sequences of their batches are not checked
        for key, value in records:
            draft_put(&draft, key, value, timestamp_ms, delta, 0, NULL)
            delta += 1
        return draft_bytes(&draft, draft.header.last_offset_delta)
    finally:
        buffer_free(&draft.batch)


cdef int draft_put(BatchDraft *draft, key, value, int64_t timestamp_ms, int64_t delta, int64_t header_count,
                   const Buffer *headers) except -1:
    """Add a record, as ``draft_add``. Raises: TypeError, OverflowError, MemoryError; the draft is then unchanged."""
    cdef Py_buffer keys, values
    cdef int status
    borrow(key, &keys)
    try:
        borrow(value, &values)
        status = draft_add(draft, timestamp_ms, delta, <const char *>keys.buf, keys.len,
                           <const char *>values.buf, values.len, header_count, headers)
        give_back(&values)
    finally:
        give_back(&keys)
    if status == PUT_NO_MEMORY:
        raise MemoryError
    if status == PUT_TOO_LARGE:
        raise OverflowError("batch above 2 GiB")
    if status == PUT_BAD_DELTA:
        raise OverflowError(f"offset delta {delta} above 2^31 - 1")
    return 0


cdef bytes draft_bytes(BatchDraft *draft, int32_t last_offset_delta):
    """Return the batch of a draft, its records compressed with the codec of its header."""
    cdef BatchHeader header = draft.header
    cdef int codec = header.attributes & CODEC_MASK
    cdef const char *records = draft.batch.data + BATCH_HEADER_BYTES
    cdef int64_t size = draft.batch.size - BATCH_HEADER_BYTES
    cdef bytes packed, out
    cdef char *at
    if codec != NONE:
        packed = compress(codec, PyBytes_FromStringAndSize(records, size), CODEC_LEVEL)
        records, size = PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed)
        if size > INT32_MAX - BATCH_HEADER_BYTES:
            raise OverflowError("batch above 2 GiB")
    out = PyBytes_FromStringAndSize(NULL, BATCH_HEADER_BYTES + size)
    at = PyBytes_AS_STRING(out)
    memcpy(at + BATCH_HEADER_BYTES, records, size)
    header.last_offset_delta = last_offset_delta
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
