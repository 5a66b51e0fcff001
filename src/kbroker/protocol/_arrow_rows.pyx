"""Writer of Arrow's buffers into record batches in one pass, without the GIL or a Python object per record.

The reverse of ``_columns``. Rows go to partitions by MurmurHash2 of their keys, as with Kafka's producers. Offsets are
checked against the sizes of the buffers, row by row.
Source: Arrow columnar format, "Variable-size Binary Layout", "List Layout", "Validity bitmaps"; ``Utils.murmur2``,
``BuiltInPartitioner.partitionForKey``.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from kbroker._core.containers.buffer cimport Buffer, buffer_free
from kbroker.protocol._batch_builder cimport BatchDraft, RecordBatchBuilder, draft_add
from kbroker.protocol._records cimport PUT_NO_MEMORY, PUT_OK, header_put


# -------------------------------------------------------------------------------------------------- partitions of keys

cdef enum:
    SEED = 0x9747B28C
    M = 0x5BD1E995


cdef uint32_t murmur2_of(const char *data, int64_t size) noexcept nogil:
    cdef const uint8_t *at = <const uint8_t *>data
    cdef const uint8_t *whole = at + (size & ~<int64_t>3)
    cdef uint32_t h = <uint32_t>SEED ^ <uint32_t>size, k, left = 0
    cdef int i
    while at < whole:
        k = (<uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24) * <uint32_t>M
        h = (h * <uint32_t>M) ^ ((k ^ k >> 24) * <uint32_t>M)
        at += 4
    if size & 3:
        for i in range(size & 3):
            left |= <uint32_t>at[i] << (8 * i)
        h = (h ^ left) * <uint32_t>M
    h = (h ^ h >> 13) * <uint32_t>M
    return h ^ h >> 15


cdef inline int32_t partition_of(const char *key, int64_t size, int32_t partition_count) noexcept nogil:
    return <int32_t>((murmur2_of(key, size) & 0x7FFFFFFF) % <uint32_t>partition_count)


def murmur2(key) -> int:
    """Return the 32-bit MurmurHash2 of a bytes-like key with Kafka's seed, unsigned."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(key, &buffer, PyBUF_SIMPLE)
    try:
        return murmur2_of(<const char *>buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)


def partition_of_key(key, int partition_count) -> int:
    """Return the partition of a keyed record, as Java and kafka-python choose it; librdkafka's default (crc32) differs.

    Raises: ValueError for a count below 1.
    """
    cdef Py_buffer buffer
    if partition_count < 1:
        raise ValueError(f"partition_count must be >= 1, got {partition_count}")
    PyObject_GetBuffer(key, &buffer, PyBUF_SIMPLE)
    try:
        return partition_of(<const char *>buffer.buf, buffer.len, partition_count)
    finally:
        PyBuffer_Release(&buffer)


# ---------------------------------------------------------------------------------------------------------------- rows

cdef enum:
    MOST_BUFFERS = 24
    MOST_ROWS = 1073741824
    ANY = -1
    NO_SUCH = -2                # of a string: its offsets are outside the buffer
    OK = 0
    NO_MEMORY = 1
    OUTSIDE = 2                 # an offset points outside its buffer
    BAD_PARTITION = 3
    NO_HEADER_KEY = 4
    TOO_LARGE = 5

cdef struct Part:               # one buffer of a column
    const char *data            # NULL: not given
    int64_t size

cdef struct ByteStrings:        # Arrow's binary or string
    bint given
    int64_t offset              # of the first row in the buffers
    Part valid                  # bitmap; without data no row is null
    Part ends                   # int32
    Part data

cdef struct Rows:
    int64_t count
    ByteStrings key
    ByteStrings value
    int64_t partition_offset
    Part partition_valid
    Part partition_values       # int32; without data no row names a partition
    bint has_headers
    int64_t headers_offset
    Part headers_valid
    Part header_ends            # int32
    int64_t header_count
    int64_t header_offset       # offset of the structs
    Part header_valid
    ByteStrings header_key
    ByteStrings header_value
    int32_t *target             # owned: the partition of each row, ANY for rows of the sticky partition
    int64_t bad_row             # the rejected row
    int32_t bad_partition


cdef inline bint is_valid(const Part *bitmap, int64_t at) noexcept nogil:
    if bitmap.data is NULL:
        return True
    return (at >> 3) < bitmap.size and (<uint8_t>bitmap.data[at >> 3] >> (at & 7)) & 1


cdef inline int32_t int_at(const Part *values, int64_t at) noexcept nogil:
    cdef int32_t value
    memcpy(&value, values.data + 4 * at, 4)
    return value


cdef inline int64_t string_at(const ByteStrings *column, int64_t row, const char **data) noexcept nogil:
    """Return the size of a row's bytes, ANY for null, or NO_SUCH."""
    cdef int64_t at = column.offset + row
    cdef int32_t begin, end
    data[0] = NULL
    if not column.given or not is_valid(&column.valid, at):
        return ANY
    if at < 0 or 4 * (at + 2) > column.ends.size:
        return NO_SUCH
    begin, end = int_at(&column.ends, at), int_at(&column.ends, at + 1)
    if begin < 0 or end < begin or end > column.data.size:
        return NO_SUCH
    data[0] = column.data.data + begin
    return end - begin


cdef int assign_rows(Rows *rows, int32_t partition_count, uint8_t *used) noexcept nogil:
    cdef const char *key
    cdef int64_t row, size
    cdef int32_t partition
    for row in range(rows.count):
        rows.bad_row = row
        partition = ANY
        if rows.partition_values.data is not NULL and is_valid(&rows.partition_valid, rows.partition_offset + row):
            if 4 * (rows.partition_offset + row + 1) > rows.partition_values.size:
                return OUTSIDE
            partition = int_at(&rows.partition_values, rows.partition_offset + row)
            if not 0 <= partition < partition_count:
                rows.bad_partition = partition
                return BAD_PARTITION
        else:
            size = string_at(&rows.key, row, &key)
            if size == NO_SUCH:
                return OUTSIDE
            if size >= 0:
                partition = partition_of(key, size, partition_count)
        rows.target[row] = partition
        used[partition if partition >= 0 else partition_count] = 1
    return OK


cdef int gather_headers(const Rows *rows, int64_t row, Buffer *to, int64_t *count) noexcept nogil:
    cdef int64_t at = rows.headers_offset + row, one
    cdef int32_t begin, end
    cdef const char *key
    cdef const char *value
    cdef int64_t key_bytes, value_bytes
    to.size = count[0] = 0
    if not rows.has_headers or not is_valid(&rows.headers_valid, at):
        return OK
    if 4 * (at + 2) > rows.header_ends.size:
        return OUTSIDE
    begin, end = int_at(&rows.header_ends, at), int_at(&rows.header_ends, at + 1)
    if begin < 0 or end < begin or end > rows.header_count:
        return OUTSIDE
    for one in range(begin, end):
        if not is_valid(&rows.header_valid, rows.header_offset + one):
            return NO_HEADER_KEY
        key_bytes = string_at(&rows.header_key, one, &key)
        value_bytes = string_at(&rows.header_value, one, &value)
        if key_bytes == NO_SUCH or value_bytes == NO_SUCH:
            return OUTSIDE
        if key_bytes < 0:
            return NO_HEADER_KEY
        if not header_put(to, key, key_bytes, value, value_bytes):
            return NO_MEMORY
    count[0] = end - begin
    return OK


cdef int append_rows(Rows *rows, BatchDraft **drafts, int32_t sticky, int64_t now_ms, int64_t *pending, int64_t limit,
                     int64_t *row, Buffer *headers) noexcept nogil:
    """Append rows from *row on, until the next one would raise *pending above the limit; return a status."""
    cdef const char *key
    cdef const char *value
    cdef int64_t key_bytes, value_bytes, count, before
    cdef BatchDraft *draft
    cdef int status
    while row[0] < rows.count:
        rows.bad_row = row[0]
        key_bytes, value_bytes = string_at(&rows.key, row[0], &key), string_at(&rows.value, row[0], &value)
        if key_bytes == NO_SUCH or value_bytes == NO_SUCH:
            return OUTSIDE
        if pending[0] > 0 and pending[0] + max(key_bytes, 0) + max(value_bytes, 0) > limit:
            return OK
        status = gather_headers(rows, row[0], headers, &count)
        if status != OK:
            return status
        draft = drafts[rows.target[row[0]] if rows.target[row[0]] >= 0 else sticky]
        before = draft.batch.size
        status = draft_add(draft, now_ms, draft.header.last_offset_delta + <int64_t>1, key, key_bytes, value,
                           value_bytes, count, headers)
        if status != PUT_OK:
            return NO_MEMORY if status == PUT_NO_MEMORY else TOO_LARGE
        pending[0] += draft.batch.size - before
        row[0] += 1
    return OK


cdef class ArrowRows:
    """Rows of an Arrow batch, to be appended to record batches.

    Args:
        count: number of rows.
        key, value: (offset, bitmap or None, ends, data) of a binary or string array, or None for a column of nulls.
        partition: (offset, bitmap or None, values) of an int32 array, or None if no row names its partition.
        headers: (offset, bitmap or None, ends, count, offset of structs, bitmap of structs or None, key, value) of a
            list of structs, or None.

    Buffers are bytes-like, and held until the object is deallocated. Threads: one at a time.
    """
    cdef:
        Rows rows
        Py_buffer *held         # owned: views of the buffers
        int held_count
        object given            # owners of the viewed buffers
        list used               # partitions that rows go to; None: not assigned yet
        int32_t partition_count

    def __cinit__(self, int64_t count, tuple key, tuple value, tuple partition=None, tuple headers=None):
        if not 0 <= count <= MOST_ROWS:
            raise ValueError(f"count must be 0 to {MOST_ROWS}, got {count}")
        self.held = <Py_buffer *>calloc(MOST_BUFFERS, sizeof(Py_buffer))
        self.rows.target = <int32_t *>malloc(<size_t>(count + 1) * 4)
        if self.held is NULL or self.rows.target is NULL:
            raise MemoryError
        self.given = (key, value, partition, headers)
        self.rows.count = count
        self.take_strings(&self.rows.key, key)
        self.take_strings(&self.rows.value, value)
        if partition is not None:
            self.rows.partition_offset, valid, values = partition
            self.take(&self.rows.partition_valid, valid)
            self.take(&self.rows.partition_values, values)
        if headers is not None:
            self.rows.has_headers = True
            self.rows.headers_offset, valid, ends, self.rows.header_count, self.rows.header_offset = headers[:5]
            valids, keys, values = headers[5:]
            self.take(&self.rows.headers_valid, valid)
            self.take(&self.rows.header_ends, ends)
            self.take(&self.rows.header_valid, valids)
            self.take_strings(&self.rows.header_key, keys)
            self.take_strings(&self.rows.header_value, values)
        offsets = (self.rows.partition_offset, self.rows.headers_offset, self.rows.header_offset, self.rows.key.offset,
                   self.rows.value.offset, self.rows.header_key.offset, self.rows.header_value.offset, count)
        if min(offsets) < 0 or max(offsets) > MOST_ROWS:
            raise ValueError(f"offsets must be 0 to {MOST_ROWS}, got {offsets}")

    def __dealloc__(self):
        cdef int i
        if self.held is not NULL:
            for i in range(self.held_count):
                PyBuffer_Release(&self.held[i])
        free(self.held)
        free(self.rows.target)

    def __len__(self):
        return self.rows.count

    cdef int take(self, Part *to, object buffer) except -1:
        if buffer is None:
            return 0
        PyObject_GetBuffer(buffer, &self.held[self.held_count], PyBUF_SIMPLE)
        to.data, to.size = <const char *>self.held[self.held_count].buf, self.held[self.held_count].len
        if to.data is NULL:
            to.data = b""       # given but empty, which differs from not given
        self.held_count += 1
        return 0

    cdef int take_strings(self, ByteStrings *to, tuple column) except -1:
        if column is None:
            return 0
        to.given = True
        to.offset, valid, ends, data = column
        self.take(&to.valid, valid)
        self.take(&to.ends, ends)
        self.take(&to.data, data)
        return 0

    def assign(self, int32_t partition_count) -> list:
        """Choose a partition for each row: the named one, else the partition of its key, else any.

        Returns: the partitions of the rows, and -1 if some rows may go to any partition.
        Raises: ValueError for a partition that does not exist, and for buffers that are inconsistent.
        """
        cdef uint8_t *used
        cdef int status
        if partition_count < 1:
            raise ValueError(f"partition_count must be >= 1, got {partition_count}")
        used = <uint8_t *>calloc(<size_t>partition_count + 1, 1)
        if used is NULL:
            raise MemoryError
        try:
            self.partition_count = partition_count
            self.used = None            # after a failure, some rows are assigned by the new count, others are not
            with nogil:
                status = assign_rows(&self.rows, partition_count, used)
            self.explain(status)
            self.used = [p if p < partition_count else ANY for p in range(partition_count + 1) if used[p]]
            return list(self.used)
        finally:
            free(used)

    def append(self, dict builders not None, int32_t sticky, int64_t position, int64_t now_ms, int64_t pending_bytes,
               int64_t limit_bytes) -> int:
        """Append the rows from ``position`` on to the builders of their partitions; return the end position.

        It stops at the end, and before a row that would raise the pending bytes above the limit, unless that row is
        alone.

        Args:
            builders: RecordBatchBuilder by partition, for all partitions returned by `assign` and for ``sticky``.
            sticky: partition of the rows that may go to any; -1 if there are no such rows.
            now_ms: timestamp of the records.
            pending_bytes: bytes already pending elsewhere.
            limit_bytes: maximum of all pending bytes.
        Raises: ValueError for a header without a key, and for buffers that are inconsistent; OverflowError for a
            batch above 2 GiB; KeyError for a missing builder.
        """
        cdef RecordBatchBuilder builder
        cdef BatchDraft **drafts
        cdef Buffer scratch
        cdef int64_t row = position
        cdef int32_t partition
        cdef int status
        if self.used is None or position < 0:
            raise ValueError("rows are assigned to partitions first, and their places are >= 0")
        memset(&scratch, 0, sizeof(Buffer))
        drafts = <BatchDraft **>calloc(<size_t>self.partition_count, sizeof(BatchDraft *))
        if drafts is NULL:
            raise MemoryError
        try:
            for one in self.used:
                partition = one if one >= 0 else sticky
                builder = builders[partition]
                if not 0 <= partition < self.partition_count or builder is None:
                    raise KeyError(partition)
                drafts[partition] = &builder.draft
            with nogil:
                status = append_rows(&self.rows, drafts, sticky, now_ms, &pending_bytes, limit_bytes, &row, &scratch)
            self.explain(status)
            return row
        finally:
            free(drafts)
            buffer_free(&scratch)

    cdef int explain(self, int status) except -1:
        """Raise the exception of a status."""
        cdef int64_t row = self.rows.bad_row
        if status == NO_MEMORY:
            raise MemoryError
        if status == OUTSIDE:
            raise ValueError(f"row {row}: an offset points outside of its buffer")
        if status == BAD_PARTITION:
            raise ValueError(
                f"row {row}: expected a partition from 0 to {self.partition_count - 1}, got {self.rows.bad_partition}")
        if status == NO_HEADER_KEY:
            raise ValueError(f"row {row}: a header has no key")
        if status == TOO_LARGE:
            raise OverflowError("batch above 2 GiB")
        return 0
