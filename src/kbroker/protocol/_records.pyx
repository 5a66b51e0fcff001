"""Byte grammar of record batch v2: headers, checksum, records; and RecordBatch, a batch as a Python object.

Source: ``DefaultRecordBatch.java``, ``DefaultRecord.java``. Every length is checked against the remaining bytes.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.codec.bytes cimport (
    get_varint, get_varlong, load_i16, load_i32, load_i64, load_u32, put_varlong, store_16, store_32, store_64,
    varlong_bytes,
)
from kbroker._core.codec.crc32c cimport crc32c
from kbroker._core.containers.buffer cimport Buffer, buffer_reserve
from kbroker.protocol._batch_format cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, BATCH_HEADER_BYTES, CODEC_MASK, CONTROL_BIT, CRC_AT,
    CRC_FROM, DELETE_HORIZON_BIT, LAST_OFFSET_DELTA_AT, LENGTH_AT, LENGTH_FROM, LOG_APPEND_TIME_BIT, MAGIC_AT,
    MAX_TIMESTAMP_AT, PARTITION_LEADER_EPOCH_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORD_COUNT_AT,
    TRANSACTIONAL_BIT,
)
from kbroker.protocol._compression cimport records_compress, records_decompress, records_prefix

from kbroker.common.errors import Errors, ProtocolError

DEFAULT_CAP_BYTES = 1 << 30

cdef enum:
    FIRST_STEP_BYTES = 1 << 18      # decompressed in the first step of a search for a few records


# ---------------------------------------------------------------------------------------------- native

cdef bint batch_parse(const char *data, int64_t size_bytes, BatchHeader *out) noexcept nogil:
    if size_bytes < BATCH_HEADER_BYTES:
        return False
    out.base_offset = load_i64(data)
    out.batch_length = load_i32(data + LENGTH_AT)
    out.leader_epoch = load_i32(data + PARTITION_LEADER_EPOCH_AT)
    out.magic = <int8_t>data[MAGIC_AT]
    out.crc = load_u32(data + CRC_AT)
    out.attributes = load_i16(data + ATTRIBUTES_AT)
    out.last_offset_delta = load_i32(data + LAST_OFFSET_DELTA_AT)
    out.base_timestamp_ms = load_i64(data + BASE_TIMESTAMP_AT)
    out.max_timestamp_ms = load_i64(data + MAX_TIMESTAMP_AT)
    out.producer_id = load_i64(data + PRODUCER_ID_AT)
    out.producer_epoch = load_i16(data + PRODUCER_EPOCH_AT)
    out.base_sequence = load_i32(data + BASE_SEQUENCE_AT)
    out.record_count = load_i32(data + RECORD_COUNT_AT)
    return True


cdef void batch_put_header(char *batch, int64_t size_bytes, const BatchHeader *header) noexcept nogil:
    store_64(batch, header.base_offset)
    store_32(batch + LENGTH_AT, <int32_t>(size_bytes - LENGTH_FROM))
    store_32(batch + PARTITION_LEADER_EPOCH_AT, header.leader_epoch)
    batch[MAGIC_AT] = 2
    store_16(batch + ATTRIBUTES_AT, header.attributes)
    store_32(batch + LAST_OFFSET_DELTA_AT, header.last_offset_delta)
    store_64(batch + BASE_TIMESTAMP_AT, header.base_timestamp_ms)
    store_64(batch + MAX_TIMESTAMP_AT, header.max_timestamp_ms)
    store_64(batch + PRODUCER_ID_AT, header.producer_id)
    store_16(batch + PRODUCER_EPOCH_AT, header.producer_epoch)
    store_32(batch + BASE_SEQUENCE_AT, header.base_sequence)
    store_32(batch + RECORD_COUNT_AT, header.record_count)
    store_32(batch + CRC_AT, <int32_t>crc32c(0, batch + CRC_FROM, size_bytes - CRC_FROM))


cdef bint batch_crc_ok(const char *data, const BatchHeader *header) noexcept nogil:
    cdef int64_t size = <int64_t>header.batch_length + LENGTH_FROM - CRC_FROM
    if size < BATCH_HEADER_BYTES - CRC_FROM:
        return False
    return crc32c(0, data + CRC_FROM, size) == header.crc


cdef inline const char *read_blob(const char *at, const char *end, const char **blob, int32_t *size) noexcept nogil:
    """Read a varint length and bytes; any negative length is null. Return the position after them, or NULL."""
    cdef int32_t length = 0
    cdef int taken = get_varint(at, end, &length)
    if taken == 0 or length > end - at - taken:
        return NULL
    at += taken
    if length < 0:
        blob[0] = NULL
        size[0] = -1
        return at
    blob[0] = at
    size[0] = length
    return at + length


cdef int32_t record_next(const char *records, int64_t size_bytes, int64_t *position, const BatchHeader *header,
                         RecordView *out) noexcept nogil:
    cdef const char *at = records + position[0]
    cdef const char *end = records + size_bytes
    cdef const char *blob
    cdef int32_t length = 0, offset_delta = 0, count = 0, blob_bytes = 0, _i
    cdef int64_t timestamp_delta = 0
    cdef int taken
    if position[0] < 0 or position[0] >= size_bytes:
        return -1
    taken = get_varint(at, end, &length)
    if taken == 0 or length < 1 or length > end - at - taken:
        return -1
    at += taken
    end = at + length
    at += 1  # attributes: none is defined
    taken = get_varlong(at, end, &timestamp_delta)
    if taken == 0:
        return -1
    at += taken
    if header.attributes & LOG_APPEND_TIME_BIT:
        out.timestamp_ms = header.max_timestamp_ms
    else:
        out.timestamp_ms = <int64_t>(<uint64_t>header.base_timestamp_ms + <uint64_t>timestamp_delta)
    taken = get_varint(at, end, &offset_delta)
    if taken == 0:
        return -1
    at += taken
    out.offset = <int64_t>(<uint64_t>header.base_offset + <uint64_t><int64_t>offset_delta)
    at = read_blob(at, end, &out.key, &out.key_bytes)
    if at is NULL:
        return -1
    at = read_blob(at, end, &out.value, &out.value_bytes)
    if at is NULL:
        return -1
    taken = get_varint(at, end, &count)
    if taken == 0 or count < 0 or <int64_t>count * 2 > end - at - taken:
        return -1
    at += taken
    out.headers = at
    out.header_count = count
    for _i in range(count):
        at = read_blob(at, end, &blob, &blob_bytes)
        if at is NULL or blob_bytes < 0:
            return -1
        at = read_blob(at, end, &blob, &blob_bytes)
        if at is NULL:
            return -1
    if at != end:
        return -1
    position[0] = end - records
    return 0


cdef const char *header_next(const char *at, const char *end, HeaderView *out) noexcept nogil:
    at = read_blob(at, end, &out.key, &out.key_bytes)
    if at is NULL or out.key_bytes < 0:
        return NULL
    return read_blob(at, end, &out.value, &out.value_bytes)


cdef inline int64_t blob_bytes(int64_t size) noexcept nogil:
    return varlong_bytes(size) + size if size >= 0 else 1


cdef inline char *put_blob(char *at, const char *data, int64_t size) noexcept nogil:
    at += put_varlong(at, size if size >= 0 else -1)
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef int record_put(Buffer *to, int64_t timestamp_delta, int64_t offset_delta, const char *key, int64_t key_bytes,
                    const char *value, int64_t value_bytes, int64_t header_count, const char *headers,
                    int64_t headers_bytes) noexcept nogil:
    cdef int64_t body = (1 + varlong_bytes(timestamp_delta) + varlong_bytes(offset_delta) + blob_bytes(key_bytes)
                         + blob_bytes(value_bytes) + varlong_bytes(header_count) + headers_bytes)
    cdef int64_t size = body + varlong_bytes(body)
    cdef char *at
    if to.size + size > INT32_MAX:
        return PUT_TOO_LARGE
    if not buffer_reserve(to, size):
        return PUT_NO_MEMORY
    at = to.data + to.size
    at += put_varlong(at, body)
    at[0] = 0                   # attributes: none is defined
    at += 1
    at += put_varlong(at, timestamp_delta)
    at += put_varlong(at, offset_delta)
    at = put_blob(put_blob(at, key, key_bytes), value, value_bytes)
    at += put_varlong(at, header_count)
    if headers_bytes > 0:
        memcpy(at, headers, headers_bytes)
    to.size += size
    return PUT_OK


cdef bint header_put(Buffer *to, const char *key, int64_t key_bytes, const char *value,
                     int64_t value_bytes) noexcept nogil:
    cdef char *at
    if not buffer_reserve(to, blob_bytes(key_bytes) + blob_bytes(value_bytes)):
        return False
    at = put_blob(put_blob(to.data + to.size, key, key_bytes), value, value_bytes)
    to.size = at - to.data
    return True


cdef int32_t batch_decompress(const char *data, const BatchHeader *header, int64_t cap_bytes, char **out,
                              int64_t *out_bytes) noexcept nogil:
    cdef int64_t size = <int64_t>header.batch_length + LENGTH_FROM - BATCH_HEADER_BYTES
    cdef int codec = header.attributes & CODEC_MASK
    return records_decompress(codec, data + BATCH_HEADER_BYTES, size, cap_bytes, out, out_bytes)


cdef int32_t batch_recompress(const BatchHeader *header, const char *records, int64_t records_bytes, int codec,
                              int32_t level, char **out, int64_t *out_bytes) noexcept nogil:
    cdef int64_t size = 0
    cdef BatchHeader packed = header[0]
    cdef int32_t status = records_compress(codec, level, records, records_bytes, BATCH_HEADER_BYTES, out, &size)
    out_bytes[0] = 0
    if status != 0:
        return status
    packed.attributes = <int16_t>((packed.attributes & ~CODEC_MASK) | codec)
    out_bytes[0] = size + BATCH_HEADER_BYTES
    batch_put_header(out[0], out_bytes[0], &packed)
    return 0


# ---------------------------------------------------------------------------------------------- Python

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
        """Size of the whole batch, header included."""
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
        return self.header.attributes & CODEC_MASK

    @property
    def is_log_append_time(self):
        return self.header.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def is_transactional(self):
        return self.header.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self):
        return self.header.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self):
        return self.header.attributes & DELETE_HORIZON_BIT != 0

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
        """View of the bytes of the batch."""
        return memoryview(self.source).cast("B")[self.position:self.position + self.size_bytes]

    cdef char *uncompressed(self, int64_t cap_bytes, int64_t *size) except? NULL:
        """Return the uncompressed records, owned by the caller; NULL if they are not compressed.

        Raises: ProtocolError, as ``records``.
        """
        cdef bint is_cut = False
        cdef char *owned
        check_batch(self)
        owned = beginning(self, cap_bytes, size, &is_cut)
        if is_cut:
            free(owned)
            raise too_large(self, cap_bytes)
        return owned

    def records(self, int64_t cap_bytes=DEFAULT_CAP_BYTES):
        """Return the records as tuples (offset, timestamp_ms, key, value, headers); headers are (str, bytes or None).

        Raises: ProtocolError: wrong checksum, magic or codec, damaged records, or more than `cap_bytes` uncompressed.
        """
        cdef int64_t size = 0, position = 0
        cdef char *owned = self.uncompressed(cap_bytes, &size)
        cdef const char *at = self.data + BATCH_HEADER_BYTES if owned is NULL else owned
        cdef const char *end
        cdef int32_t i, _j
        cdef RecordView record
        cdef HeaderView header
        cdef list out = []
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

    def records_from(self, int64_t offset, int32_t limit_rows, int64_t limit_bytes, int32_t limit_headers,
                     int64_t cap_bytes=DEFAULT_CAP_BYTES, int32_t limit_value_bytes=INT32_MAX):
        """Return the first records from an offset on, as (records, their bytes, uncompressed bytes, is cut).

        The records are tuples (offset, timestamp_ms, key, value, headers, header count, key bytes, value bytes);
        headers are (bytes, bytes or None). Earlier records are skipped without creating objects; later ones are not
        read, and uncompressed only within the same step: steps begin at 256 KiB, and grow fourfold. The batch is cut
        if it has further records after ``cap_bytes`` and none of the limits was reached.

        Args:
            offset: records below it are skipped.
            limit_rows: maximum number of records.
            limit_bytes: size of the encoded records; the record that exceeds it is the last.
            limit_headers: maximum number of headers per record.
            cap_bytes: maximum size to uncompress.
            limit_value_bytes: maximum length of each key, value, and header's value; the rest is cut off.

        Raises: ProtocolError: wrong checksum, magic or codec, damaged records, or a Snappy block over ``cap_bytes``.
        """
        cdef int64_t size = 0, found_bytes = 0, step = min(cap_bytes, <int64_t>FIRST_STEP_BYTES)
        cdef char *owned = NULL
        cdef const char *at
        cdef RecordView *views = NULL
        cdef RecordView *record
        cdef HeaderView header
        cdef int32_t count = 0, i, _j
        cdef bint is_cut = False, is_torn = False
        cdef list out = []
        if limit_rows < 1 or limit_headers < 0:
            raise ValueError(f"expected 1 row and 0 headers at least, got {limit_rows} and {limit_headers}")
        check_batch(self)
        limit_rows = max(min(limit_rows, self.header.record_count), 1)
        try:
            views = <RecordView *>malloc(limit_rows * sizeof(RecordView))
            if views is NULL:
                raise MemoryError
            while True:
                owned = beginning(self, step, &size, &is_cut)
                if is_cut and size == 0 and step == cap_bytes:
                    raise too_large(self, cap_bytes)
                at = self.data + BATCH_HEADER_BYTES if owned is NULL else owned
                with nogil:
                    count = views_from(
                        at, size, &self.header, offset, limit_rows, limit_bytes, views, &found_bytes, &is_torn)
                if is_torn and not is_cut:
                    raise corrupt("damaged record", self.header.base_offset)
                is_cut = is_cut and count < limit_rows and found_bytes <= limit_bytes
                if not is_cut or step == cap_bytes:
                    break
                free(owned)
                owned = NULL
                step = min(cap_bytes, step * 4)
            for i in range(count):
                record = &views[i]
                headers = []
                for _j in range(min(record.header_count, limit_headers)):
                    record.headers = header_next(record.headers, at + size, &header)
                    headers.append((PyBytes_FromStringAndSize(header.key, header.key_bytes),
                                    blob_or_none(header.value, min(header.value_bytes, limit_value_bytes))))
                out.append((record.offset, record.timestamp_ms,
                            blob_or_none(record.key, min(record.key_bytes, limit_value_bytes)),
                            blob_or_none(record.value, min(record.value_bytes, limit_value_bytes)),
                            tuple(headers), record.header_count, record.key_bytes, record.value_bytes))
            return out, found_bytes, 0 if owned is NULL else size, is_cut
        finally:
            free(views)
            free(owned)

    def __repr__(self):
        return (f"<RecordBatch offsets {self.base_offset}-{self.last_offset}, {self.record_count} records, "
                f"{self.size_bytes} bytes>")


cdef int check_batch(RecordBatch batch) except -1:
    """Raise ProtocolError for a wrong magic or checksum."""
    cdef bint is_valid
    if batch.header.magic != 2:
        raise corrupt(f"magic {batch.header.magic} instead of 2", batch.header.base_offset)
    with nogil:
        is_valid = batch_crc_ok(batch.data, &batch.header)
    if not is_valid:
        raise corrupt("wrong checksum", batch.header.base_offset)
    return 0


cdef char *beginning(RecordBatch batch, int64_t cap_bytes, int64_t *size, bint *is_cut) except? NULL:
    """Return the uncompressed records, owned by the caller; NULL if they are not compressed.

    ``is_cut`` is set where they exceed ``cap_bytes``: the result is their beginning.
    Raises: ProtocolError: unknown codec, damaged data, or a Snappy block over ``cap_bytes``.
    """
    cdef char *owned = NULL
    cdef int codec = batch.header.attributes & CODEC_MASK
    cdef int64_t packed_bytes = <int64_t>batch.header.batch_length + LENGTH_FROM - BATCH_HEADER_BYTES
    cdef int32_t status = 0
    size[0] = packed_bytes
    if codec:
        with nogil:
            status = records_prefix(codec, batch.data + BATCH_HEADER_BYTES, packed_bytes, cap_bytes, &owned, size)
    if status == -2:
        raise too_large(batch, cap_bytes)
    if status < 0:
        raise corrupt("cannot be decompressed", batch.header.base_offset)
    is_cut[0] = status == 1
    return owned


cdef object too_large(RecordBatch batch, int64_t cap_bytes):
    return corrupt(f"more than {cap_bytes} bytes uncompressed", batch.header.base_offset)


cdef int32_t views_from(const char *records, int64_t size, const BatchHeader *header, int64_t offset,
                        int32_t limit_rows, int64_t limit_bytes, RecordView *out, int64_t *found_bytes,
                        bint *is_torn) noexcept nogil:
    """Find the first records from an offset on; return their number. ``is_torn``: a damaged record ended the search."""
    cdef int64_t position = 0, start
    cdef int32_t count = 0, _i
    found_bytes[0] = 0
    is_torn[0] = False
    for _i in range(header.record_count):
        start = position
        if record_next(records, size, &position, header, &out[count]) != 0:
            is_torn[0] = True
            break
        if out[count].offset >= offset:
            count += 1
            found_bytes[0] += position - start
            if count == limit_rows or found_bytes[0] > limit_bytes:
                break
    return count


cdef object blob_or_none(const char *data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(data, size)


def batch_at(data, int64_t position=0):
    """Return the RecordBatch at `position` of `data`, or None when the data ends before the batch does.

    Raises: ProtocolError: its length field is below the size of a header. ValueError: a position outside `data`.
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
        length = load_i32(batch.data + LENGTH_AT)
        if length < BATCH_HEADER_BYTES - LENGTH_FROM:
            raise corrupt(f"batch length {length} is below a header's {BATCH_HEADER_BYTES - LENGTH_FROM}")
    if not batch_parse(batch.data, left, &batch.header):
        return None
    if <int64_t>batch.header.batch_length + LENGTH_FROM > left:
        return None
    return batch
