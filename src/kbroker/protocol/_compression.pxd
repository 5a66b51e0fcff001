"""Packing and unpacking the records of a batch. Pure functions, no lock."""
from libc.stdint cimport int32_t, int64_t
from kbroker.protocol._records cimport BatchHeader

cdef enum:
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
    CODEC_LEVEL = -2147483647   # the level Kafka's own codec takes when none is set

# Decompresses the records of a batch into a malloc'ed buffer, in bounded steps (cap_bytes in all; a bomb ends there).
# Takes the GIL for the library's call, which drops it while it works. 0 ok; -1 undecodable or unknown
# codec; -2 over the cap.
cdef int32_t batch_decompress(const char *data, const BatchHeader *header, int64_t cap_bytes, char **out,
                              int64_t *out_bytes) noexcept nogil
# The batch that begins at data, its records (given uncompressed) packed with another codec, whole with length, codec
# bits and checksum, in a malloc'ed buffer. Takes the GIL for the library's call. 0 ok; -1 no such codec, or the library
# failed; -2 out of memory.
cdef int32_t batch_recompress(const char *data, const char *records, int64_t records_bytes, int codec, int32_t level,
                              char **out, int64_t *out_bytes) noexcept nogil
# The records packed with a codec; `level` CODEC_LEVEL: its own.
cdef bytes compress(int codec, bytes records, int32_t level)
