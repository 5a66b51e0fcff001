"""Compression and decompression of the records of a batch. Pure functions, no lock."""
from libc.stdint cimport int32_t, int64_t

cdef enum:
    CODEC_LEVEL = -2147483647   # the default level of Kafka's codec

# Decompress records into a malloc'ed buffer, in steps, up to cap_bytes, which bounds a compression bomb. Takes the
# GIL for the library's call, which releases it while it works. 0 ok; -1 undecodable or unknown codec; -2 over the cap.
cdef int32_t records_decompress(int codec, const char *packed, int64_t packed_bytes, int64_t cap_bytes, char **out,
                                int64_t *out_bytes) noexcept nogil
# As records_decompress, but where the records exceed cap_bytes, `out` has their first cap_bytes, and the result is 1.
# -2: out of memory, or a block of Snappy, which cannot be decompressed in part, exceeds cap_bytes.
cdef int32_t records_prefix(int codec, const char *packed, int64_t packed_bytes, int64_t cap_bytes, char **out,
                            int64_t *out_bytes) noexcept nogil
# Compress records into a malloc'ed buffer, after reserved_bytes for a header. Takes the GIL for the library's call. 0
# ok; -1 no such codec, or the library failed; -2 out of memory, or the size is above 2 GiB with the header.
cdef int32_t records_compress(int codec, int32_t level, const char *records, int64_t records_bytes,
                              int64_t reserved_bytes, char **out, int64_t *packed_bytes) noexcept nogil
# Return the compressed records; `level` CODEC_LEVEL: the codec's default.
cdef bytes compress(int codec, bytes records, int32_t level)
