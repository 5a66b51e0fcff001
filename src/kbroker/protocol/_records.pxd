"""Record batch v2 (spec: headers-and-primitives 4): header fields, validation, iteration. Pure functions, no lock."""
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t

from kbroker._core.containers.buffer cimport Buffer

cdef enum:                      # result of record_put and of draft_add; nothing was added unless PUT_OK
    PUT_OK = 0
    PUT_NO_MEMORY = 1
    PUT_TOO_LARGE = 2           # the buffer would have more than 2 GiB
    PUT_BAD_DELTA = 3           # above 2^31 - 1

cdef struct BatchHeader:
    int64_t base_offset
    int32_t batch_length        # total is batch_length + 12
    int32_t leader_epoch
    int8_t magic
    uint32_t crc
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp_ms
    int64_t max_timestamp_ms
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t record_count

cdef struct RecordView:         # pointers into the (uncompressed) records section
    int64_t offset
    int64_t timestamp_ms
    const char *key
    int32_t key_bytes           # -1 null
    const char *value
    int32_t value_bytes         # -1 null
    const char *headers         # first header (after the count)
    int32_t header_count

cdef struct HeaderView:         # pointers into the records section
    const char *key
    int32_t key_bytes
    const char *value
    int32_t value_bytes         # -1 null

# Parse a header; false for fewer than 61 bytes (nothing else is checked).
cdef bint batch_parse(const char *data, int64_t size_bytes, BatchHeader *out) noexcept nogil
# Write the header before the records of a batch of size_bytes: compute its length, magic 2 and its checksum, and
# ignore those fields of the header.
cdef void batch_put_header(char *batch, int64_t size_bytes, const BatchHeader *header) noexcept nogil
# Return whether the checksum is right; all batch_length + 12 bytes must be present.
cdef bint batch_crc_ok(const char *data, const BatchHeader *header) noexcept nogil
# Read one record at *position (relative to records) and advance it. 0 ok; -1 malformed or past the end.
cdef int32_t record_next(const char *records, int64_t size_bytes, int64_t *position, const BatchHeader *header,
                         RecordView *out) noexcept nogil
# Read the header at `at` of a record that record_next accepted; return the position of the next one, NULL when
# malformed.
cdef const char *header_next(const char *at, const char *end, HeaderView *out) noexcept nogil

# Encode a record after the bytes in `to`. Sizes below 0 are null; `headers` holds header_count entries of header_put,
# or of a record that is copied.
cdef int record_put(Buffer *to, int64_t timestamp_delta, int64_t offset_delta, const char *key, int64_t key_bytes,
                    const char *value, int64_t value_bytes, int64_t header_count, const char *headers,
                    int64_t headers_bytes) noexcept nogil
# False if memory is exhausted.
cdef bint header_put(Buffer *to, const char *key, int64_t key_bytes, const char *value,
                     int64_t value_bytes) noexcept nogil

# Decompress the records of a batch into a malloc'ed buffer, in bounded steps, up to cap_bytes. Takes the GIL for a
# library's call. 0 ok; -1 undecodable or unknown codec; -2 over the cap.
cdef int32_t batch_decompress(const char *data, const BatchHeader *header, int64_t cap_bytes, char **out,
                              int64_t *out_bytes) noexcept nogil
# Compress the records (given uncompressed) of a batch with another codec, into a malloc'ed buffer with the batch's
# header. Takes the GIL for a library's call. 0 ok; -1 no such codec, or the library failed; -2 out of memory.
cdef int32_t batch_recompress(const BatchHeader *header, const char *records, int64_t records_bytes, int codec,
                              int32_t level, char **out, int64_t *out_bytes) noexcept nogil

cdef class RecordBatch:         # immutable Python object of one batch
    cdef:
        BatchHeader header
        const char *data        # first byte of the batch, inside buffer
        Py_buffer buffer        # owned while held
        bint held
        object source
        int64_t position        # of the batch in source
    cdef char *uncompressed(self, int64_t cap_bytes, int64_t *size) except? NULL
