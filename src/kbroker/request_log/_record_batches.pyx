"""Record batches v2 without a Python object per record. Source: ``DefaultRecordBatch``, ``DefaultRecord``."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kbroker._core.codec.bytes cimport load_i32, put_varlong
from kbroker.log._append cimport partition_append_built
from kbroker.log._partition cimport AppendResult, Partition, call_hook, partition_release, partition_retain
from kbroker.log._partition_log cimport PartitionLog
from kbroker.protocol._batch_format cimport BATCH_HEADER_BYTES, LENGTH_AT, LENGTH_FROM, RECORD_COUNT_AT
from kbroker.protocol._records cimport BatchHeader, batch_put_header
from kbroker.request_log._json_format cimport buffer_free, buffer_reserve, put_raw

cdef enum:
    RECORD_OVERHEAD = 40        # maximum of a record: six numbers of variable length


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
    free(batches.partitions)
    batches.partitions = NULL


cdef void end_batch(PartitionBatch *batch) noexcept nogil:
    """Complete the header of the last batch; the next one begins behind it."""
    cdef BatchHeader header
    if batch.count == 0:
        return
    memset(&header, 0, sizeof(BatchHeader))
    header.leader_epoch = -1
    header.last_offset_delta = batch.count - 1
    header.base_timestamp_ms = batch.first_ms
    header.max_timestamp_ms = batch.largest_ms
    header.producer_id = header.producer_epoch = header.base_sequence = -1      # no producer
    header.record_count = batch.count
    batch_put_header(batch.data.data + batch.begin, batch.data.size_bytes - batch.begin, &header)
    batch.begin = batch.data.size_bytes
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
        if buffer_reserve(&batch.data, BATCH_HEADER_BYTES) == NULL:
            return False
        batch.begin = batch.data.size_bytes
        batch.data.size_bytes += BATCH_HEADER_BYTES
        batch.first_ms = batch.largest_ms = time_ms
    body[0] = 0                         # attributes; the fields before the key follow
    at = body + 1
    at += put_varlong(at, time_ms - batch.first_ms)
    at += put_varlong(at, batch.count)
    at += put_varlong(at, key_bytes)
    head_bytes = at - body
    at += put_varlong(at, value_bytes)    # and the fields before the value
    size = (at - body) + key_bytes + value_bytes + 1
    to = buffer_reserve(&batch.data, size + RECORD_OVERHEAD)
    if to == NULL:
        batch.data.size_bytes = before
        return False
    to += put_varlong(to, size)
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
    if batch.data.size_bytes - batch.begin >= BATCH_BYTES:
        end_batch(batch)
    return True


cdef struct Appended:
    int64_t written             # bytes
    int64_t unwritten           # values
    int32_t error               # the last error, -2: the partition does not exist
    const char *message         # of the log, or NULL


cdef void append_batches(PartitionBatch *batch, Partition *partition, Appended *sum) noexcept nogil:
    """Append each batch separately: together they may be larger than a segment."""
    cdef AppendResult result
    cdef char *at
    cdef int64_t size, place = 0, values
    end_batch(batch)
    while place < batch.data.size_bytes:
        at = batch.data.data + place
        size = <int64_t>load_i32(at + LENGTH_AT) + LENGTH_FROM
        values = load_i32(at + RECORD_COUNT_AT)
        place += size
        if partition == NULL:
            sum.error = -2
            sum.unwritten += values
            continue
        partition_append_built(partition, at, size, &result)
        free(result.bad_records)
        if result.error != 0:
            sum.error = result.error
            sum.message = result.message
            sum.unwritten += values
            continue
        sum.written += size
        if result.high_watermark_moved:
            call_hook(partition, False)     # delayed fetches of the topic
    batch.data.size_bytes = 0
    batch.begin = 0


cdef tuple batches_append(TopicBatches *batches, object logs):
    cdef Appended sum
    cdef Partition *partition
    cdef int32_t i
    cdef PartitionLog log
    memset(&sum, 0, sizeof(sum))
    for i in range(batches.partition_count):
        log = logs[i] if i < len(logs) else None
        partition = NULL
        if log is not None and log.partition != NULL:
            partition = partition_retain(log.partition)
        with nogil:
            append_batches(&batches.partitions[i], partition, &sum)
            if partition != NULL:
                partition_release(partition)
    batches.size_bytes = 0
    if sum.error == 0:
        return sum.written, sum.unwritten, None
    why = "the partition cannot be used" if sum.message == NULL else (<bytes>sum.message).decode()
    return sum.written, sum.unwritten, why if sum.error == -2 else f"{why} (error {sum.error})"
