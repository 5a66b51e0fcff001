"""One JSON object per record, with Kafka's names (``RequestConvertToJson``, KIP-673) followed by kbroker's.

Unknown fields are left out. The text is written by hand, since it is the cost of the log at 50,000 records a second.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strlen

from kbroker._core.codec.crc32c cimport crc32c
from kbroker.common.request_log import QUOTA_TYPES, VERSION
from kbroker.network.connections._refused_requests cimport refusal_reason
from kbroker.quota._quota_events cimport (
    EVENT_SHADOW, EVENT_UPDATE, EVENT_VERDICT, QUOTA_CONNECTION_RATE, QuotaEvent, VerdictEvent, quota_event_texts,
)
from kbroker.request_log._record_batches cimport batches_add, batches_append, batches_destroy, batches_init
from kbroker.request_log._record_ring cimport (
    FACTS_ADDRESS, FACTS_CONNECTION, FACTS_LISTENER, FACTS_PRINCIPAL, FACTS_PROTOCOL, FACTS_SOFTWARE_NAME,
    FACTS_SOFTWARE_VERSION, FACTS_TEXTS, RECORD_REFUSAL, RECORD_REQUEST, Facts, Record, record_client_id, record_notes,
    record_transactional_id,
)
from kbroker.request_log._json_format cimport (
    buffer_free, buffer_reserve, put, put_double, put_int, put_json, put_ms, put_raw, put_three, put_utc,
)

cdef enum:
    HEAD_BYTES = 1440           # maximum of a record without its texts
    NOTE_BYTES = 480            # maximum of an event without its texts
    BUDGET_BYTES = 262144

cdef Words START                    # beginning of an object, up to its time
cdef Words HEADS[5]                 # beginnings of events, by their type
set_words(&START, b'{"version":%d,"time":"' % VERSION)
for _type in range(5):
    set_words(&HEADS[_type], b'{"quotaType":"%s"' % QUOTA_TYPES[_type].encode())


cdef int set_words(Words *words, bytes text) except -1:
    if len(text) > <int>sizeof(words.data):
        raise ValueError(text)
    words.size_bytes = len(text)
    memcpy(words.data, <const char *>text, <size_t>len(text))
    return 0


cdef inline char *put_words(char *to, const Words *words) noexcept nogil:
    """Copy the whole array, which is faster than checking the size; every position of an object has the capacity."""
    memcpy(to, words.data, sizeof(words.data))
    return to + words.size_bytes


cdef inline char *put_number(char *to, const char *name, int64_t value) noexcept nogil:
    return put_int(put(to, name), value)


cdef inline char *put_time(char *to, const char *name, int64_t us) noexcept nogil:
    return put_ms(put(to, name), us)


cdef inline char *put_fact(char *to, const char *name, const Facts *facts, int which) noexcept nogil:
    return put_json(put(to, name), facts.texts + facts.starts[which], facts.starts[which + 1] - facts.starts[which])


cdef bint render(Facts *facts) noexcept nogil:
    """Render the fields that all records of a connection share, once."""
    cdef char *to
    if facts.rendered != NULL:
        return True
    facts.rendered = <char *>malloc(<size_t>(512 + 6 * facts.starts[FACTS_TEXTS]))
    if facts.rendered == NULL:
        return False
    to = put_fact(facts.rendered, b',"connection":', facts, FACTS_CONNECTION)
    to = put_fact(to, b',"address":', facts, FACTS_ADDRESS)
    to = put_fact(to, b',"securityProtocol":', facts, FACTS_PROTOCOL)
    to = put_fact(to, b',"principal":', facts, FACTS_PRINCIPAL)
    to = put_fact(to, b',"listener":', facts, FACTS_LISTENER)
    to = put_fact(to, b',"clientInformation":{"softwareName":', facts, FACTS_SOFTWARE_NAME)
    to = put_fact(to, b',"softwareVersion":', facts, FACTS_SOFTWARE_VERSION)
    to = put(to, b"}")
    facts.rendered_bytes = to - facts.rendered
    return True


cdef char *put_verdict(char *to, const VerdictEvent *verdict) noexcept nogil:
    cdef const QuotaEvent *note = &verdict.note
    cdef const char *texts = quota_event_texts(note)
    to = put_words(to, &HEADS[note.quota_type])
    if note.quota_type == QUOTA_CONNECTION_RATE:
        to = put(to, b',"user":"","clientId":""')
        if note.user_bytes > 0:
            to = put_json(put(to, b',"ip":'), texts, note.user_bytes)
    else:
        to = put_json(put(to, b',"user":'), texts, note.user_bytes)
        to = put_json(put(to, b',"clientId":'), texts + note.user_bytes, note.client_id_bytes)
    to = put_number(to, b',"level":', note.level)
    to = put_double(put(to, b',"observed":'), note.value)
    to = put_double(put(to, b',"limit":'), verdict.limit)
    to = put_number(to, b',"windowMs":', verdict.window_ms)
    to = put_number(to, b',"delayAskedMs":', verdict.asked_ms)
    to = put_number(to, b',"delayServedMs":', verdict.served_ms)
    to = put(to, b',"refused":true' if note.flag else b',"refused":false')
    if note.quota_type != QUOTA_CONNECTION_RATE:
        to = put_number(to, b',"sequence":', note.sequence)
    return put(put_number(to, b',"timeMs":', note.time_ms), b"}")


cdef char *put_update(char *to, const QuotaEvent *note) noexcept nogil:
    cdef const char *texts = quota_event_texts(note)
    to = put_words(to, &HEADS[note.quota_type])
    to = put_json(put(to, b',"user":'), texts, note.user_bytes)
    to = put_json(put(to, b',"clientId":'), texts + note.user_bytes, note.client_id_bytes)
    to = put_number(to, b',"sequence":', note.sequence)
    to = put_number(to, b',"timeMs":', note.time_ms)
    to = put_double(put(to, b',"value":'), note.value)
    return put(to, b',"checked":true}' if note.flag else b',"checked":false}')


cdef char *put_notes(char *to, const Record *record, int kind) noexcept nogil:
    cdef const char *at = record_notes(record)
    cdef const char *end = at + record.notes_bytes
    cdef const QuotaEvent *note
    cdef bint is_first = True
    while at < end:
        note = <const QuotaEvent *>at
        at += note.size_bytes
        if note.kind != kind:
            continue
        if not is_first:
            to[0] = c','
            to += 1
        is_first = False
        to = put_update(to, note) if kind == EVENT_UPDATE else put_verdict(to, <const VerdictEvent *>note)
    return to


cdef bint has_shadows(const Record *record) noexcept nogil:
    """Return whether shadow quotas have judged the request."""
    cdef const char *at = record_notes(record)
    cdef const char *end = at + record.notes_bytes
    while at < end and (<const QuotaEvent *>at).kind != EVENT_SHADOW:
        at += (<const QuotaEvent *>at).size_bytes
    return at < end


cdef int64_t most_bytes(const Record *record) noexcept nogil:
    cdef int64_t texts = record.client_id_bytes + record.transactional_id_bytes + record.notes_bytes
    cdef int64_t most = HEAD_BYTES + 6 * texts + 64
    most += (record.notes_bytes // sizeof(QuotaEvent)) * NOTE_BYTES
    if record.facts != NULL:
        most += record.facts.rendered_bytes
    return most


cdef char *put_request(char *to, JsonCore *core, const Record *record) noexcept nogil:
    """Write header, times, connection and sizes of a request."""
    to = put_number(to, b',"requestHeader":{"requestApiKey":', record.api_key)
    to = put_number(to, b',"requestApiVersion":', record.api_version)
    to = put_number(to, b',"correlationId":', record.correlation_id)
    to = put_json(put(to, b',"clientId":'), record_client_id(record), record.client_id_bytes)
    if 0 <= record.api_key < KNOWN_APIS and core.api_names[record.api_key] != NULL:
        to = put_raw(to, core.api_names[record.api_key], core.api_name_bytes[record.api_key])
    else:
        to = put(to, b',"requestApiKeyName":""}')
    if record.transactional_id_bytes > 0:
        to = put_json(put(to, b',"request":{"transactionalId":'), record_transactional_id(record),
                      record.transactional_id_bytes)
        to = put(to, b"}")
    if record.facts != NULL:
        to = put_raw(to, record.facts.rendered, record.facts.rendered_bytes)
    to = put_time(to, b',"totalTimeMs":', record.total_us)
    to = put_time(to, b',"requestQueueTimeMs":', record.queue_us)
    to = put_time(to, b',"localTimeMs":', record.local_us)
    to = put_time(to, b',"remoteTimeMs":', record.remote_us)
    to = put_number(to, b',"throttleTimeMs":', record.throttle_ms)
    to = put_time(to, b',"responseQueueTimeMs":', record.response_queue_us)
    to = put_time(to, b',"sendTimeMs":', record.send_us)
    to = put_time(to, b',"networkTimeMs":', record.network_us)
    to = put_number(to, b',"requestBytes":', record.request_bytes)
    to = put_number(to, b',"responseBytes":', record.response_bytes)
    to = put_number(to, b',"errorCode":', record.error_code)
    return put_number(to, b',"errorCount":', record.error_count)


cdef char *put_refusal(char *to, const Record *record) noexcept nogil:
    """Write the reason of a refusal and its connection; a refused request has no other fields."""
    cdef const char *reason = refusal_reason(record.refusal)
    to = put_json(put(to, b',"refusal":{"reason":'), reason, <int64_t>strlen(reason))
    if record.api_key >= 0:
        to = put_number(to, b',"requestApiKey":', record.api_key)
    if record.api_version >= 0:
        to = put_number(to, b',"requestApiVersion":', record.api_version)
    to = put(to, b"}")
    if record.facts != NULL:
        to = put_fact(to, b',"connection":', record.facts, FACTS_CONNECTION)
        to = put_fact(to, b',"address":', record.facts, FACTS_ADDRESS)
        to = put_fact(to, b',"listener":', record.facts, FACTS_LISTENER)
    return to


cdef inline char *put_begin(JsonCore *core, char *to, int64_t time_us) noexcept nogil:
    """Write an object up to the last digit of its time. All other text is the same for a second."""
    cdef int64_t second = time_us // 1000000
    cdef int64_t left = time_us - second * 1000000
    if left < 0:
        left += 1000000
        second -= 1
    if second != core.second:
        core.second = second
        put_utc(put_words(core.begun.data, &START), second * 1000000)
    to = put_words(to, &core.begun)
    return put_three(put_three(to, left // 1000), left % 1000)


cdef bint write_object(JsonCore *core, const Record *record, int64_t sequence) noexcept nogil:
    cdef char *to
    cdef const QuotaEvent *note
    core.object.size_bytes = 0
    if record.facts != NULL and not render(record.facts):
        return False
    to = buffer_reserve(&core.object, most_bytes(record))
    if to == NULL:
        return False
    to = put_int(put_words(put_begin(core, to, record.time_us), &core.numbered), sequence)
    if record.kind == RECORD_REQUEST:
        to = put_request(to, core, record)
    elif record.kind == RECORD_REFUSAL:
        to = put_refusal(to, record)
    else:
        note = <const QuotaEvent *>record_notes(record)
        if note.user_bytes > 0:
            to = put_json(put(to, b',"address":'), quota_event_texts(note), note.user_bytes)
    if record.sampling == 1.0:
        to = put(to, b',"sampling":1.0')
    else:
        to = put_double(put(to, b',"sampling":'), record.sampling)
    to = put_number(to, b',"repeated":', record.repeated)
    if record.notes_bytes == 0:
        to = put(to, b',"quota":{"verdicts":[],"updates":[]}}\n')
    else:
        to = put_notes(put(to, b',"quota":{"verdicts":['), record, EVENT_VERDICT)
        to = put_notes(put(to, b'],"updates":['), record, EVENT_UPDATE)
        if has_shadows(record):
            to = put_notes(put(to, b'],"shadowVerdicts":['), record, EVENT_SHADOW)
        to = put(to, b"]}}\n")
    core.object.size_bytes = to - core.object.data
    return True


cdef bint write_key(JsonCore *core, const Record *record) noexcept nogil:
    """Write the record's key: principal, a zero byte, client id."""
    cdef const Facts *facts = record.facts
    cdef int64_t principal_bytes = 0
    cdef char *to
    core.key.size_bytes = 0
    if facts != NULL:
        principal_bytes = facts.starts[FACTS_PRINCIPAL + 1] - facts.starts[FACTS_PRINCIPAL]
    to = buffer_reserve(&core.key, principal_bytes + 1 + record.client_id_bytes)
    if to == NULL:
        return False
    if principal_bytes > 0:
        to = put_raw(to, facts.texts + facts.starts[FACTS_PRINCIPAL], principal_bytes)
    to[0] = 0
    to = put_raw(to + 1, record_client_id(record), record.client_id_bytes)
    core.key.size_bytes = to - core.key.data
    return True


cdef bint take(RecordSink *sink, const Record *record, int64_t sequence) noexcept nogil:
    cdef JsonCore *core = <JsonCore *>sink
    cdef int32_t partition = 0
    cdef char *to
    if not write_object(core, record, sequence):
        return False
    if core.wants_lines:
        to = buffer_reserve(&core.lines, core.object.size_bytes)
        if to == NULL:
            return False
        memcpy(to, core.object.data, <size_t>core.object.size_bytes)
        core.lines.size_bytes += core.object.size_bytes
        core.line_count += 1
    if core.batches.partition_count > 0:
        if not write_key(core, record):
            return False
        if core.batches.partition_count > 1:
            partition = <int32_t>(crc32c(0, core.key.data, core.key.size_bytes) % core.batches.partition_count)
        return batches_add(&core.batches, partition, core.key.data, core.key.size_bytes, core.object.data,
                           core.object.size_bytes - 1, record.time_us // 1000)
    return True


cdef int64_t size_bytes(RecordSink *sink) noexcept nogil:
    cdef JsonCore *core = <JsonCore *>sink
    return max(core.lines.size_bytes, core.batches.size_bytes)


@cython.final
cdef class JsonLines(RecordFormat):
    """Records as JSON.

    Args: broker: its id. api_names: Kafka's names (``PRODUCE``) by key. partitions: of the topic, 0 for none.
    wants_lines: whether there are files too.
    Threads: one at a time.
    """

    def __cinit__(self, int32_t broker, dict api_names not None, *, int32_t partitions=0, bint wants_lines=True):
        cdef JsonCore *core = <JsonCore *>calloc(1, sizeof(JsonCore))
        cdef bytes encoded
        if core == NULL:
            raise MemoryError
        self.core = core
        core.sink.take = take
        core.sink.size_bytes = size_bytes
        core.second = INT64_MIN
        core.begun.size_bytes = START.size_bytes + 20
        set_words(&core.numbered, b'Z","broker":%d,"sequence":' % broker)
        core.wants_lines = wants_lines
        if not batches_init(&core.batches, partitions):
            raise MemoryError
        for key, name in api_names.items():
            if not 0 <= key < KNOWN_APIS or len(name) > 64:
                raise ValueError(f"no API: {key} {name!r}")
            encoded = b',"requestApiKeyName":"%s"}' % name.encode("ascii")
            core.api_name_bytes[key] = len(encoded)
            core.api_names[key] = <char *>calloc(1, <size_t>len(encoded))
            if core.api_names[key] == NULL:
                raise MemoryError
            memcpy(core.api_names[key], <const char *>encoded, <size_t>len(encoded))
        self.sink = &core.sink

    def __dealloc__(self):
        cdef JsonCore *core = self.core
        cdef int i
        if core == NULL:
            return
        buffer_free(&core.lines)
        buffer_free(&core.object)
        buffer_free(&core.key)
        batches_destroy(&core.batches)
        for i in range(KNOWN_APIS):
            free(core.api_names[i])
        free(core)

    def take_lines(self) -> bytes:
        """Return the lines written since the last call."""
        data = PyBytes_FromStringAndSize(self.core.lines.data, self.core.lines.size_bytes)
        self.core.lines.size_bytes = 0
        self.core.line_count = 0
        return data

    @property
    def budget_bytes(self) -> int:
        """Bytes to format before they are written."""
        return BUDGET_BYTES

    @property
    def lost(self) -> int:
        """Number of records taken and then lost: always 0."""
        return 0

    @property
    def line_count(self) -> int:
        """Number of lines that ``take_lines`` would return."""
        return self.core.line_count

    def append_to(self, logs) -> tuple:
        """Append the topic's records. Args: logs: PartitionLogs by number, None for a missing one.

        Returns: (bytes written, values not written, the reason or None). Threads: releases the GIL.
        """
        return batches_append(&self.core.batches, logs)
