"""Context of Kafka's requests: memory freed with a request, and texts that stay readable without its payload."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.requests.request cimport request_clear_response


cdef void release(Request *request) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    kafka_charge_network(request)
    if kafka.quota_events is not NULL:
        kafka.release_quota_events(kafka.quota_events)
    free(kafka.client_id_owned)
    if kafka.owns_transactional_id:
        free(kafka.transactional_id)
    free(kafka.client_information)


cdef ContextType TYPE                   # a constant table, filled once at import
TYPE.size_bytes = sizeof(KafkaRequest)
TYPE.zeroed_bytes = sizeof(KafkaRequest) - QUOTA_EVENTS_BYTES
TYPE.release = release


cdef const ContextType *kafka_context_type() noexcept nogil:
    return &TYPE


cdef void kafka_charge_network(Request *request) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    if kafka.charge_network is not NULL:
        kafka.charge_network(request)
        kafka.charge_network = NULL


cdef inline char *copy_of(const char *text, int32_t *size_bytes) noexcept nogil:
    """Return an owned copy; NULL, with the size set to 0, if out of memory."""
    cdef char *copy = <char *>malloc(<size_t>(size_bytes[0] or 1))
    if copy is not NULL:
        memcpy(copy, text, <size_t>size_bytes[0])
    else:
        size_bytes[0] = 0
    return copy


cdef void kafka_copy_texts(Request *request) noexcept nogil:
    """Copy the ids for the quotas and the request log, which read them at the end of the request."""
    cdef KafkaRequest *kafka = kafka_request(request)
    if kafka.client_id is not NULL and kafka.client_id != kafka.client_id_owned:
        free(kafka.client_id_owned)             # of a request that was handed over, whose header was parsed again
        kafka.client_id = kafka.client_id_owned = copy_of(kafka.client_id, &kafka.client_id_bytes)
    if kafka.transactional_id is not NULL and not kafka.owns_transactional_id:
        kafka.transactional_id = copy_of(kafka.transactional_id, &kafka.transactional_id_bytes)
        kafka.owns_transactional_id = True


cdef void kafka_note_transactional_id(Request *request, const char *text, int64_t size_bytes,
                                      bint is_copied) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    if size_bytes > TRANSACTIONAL_ID_BYTES:
        size_bytes = TRANSACTIONAL_ID_BYTES
        while size_bytes > 0 and (<unsigned char>text[size_bytes] & 0xC0) == 0x80:     # inside a UTF-8 character
            size_bytes -= 1
    if kafka.owns_transactional_id:
        free(kafka.transactional_id)
    kafka.transactional_id = <char *>text
    kafka.transactional_id_bytes = <int32_t>size_bytes
    kafka.owns_transactional_id = False
    if is_copied:
        kafka.transactional_id = copy_of(text, &kafka.transactional_id_bytes)
        kafka.owns_transactional_id = True


cdef void kafka_clear_response(Request *request) noexcept nogil:
    request_clear_response(request)
    if is_kafka_request(request):
        kafka_request(request).error_kinds = 0
