"""Native ApiVersions: pre-encoded bodies, and the client information (KIP-511)."""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.requests.request cimport (
    ACTION_CLOSE, ACTION_SEND, Request, request_add_memory, request_room,
)
from kbroker._core.codec.wire cimport (
    Reader, Writer, read_bytes, read_length, reader_init, skip_tags, write_i32, write_raw, writer_free, writer_init,
)
from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker.common._errors cimport INVALID_REQUEST, NONE, UNSUPPORTED_VERSION
from kbroker.network._kafka_request cimport KafkaRequest, kafka_mark_error, kafka_request
from kbroker.network.connections._client_information cimport client_information_announce
from kbroker.requests._native_types cimport Body, Handler, NativeApisCore, Outcome, OUTCOME_RESPONDED
from kbroker.quota._quota_enforcement cimport gate_request, store_throttle


cdef bint is_alphanumeric(char c) noexcept nogil:
    return (c >= c'a' and c <= c'z') or (c >= c'A' and c <= c'Z') or (c >= c'0' and c <= c'9')


cdef bint is_software_name(const char *text, int64_t size_bytes) noexcept nogil:
    """Return whether a name matches [a-zA-Z0-9](?:[a-zA-Z0-9-.]*[a-zA-Z0-9])? of KIP-511."""
    cdef int64_t i
    if size_bytes < 1 or not is_alphanumeric(text[0]) or not is_alphanumeric(text[size_bytes - 1]):
        return False
    for i in range(size_bytes):
        if not is_alphanumeric(text[i]) and text[i] != c'-' and text[i] != c'.':
            return False
    return True


cdef Outcome handle_api_versions(Handler *handler, Request *request) noexcept nogil:
    """Send a pre-encoded body; the response's header has version 0 in every version (KIP-511)."""
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef NativeApisCore *native_apis = handler.native_apis
    cdef Body *body = &native_apis.unsupported_versions
    cdef Reader r
    cdef Writer w
    cdef const char *name
    cdef const char *version
    cdef char *room
    cdef int64_t name_bytes, version_bytes, throttle_at, room_bytes = 0
    cdef int32_t throttle_ms
    cdef int32_t error = UNSUPPORTED_VERSION
    if kafka.header_bytes > 0:
        error = NONE
        body = &native_apis.versions[kafka.api_version]
        if kafka.api_version >= 3:
            reader_init(&r, request.payload + kafka.header_bytes, request.size_bytes - kafka.header_bytes)
            name_bytes = read_length(&r, True, False)
            name = read_bytes(&r, name_bytes)
            version_bytes = read_length(&r, True, False)
            version = read_bytes(&r, version_bytes)
            skip_tags(&r)
            if r.bad:
                request.action = ACTION_CLOSE
                return OUTCOME_RESPONDED
            if not is_software_name(name, name_bytes) or not is_software_name(version, version_bytes):
                body = &native_apis.invalid_versions[kafka.api_version]
                error = INVALID_REQUEST
            else:
                client_information_announce(request, name, <int32_t>name_bytes, version, <int32_t>version_bytes)
    kafka_mark_error(request, error, 1)
    room = request_room(request, &room_bytes)
    writer_init(&w, room, room_bytes)
    write_i32(&w, kafka.correlation_id)
    mutex_lock(&native_apis.bodies_lock)        # the level of a feature may change
    write_raw(&w, body.data, body.size_bytes)
    throttle_at = body.throttle_at
    mutex_unlock(&native_apis.bodies_lock)
    request.action = ACTION_SEND
    if w.failed or not request_add_memory(request, w.data, w.size_bytes, w.data if w.is_owned else NULL):
        writer_free(&w)
        request.action = ACTION_CLOSE
    kafka.local_done_ns = clock_now_ns(native_apis.clock)
    throttle_ms = gate_request(native_apis.quotas, handler.clients, request, kafka.local_done_ns)
    if throttle_ms > 0 and throttle_at >= 0 and request.action == ACTION_SEND:
        store_throttle(w.data + 4 + throttle_at, throttle_ms)
    return OUTCOME_RESPONDED
