"""The context of Kafka's requests: what is freed with a request, and what stays readable without its payload."""
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.requests.request cimport request_clear_response


cdef void release(Request *request) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    kafka_charge_network(request)
    if kafka.quota_events is not NULL:
        kafka.release_quota_events(kafka.quota_events)
    free(kafka.client_id_owned)
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


cdef void kafka_copy_client_id(Request *request) noexcept nogil:
    """For the quotas and the request log, which read it at the end of the request."""
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef char *copy
    if kafka.client_id is not NULL and kafka.client_id_owned is NULL:
        copy = <char *>malloc(<size_t>(kafka.client_id_bytes or 1))
        if copy is not NULL:
            memcpy(copy, kafka.client_id, <size_t>kafka.client_id_bytes)
        else:
            kafka.client_id_bytes = 0
        kafka.client_id = kafka.client_id_owned = copy


cdef void kafka_clear_response(Request *request) noexcept nogil:
    request_clear_response(request)
    if is_kafka_request(request):
        kafka_request(request).error_kinds = 0
