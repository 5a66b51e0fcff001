"""A parsed Produce request. It belongs to the handler thread; its parts point into the request's payload."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from kbroker._core.requests.request cimport Request
from kbroker.replica._topics cimport Topic

cdef enum:
    INLINE_PARTS = 8

cdef struct ProducePart:        # one partition of the request
    int32_t index
    char *records
    int64_t size_bytes          # -1: null
    bint is_superseded          # duplicate: the last one in the request counts (Kafka builds a map)

cdef struct ProduceTopic:
    const char *name
    int64_t name_bytes
    const char *id
    int32_t part_count
    int32_t live_count          # parts that are not superseded
    Topic *topic                # of the handler's table, or NULL; parse_produce does not set it

cdef struct ProduceRequest:
    int16_t acks
    int32_t timeout_ms
    const char *transactional_id    # NULL: null
    int64_t transactional_id_bytes
    bint has_transactional_records
    int16_t error               # error of all partitions if other bytes precede a transactional batch, else 0
    bint has_fatal_batch        # a batch is fatal to the request if its partition exists, see is_fatal_batch
    int32_t topic_count
    int32_t part_count
    ProduceTopic *topics
    ProducePart *parts
    ProduceTopic inline_topics[INLINE_PARTS]
    ProducePart inline_parts[INLINE_PARTS]

# Parse a request. False: malformed, over MAX_REQUEST_PARTITIONS topics or partitions, or out of memory. ``seed``:
# secret, for the hash table of duplicates. Call free_produce in either case.
cdef bint parse_produce(Request *request, ProduceRequest *parsed, uint64_t seed) noexcept nogil
cdef void free_produce(ProduceRequest *parsed) noexcept nogil
