"""The Produce request off the wire (versions 3 to 13)."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from kbroker._core.requests.request cimport Request

cdef enum:
    INLINE_PARTS = 8

cdef struct ProducePart:        # one partition of the request
    int32_t index
    char *records
    int64_t size_bytes          # -1: null
    bint is_superseded          # named again later in the request: the later one counts (Kafka builds a map)

cdef struct ProduceTopic:
    const char *name
    int64_t name_bytes
    const char *id
    int32_t part_count
    int32_t live_count

cdef struct ProduceRequest:
    int16_t acks
    int32_t timeout_ms
    bint has_transactional_id
    bint has_transactional_records
    int32_t topic_count
    int32_t part_count
    ProduceTopic *topics
    ProducePart *parts
    ProduceTopic inline_topics[INLINE_PARTS]
    ProducePart inline_parts[INLINE_PARTS]

# Reads the body into ``parsed``, which points into the request's payload; of a partition that a TopicData names twice,
# all but the last are marked. False: malformed, of more than ``limit`` topics or partitions, or memory is out: the
# caller closes. free_produce is due in both cases. ``seed``: secret.
cdef bint parse_produce(Request *request, ProduceRequest *parsed, int32_t limit, uint64_t seed) noexcept nogil
cdef void free_produce(ProduceRequest *parsed) noexcept nogil
