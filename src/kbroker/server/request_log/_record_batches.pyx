# cython: freethreading_compatible=True
"""Record batches v2 without a Python object per record. Source: ``DefaultRecordBatch``, ``DefaultRecord``."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from kbroker._core.crc32c cimport crc32c
from kbroker.log._append cimport partition_append
from kbroker.log._maintenance cimport call_hook
from kbroker.log._partition cimport AppendResult, Partition, PartitionLog, partition_release, partition_retain
from kbroker.protocol._records cimport BATCH_HEADER_BYTES
from kbroker.server.request_log._text cimport buffer_free, buffer_room, put_raw

cdef enum:
    API_VERSION = 11            # of Produce: what an append of the broker's own counts as
    RECORD_OVERHEAD = 40        # of a record: six numbers of variable length


cdef bint batches_init(TopicBatches *batches, int32_t partition_count) noexcept nogil:
    batches.partition_count = partition_count
    batches.partitions = <PartitionBatch *>calloc(<size_t>(partition_count or 1), sizeof(PartitionBatch))
    return batches.partitions != NULL


cdef void batches_destroy(TopicBatches *batches) noexcept nogil:
    cdef int32_t i
    if batches.partitions == NULL:
        return
    for i in range(batches.partition_count):
        buffer_free(&batches.partitions[i].data)
    drop_full(batches)
    free(batches.partitions)
    batches.partitions = NULL


cdef void drop_full(TopicBatches *batches) noexcept nogil:
    cdef FullBatch *full
    while batches.first != NULL:
        full = batches.first
        batches.first = full.next
        free(full)
    batches.last = NULL


cdef inline char *put_varint(char *to, int64_t value) noexcept nogil:
    """ZigZag, seven bits a byte."""
    cdef uint64_t left = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    while left >= 128:
        to[0] = <char>(left | 128)
        to += 1
        left >>= 7
    to[0] = <char>left
    return to + 1


cdef inline void put_big(char *to, uint64_t value, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        to[i] = <char>(value >> (8 * (size - 1 - i)))


cdef void end_batch(TopicBatches *batches, int32_t partition) noexcept nogil:
    """Put the header in front of what a partition has, and the whole into the list."""
    cdef PartitionBatch *batch = &batches.partitions[partition]
    cdef int64_t size = batch.data.size_bytes
    cdef FullBatch *full
    cdef char *at
    if batch.count == 0:
        return
    full = <FullBatch *>malloc(sizeof(FullBatch) + <size_t>size)
    if full == NULL:
        batches.lost += batch.count
    else:
        at = batch.data.data
        memset(at, 0, BATCH_HEADER_BYTES)
        put_big(at + 8, <uint64_t>(size - 12), 4)
        put_big(at + 12, <uint64_t>-1, 4)
        at[16] = 2
        put_big(at + 23, <uint64_t>(batch.count - 1), 4)
        put_big(at + 27, <uint64_t>batch.first_ms, 8)
        put_big(at + 35, <uint64_t>batch.largest_ms, 8)
        memset(at + 43, 0xFF, 14)       # neither a producer's id, nor its epoch, nor a sequence
        put_big(at + 57, <uint64_t>batch.count, 4)
        put_big(at + 17, crc32c(0, at + 21, size - 21), 4)
        full.next = NULL
        full.partition = partition
        full.count = batch.count
        full.size_bytes = size
        memcpy(<char *>full + sizeof(FullBatch), at, <size_t>size)
        if batches.last != NULL:
            batches.last.next = full
        else:
            batches.first = full
        batches.last = full
    batch.data.size_bytes = 0
    batch.count = 0


cdef bint batches_add(TopicBatches *batches, int32_t partition, const char *key, int64_t key_bytes, const char *value,
                      int64_t value_bytes, int64_t time_ms) noexcept nogil:
    cdef PartitionBatch *batch = &batches.partitions[partition]
    cdef char body[RECORD_OVERHEAD]
    cdef char *at
    cdef char *to
    cdef int64_t head_bytes, size
    cdef int64_t before = batch.data.size_bytes
    if batch.count == 0:
        if buffer_room(&batch.data, BATCH_HEADER_BYTES) == NULL:
            return False
        batch.data.size_bytes = BATCH_HEADER_BYTES
        batch.first_ms = batch.largest_ms = time_ms
    body[0] = 0                         # attributes; then what stands before the key
    at = put_varint(body + 1, time_ms - batch.first_ms)
    at = put_varint(at, batch.count)
    at = put_varint(at, key_bytes)
    head_bytes = at - body
    at = put_varint(at, value_bytes)    # and what stands before the value
    size = (at - body) + key_bytes + value_bytes + 1
    to = buffer_room(&batch.data, size + RECORD_OVERHEAD)
    if to == NULL:
        batch.data.size_bytes = before if batch.count > 0 else 0
        return False
    to = put_varint(to, size)
    to = put_raw(to, body, head_bytes)
    to = put_raw(to, key, key_bytes)
    to = put_raw(to, body + head_bytes, (at - body) - head_bytes)
    to = put_raw(to, value, value_bytes)
    to[0] = 0                           # no headers
    batch.data.size_bytes = to + 1 - batch.data.data
    batch.count += 1
    if time_ms > batch.largest_ms:
        batch.largest_ms = time_ms
    batches.size_bytes += size
    if batch.data.size_bytes >= BATCH_BYTES:
        end_batch(batches, partition)
    return True


cdef tuple batches_append(TopicBatches *batches, object logs):
    cdef Partition **partitions
    cdef AppendResult result
    cdef FullBatch *full
    cdef int64_t written = 0, unwritten
    cdef const char *message = b"the partition cannot be used"
    cdef bint failed = False
    cdef int32_t i, error = 0
    cdef PartitionLog log
    if batches.partition_count == 0:
        return 0, 0, None
    partitions = <Partition **>calloc(<size_t>batches.partition_count, sizeof(Partition *))
    if partitions == NULL:
        raise MemoryError
    for i in range(min(batches.partition_count, <int32_t>len(logs))):
        log = logs[i]
        if log is not None and log.partition != NULL:
            partitions[i] = partition_retain(log.partition)
    with nogil:
        for i in range(batches.partition_count):
            end_batch(batches, i)
        unwritten = batches.lost
        batches.lost = 0
        full = batches.first
        while full != NULL:
            if partitions[full.partition] == NULL:
                failed = True
                unwritten += full.count
            else:
                partition_append(partitions[full.partition], <char *>full + sizeof(FullBatch), full.size_bytes, -1,
                                 API_VERSION, False, &result)
                free(result.bad_records)
                if result.error != 0:
                    failed = True
                    error = result.error
                    if result.message != NULL:
                        message = result.message
                    unwritten += full.count
                else:
                    written += full.size_bytes
                    if result.high_watermark_moved:
                        call_hook(partitions[full.partition], False)    # waiting fetches of the topic
            full = full.next
        drop_full(batches)
        batches.size_bytes = 0
        for i in range(batches.partition_count):
            if partitions[i] != NULL:
                partition_release(partitions[i])
        free(partitions)
    why = f"{message.decode()} (error {error})" if failed else ("no memory" if unwritten else None)
    return written, unwritten, why
