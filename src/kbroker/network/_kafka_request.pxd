"""Context of a request of Kafka's protocol: header, throttle times, error codes, quota events, handler times.

It is allocated with the Request. No lock: it belongs to the owner of the request. Requests of another protocol
(``SocketServerOptions.kafka_requests``) do not have it.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.requests.request cimport ContextType, Request, request_context, request_release_payload

cdef enum:
    THROTTLE_KINDS = 6
    ERROR_KINDS = 4             # different error codes of one response that are counted separately
    QUOTA_EVENTS_BYTES = 480
    TRANSACTIONAL_ID_BYTES = 1024   # maximum size kept of a transactional id; a longer id is cut between two characters

cdef enum RecordFlags:          # for the recorder of finished requests
    RECORD_SKIP = 1             # do not record the request
    RECORD_EMPTY_FETCH = 2      # a poll that found no records: several may be recorded as one

cdef struct ErrorCount:
    int32_t code
    int32_t count

cdef struct KafkaRequest:
    # header, filled by the first handler
    int16_t api_key
    int16_t api_version
    int32_t correlation_id
    char *client_id             # points into payload or at client_id_owned; NULL: no client id
    int32_t client_id_bytes
    int32_t header_bytes        # offset of the body
    char *client_id_owned       # copy that outlives the payload
    char *transactional_id      # for the request recorder: points into payload, or is owned; NULL: none
    int32_t transactional_id_bytes      # TRANSACTIONAL_ID_BYTES at most
    bint owns_transactional_id
    # timestamps and durations, in the units of Request
    int64_t local_done_ns
    int64_t callback_dequeue_ns
    int64_t callback_done_ns
    int64_t conversion_ns       # part of the local time: conversion of records to another format
    int64_t throttle_ms[THROTTLE_KINDS]
    ErrorCount errors[ERROR_KINDS]      # of the response, for metrics; 0 counts too. Cleared with the response
    int32_t error_kinds
    int32_t metric_slot         # second entry of the request metrics that counts the request; 0: none
    int32_t record_flags        # RecordFlags
    # Called once, when the request is freed or recorded: after on_complete, with network_ns known. Releases both
    # accounts; NULL: no client is charged with the network threads' time.
    void (*charge_network)(Request *request) noexcept nogil
    void *network_account
    void *shadow_account        # account of a shadow quota, charged in addition; NULL: none
    int64_t network_generation  # of the quotas when each account was found
    int64_t shadow_generation
    void *client_information    # owned, malloc'ed: its client's name and version, for the network thread; or NULL
    void *quota_events          # events that the handlers recorded into quotas, in quota_events_data; NULL: none
    void (*release_quota_events)(void *quota_events) noexcept nogil
    # Not zeroed: memory that passes from thread to thread with each request costs more than its contents.
    char quota_events_data[QUOTA_EVENTS_BYTES]

# Return the type of the context, for `Framing.context_type` and `request_new`.
cdef const ContextType *kafka_context_type() noexcept nogil

cdef inline bint is_kafka_request(const Request *request) noexcept nogil:
    """Return whether the request has the context, which the rest of this file requires."""
    return request.context_type is not NULL

cdef inline KafkaRequest *kafka_request(const Request *request) noexcept nogil:
    return <KafkaRequest *>request_context(request)

cdef inline int64_t or_before(int64_t stamp, int64_t fallback) noexcept nogil:
    """Return the stamp, or that of the previous step if it was never set: the step then took no time."""
    return stamp if stamp != 0 else fallback

cdef void kafka_charge_network(Request *request) noexcept nogil     # once; request_free calls it if nothing else has
cdef void kafka_copy_texts(Request *request) noexcept nogil     # copies both ids if the payload has its own memory
# Record the transactional id of the request's body; the text must be in the payload, unless it is copied.
cdef void kafka_note_transactional_id(Request *request, const char *text, int64_t size_bytes,
                                      bint is_copied) noexcept nogil
# Call request_clear_response and clear the error codes; for requests of any protocol.
cdef void kafka_clear_response(Request *request) noexcept nogil

cdef inline void kafka_release_payload(Request *request) noexcept nogil:
    """Call request_release_payload; the ids stay readable, because a payload after the struct stays in place."""
    if request.payload_owned is not NULL:
        kafka_copy_texts(request)
    request_release_payload(request)

cdef inline void kafka_mark_error(Request *request, int32_t code, int32_t times) noexcept nogil:
    """Count an error code of the response; beyond ERROR_KINDS codes, the last one counts the others too."""
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int32_t i = 0
    while i < kafka.error_kinds and kafka.errors[i].code != code:
        i += 1
    if i == ERROR_KINDS:
        i = ERROR_KINDS - 1
    elif i == kafka.error_kinds:
        kafka.errors[i].code = code
        kafka.errors[i].count = 0
        kafka.error_kinds += 1
    kafka.errors[i].count += times
