"""Transfer of records from the rings to a sink: numbering, folding of idle polls, one call per record.

Also record batches of values, by partition of the request log's topic, appended natively.
Threads: one at a time (the writer's lock, in Python).
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.containers.buffer cimport Buffer
from kbroker.protocol._batch_builder cimport BatchDraft
from kbroker.request_log._log_core cimport LogCore, RequestLogCore
from kbroker.request_log._record_ring cimport Facts, Record, RecordRing

cdef struct RecordSink:
    # False: the record could not be taken, since memory is exhausted.
    bint (*take)(RecordSink *self, const Record *record, int64_t sequence) noexcept nogil
    int64_t (*size_bytes)(RecordSink *self) noexcept nogil      # bytes taken and not yet written

cdef struct DrainCore:
    LogCore *log                # counted
    int64_t sequence            # number of the latest record
    int64_t written             # records taken by the sink
    int64_t lost                # records that the sink could not take
    Facts *folding              # connections with idle polls that wait for the end of their second
    Facts *touched

cdef class RecordDrain:
    cdef DrainCore *core        # owned

cdef class RecordFormat:        # base of classes with a sink
    cdef RecordSink *sink       # set by the subclass
    cdef list api_names         # into which the sink points

cdef enum:
    BATCH_BYTES = 262144        # below message.max.bytes; a batch of this size is complete

cdef struct PartitionBatch:
    Buffer complete             # consecutive batches
    BatchDraft draft            # the incomplete batch after them

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
