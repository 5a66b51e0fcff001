"""Compaction of a batch. Offsets stay; a batch that loses records is rebuilt, with its delete horizon.

Source: ``MemoryRecords.filterTo``, ``Cleaner.shouldRetainRecord``, ``CleanedTransactionMetadata``, KIP-534 (delete
horizon). The map of latest offsets is open-addressed, from a key's hash: Kafka's ``SkimpyOffsetMap``, with a keyed hash
in place of MD5.
"""
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, qsort
from libc.string cimport memset
from kbroker._core.containers.array cimport array_reserve
from kbroker._core.containers.buffer cimport buffer_free, buffer_reserve
from kbroker.log._posix cimport ENOMEM
from kbroker.log._validate cimport batch_facts
from kbroker.log.compaction._cleaned_segment cimport CleanedSegment, cleaned_add_aborted, cleaned_append
from kbroker.log.producers._producer_state cimport AbortedTxn, BatchFacts, ProducerFacts
from kbroker.log.segment._segment cimport SegmentList, segment_list_floor
from kbroker.log.segment._txn_index cimport txn_index_collect
from kbroker.protocol._batch_format cimport (
    BATCH_HEADER_BYTES, CODEC_MASK, CONTROL_BIT, DELETE_HORIZON_BIT, LENGTH_FROM, LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
)
from kbroker.protocol._compression cimport CODEC_LEVEL
from kbroker.protocol._records cimport (
    PUT_OK, BatchHeader, RecordView, batch_decompress, batch_put_header, batch_recompress, record_next, record_put,
)


# ----------------------------------------------------------------------------------------------- map of latest offsets

cdef enum:
    LEAST_SLOTS = 64


cdef inline uint64_t rotated(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline void sip_rounds(uint64_t *v, int count) noexcept nogil:
    cdef int _round
    for _round in range(count):
        v[0] += v[1]
        v[2] += v[3]
        v[1] = rotated(v[1], 13) ^ v[0]
        v[3] = rotated(v[3], 16) ^ v[2]
        v[0] = rotated(v[0], 32)
        v[2] += v[1]
        v[0] += v[3]
        v[1] = rotated(v[1], 17) ^ v[2]
        v[3] = rotated(v[3], 21) ^ v[0]
        v[2] = rotated(v[2], 32)


cdef inline uint64_t load_le(const uint8_t *at, int64_t size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int64_t slot
    for slot in range(size):
        value |= <uint64_t>at[slot] << (8 * slot)
    return value


cdef void key_hash(const char *key, int64_t size_bytes, const uint64_t *secret, uint64_t *out) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef const uint8_t *data = <const uint8_t *>key
    cdef int64_t at = 0
    v[0] = secret[0] ^ <uint64_t>0x736f6d6570736575ULL
    v[1] = secret[1] ^ <uint64_t>0x646f72616e646f6dULL ^ <uint64_t>0xee
    v[2] = secret[0] ^ <uint64_t>0x6c7967656e657261ULL
    v[3] = secret[1] ^ <uint64_t>0x7465646279746573ULL
    while at + 8 <= size_bytes:
        word = load_le(data + at, 8)
        v[3] ^= word
        sip_rounds(v, 2)
        v[0] ^= word
        at += 8
    word = (<uint64_t>size_bytes << 56) | load_le(data + at, size_bytes - at)
    v[3] ^= word
    sip_rounds(v, 2)
    v[0] ^= word
    v[2] ^= 0xee
    sip_rounds(v, 4)
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xdd
    sip_rounds(v, 4)
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef void offset_map_init(OffsetMap *map, int64_t memory_bytes, double load_factor, uint64_t secret0,
                          uint64_t secret1) noexcept nogil:
    map.slots = NULL
    map.most_slots = memory_bytes // <int64_t>sizeof(OffsetSlot)
    map.capacity = 0
    map.limit = 0
    map.entries = 0
    map.load_factor = load_factor
    map.secret[0] = secret0
    map.secret[1] = secret1


cdef void offset_map_destroy(OffsetMap *map) noexcept nogil:
    free(map.slots)
    map.slots = NULL
    map.capacity = 0
    map.limit = 0
    map.entries = 0


cdef bint offset_map_reset(OffsetMap *map, int64_t keys) noexcept nogil:
    cdef int64_t wanted = LEAST_SLOTS
    offset_map_destroy(map)
    if <double>keys / map.load_factor > <double>(map.most_slots - LEAST_SLOTS):
        wanted = map.most_slots
    elif keys > 0:
        wanted += <int64_t>(<double>keys / map.load_factor)
    if wanted > map.most_slots:
        wanted = map.most_slots
    map.slots = <OffsetSlot *>calloc(wanted, sizeof(OffsetSlot))
    if map.slots is NULL:
        return False
    map.capacity = wanted
    map.limit = <int64_t>(<double>wanted * map.load_factor)
    if map.limit >= wanted:
        map.limit = wanted - 1                  # one slot stays free, where a search ends
    return True


cdef inline OffsetSlot *find_slot(const OffsetMap *map, const uint64_t *hashed) noexcept nogil:
    """Return the slot of the key, or the free slot where it belongs."""
    cdef int64_t at = <int64_t>(hashed[0] % <uint64_t>map.capacity)
    cdef OffsetSlot *slot
    while True:
        slot = &map.slots[at]
        if slot.next_offset == 0 or (slot.first_half == hashed[0] and slot.second_half == hashed[1]):
            return slot
        at += 1
        if at == map.capacity:
            at = 0


cdef bint offset_map_put(OffsetMap *map, const char *key, int32_t size_bytes, int64_t offset) noexcept nogil:
    cdef uint64_t hashed[2]
    cdef OffsetSlot *slot
    key_hash(key, size_bytes, map.secret, hashed)
    slot = find_slot(map, hashed)
    if slot.next_offset == 0:
        if map.entries >= map.limit:
            return False
        map.entries += 1
        slot.first_half = hashed[0]
        slot.second_half = hashed[1]
    slot.next_offset = offset + 1
    return True


cdef int64_t offset_map_get(const OffsetMap *map, const char *key, int32_t size_bytes) noexcept nogil:
    cdef uint64_t hashed[2]
    if map.entries == 0:
        return -1
    key_hash(key, size_bytes, map.secret, hashed)
    return find_slot(map, hashed).next_offset - 1


cdef enum:
    ABORT = 0                   # control types
    COMMIT = 1
    UNPACK_CAP_BYTES = 2147483647


# ------------------------------------------------------------------------------------------------------- transactions

cdef int by_first_offset(const void *left, const void *right) noexcept nogil:
    cdef int64_t a = (<const AbortedTxn *>left).first_offset, b = (<const AbortedTxn *>right).first_offset
    return -1 if a < b else (1 if a > b else 0)


cdef int32_t tracker_load(TxnTracker *tracker, SegmentList *view, int64_t start, int64_t end) noexcept nogil:
    cdef int32_t slot = segment_list_floor(view, start), rc
    if slot < 0:
        slot = 0
    while slot < view.count:
        rc = txn_index_collect(&view.segments[slot].aborted, start, end, &tracker.known, &tracker.known_count)
        if rc < 0:
            return rc
        if rc == 1:
            break
        slot += 1
    if tracker.known_count > 1:
        qsort(tracker.known, tracker.known_count, sizeof(AbortedTxn), by_first_offset)
    return 0


cdef void tracker_free(TxnTracker *tracker) noexcept nogil:
    free(tracker.known)
    free(tracker.aborted)
    free(tracker.committed)
    memset(tracker, 0, sizeof(TxnTracker))


cdef int32_t find_aborted(const TxnTracker *tracker, int64_t producer_id) noexcept nogil:
    cdef int32_t slot
    for slot in range(tracker.aborted_count):
        if tracker.aborted[slot].txn.producer_id == producer_id:
            return slot
    return -1


cdef int32_t find_committed(const TxnTracker *tracker, int64_t producer_id) noexcept nogil:
    cdef int32_t slot
    for slot in range(tracker.committed_count):
        if tracker.committed[slot] == producer_id:
            return slot
    return -1


cdef int32_t begin_up_to(TxnTracker *tracker, int64_t offset) noexcept nogil:
    """Begin the aborted transactions whose first offset is at or before offset; one at a time for each producer.

    Returns: 0 or -ENOMEM.
    """
    cdef AbortedTxn *txn
    while tracker.next_known < tracker.known_count and tracker.known[tracker.next_known].first_offset <= offset:
        txn = &tracker.known[tracker.next_known]
        tracker.next_known += 1
        if find_aborted(tracker, txn.producer_id) >= 0:
            continue
        if not array_reserve(&tracker.aborted, tracker.aborted_count):
            return -ENOMEM
        tracker.aborted[tracker.aborted_count].txn = txn[0]
        tracker.aborted[tracker.aborted_count].has_data = False
        tracker.aborted_count += 1
    return 0


cdef int32_t tracker_read_data(TxnTracker *tracker, const BatchHeader *header) noexcept nogil:
    cdef int32_t slot
    if begin_up_to(tracker, header.base_offset + header.last_offset_delta) != 0:
        return -ENOMEM
    if not header.attributes & TRANSACTIONAL_BIT:
        return 0
    slot = find_aborted(tracker, header.producer_id)
    if slot >= 0:
        tracker.aborted[slot].has_data = True
        return 1
    if find_committed(tracker, header.producer_id) >= 0:
        return 0
    if not array_reserve(&tracker.committed, tracker.committed_count):
        return -ENOMEM
    tracker.committed[tracker.committed_count] = header.producer_id
    tracker.committed_count += 1
    return 0


cdef int32_t tracker_read_marker(TxnTracker *tracker, const BatchHeader *header, int32_t control_type,
                                 CleanedSegment *cleaned) noexcept nogil:
    cdef int32_t slot
    cdef OpenAborted ended
    if begin_up_to(tracker, header.base_offset + header.last_offset_delta) != 0:
        return -ENOMEM
    if header.record_count == 0:
        return 1
    if control_type == ABORT:
        slot = find_aborted(tracker, header.producer_id)
        if slot < 0:
            return 1
        ended = tracker.aborted[slot]
        tracker.aborted_count -= 1
        tracker.aborted[slot] = tracker.aborted[tracker.aborted_count]
        if not ended.has_data:
            return 1
        return 0 if cleaned is NULL else cleaned_add_aborted(cleaned, &ended.txn)
    if control_type == COMMIT:
        slot = find_committed(tracker, header.producer_id)
        if slot < 0:
            return 1
        tracker.committed_count -= 1
        tracker.committed[slot] = tracker.committed[tracker.committed_count]
        return 0
    return 0


# ------------------------------------------------------------------------------------------------------------- filter

cdef void filter_free(BatchFilter *filter) noexcept nogil:
    tracker_free(&filter.transactions)
    free(filter.producers)
    filter.producers = NULL
    buffer_free(&filter.unpacked_flags)
    buffer_free(&filter.batch)


cdef int by_id(const void *left, const void *right) noexcept nogil:
    cdef int64_t a = (<const ProducerFacts *>left).producer_id, b = (<const ProducerFacts *>right).producer_id
    return -1 if a < b else (1 if a > b else 0)


cdef void filter_set_producers(BatchFilter *filter, ProducerFacts *rows, int64_t count) noexcept nogil:
    free(filter.producers)
    filter.producers = rows
    filter.producer_count = count
    if count > 1:
        qsort(rows, count, sizeof(ProducerFacts), by_id)


cdef bint is_last_of_producer(const BatchFilter *filter, const BatchHeader *header) noexcept nogil:
    """Return whether a batch has an active producer's last offset, or is a marker of its epoch if it has no data."""
    cdef int64_t low = 0, high = filter.producer_count - 1, middle
    cdef const ProducerFacts *row
    while low <= high:
        middle = low + (high - low) // 2
        row = &filter.producers[middle]
        if row.producer_id == header.producer_id:
            if row.last_offset >= 0:
                return header.base_offset + header.last_offset_delta == row.last_offset
            return header.attributes & CONTROL_BIT != 0 and header.producer_epoch == row.producer_epoch
        if row.producer_id < header.producer_id:
            low = middle + 1
        else:
            high = middle - 1
    return False


cdef int32_t control_type_of(const char *data, const BatchHeader *header) noexcept nogil:
    cdef BatchFacts facts
    batch_facts(data, header, False, &facts)
    return facts.control_type


cdef int32_t unpack_records(const char *data, const BatchHeader *header, char **owned, const char **records,
                            int64_t *size_bytes) noexcept nogil:
    cdef int32_t rc
    owned[0] = NULL
    records[0] = data + BATCH_HEADER_BYTES
    size_bytes[0] = <int64_t>header.batch_length + LENGTH_FROM - BATCH_HEADER_BYTES
    if header.attributes & CODEC_MASK == 0 or header.record_count == 0:
        return 0
    rc = batch_decompress(data, header, UNPACK_CAP_BYTES, owned, size_bytes)
    if rc != 0:
        return CLEAN_CORRUPT if rc == -1 else -ENOMEM
    records[0] = owned[0]
    return 0


# ------------------------------------------------------------------------------------------------------- record rules

cdef bint keep_record(const BatchFilter *filter, const BatchHeader *header, const RecordView *record) noexcept nogil:
    if record.offset >= filter.end_offset:
        return True                             # not covered by the map: left to the next round
    if record.key_bytes < 0:
        return False
    if record.offset < offset_map_get(filter.latest, record.key, record.key_bytes):
        return False
    if record.value_bytes >= 0 or not header.attributes & DELETE_HORIZON_BIT:
        return True
    return filter.now_ms < header.base_timestamp_ms


# -------------------------------------------------------------------------------------------------------------- batch

cdef bint begin_batch(BatchFilter *filter) noexcept nogil:
    filter.batch.size = 0
    if not buffer_reserve(&filter.batch, BATCH_HEADER_BYTES):
        return False
    filter.batch.size = BATCH_HEADER_BYTES
    return True


cdef int32_t write_batch(BatchFilter *filter, const BatchHeader *header, int32_t attributes, int64_t base_timestamp_ms,
                         int64_t max_timestamp_ms, int32_t count, CleanedSegment *cleaned) noexcept nogil:
    """Append filter.batch to cleaned, with the offsets, producer and epoch of the old batch; return 0 or -errno."""
    cdef BatchHeader made = header[0]
    cdef int32_t rc
    cdef char *packed = NULL
    cdef char *data = filter.batch.data
    cdef int64_t size_bytes = filter.batch.size, packed_bytes = 0
    made.attributes = <int16_t>(attributes & ~CODEC_MASK)
    made.base_timestamp_ms = base_timestamp_ms
    made.max_timestamp_ms = max_timestamp_ms
    made.record_count = count
    if attributes & CODEC_MASK == 0 or count == 0:
        batch_put_header(data, size_bytes, &made)
        return cleaned_append(cleaned, data, size_bytes)
    rc = batch_recompress(&made, data + BATCH_HEADER_BYTES, size_bytes - BATCH_HEADER_BYTES, attributes & CODEC_MASK,
                          CODEC_LEVEL, &packed, &packed_bytes)
    if rc != 0:
        return -ENOMEM                          # the only error of a known codec
    rc = cleaned_append(cleaned, packed, packed_bytes)
    free(packed)
    return rc


cdef int32_t write_empty(BatchFilter *filter, const BatchHeader *header, CleanedSegment *cleaned) noexcept nogil:
    """Write the header alone, which keeps offsets and sequence."""
    if not begin_batch(filter):
        return -ENOMEM
    return write_batch(filter, header, header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT), -1,
                       header.max_timestamp_ms, 0, cleaned)


cdef int32_t rebuild(BatchFilter *filter, const BatchHeader *header, const char *records, int64_t size_bytes,
                     int32_t kept, int64_t horizon_ms, CleanedSegment *cleaned) noexcept nogil:
    """Rebuild the batch from the records flagged as kept; horizon_ms is their base timestamp when it is set (>= 0).

    Returns: 0, CLEAN_CORRUPT or -errno.
    """
    cdef RecordView record
    cdef int64_t at = 0, base = horizon_ms, largest = -1
    cdef int32_t slot
    cdef bint is_first = True
    if not begin_batch(filter):
        return -ENOMEM
    for slot in range(header.record_count):
        if record_next(records, size_bytes, &at, header, &record) != 0:
            return CLEAN_CORRUPT
        if filter.unpacked_flags.data[slot] == 0:
            continue
        if is_first and horizon_ms < 0:
            base = record.timestamp_ms
        if is_first or record.timestamp_ms > largest:
            largest = record.timestamp_ms
        is_first = False
        if record_put(&filter.batch, <int64_t>(<uint64_t>record.timestamp_ms - <uint64_t>base),
                      record.offset - header.base_offset, record.key, record.key_bytes, record.value,
                      record.value_bytes, record.header_count, record.headers,
                      records + at - record.headers) != PUT_OK:
            return -ENOMEM
    if header.attributes & LOG_APPEND_TIME_BIT:
        largest = header.max_timestamp_ms
    return write_batch(filter, header, header.attributes | (DELETE_HORIZON_BIT if horizon_ms >= 0 else 0), base,
                       largest, kept, cleaned)


cdef int32_t filter_records(BatchFilter *filter, const char *data, const BatchHeader *header, bint keep_empty,
                            bint starts_horizon, CleanedSegment *cleaned) noexcept nogil:
    cdef const char *records
    cdef char *owned
    cdef int64_t size_bytes, at = 0, horizon_ms = -1
    cdef int32_t slot, kept = 0, rc = unpack_records(data, header, &owned, &records, &size_bytes)
    cdef RecordView record
    cdef bint is_control = (header.attributes & CONTROL_BIT) != 0, keep
    if rc != 0:
        return rc
    if header.record_count > size_bytes or not buffer_reserve(&filter.unpacked_flags, header.record_count):
        free(owned)
        return CLEAN_CORRUPT if header.record_count > size_bytes else -ENOMEM
    for slot in range(header.record_count):
        if record_next(records, size_bytes, &at, header, &record) != 0:
            free(owned)
            return CLEAN_CORRUPT
        keep = is_control or keep_record(filter, header, &record)
        filter.unpacked_flags.data[slot] = keep
        if keep:
            kept += 1
            if record.value_bytes < 0:
                starts_horizon = True
    if at != size_bytes:
        free(owned)
        return CLEAN_CORRUPT
    filter.records_read += header.record_count
    filter.records_kept += kept
    if header.attributes & DELETE_HORIZON_BIT:
        horizon_ms = header.base_timestamp_ms
        starts_horizon = False
    elif starts_horizon:
        horizon_ms = filter.now_ms + min(filter.delete_retention_ms, INT64_MAX - max(filter.now_ms, 0))
    if kept == 0:
        rc = write_empty(filter, header, cleaned) if keep_empty else 0
    elif kept == header.record_count and not starts_horizon:
        rc = cleaned_append(cleaned, data, <int64_t>header.batch_length + LENGTH_FROM)
    else:
        rc = rebuild(filter, header, records, size_bytes, kept, horizon_ms, cleaned)
    free(owned)
    return rc


cdef int32_t filter_batch(BatchFilter *filter, const char *data, const BatchHeader *header,
                          CleanedSegment *cleaned) noexcept nogil:
    cdef bint is_control = (header.attributes & CONTROL_BIT) != 0
    cdef bint drop_records, keep_empty
    cdef int32_t settled                        # 1: data of an aborted transaction, or a marker without data
    if is_control:
        settled = tracker_read_marker(&filter.transactions, header, control_type_of(data, header), cleaned)
    else:
        settled = tracker_read_data(&filter.transactions, header)
    if settled < 0:
        return settled
    drop_records = settled == 1
    if is_control and drop_records:             # a marker stays as long as a tombstone
        drop_records = (header.attributes & DELETE_HORIZON_BIT) != 0 and header.base_timestamp_ms <= filter.now_ms
    keep_empty = (header.producer_id >= 0 and is_last_of_producer(filter, header)) or (
        header.base_offset + header.last_offset_delta + 1 == filter.end_offset)
    if drop_records:
        filter.records_read += header.record_count
        return write_empty(filter, header, cleaned) if keep_empty else 0
    return filter_records(filter, data, header, keep_empty, is_control and settled == 1, cleaned)
