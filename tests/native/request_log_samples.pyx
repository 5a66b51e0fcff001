"""Simulated finished requests for tests and benchmarks of the request log, without sockets, at exact times."""
cimport cython
from libc.float cimport DBL_MIN
from libc.stdint cimport INT16_MIN, INT32_MIN, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kbroker._core.network.loop_types cimport Channel
from kbroker._core.network.channel cimport channel_free
from kbroker._core.requests.request cimport (
    Request, Responder, Session, request_free, request_new, session_new, session_release, session_retain,
)
from kbroker.network._kafka_request cimport (
    RECORD_EMPTY_FETCH, RECORD_SKIP, kafka_context_type, kafka_copy_texts, kafka_mark_error,
    kafka_note_transactional_id, kafka_request,
)
from kbroker.network.connections._client_information cimport (
    ClientInformationTable, client_information_announce, software_destroy, software_enter, software_init,
    software_leave, software_settle,
)
from kbroker.quota._client_sensors cimport THROTTLE_SERVED
from kbroker.quota._entities cimport Text
from kbroker.quota._quota_events cimport (
    EVENT_APPEND, EVENT_SHADOW, EVENT_UPDATE, EVENT_VERDICT, AppendEvent, QuotaEvent, VerdictEvent, quota_events_add,
)
from kbroker.request_log._json_lines cimport JsonLines, most_bytes
from kbroker.request_log._log_core cimport KNOWN_APIS, RequestLogRecorder
from kbroker.request_log._record_ring cimport RECORD_REQUEST, Record, record_client_id, record_notes


cdef Text text_of(bytes data) noexcept:
    cdef Text text
    text.data = <const char *>data
    text.size_bytes = <int32_t>len(data)
    return text


cdef int copy_host(char *to, bytes host) except -1:
    if len(host) > 63:
        raise ValueError("a host has 63 bytes at most")
    memcpy(to, <const char *>host, <size_t>len(host))
    return 0


@cython.final
cdef class SampleConnection:
    """Connection whose requests end when ``record`` is called.

    Args: recorder: recorder of the connection's network thread. principal, local_host, remote_host, listener: bytes.
    Threads: one at a time.
    """
    cdef RequestLogRecorder recorder
    cdef Channel *channel       # owned
    cdef Session *session       # counted
    cdef Responder responder
    cdef ClientInformationTable software
    cdef bytes listener

    def __cinit__(self, RequestLogRecorder recorder not None, bytes principal not None=b"User:ANONYMOUS", *,
                  bytes local_host not None=b"127.0.0.1", int local_port=9092,
                  bytes remote_host not None=b"127.0.0.1", int remote_port=40000,
                  bytes listener not None=b"PLAINTEXT", int processor_id=0, int index=0):
        self.recorder = recorder
        self.listener = listener
        self.channel = <Channel *>calloc(1, sizeof(Channel))
        self.session = session_new(principal)
        if self.channel == NULL or self.session == NULL:
            raise MemoryError
        self.channel.fd = -1
        copy_host(self.channel.metadata.local_host, local_host)
        copy_host(self.channel.metadata.remote_host, remote_host)
        self.channel.metadata.local_port = local_port
        self.channel.metadata.remote_port = remote_port
        self.channel.metadata.index = index
        self.channel.metadata.listener_name = self.listener
        self.responder.processor_id = processor_id
        software_init(&self.software, 0)
        software_enter(&self.software, self.channel)

    def __dealloc__(self):
        if self.channel != NULL:
            software_leave(&self.software, self.channel)
            channel_free(self.channel)
        software_destroy(&self.software)
        session_release(self.session)

    def log_in(self, bytes principal not None) -> None:
        """Change the principal of later requests."""
        cdef Session *session = session_new(principal)
        if session == NULL:
            raise MemoryError
        session_release(self.session)
        self.session = session

    def record(self, *, int count=1, int16_t api_key=0, int16_t api_version=9, int32_t correlation_id=1,
               bytes client_id=b"client", int64_t start_ns=1, int64_t dequeue_ns=2, int64_t local_done_ns=0,
               int64_t response_ready_ns=0, int64_t response_dequeue_ns=0, int64_t response_sent_ns=3,
               int64_t network_ns=0, int64_t request_bytes=0, int64_t response_bytes=0, int32_t throttle_ms=0,
               errors=(), tuple software=None, updates=(), verdicts=(), shadows=(), bint brought_nothing=False,
               bint leave_out=False, bint is_late=False, bytes transactional_id=None, appended=()) -> None:
        """End ``count`` equal requests.

        Args: times of the broker's clock. errors: pairs of code and number. software: a pair of bytes. updates:
        (quota type as a number, user, client id, sequence, time_ms, value, checked). verdicts: (quota type, user,
        client id, level, time_ms, observed, limit, window_ms, asked_ms, served_ms, refused); shadows: verdicts of
        shadow quotas. brought_nothing, leave_out: as set by a handler. is_late: the network thread has ended.
        appended: (topic, partition, first and last offset).
        """
        cdef Request *request
        cdef QuotaEvent *note
        cdef VerdictEvent *verdict
        cdef int _i
        for _i in range(count):
            request = request_new(kafka_context_type(), 0)
            if request == NULL:
                raise MemoryError
            try:
                request.responder = &self.responder
                request.channel = self.channel
                request.session = session_retain(self.session)
                kafka_request(request).api_key = api_key
                kafka_request(request).api_version = api_version
                kafka_request(request).correlation_id = correlation_id
                kafka_request(request).header_bytes = 8
                kafka_request(request).client_id = <char *>client_id if client_id is not None else NULL
                kafka_request(request).client_id_bytes = <int32_t>len(client_id) if client_id is not None else 0
                request.start_ns = start_ns
                request.dequeue_ns = dequeue_ns
                kafka_request(request).local_done_ns = local_done_ns
                request.response_ready_ns = response_ready_ns
                request.response_dequeue_ns = response_dequeue_ns
                request.response_sent_ns = response_sent_ns
                request.network_ns = network_ns
                request.size_bytes = request_bytes
                request.response_bytes = response_bytes
                kafka_request(request).throttle_ms[THROTTLE_SERVED] = throttle_ms
                kafka_request(request).record_flags = RECORD_EMPTY_FETCH * brought_nothing | RECORD_SKIP * leave_out
                if transactional_id is not None:
                    kafka_note_transactional_id(request, transactional_id, len(transactional_id), False)
                    kafka_copy_texts(request)
                for code, times in errors:
                    kafka_mark_error(request, code, times)
                if software is not None:
                    name, version = software
                    client_information_announce(request, name, <int32_t>len(name), version, <int32_t>len(version))
                    software_settle(&self.software, self.channel, request)
                for kind, user, client, sequence, time_ms, value, checked in updates:
                    note = quota_events_add(request, EVENT_UPDATE, text_of(user), text_of(client))
                    note.quota_type = <int8_t><int>kind
                    note.sequence = sequence
                    note.time_ms = time_ms
                    note.value = value
                    note.flag = checked
                for topic, partition, first, last in appended:
                    note = quota_events_add(request, EVENT_APPEND, text_of(topic), text_of(b""))
                    note.sequence = first
                    (<AppendEvent *>note).last_offset = last
                    (<AppendEvent *>note).partition = partition
                for i, one in enumerate((*verdicts, *shadows)):
                    kind, user, client, level, time_ms, observed, limit, window_ms, asked, served, refused = one
                    verdict = <VerdictEvent *>quota_events_add(
                        request, EVENT_VERDICT if i < len(verdicts) else EVENT_SHADOW, text_of(user), text_of(client))
                    verdict.note.quota_type = <int8_t><int>kind
                    verdict.note.level = <int8_t><int>level
                    verdict.note.flag = refused
                    verdict.note.time_ms = time_ms
                    verdict.note.value = observed
                    verdict.limit = limit
                    verdict.window_ms = window_ms
                    verdict.asked_ms = asked
                    verdict.served_ms = served
                with nogil:
                    self.recorder.recorder.record(self.recorder.recorder, request, is_late)
            finally:
                with nogil:
                    request_free(request)


def longest_line(JsonLines lines not None, int event_kind=0) -> tuple[bytes, int]:
    """Return the line of a record whose fields have their longest texts, and the maximum that is computed for it.

    Args: event_kind: of its only event; 0: it has none.
    """
    cdef Record *record = <Record *>calloc(1, sizeof(Record) + sizeof(VerdictEvent) + sizeof(AppendEvent) + 8)
    cdef VerdictEvent *verdict
    cdef AppendEvent *appended
    cdef int64_t most
    cdef bint is_written
    if record == NULL:
        raise MemoryError
    record.kind = RECORD_REQUEST
    record.api_key = KNOWN_APIS - 1
    record.api_version = record.error_code = INT16_MIN
    record.error_count = record.correlation_id = record.throttle_ms = record.repeated = INT32_MIN
    record.transactional_id_bytes = 1
    (<char *>record_client_id(record))[0] = 1       # an escape of 6 bytes
    record.request_bytes = record.response_bytes = INT64_MIN
    record.queue_us = record.local_us = record.remote_us = record.response_queue_us = INT64_MAX
    record.send_us = record.total_us = record.network_us = INT64_MAX
    record.sampling = -DBL_MIN
    if event_kind != 0:
        verdict = <VerdictEvent *>record_notes(record)
        record.notes_bytes = verdict.note.size_bytes = <int32_t>(
            sizeof(QuotaEvent) if event_kind == EVENT_UPDATE else
            sizeof(AppendEvent) if event_kind == EVENT_APPEND else sizeof(VerdictEvent))
        verdict.note.kind = <int8_t>event_kind
        verdict.note.quota_type = 3         # the longest name
        verdict.note.level = -100
        verdict.note.sequence = verdict.note.time_ms = INT64_MIN
        verdict.note.value = -DBL_MIN
        if event_kind == EVENT_APPEND:
            appended = <AppendEvent *>verdict
            appended.last_offset = appended.partition = INT64_MIN
        elif event_kind != EVENT_UPDATE:
            verdict.limit = -DBL_MIN
            verdict.window_ms = verdict.asked_ms = verdict.served_ms = INT64_MIN
    with nogil:
        is_written = lines.core.sink.take(&lines.core.sink, record, INT64_MIN)
        most = most_bytes(record)
    free(record)
    if not is_written:
        raise MemoryError
    return lines.take_lines(), most
