"""Parsing of a whole Produce request before any of it is appended. Source: ``ProduceRequest``."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free

from kbroker._core.codec.wire cimport (
    Reader, read_bytes, read_count, read_i16, read_i32, read_length, reader_init, skip_tags,
)
from kbroker._core.containers.last_index_map cimport LatestIndex, latest_free, latest_init, latest_put
from kbroker._core.requests.request cimport Request
from kbroker.common._errors cimport CORRUPT_MESSAGE, NONE, UNKNOWN_SERVER_ERROR
from kbroker.log._validate cimport FIRST_WITH_ZSTD, has_wrapped_length, is_fatal_batch, whole_batch_bytes
from kbroker.network._kafka_request cimport KafkaRequest, kafka_request
from kbroker.protocol._batch_format cimport ATTRIBUTES_AT, MAGIC_AT, TRANSACTIONAL_BIT
from kbroker.requests._native_types cimport MAX_REQUEST_PARTITIONS


cdef void free_produce(ProduceRequest *parsed) noexcept nogil:
    if parsed.topics != parsed.inline_topics:
        free(parsed.topics)
    if parsed.parts != parsed.inline_parts:
        free(parsed.parts)


cdef void read_topic_name(Reader *r, int16_t version, ProduceTopic *topic) noexcept nogil:
    if version >= 13:
        topic.id = read_bytes(r, 16)
        topic.name = NULL
        topic.name_bytes = 0
        return
    topic.id = NULL
    topic.name_bytes = read_length(r, version >= 9, False)
    if topic.name_bytes < 0:
        r.bad = True
        topic.name_bytes = 0
        return
    topic.name = read_bytes(r, topic.name_bytes)


cdef void skip_partition(Reader *r, bint flexible) noexcept nogil:
    cdef int64_t n
    read_i32(r)
    n = read_length(r, flexible, True)
    if n > 0:
        read_bytes(r, n)
    if flexible:
        skip_tags(r)


cdef inline void note_batch(const ProducePart *part, int16_t version, ProduceRequest *parsed) noexcept nogil:
    """Note a transactional batch, bytes that are not a batch, and batches that may be fatal to the request."""
    cdef int64_t size_bytes = whole_batch_bytes(part.records, part.size_bytes) if part.size_bytes > 0 else 0
    cdef bint is_first = not parsed.has_transactional_records and parsed.error == NONE
    if size_bytes < 0:
        if is_first:
            parsed.error = CORRUPT_MESSAGE
    elif size_bytes == 0:
        if is_first and has_wrapped_length(part.records, part.size_bytes):
            parsed.error = UNKNOWN_SERVER_ERROR
    else:
        if is_first and size_bytes > ATTRIBUTES_AT + 1 and part.records[MAGIC_AT] == 2 and (
                <uint8_t>part.records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT):
            parsed.has_transactional_records = True
        if (size_bytes < part.size_bytes or version < FIRST_WITH_ZSTD) and is_fatal_batch(
                part.records, part.size_bytes, version):
            parsed.has_fatal_batch = True


cdef bint read_body(Request *request, ProduceRequest *parsed) noexcept nogil:
    """Read the whole body, without marking duplicates; false: malformed, or out of memory.

    More than MAX_REQUEST_PARTITIONS topics or partitions are malformed: they would need memory before they are checked.
    """
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef Reader r
    cdef Reader start
    cdef int16_t version = kafka.api_version
    cdef bint flexible = version >= 9
    cdef int64_t n, partitions, i, _k
    cdef int64_t total = 0
    cdef int32_t at = 0
    cdef ProducePart *part
    parsed.topics = parsed.inline_topics
    parsed.parts = parsed.inline_parts
    parsed.part_count = parsed.topic_count = 0
    parsed.has_transactional_records = parsed.has_fatal_batch = False
    parsed.error = NONE
    reader_init(&r, request.payload + kafka.header_bytes, request.size_bytes - kafka.header_bytes)
    n = read_length(&r, flexible, False)
    parsed.transactional_id_bytes = n
    parsed.transactional_id = read_bytes(&r, n) if n >= 0 else NULL
    parsed.acks = read_i16(&r)
    parsed.timeout_ms = read_i32(&r)
    n = read_count(&r, flexible, 6 if not flexible else (18 if version >= 13 else 3))
    if r.bad or n < 0 or n > MAX_REQUEST_PARTITIONS:
        return False
    if n > INLINE_PARTS:
        parsed.topics = <ProduceTopic *>calloc(<size_t>n, sizeof(ProduceTopic))
        if parsed.topics == NULL:
            return False
    start = r
    parsed.topic_count = <int32_t>n
    # First pass: count the partitions, so that one array holds them all.
    for i in range(n):
        read_topic_name(&r, version, &parsed.topics[i])
        partitions = read_count(&r, flexible, 8 if not flexible else 6)
        total += partitions
        if r.bad or partitions < 0 or total > MAX_REQUEST_PARTITIONS:
            return False
        parsed.topics[i].part_count = <int32_t>partitions
        parsed.topics[i].live_count = <int32_t>partitions
        for _k in range(partitions):
            skip_partition(&r, flexible)
        if flexible:
            skip_tags(&r)
        if r.bad:
            return False
    if flexible:
        skip_tags(&r)
        if r.bad:
            return False
    if total > INLINE_PARTS:
        parsed.parts = <ProducePart *>calloc(<size_t>total, sizeof(ProducePart))
        if parsed.parts == NULL:
            return False
    r = start
    for i in range(n):
        read_topic_name(&r, version, &parsed.topics[i])
        read_count(&r, flexible, 1)
        for _k in range(parsed.topics[i].part_count):
            part = &parsed.parts[at]
            at += 1
            part.index = read_i32(&r)
            part.is_superseded = False
            part.size_bytes = read_length(&r, flexible, True)
            part.records = <char *>read_bytes(&r, part.size_bytes) if part.size_bytes > 0 else NULL
            note_batch(part, version, parsed)
            if flexible:
                skip_tags(&r)
        if flexible:
            skip_tags(&r)
    parsed.part_count = at
    return not r.bad


cdef bint mark_superseded(ProduceRequest *parsed, uint64_t seed) noexcept nogil:
    """Mark all but the last entry of each partition within its TopicData. False: out of memory."""
    cdef int32_t first = 0, t, i, before
    cdef LatestIndex latest
    cdef ProduceTopic *topic
    for t in range(parsed.topic_count):
        topic = &parsed.topics[t]
        if topic.part_count > 1:
            if not latest_init(&latest, topic.part_count, seed):
                return False
            for i in range(first, first + topic.part_count):
                before = latest_put(&latest, <uint64_t><int64_t>parsed.parts[i].index, i)
                if before >= 0:
                    parsed.parts[before].is_superseded = True
                    topic.live_count -= 1
            latest_free(&latest)
        first += topic.part_count
    return True


cdef bint parse_produce(Request *request, ProduceRequest *parsed, uint64_t seed) noexcept nogil:
    return read_body(request, parsed) and mark_superseded(parsed, seed)
