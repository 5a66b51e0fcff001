"""Builder of the columns of ``kbroker.common.request_log``, in their order; Arrow takes over the buffers.

There is one set of columns for each partition of the topic. Threads: one at a time.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport strlen

from kbroker._core.codec.crc32c cimport crc32c
from kbroker._core.containers.buffer cimport Buffer, buffer_free, buffer_put, buffer_reserve
from kbroker.network.connections._refused_requests cimport refusal_reason
from kbroker.quota._quota_events cimport (
    EVENT_APPEND, EVENT_SHADOW, EVENT_UPDATE, EVENT_VERDICT, QUOTA_CONNECTION_RATE, AppendEvent, QuotaEvent,
    VerdictEvent, quota_event_texts,
)
from kbroker.request_log._drain cimport RecordFormat, RecordSink
from kbroker.request_log._json_lines cimport put_utf8
from kbroker.request_log._log_core cimport KNOWN_APIS
from kbroker.request_log._record_ring cimport (
    FACTS_ADDRESS, FACTS_CONNECTION, FACTS_LISTENER, FACTS_PRINCIPAL, FACTS_PROTOCOL, FACTS_SOFTWARE_NAME,
    FACTS_SOFTWARE_VERSION, RECORD_REFUSAL, RECORD_REQUEST, Record, record_client_id, record_notes,
    record_transactional_id,
)

from kbroker.common import request_log as schema

cdef enum:
    MOST_COLUMNS = 80           # maximum: columns of a record and of the elements of its lists

cdef struct ColumnBuffers:
    int32_t width               # bytes of a value; 0: a text; -1: a list, which has offsets only
    int64_t count
    int64_t nulls
    Buffer values               # texts are concatenated
    Buffer offsets              # int32, of texts and lists: one more than values
    Buffer is_valid             # one byte per value

cdef struct RowSet:
    int64_t row_count
    int64_t size_bytes
    int64_t last_time_us
    int64_t verdict_count
    int64_t update_count
    int64_t shadow_count
    int64_t append_count
    bint failed                 # memory was exhausted in the middle of a row: the set is discarded
    ColumnBuffers columns[MOST_COLUMNS]

cdef struct ArrowCore:
    RecordSink sink             # first
    int32_t broker
    int32_t set_count
    RowSet *sets                # owned
    const char *api_names[KNOWN_APIS]   # NULL: unknown
    int64_t lost

WIDTHS = {
    schema.TIMESTAMP_US: 8, schema.INT64: 8, schema.FLOAT64: 8, schema.INT32: 4, schema.INT16: 2, schema.BOOL: 1,
    schema.STRING: 0, schema.LIST: -1,
}
# put_row and the functions of its lists fill COLUMNS and their fields in the order of the schema.
ALL = (*schema.COLUMNS, *schema.VERDICT, *schema.UPDATE, *schema.VERDICT, *schema.APPENDED)

cdef const char *TYPE_NAMES[5]
cdef list _type_names = [name.encode() for name in schema.QUOTA_TYPES]      # into which TYPE_NAMES points
cdef bytes _name
for _type, _name in enumerate(_type_names):
    TYPE_NAMES[_type] = _name

cdef int32_t ALL_COLUMNS = len(ALL)
cdef int32_t FIRST_VERDICT = len(schema.COLUMNS)
cdef int32_t FIRST_UPDATE = FIRST_VERDICT + len(schema.VERDICT)
cdef int32_t FIRST_SHADOW = FIRST_UPDATE + len(schema.UPDATE)
cdef int32_t FIRST_APPEND = FIRST_SHADOW + len(schema.VERDICT)
assert ALL_COLUMNS <= MOST_COLUMNS


# ---------------------------------------------------------------- one value at a time

cdef struct Cursor:             # the next column of the current row
    RowSet *rows
    ColumnBuffers *column


cdef inline void keep(Cursor *at, Buffer *to, const void *data, int64_t size) noexcept nogil:
    if not buffer_put(to, data, size):
        at.rows.failed = True


cdef inline void mark(Cursor *at, bint is_valid) noexcept nogil:
    """End a value of the column."""
    cdef char flag = is_valid
    keep(at, &at.column.is_valid, &flag, 1)
    at.column.count += 1
    at.column.nulls += not is_valid
    at.column += 1


cdef inline void put_fixed(Cursor *at, const void *value) noexcept nogil:
    """Append the low bytes of a value; NULL is a null."""
    cdef int64_t nothing = 0
    keep(at, &at.column.values, value if value != NULL else &nothing, at.column.width)
    at.rows.size_bytes += at.column.width
    mark(at, value != NULL)


cdef inline void put_whole(Cursor *at, int64_t value, bint is_known) noexcept nogil:
    cdef int32_t four = <int32_t>value
    cdef int16_t two = <int16_t>value
    cdef char one = <char>value
    if not is_known:
        put_fixed(at, NULL)
    elif at.column.width == 8:
        put_fixed(at, &value)
    elif at.column.width == 4:
        put_fixed(at, &four)
    elif at.column.width == 2:
        put_fixed(at, &two)
    else:
        put_fixed(at, &one)


cdef inline void put_real(Cursor *at, double value) noexcept nogil:
    put_fixed(at, &value if value - value == 0 else NULL)       # as in JSON, NaN and infinities are null


cdef inline void put_offset(Cursor *at, int64_t offset) noexcept nogil:
    cdef int32_t first = 0, value = <int32_t>offset
    if at.column.offsets.size == 0:
        keep(at, &at.column.offsets, &first, 4)
    keep(at, &at.column.offsets, &value, 4)


cdef inline void put_text(Cursor *at, const char *data, int64_t size_bytes, bint is_known) noexcept nogil:
    cdef Buffer *values = &at.column.values
    cdef int64_t before = values.size
    if not buffer_reserve(values, 3 * size_bytes + 1):
        at.rows.failed = True
    elif is_known:
        values.size = put_utf8(values.data + before, data, size_bytes) - values.data
    put_offset(at, values.size)
    at.rows.size_bytes += values.size - before + 4
    mark(at, is_known)


cdef inline void put_name(Cursor *at, const char *name, bint is_known) noexcept nogil:
    put_text(at, name, <int64_t>strlen(name) if is_known else 0, is_known)


cdef inline void put_fact(Cursor *at, const Record *record, int which, bint is_known=True) noexcept nogil:
    if record.facts == NULL or not is_known:
        put_text(at, NULL, 0, False)
    else:
        put_text(at, record.facts.texts + record.facts.starts[which],
                 record.facts.starts[which + 1] - record.facts.starts[which], True)


cdef inline void put_list(Cursor *at, int64_t end, bint is_known=True) noexcept nogil:
    put_offset(at, end)
    mark(at, is_known)


# ---------------------------------------------------------------- rows

cdef void put_verdict(RowSet *rows, const VerdictEvent *verdict, int32_t first, int64_t *count) noexcept nogil:
    cdef const QuotaEvent *note = &verdict.note
    cdef const char *texts = quota_event_texts(note)
    cdef bint is_connection = note.quota_type == QUOTA_CONNECTION_RATE
    cdef Cursor at
    at.rows = rows
    at.column = &rows.columns[first]
    put_name(&at, TYPE_NAMES[note.quota_type], True)
    put_text(&at, texts, 0 if is_connection else note.user_bytes, True)
    put_text(&at, texts + note.user_bytes, note.client_id_bytes, True)
    put_text(&at, texts, note.user_bytes, is_connection and note.user_bytes > 0)
    put_whole(&at, note.level, True)
    put_real(&at, note.value)
    put_real(&at, verdict.limit)
    put_whole(&at, verdict.window_ms, True)
    put_whole(&at, verdict.asked_ms, True)
    put_whole(&at, verdict.served_ms, True)
    put_whole(&at, note.flag, True)
    put_whole(&at, note.sequence, not is_connection)
    put_whole(&at, note.time_ms, True)
    count[0] += 1


cdef void put_update(RowSet *rows, const QuotaEvent *note) noexcept nogil:
    cdef const char *texts = quota_event_texts(note)
    cdef Cursor at
    at.rows = rows
    at.column = &rows.columns[FIRST_UPDATE]
    put_name(&at, TYPE_NAMES[note.quota_type], True)
    put_text(&at, texts, note.user_bytes, True)
    put_text(&at, texts + note.user_bytes, note.client_id_bytes, True)
    put_whole(&at, note.sequence, True)
    put_whole(&at, note.time_ms, True)
    put_real(&at, note.value)
    put_whole(&at, note.flag, True)
    rows.update_count += 1


cdef void put_append(RowSet *rows, const AppendEvent *event) noexcept nogil:
    cdef Cursor at
    at.rows = rows
    at.column = &rows.columns[FIRST_APPEND]
    put_text(&at, quota_event_texts(&event.note), event.note.user_bytes, True)
    put_whole(&at, event.partition, True)
    put_whole(&at, event.note.sequence, True)
    put_whole(&at, event.last_offset, True)
    rows.append_count += 1


cdef void put_notes(RowSet *rows, const Record *record) noexcept nogil:
    cdef const char *place = record_notes(record)
    cdef const char *end = place + record.notes_bytes
    cdef const QuotaEvent *note
    while place < end:
        note = <const QuotaEvent *>place
        place += note.size_bytes
        if note.kind == EVENT_VERDICT:
            put_verdict(rows, <const VerdictEvent *>note, FIRST_VERDICT, &rows.verdict_count)
        elif note.kind == EVENT_SHADOW:
            put_verdict(rows, <const VerdictEvent *>note, FIRST_SHADOW, &rows.shadow_count)
        elif note.kind == EVENT_UPDATE:
            put_update(rows, note)
        elif note.kind == EVENT_APPEND:
            put_append(rows, <const AppendEvent *>note)


cdef void put_row(ArrowCore *core, RowSet *rows, const Record *record, int64_t sequence) noexcept nogil:
    cdef bint is_request = record.kind == RECORD_REQUEST
    cdef bint is_refusal = record.kind == RECORD_REFUSAL
    cdef const char *reason = refusal_reason(record.refusal)
    cdef const QuotaEvent *note = <const QuotaEvent *>record_notes(record)
    cdef const char *name = NULL
    cdef int64_t shadows_before = rows.shadow_count, appends_before = rows.append_count
    cdef Cursor at
    put_notes(rows, record)
    at.rows = rows
    at.column = &rows.columns[0]
    if is_request and 0 <= record.api_key < KNOWN_APIS:
        name = core.api_names[record.api_key]
    put_whole(&at, record.time_us, True)
    put_whole(&at, core.broker, True)
    put_whole(&at, sequence, True)
    put_whole(&at, record.api_key, is_request)
    put_whole(&at, record.api_version, is_request)
    put_name(&at, name, name != NULL)
    put_whole(&at, record.correlation_id, is_request)
    put_text(&at, record_client_id(record), record.client_id_bytes, is_request)
    put_fact(&at, record, FACTS_CONNECTION)
    if is_request or is_refusal:
        put_fact(&at, record, FACTS_ADDRESS)
    else:
        put_text(&at, quota_event_texts(note), note.user_bytes, note.user_bytes > 0)
    put_fact(&at, record, FACTS_PRINCIPAL, is_request)
    put_fact(&at, record, FACTS_LISTENER)
    put_fact(&at, record, FACTS_PROTOCOL, is_request)
    put_fact(&at, record, FACTS_SOFTWARE_NAME, is_request)
    put_fact(&at, record, FACTS_SOFTWARE_VERSION, is_request)
    put_whole(&at, record.request_bytes, is_request)
    put_whole(&at, record.response_bytes, is_request)
    put_whole(&at, record.queue_us, is_request)
    put_whole(&at, record.local_us, is_request)
    put_whole(&at, record.remote_us, is_request)
    put_whole(&at, record.response_queue_us, is_request)
    put_whole(&at, record.send_us, is_request)
    put_whole(&at, record.total_us, is_request)
    put_whole(&at, record.network_us, is_request)
    put_whole(&at, record.throttle_ms, is_request)
    put_whole(&at, record.error_code, is_request)
    put_whole(&at, record.error_count, is_request)
    put_real(&at, record.sampling)
    put_whole(&at, record.repeated, True)
    put_list(&at, rows.verdict_count)
    put_list(&at, rows.update_count)
    put_text(&at, record_transactional_id(record), record.transactional_id_bytes, record.transactional_id_bytes > 0)
    put_name(&at, reason, is_refusal)
    put_whole(&at, record.api_key, is_refusal and record.api_key >= 0)
    put_whole(&at, record.api_version, is_refusal and record.api_version >= 0)
    put_list(&at, rows.shadow_count, rows.shadow_count > shadows_before)
    put_list(&at, rows.append_count, rows.append_count > appends_before)
    rows.row_count += 1
    rows.last_time_us = record.time_us


cdef uint8_t SEPARATOR = 0


cdef bint take(RecordSink *sink, const Record *record, int64_t sequence) noexcept nogil:
    cdef ArrowCore *core = <ArrowCore *>sink
    cdef RowSet *rows = core.sets
    cdef const char *principal
    cdef int64_t bytes_of
    if core.set_count > 1:              # the same partition as for JSON: by principal, a zero byte, client id
        bytes_of = 0
        principal = NULL
        if record.facts != NULL:
            principal = record.facts.texts + record.facts.starts[FACTS_PRINCIPAL]
            bytes_of = record.facts.starts[FACTS_PRINCIPAL + 1] - record.facts.starts[FACTS_PRINCIPAL]
        rows = &core.sets[crc32c(
            crc32c(crc32c(0, principal, bytes_of), <const char *>&SEPARATOR, 1), record_client_id(record),
            record.client_id_bytes) % core.set_count]
    if rows.failed:
        return False
    put_row(core, rows, record, sequence)
    if rows.failed:
        core.lost += rows.row_count - 1
        return False
    return True


cdef int64_t size_bytes(RecordSink *sink) noexcept nogil:
    cdef ArrowCore *core = <ArrowCore *>sink
    cdef int64_t most = 0
    cdef int32_t i
    for i in range(core.set_count):
        if core.sets[i].size_bytes > most:
            most = core.sets[i].size_bytes
    return most


cdef void empty(RowSet *rows) noexcept nogil:
    cdef ColumnBuffers *column
    cdef int32_t i
    for i in range(MOST_COLUMNS):
        column = &rows.columns[i]
        column.count = column.nulls = 0
        column.values.size = column.offsets.size = column.is_valid.size = 0
    rows.row_count = rows.size_bytes = rows.last_time_us = 0
    rows.verdict_count = rows.update_count = rows.shadow_count = rows.append_count = 0
    rows.failed = False


cdef bytes packed(const Buffer *flags):
    """Return one bit per flag, the lowest first."""
    cdef int64_t n = flags.size, i
    cdef bytes bits = bytes((n + 7) // 8)
    cdef uint8_t *to = <uint8_t *><char *>bits
    for i in range(n):
        if flags.data[i]:
            to[i >> 3] |= <uint8_t>(1 << (i & 7))
    return bits


cdef object buffers_of(const ColumnBuffers *column):
    """Return (length, nulls, validity or None, offsets or None, values or None) of a column."""
    valid = packed(&column.is_valid) if column.nulls else None
    offsets = None
    values = None
    if column.width <= 0:
        offsets = PyBytes_FromStringAndSize(column.offsets.data, column.offsets.size) or bytes(4)
    if column.width == 1:
        values = packed(&column.values)
    elif column.width >= 0:
        values = PyBytes_FromStringAndSize(column.values.data, column.values.size)
    return column.count, column.nulls, valid, offsets, values


@cython.final
cdef class ArrowColumns(RecordFormat):
    """Records as columns.

    Args: broker: its id. api_names: Kafka's names (``PRODUCE``) by key. sets: number of sets, one for each partition.
    Threads: one at a time.
    """
    cdef ArrowCore *core        # owned

    def __cinit__(self, int32_t broker, dict api_names not None, *, int32_t sets=1):
        cdef ArrowCore *core = <ArrowCore *>calloc(1, sizeof(ArrowCore))
        cdef bytes encoded
        cdef int32_t i, k = 0
        if core == NULL:
            raise MemoryError
        self.core = core
        self.api_names = []
        core.sink.take = take
        core.sink.size_bytes = size_bytes
        core.broker = broker
        core.sets = <RowSet *>calloc(<size_t>max(sets, 1), sizeof(RowSet))
        if core.sets == NULL:
            raise MemoryError
        core.set_count = max(sets, 1)
        for i in range(core.set_count):
            for k, column in enumerate(ALL):
                core.sets[i].columns[k].width = WIDTHS[column.type]
        for key, name in api_names.items():
            encoded = name.encode("ascii")
            if not 0 <= key < KNOWN_APIS:
                raise ValueError(f"no API: {key} {name!r}")
            self.api_names.append(encoded)
            core.api_names[key] = encoded
        self.sink = &core.sink

    def __dealloc__(self):
        cdef ArrowCore *core = self.core
        cdef int32_t i, k
        if core == NULL:
            return
        for i in range(core.set_count):
            for k in range(MOST_COLUMNS):
                buffer_free(&core.sets[i].columns[k].values)
                buffer_free(&core.sets[i].columns[k].offsets)
                buffer_free(&core.sets[i].columns[k].is_valid)
        free(core.sets)
        free(core)

    def take_set(self, int number) -> tuple:
        """Return (rows, time of the latest in ms, columns) of a set and empty it.

        The columns: tuples (length, nulls, validity, offsets, values) of bytes or None, those of COLUMNS, then those
        of the fields of each list. Without rows, and after a failure, which loses them: zeros and an empty list.
        Raises: IndexError.
        """
        cdef RowSet *rows
        cdef int32_t i
        if not 0 <= number < self.core.set_count:
            raise IndexError(number)
        rows = &self.core.sets[number]
        if rows.failed or rows.row_count == 0:
            empty(rows)
            return 0, 0, []
        found = rows.row_count, rows.last_time_us // 1000, [buffers_of(&rows.columns[i]) for i in range(ALL_COLUMNS)]
        empty(rows)
        return found

    @property
    def set_count(self) -> int:
        """Number of sets of columns."""
        return self.core.set_count

    @property
    def row_count(self) -> int:
        """Number of rows in all sets."""
        cdef int64_t count = 0
        cdef int32_t i
        for i in range(self.core.set_count):
            count += self.core.sets[i].row_count
        return count

    @property
    def lost(self) -> int:
        """Number of rows discarded because memory was exhausted."""
        return self.core.lost
