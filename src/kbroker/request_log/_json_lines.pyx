"""One JSON object per record, with Kafka's names (``RequestConvertToJson``, KIP-673) followed by kbroker's.

Unknown fields are left out. The text is written by hand, since it is the cost of the log at 50,000 records a second.
Invalid UTF-8 becomes U+FFFD at the same positions as with Python's "replace", so that every form of a record has the
same names.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strlen
from kbroker._core.codec.crc32c cimport crc32c
from kbroker._core.containers.buffer cimport buffer_free, buffer_put, buffer_reserve
from kbroker.network.connections._refused_requests cimport refusal_reason
from kbroker.quota._quota_events cimport (
    EVENT_APPEND, EVENT_SHADOW, EVENT_UPDATE, EVENT_VERDICT, QUOTA_CONNECTION_RATE, AppendEvent, QuotaEvent,
    VerdictEvent, quota_event_texts,
)
from kbroker.request_log._drain cimport batches_add, batches_append, batches_destroy, batches_init
from kbroker.request_log._record_ring cimport (
    FACTS_ADDRESS, FACTS_CONNECTION, FACTS_LISTENER, FACTS_PRINCIPAL, FACTS_PROTOCOL, FACTS_SOFTWARE_NAME,
    FACTS_SOFTWARE_VERSION, FACTS_TEXTS, RECORD_REFUSAL, RECORD_REQUEST, Facts, Record, record_client_id, record_notes,
    record_transactional_id,
)

from kbroker.common.request_log import QUOTA_TYPES, VERSION


# ---------------------------------------------------------------------------- numbers, times and hostile names as text

cdef inline char *put_ten_millionths(char *to, int64_t n) noexcept nogil:
    """Write n ten-millionths, with a fraction other than 0, without trailing zeros; return the end."""
    cdef int64_t rest = n % 10000000
    to = put_int(to, n // 10000000)
    to[0] = c'.'
    to = put_three(put_three(to + 1, rest // 10000), rest // 10 % 1000)
    to[0] = <char>(c'0' + rest % 10)
    while to[0] == c'0':
        to -= 1
    return to + 1


cdef char *put_double(char *to, double value) noexcept nogil:
    """Write a number as JSON (null for NaN and infinities): 34 bytes.

    Most percentages of a thread's time are whole nanoseconds: they have few digits, which are found without a search
    for the shortest text and are equal to its result.
    """
    cdef int64_t n
    if value != value or value - value != 0:
        return put_raw(to, b"null", 4)
    if -1e15 < value < 1e15 and <double><int64_t>value == value:
        to = put_int(to, <int64_t>value)
        return put_raw(to, b".0", 2)
    if 0.0001 <= value < 1e8:
        n = <int64_t>(value * 1e7 + 0.5)
        if <double>n / 1e7 == value and (n >= 10000 or n % 1000 != 0):
            return put_ten_millionths(to, n)
    return to + kb_double_text(value, to)


cdef char *put_utc(char *to, int64_t us) noexcept nogil:
    """Write 2026-01-02T03:04:05.123456Z, with days made a date by eras of 400 years. ``to`` has room for 32 bytes."""
    cdef int64_t second = us // 1000000, micro = us % 1000000
    cdef int64_t day, z, era, doe, yoe, year, doy, mp, month
    if micro < 0:
        micro += 1000000
        second -= 1
    day = second // 86400
    second -= day * 86400
    if second < 0:
        second += 86400
        day -= 1
    z = day + 719468
    era = z // 146097
    doe = z - era * 146097
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    year = yoe + era * 400
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    day = doy - (153 * mp + 2) // 5 + 1
    month = mp + 3 if mp < 10 else mp - 9
    year += month <= 2
    to = put_two(put_two(to, year // 100), year % 100)
    to[0] = c'-'
    to = put_two(to + 1, month)
    to[0] = c'-'
    to = put_two(to + 1, day)
    to[0] = c'T'
    to = put_two(to + 1, second // 3600)
    to[0] = c':'
    to = put_two(to + 1, second // 60 % 60)
    to[0] = c':'
    to = put_two(to + 1, second % 60)
    to[0] = c'.'
    to = put_three(put_three(to + 1, micro // 1000), micro % 1000)
    to[0] = c'Z'
    return to + 1


cdef inline int utf8_step(const uint8_t *at, int64_t left, bint *is_valid) noexcept nogil:
    """Return the length of the sequence that begins here, or of the bytes that are replaced together."""
    cdef uint8_t first = at[0], low = 0x80, high = 0xBF
    cdef int need, n = 1
    is_valid[0] = False
    if 0xC2 <= first <= 0xDF:
        need = 2
    elif 0xE0 <= first <= 0xEF:
        need = 3
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    elif 0xF0 <= first <= 0xF4:
        need = 4
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    else:
        return 1
    while n < need:
        if n >= left or not low <= at[n] <= high:
            return n
        low = 0x80
        high = 0xBF
        n += 1
    is_valid[0] = True
    return n


cdef inline char *put_other(char *to, const uint8_t *at, int64_t left, int *taken) noexcept nogil:
    """Write one sequence that does not begin with ASCII."""
    cdef bint is_valid
    taken[0] = utf8_step(at, left, &is_valid)
    if is_valid:
        return put_raw(to, <const char *>at, taken[0])
    return put_raw(to, b"\xef\xbf\xbd", 3)


cdef char *put_utf8(char *to, const char *data, int64_t size_bytes) noexcept nogil:
    cdef const uint8_t *at = <const uint8_t *>data
    cdef int64_t i = 0
    cdef int taken
    while i < size_bytes:
        if at[i] < 0x80:
            to[0] = <char>at[i]
            to += 1
            i += 1
        else:
            to = put_other(to, at + i, size_bytes - i, &taken)
            i += taken
    return to


cdef inline char *put_escape(char *to, uint8_t c) noexcept nogil:
    to[0] = c'\\'
    to[1] = <char>c
    if c == c'"' or c == c'\\':
        return to + 2
    to = put_raw(to, b"\\u00", 4)
    to[0] = <char>(c'0' + (c >> 4))
    c &= 15
    to[1] = <char>(c'0' + c if c < 10 else c'a' + c - 10)
    return to + 2


cdef char *put_json(char *to, const char *data, int64_t size_bytes) noexcept nogil:
    """Write a JSON string with its quotes and return its end; it takes at most 6 bytes per byte, plus 2."""
    cdef const uint8_t *at = <const uint8_t *>data
    cdef int64_t i = 0, plain
    cdef uint8_t c
    cdef int taken
    to[0] = c'"'
    to += 1
    while True:
        plain = put_plain(to, data + i, size_bytes - i)
        to += plain
        i += plain
        if i == size_bytes:
            break
        c = at[i]
        if 0x20 <= c < 0x80 and c != c'"' and c != c'\\':
            to[0] = <char>c
            to += 1
            i += 1
        elif c < 0x80:
            to = put_escape(to, c)
            i += 1
        elif c == 0xE2 and size_bytes - i >= 3 and at[i + 1] == 0x80 and at[i + 2] | 1 == 0xA9:
            to = put_raw(to, b"\\u2028" if at[i + 2] == 0xA8 else b"\\u2029", 6)    # ends a line for some readers
            i += 3
        elif c == 0xC2 and size_bytes - i >= 2 and at[i + 1] == 0x85:
            to = put_raw(to, b"\\u0085", 6)                                          # ends a line too
            i += 2
        else:
            to = put_other(to, at + i, size_bytes - i, &taken)
            i += taken
    to[0] = c'"'
    return to + 1


# ------------------------------------------------------------------------------------------------------------- objects

cdef enum:
    HEAD_BYTES = 835            # maximum of a record without its texts
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
    """Render the fields that all records of a connection share, once; false: out of memory."""
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


cdef char *put_append(char *to, const AppendEvent *event) noexcept nogil:
    to = put_json(put(to, b'{"topic":'), quota_event_texts(&event.note), event.note.user_bytes)
    to = put_number(to, b',"partition":', event.partition)
    to = put_number(to, b',"firstOffset":', event.note.sequence)
    return put(put_number(to, b',"lastOffset":', event.last_offset), b"}")


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
        if kind == EVENT_UPDATE:
            to = put_update(to, note)
        elif kind == EVENT_APPEND:
            to = put_append(to, <const AppendEvent *>note)
        else:
            to = put_verdict(to, <const VerdictEvent *>note)
    return to


cdef bint has_notes(const Record *record, int kind) noexcept nogil:
    """Return whether the request has events of a kind."""
    cdef const char *at = record_notes(record)
    cdef const char *end = at + record.notes_bytes
    while at < end and (<const QuotaEvent *>at).kind != kind:
        at += (<const QuotaEvent *>at).size_bytes
    return at < end


cdef int64_t most_bytes(const Record *record) noexcept nogil:
    cdef int64_t texts = record.client_id_bytes + record.transactional_id_bytes + record.notes_bytes
    cdef int64_t most = HEAD_BYTES + 6 * texts
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
    """Write the reason for a refusal and its connection; a refused request has no other fields."""
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
    """Write an object up to the last digit of its time. The text before the fraction is the same for a whole second."""
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
    core.object.size = 0
    if record.facts != NULL and not render(record.facts):
        return False
    if not buffer_reserve(&core.object, most_bytes(record)):
        return False
    to = put_int(put_words(put_begin(core, core.object.data, record.time_us), &core.numbered), sequence)
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
        if has_notes(record, EVENT_SHADOW):
            to = put_notes(put(to, b'],"shadowVerdicts":['), record, EVENT_SHADOW)
        to = put(to, b"]}")
        if has_notes(record, EVENT_APPEND):
            to = put(put_notes(put(to, b',"response":{"appended":['), record, EVENT_APPEND), b"]}")
        to = put(to, b"}\n")
    core.object.size = to - core.object.data
    return True


cdef bint write_key(JsonCore *core, const Record *record) noexcept nogil:
    """Write the record's key: principal, a zero byte, client id; false: out of memory."""
    cdef const Facts *facts = record.facts
    core.key.size = 0
    if facts != NULL and not buffer_put(&core.key, facts.texts + facts.starts[FACTS_PRINCIPAL],
                                        facts.starts[FACTS_PRINCIPAL + 1] - facts.starts[FACTS_PRINCIPAL]):
        return False
    return buffer_put(&core.key, b"", 1) and buffer_put(&core.key, record_client_id(record), record.client_id_bytes)


cdef bint take(RecordSink *sink, const Record *record, int64_t sequence) noexcept nogil:
    cdef JsonCore *core = <JsonCore *>sink
    cdef int32_t partition = 0
    if not write_object(core, record, sequence):
        return False
    if core.wants_lines:
        if not buffer_put(&core.lines, core.object.data, core.object.size):
            return False
        core.line_count += 1
    if core.batches.partition_count > 0:
        if not write_key(core, record):
            return False
        if core.batches.partition_count > 1:
            partition = <int32_t>(crc32c(0, core.key.data, core.key.size) % core.batches.partition_count)
        return batches_add(&core.batches, partition, core.key.data, core.key.size, core.object.data,
                           core.object.size - 1, record.time_us // 1000)
    return True


cdef int64_t size_bytes(RecordSink *sink) noexcept nogil:
    cdef JsonCore *core = <JsonCore *>sink
    return max(core.lines.size, core.batches.size_bytes)


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
        self.api_names = []
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
            self.api_names.append(encoded)
            core.api_names[key] = encoded
            core.api_name_bytes[key] = len(encoded)
        self.sink = &core.sink

    def __dealloc__(self):
        cdef JsonCore *core = self.core
        if core == NULL:
            return
        buffer_free(&core.lines)
        buffer_free(&core.object)
        buffer_free(&core.key)
        batches_destroy(&core.batches)
        free(core)

    def take_lines(self) -> bytes:
        """Return the lines written since the last call."""
        data = PyBytes_FromStringAndSize(self.core.lines.data, self.core.lines.size)
        self.core.lines.size = 0
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
