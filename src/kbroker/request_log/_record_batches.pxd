"""Values for the request log's topic, collected in record batches by partition and appended natively.

Threads: one at a time (the writer's lock).
"""
from libc.stdint cimport int32_t, int64_t
from kbroker.request_log._json_format cimport Buffer

cdef enum:
    BATCH_BYTES = 262144        # below message.max.bytes; a batch of this size is complete

cdef struct PartitionBatch:     # consecutive batches, of which the last one is being filled
    Buffer data
    int64_t begin               # position of the last batch
    int32_t count               # records in the last batch
    int64_t first_ms
    int64_t largest_ms

cdef struct TopicBatches:
    int32_t partition_count     # 0: no topic
    PartitionBatch *partitions  # owned
    int64_t size_bytes          # of all batches

cdef bint batches_init(TopicBatches *batches, int32_t partition_count) noexcept nogil   # false: out of memory
cdef void batches_destroy(TopicBatches *batches) noexcept nogil
cdef bint batches_add(TopicBatches *batches, int32_t partition, const char *key, int64_t key_bytes, const char *value,
                      int64_t value_bytes, int64_t time_ms) noexcept nogil
# Append and remove all batches, to the logs of the partitions (PartitionLog or None, by number): (bytes written,
# values not written, the reason or None).
cdef tuple batches_append(TopicBatches *batches, object logs)
