"""Refusals of record batches, in Kafka's order.

Source: ProduceRequest.validateRecords, UnifiedLog.analyzeAndValidateRecords, LogValidator.
"""
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free
from libc.string cimport memset
from kbroker._core.codec.bytes cimport load_i16, load_i32
from kbroker._core.clock cimport Clock, clock_now_ns
from kbroker._core.containers.array cimport array_reserve
from kbroker._core.containers.buffer cimport Buffer, buffer_free
from kbroker.common._errors cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kbroker.log._partition cimport NO_KEY, OUT_OF_TIME, STAMPED, BadRecord, BadRecordFault, LogConfig
from kbroker.log.producers._producer_state cimport BatchFacts
from kbroker.log.producers._producer_table cimport NOT_VERIFIED
from kbroker.protocol._batch_format cimport (
    ATTRIBUTES_AT, BATCH_HEADER_BYTES, CODEC_MASK, CONTROL_BIT, LENGTH_AT, LENGTH_FROM, LOG_APPEND_TIME_BIT, MAGIC_AT,
    TRANSACTIONAL_BIT,
)
from kbroker.protocol._compression_type cimport ZSTD
from kbroker.protocol._records cimport (
    PUT_OK, BatchHeader, RecordView, batch_crc_ok, batch_decompress, batch_parse, batch_put_header, batch_recompress,
    record_next, record_put,
)

cdef enum:
    LEGACY_OVERHEAD = 14        # smallest length field of any format
    UP_TO_MAGIC = 17
    MAX_BAD_RECORDS = 8192      # Kafka reports all; a response must not be many times larger than its request

cdef struct RecordsForm:        # facts of valid records, with which a batch is rebuilt
    int64_t largest_ms          # largest timestamp, at least -1
    int64_t first_ms            # timestamp of the first record
    bint is_consecutive         # their offsets count from the base offset
    bint is_below_zero          # a timestamp is below -1 (which means none)


cdef int64_t whole_batch_bytes(const char *data, int64_t size_bytes) noexcept nogil:
    cdef int64_t length
    if size_bytes < 12:
        return 0
    length = load_i32(data + LENGTH_AT)
    if length < LEGACY_OVERHEAD:
        return -1
    if size_bytes < UP_TO_MAGIC:
        return 0
    if data[MAGIC_AT] < 0 or data[MAGIC_AT] > 2:
        return -1
    return length + LENGTH_FROM if length + LENGTH_FROM <= size_bytes else 0


cdef bint has_wrapped_length(const char *data, int64_t size_bytes) noexcept nogil:
    return (size_bytes >= UP_TO_MAGIC and load_i32(data + LENGTH_AT) > INT32_MAX - LENGTH_FROM
            and 0 <= data[MAGIC_AT] <= 2)


cdef bint is_fatal_batch(const char *data, int64_t size_bytes, int16_t api_version) noexcept nogil:
    cdef int64_t total = whole_batch_bytes(data, size_bytes)
    cdef int32_t codec
    if total <= 0 or data[MAGIC_AT] != 2:
        return False
    if api_version < FIRST_WITH_ZSTD:
        codec = data[ATTRIBUTES_AT + 1] & CODEC_MASK
        if codec >= ZSTD:
            return codec > ZSTD
    return has_wrapped_length(data + total, size_bytes - total)


cdef inline void refuse(BatchCheck *out, int16_t error, const char *message) noexcept nogil:
    out.error = error
    out.message = message


cdef void batch_facts(const char *data, const BatchHeader *header, bint from_client, BatchFacts *out) noexcept nogil:
    cdef RecordView record
    cdef int64_t position = 0, records_bytes = <int64_t>header.batch_length + LENGTH_FROM - BATCH_HEADER_BYTES
    out.base_offset = header.base_offset
    out.last_offset = header.base_offset + header.last_offset_delta
    out.last_offset_delta = header.last_offset_delta
    out.producer_id = header.producer_id
    out.producer_epoch = header.producer_epoch
    out.base_sequence = header.base_sequence
    out.last_sequence = -1
    if header.base_sequence >= 0:
        if header.base_sequence > INT32_MAX - header.last_offset_delta:    # wraps to 0 past the largest int32
            out.last_sequence = header.last_offset_delta - (INT32_MAX - header.base_sequence) - 1
        else:
            out.last_sequence = header.base_sequence + header.last_offset_delta
    out.max_timestamp_ms = header.max_timestamp_ms
    out.is_transactional = (header.attributes & TRANSACTIONAL_BIT) != 0
    out.is_control = (header.attributes & CONTROL_BIT) != 0
    out.control_type = -1
    out.coordinator_epoch = -1
    out.from_client = from_client
    out.guard = NOT_VERIFIED
    out.transaction_version = 0
    if out.is_control and header.attributes & CODEC_MASK == 0:
        if record_next(data + BATCH_HEADER_BYTES, records_bytes, &position, header, &record) == 0:
            if record.key_bytes >= 4:
                out.control_type = load_i16(record.key + 2)
            if record.value_bytes >= 6:
                out.coordinator_epoch = load_i32(record.value + 2)


cdef void note_bad_record(BatchCheck *out, int32_t slot, const RecordView *record, int64_t timestamp_ms,
                          BadRecordFault fault, int64_t now_ms, const LogConfig *config) noexcept nogil:
    """Remember a refused record. Without memory, and beyond the limit, only the first ones are reported."""
    cdef int32_t count = out.bad_count
    cdef BadRecord *bad
    if out.bad_record < 0:
        out.bad_record = slot
    if count >= MAX_BAD_RECORDS or not array_reserve(&out.bad_records, count):
        return
    bad = &out.bad_records[count]
    bad.batch_index = slot
    bad.fault = fault
    bad.offset = record.offset
    bad.timestamp_ms = timestamp_ms
    bad.earliest_ms = <int64_t>(<uint64_t>now_ms - <uint64_t>config.timestamp_before_max_ms)
    bad.latest_ms = <int64_t>(<uint64_t>now_ms + <uint64_t>config.timestamp_after_max_ms)
    out.bad_count = count + 1


cdef int64_t bad_record_text(const BadRecord *record, const char *topic, int32_t topic_bytes, int32_t partition,
                             char *text) noexcept nogil:
    if record.fault == NO_KEY:
        return snprintf(text, BAD_RECORD_TEXT_BYTES,
                        b"Compacted topic cannot accept message without key in topic partition %.*s-%d",
                        topic_bytes, topic, partition)
    if record.fault == STAMPED:
        return snprintf(text, BAD_RECORD_TEXT_BYTES,
                        b"Invalid timestamp type in message with offset %lld. Producer should not set timestamp type "
                        b"to LogAppendTime.", <long long>record.offset)
    return snprintf(text, BAD_RECORD_TEXT_BYTES,
                    b"Timestamp %lld of message with offset %lld is out of range. The timestamp should be within "
                    b"[%lld, %lld]", <long long>record.timestamp_ms, <long long>record.offset,
                    <long long>record.earliest_ms, <long long>record.latest_ms)


cdef void forget_bad_records(BatchCheck *out) noexcept nogil:
    free(out.bad_records)
    out.bad_records = NULL
    out.bad_count = 0
    out.bad_record = -1


cdef inline bint is_out_of_time(int64_t timestamp_ms, int64_t now_ms, const LogConfig *config) noexcept nogil:
    """Return whether the topic refuses a timestamp. The subtraction wraps, as Kafka's does."""
    cdef uint64_t age_ms = <uint64_t>now_ms - <uint64_t>timestamp_ms
    return <int64_t>age_ms > config.timestamp_before_max_ms or <int64_t>(0 - age_ms) > config.timestamp_after_max_ms


cdef void check_records(const char *records, int64_t size_bytes, const BatchHeader *header, int64_t now_ms,
                        const LogConfig *config, RecordsForm *form, BatchCheck *out) noexcept nogil:
    cdef RecordView record
    cdef int64_t position = 0, timestamp
    cdef int32_t slot
    cdef bint stamped = (header.attributes & LOG_APPEND_TIME_BIT) != 0
    cdef bint bad_time = False
    for slot in range(header.record_count):
        if record_next(records, size_bytes, &position, header, &record) != 0:
            forget_bad_records(out)
            refuse(out, INVALID_RECORD, b"A record of the batch is malformed or past its end")
            return
        timestamp = header.max_timestamp_ms if stamped else record.timestamp_ms
        if slot == 0:
            form.first_ms = timestamp
        if timestamp > form.largest_ms:
            form.largest_ms = timestamp
        form.is_consecutive = form.is_consecutive and record.offset - header.base_offset == slot
        form.is_below_zero = form.is_below_zero or timestamp < -1
        if config.compacted and record.key_bytes < 0:     # Kafka checks the timestamp only of records with a key
            note_bad_record(out, slot, &record, timestamp, NO_KEY, now_ms, config)
        elif not config.log_append_time and timestamp != -1:
            if is_out_of_time(timestamp, now_ms, config):
                bad_time = True
                note_bad_record(out, slot, &record, timestamp, OUT_OF_TIME, now_ms, config)
        elif stamped:                           # only the broker may stamp records
            bad_time = True
            note_bad_record(out, slot, &record, timestamp, STAMPED, now_ms, config)
    if position != size_bytes:
        forget_bad_records(out)
        refuse(out, INVALID_RECORD, b"Bytes are left after the last record of the batch")
    elif out.bad_record >= 0 and bad_time:
        refuse(out, INVALID_TIMESTAMP, b"One or more records have been rejected due to invalid timestamp")
    elif out.bad_record >= 0:
        refuse(out, INVALID_RECORD,
               b"One or more records have been rejected: a compacted topic needs a key in each record")


cdef bint renumber(const char *records, int64_t records_bytes, const BatchHeader *header, int64_t first_ms,
                   Buffer *to) noexcept nogil:
    """Write the records with consecutive offsets and timestamps relative to the first one.

    False: out of memory, or a damaged record.
    """
    cdef RecordView record
    cdef int64_t position = 0, later_ms
    cdef int32_t slot
    for slot in range(header.record_count):
        if record_next(records, records_bytes, &position, header, &record) != 0:
            return False
        later_ms = <int64_t>(<uint64_t>record.timestamp_ms - <uint64_t>first_ms)
        if record_put(to, later_ms, slot, record.key, record.key_bytes, record.value, record.value_bytes,
                      record.header_count, record.headers, records + position - record.headers) != PUT_OK:
            return False
    return True


cdef void check_rebuild(const BatchHeader *header, const RecordsForm *form, BatchCheck *out) noexcept nogil:
    """Refuse values that Kafka cannot write into a new batch, although it stores a sent batch with them unchanged."""
    if form.is_below_zero:
        refuse(out, UNKNOWN_SERVER_ERROR, b"A timestamp below -1 cannot be written in the topic's codec")
    elif header.attributes & TRANSACTIONAL_BIT and header.producer_id == -1:
        refuse(out, UNKNOWN_SERVER_ERROR, b"A transactional batch needs a producer id in the topic's codec")
    elif header.producer_id != -1 and (header.producer_epoch == -1 or header.base_sequence < 0):
        refuse(out, UNKNOWN_SERVER_ERROR, b"A producer id needs an epoch and a sequence number in the topic's codec")


cdef void recompress(const char *data, const char *unpacked, int64_t unpacked_bytes, const BatchHeader *header,
                     const RecordsForm *form, Clock *clock, const LogConfig *config, BatchCheck *out) noexcept nogil:
    """Rebuild the batch in the topic's codec and check its size again. unpacked is NULL if data is not compressed."""
    cdef const char *records = unpacked
    cdef int64_t records_bytes = unpacked_bytes, started_ns = clock_now_ns(clock)
    cdef BatchHeader made = header[0]
    cdef Buffer renumbered
    if unpacked is NULL:
        records = data + BATCH_HEADER_BYTES
        records_bytes = <int64_t>header.batch_length + LENGTH_FROM - BATCH_HEADER_BYTES
    check_rebuild(header, form, out)
    if out.error != 0:
        return
    memset(&renumbered, 0, sizeof(Buffer))
    made.attributes &= TRANSACTIONAL_BIT
    if form.first_ms != header.base_timestamp_ms or not form.is_consecutive or (
            header.attributes & LOG_APPEND_TIME_BIT):
        made.base_timestamp_ms = form.first_ms
        if not renumber(records, records_bytes, header, form.first_ms, &renumbered):
            refuse(out, UNKNOWN_SERVER_ERROR, b"The records cannot be written in the topic's codec")
        records = renumbered.data
        records_bytes = renumbered.size
    if out.error != 0:
        pass
    elif batch_recompress(&made, records, records_bytes, config.target_codec, config.compression_level, &out.rebuilt,
                          &out.size_bytes) != 0:
        refuse(out, UNKNOWN_SERVER_ERROR, b"The records cannot be compressed as compression.type says")
    elif out.size_bytes > config.max_message_bytes:
        free(out.rebuilt)
        out.rebuilt = NULL
        refuse(out, MESSAGE_TOO_LARGE, b"The record batch is larger than max.message.bytes in the topic's codec")
    buffer_free(&renumbered)
    out.conversion_ns = clock_now_ns(clock) - started_ns


cdef inline int32_t codec_in_log(const BatchHeader *header, const LogConfig *config) noexcept nogil:
    """Return the codec in the log; Kafka never compresses control records."""
    if config.target_codec < 0 or header.attributes & CONTROL_BIT:
        return header.attributes & CODEC_MASK
    return config.target_codec


cdef void make_storable(char *data, BatchHeader *header, const char *unpacked, int64_t unpacked_bytes,
                        const RecordsForm *form, Clock *clock, int64_t now_ms, const LogConfig *config,
                        bint is_client, BatchCheck *out) noexcept nogil:
    """Apply the topic's codec and timestamp type to a valid batch; set its facts in out."""
    cdef int16_t attributes
    cdef int64_t max_timestamp = form.largest_ms
    if codec_in_log(header, config) != header.attributes & CODEC_MASK:
        recompress(data, unpacked, unpacked_bytes, header, form, clock, config, out)
        if out.error != 0:
            return
    out.data = data
    if out.rebuilt is not NULL:
        out.data = data = out.rebuilt
        batch_parse(data, out.size_bytes, header)
    attributes = header.attributes & ~LOG_APPEND_TIME_BIT
    if config.log_append_time:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = now_ms
    if attributes != header.attributes or max_timestamp != header.max_timestamp_ms:
        header.attributes = attributes
        header.max_timestamp_ms = max_timestamp
        batch_put_header(data, out.size_bytes, header)
    out.max_timestamp_ms = max_timestamp
    batch_facts(data, header, is_client, &out.facts)


cdef void check_request(const char *data, int64_t size_bytes, int64_t total, int16_t api_version, bint is_client,
                        BatchCheck *out) noexcept nogil:
    """Check the request's bytes for the partition; total: the result of whole_batch_bytes."""
    cdef int64_t after
    cdef int32_t codec
    if total < 0:
        refuse(out, CORRUPT_MESSAGE, b"Not a record batch")
    elif total == 0:
        refuse(out, INVALID_RECORD, b"Produce requests must have at least one record batch per partition")
    elif data[MAGIC_AT] != 2:
        refuse(out, INVALID_RECORD, b"Produce requests must only contain record batches with magic version 2")
    elif is_client:
        codec = data[ATTRIBUTES_AT + 1] & CODEC_MASK
        after = whole_batch_bytes(data + total, size_bytes - total)
        if codec == ZSTD and api_version < FIRST_WITH_ZSTD:
            refuse(out, UNSUPPORTED_COMPRESSION_TYPE,
                   b"Produce requests below version 7 must not use ZStandard compression")
        elif after < 0:
            refuse(out, CORRUPT_MESSAGE, b"Not a record batch after the first one")
        elif after > 0:
            refuse(out, INVALID_RECORD, b"Produce requests must contain exactly one record batch per partition")


cdef bint is_refused_before_log(const char *data, int64_t size_bytes, int16_t api_version) noexcept nogil:
    cdef BatchCheck check
    memset(&check, 0, sizeof(BatchCheck))
    check_request(data, size_bytes, whole_batch_bytes(data, size_bytes), api_version, True, &check)
    return check.error != 0


cdef void check_header(const char *data, int64_t total, const LogConfig *config, bint is_client, BatchHeader *header,
                       BatchCheck *out) noexcept nogil:
    """Check size, checksum and header of the batch; fill the header."""
    if total >= 8 and is_client and load_i32(data) | load_i32(data + 4):
        refuse(out, INVALID_RECORD, b"The base offset of a record batch in a Produce request must be 0")
    elif total > config.max_message_bytes:
        refuse(out, MESSAGE_TOO_LARGE, b"The record batch is larger than max.message.bytes")
    elif total < BATCH_HEADER_BYTES or not batch_parse(data, total, header) or not batch_crc_ok(data, header):
        refuse(out, CORRUPT_MESSAGE, b"Record batch is corrupt: checksum or size does not match")
    elif header.attributes & CODEC_MASK > ZSTD:
        refuse(out, UNKNOWN_SERVER_ERROR, b"Unknown compression codec")
    elif header.last_offset_delta < 0 or header.record_count < 0 or (is_client and (
            header.record_count == 0 or <int64_t>header.last_offset_delta + 1 != header.record_count)):
        refuse(out, INVALID_RECORD, b"Record count and last offset delta of the batch do not match")
    elif is_client and header.attributes & CONTROL_BIT:
        refuse(out, INVALID_RECORD, b"Clients are not allowed to write control records")
    elif is_client and header.producer_id > -1 and header.base_sequence < 0:
        refuse(out, INVALID_RECORD, b"A batch with a producer id needs a sequence number")


cdef inline void note_header(const BatchHeader *header, int64_t largest_ms, RecordsForm *out) noexcept nogil:
    """Set the form of records that agree with their header."""
    out.largest_ms = largest_ms
    out.first_ms = header.base_timestamp_ms
    out.is_consecutive = True
    out.is_below_zero = False


cdef void check_body(char *data, BatchHeader *header, Clock *clock, int64_t now_ms, const LogConfig *config,
                     bint is_client, BatchCheck *out) noexcept nogil:
    """Check the records of a batch with a sound header, and make it storable."""
    cdef int64_t unpacked_bytes = 0
    cdef int32_t rc, codec = header.attributes & CODEC_MASK
    cdef char *unpacked = NULL
    cdef RecordsForm form
    note_header(header, -1, &form)
    if header.attributes & CONTROL_BIT:
        form.largest_ms = header.max_timestamp_ms
    elif codec == 0:
        check_records(data + BATCH_HEADER_BYTES, out.size_bytes - BATCH_HEADER_BYTES, header, now_ms, config, &form,
                      out)
    else:
        rc = batch_decompress(data, header, config.decompress_cap_bytes, &unpacked, &unpacked_bytes)
        if rc == -2:
            refuse(out, MESSAGE_TOO_LARGE, b"The decompressed records are too large")
        elif rc != 0:
            refuse(out, UNKNOWN_SERVER_ERROR, b"The records cannot be decompressed")
        else:
            check_records(unpacked, unpacked_bytes, header, now_ms, config, &form, out)
    if out.error == 0 and codec != 0 and not form.is_consecutive and codec_in_log(header, config) == codec:
        # A batch that gets another codec is rebuilt with the right offsets; Kafka refuses one that keeps its codec.
        refuse(out, UNKNOWN_SERVER_ERROR, b"Inner offsets of a compressed batch are not consecutive")
    if out.error == 0:
        make_storable(data, header, unpacked, unpacked_bytes, &form, clock, now_ms, config, is_client, out)
    free(unpacked)


cdef void validate_batch(char *data, int64_t size_bytes, Clock *clock, int64_t now_ms, const LogConfig *config,
                         int16_t api_version, bint is_client, BatchCheck *out) noexcept nogil:
    cdef BatchHeader header
    cdef int64_t total = whole_batch_bytes(data, size_bytes)
    memset(out, 0, sizeof(BatchCheck))
    out.bad_record = -1
    out.max_timestamp_ms = -1
    check_request(data, size_bytes, total, api_version, is_client, out)
    if out.error != 0:
        out.before_log = True
        return
    out.taken_bytes = out.size_bytes = total
    check_header(data, total, config, is_client, &header, out)
    if out.error == 0:
        check_body(data, &header, clock, now_ms, config, is_client, out)


cdef void accept_prevalidated_batch(
    char *data, int64_t size_bytes, Clock *clock, int64_t now_ms, const LogConfig *config, BatchCheck *out
) noexcept nogil:
    cdef BatchHeader header
    cdef RecordsForm form
    memset(out, 0, sizeof(BatchCheck))
    out.bad_record = -1
    out.taken_bytes = out.size_bytes = size_bytes
    if size_bytes > config.max_message_bytes or not batch_parse(data, size_bytes, &header):
        refuse(out, MESSAGE_TOO_LARGE, b"The record batch is larger than max.message.bytes")
        return
    note_header(&header, header.max_timestamp_ms, &form)
    make_storable(data, &header, NULL, 0, &form, clock, now_ms, config, False, out)
