"""MurmurHash2 as Kafka's producers use it. Source: ``Utils.murmur2``, ``BuiltInPartitioner.partitionForKey``."""
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t

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
