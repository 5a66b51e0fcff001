"""Reads of a partition on a counted view of its segments.

Source: UnifiedLog.read, UnifiedLog.fetchOffsetByTimestamp; and the probe of a delayed fetch.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, int8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from kbroker._core.open_file cimport OpenFile, open_file_release
from kbroker._core.sync cimport atomic_load, mutex_lock, mutex_unlock
from kbroker.common._errors cimport KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION
from kbroker.log._partition cimport (
    FAILED_READ, RECENT_APPENDS, Partition, ReadProbe, ReadResult, RecentAppend, count_failure, view_acquire,
)
from kbroker.log._posix cimport EIO, ENOENT, ENOMEM, io_read
from kbroker.log.segment._index cimport offset_index_offset_after, time_index_lookup
from kbroker.log.segment._segment cimport (
    LogSegment, SegmentList, segment_find, segment_find_indexed, segment_list_floor, segment_list_release,
    segment_list_retain, segment_open, segment_release, segment_retain,
)
from kbroker.log.segment._txn_index cimport TXN_INDEX_DAMAGED, txn_index_collect
from kbroker.protocol._batch_format cimport BATCH_HEADER_BYTES, CODEC_MASK, LOG_APPEND_TIME_BIT
from kbroker.protocol._records cimport BatchHeader, RecordView, batch_decompress, record_next

cdef enum:
    READ_TRIES = 4
    UNPACK_CAP_BYTES = 2147483647   # the limit of a Produce may have been higher than it is now


cdef SegmentList *view_and_recent(Partition *partition, int64_t offset, RecentAppend *recent) noexcept nogil:
    """Return the view, and the recent append that contains the offset (segment_base -1: none does)."""
    cdef SegmentList *view
    cdef RecentAppend *entry
    cdef int64_t slot, oldest
    recent.segment_base = -1
    mutex_lock(&partition.view_lock)
    view = segment_list_retain(partition.view)
    oldest = partition.recent_count - RECENT_APPENDS
    slot = partition.recent_count - 1
    while slot >= 0 and slot >= oldest:
        entry = &partition.recent[slot % RECENT_APPENDS]
        if entry.base_offset <= offset:
            if offset < entry.end_offset:
                recent[0] = entry[0]
            break
        slot -= 1
    mutex_unlock(&partition.view_lock)
    return view


cdef int32_t position_of(Partition *partition, SegmentList *view, int32_t slot, OpenFile *file, int64_t offset,
                         int64_t limit,
                         int64_t *position, int64_t *batch_bytes) noexcept nogil:
    """Find the batch that contains offset: 1 found, 0 when all batches below limit are before it, else an error."""
    cdef RecentAppend recent
    cdef BatchHeader header
    cdef LogSegment *segment = view.segments[slot]
    cdef int32_t rc
    cdef SegmentList *same = view_and_recent(partition, offset, &recent)
    segment_list_release(same)
    if recent.segment_base == segment.base_offset and recent.position < limit:
        rc = segment_find(segment, file, offset, recent.position, limit, position, &header)
    else:
        rc = segment_find_indexed(segment, file, offset, limit, position, &header)
    if rc == 1:
        batch_bytes[0] = <int64_t>header.batch_length + 12
    return rc


cdef struct Place:              # place of an offset among the readable bytes
    LogSegment *segment         # counted; NULL: nothing to read
    OpenFile *file              # counted
    int32_t slot
    int64_t position
    int64_t batch_bytes
    int64_t limit               # readable bytes of its segment
    int32_t fault               # for KAFKA_STORAGE_ERROR: errno, or 0: the bytes are not a record batch
    bint is_cut_short           # the upper bound is in a later segment


cdef int16_t locate(Partition *partition, int64_t offset, int64_t upper, SegmentList *view,
                    Place *place) noexcept nogil:
    """Find the batch that contains offset: 0, -1 when its segment was removed, or Kafka's error code."""
    cdef int64_t end, unused, size
    cdef int32_t slot = segment_list_floor(view, offset), rc = 0, error = 0
    cdef LogSegment *segment
    cdef OpenFile *file
    memset(place, 0, sizeof(Place))
    if slot < 0:
        return -1
    while slot < view.count:
        segment = view.segments[slot]
        if segment.base_offset >= upper:
            return 0
        size = atomic_load(&segment.size_bytes)
        end = atomic_load(&partition.log_end)   # loaded after the size: all bytes seen are below it
        if size > 0:
            file = segment_open(segment, &error)
            if file is NULL:
                place.fault = -error
                return -1 if error == -ENOENT else KAFKA_STORAGE_ERROR
            rc = position_of(partition, view, slot, file, offset, size, &place.position, &place.batch_bytes)
            if rc == 1:
                place.limit = size
                place.is_cut_short = slot + 1 < view.count and view.segments[slot + 1].base_offset < upper
                if upper < end and not place.is_cut_short:
                    rc = position_of(partition, view, slot, file, upper, size, &place.limit, &unused)
                    if rc == 0:
                        place.limit = size
                if rc >= 0:
                    place.segment = segment_retain(segment)
                    place.file = file
                    place.slot = slot
                    return 0
            open_file_release(file)
            if rc < 0:
                place.fault = -rc if rc != -1 else 0
                return KAFKA_STORAGE_ERROR
        slot += 1
    return 0


cdef int32_t collect_aborted(SegmentList *view, const Place *place, int64_t offset, int64_t size_bytes,
                             int64_t log_end, ReadResult *out) noexcept nogil:
    """Collect the aborted transactions up to the end of the read, or further: clients ignore the additional ones.

    A damaged index entry must not hide a transaction, so the batch that the entry names is looked up. 0 or an error.
    """
    cdef int64_t end = place.position + size_bytes, upper, position = 0
    cdef int32_t slot, rc
    cdef BatchHeader header
    upper = offset_index_offset_after(&place.segment.offsets, end)
    if upper >= 0 and (segment_find_indexed(place.segment, out.file, upper, atomic_load(&place.segment.size_bytes),
                                            &position, &header) != 1 or position < end):
        upper = -1
    if upper < 0:
        upper = view.segments[place.slot + 1].base_offset if place.slot + 1 < view.count else log_end
    for slot in range(place.slot, view.count):
        rc = txn_index_collect(&view.segments[slot].aborted, offset, upper, &out.aborted, &out.aborted_count)
        if rc != 0:
            return min(rc, 0)
    return 0


cdef struct Bounds:             # offsets of a partition at one moment
    int64_t last_stable
    int64_t high_watermark
    int64_t log_end
    int64_t log_start
    int64_t readable            # first offset that the isolation level, or damage, makes unreadable


cdef int16_t check_offset(Partition *partition, int64_t offset, int8_t isolation, Bounds *out) noexcept nogil:
    """Copy the partition's offsets to out and check the offset of a read; return 0 or Kafka's error code."""
    cdef int64_t damage = atomic_load(&partition.damage_offset)
    out.last_stable = atomic_load(&partition.last_stable)
    out.high_watermark = atomic_load(&partition.high_watermark)
    out.log_end = atomic_load(&partition.log_end)       # loaded after the watermarks, which are not above it
    out.log_start = atomic_load(&partition.log_start)
    out.readable = out.last_stable if isolation == 1 else out.high_watermark
    if out.readable > damage:
        out.readable = damage
    if atomic_load(&partition.closed):
        return UNKNOWN_TOPIC_OR_PARTITION
    if offset < out.log_start or offset > out.log_end:
        return OFFSET_OUT_OF_RANGE
    return KAFKA_STORAGE_ERROR if offset >= damage else 0


cdef void partition_read(Partition *partition, int64_t offset, int64_t max_bytes, bint min_one, int8_t isolation,
                         ReadResult *out) noexcept nogil:
    cdef SegmentList *view
    cdef Place place
    cdef Bounds bounds
    cdef int64_t size
    cdef int32_t tries = 0, rc
    cdef int16_t error
    memset(out, 0, sizeof(ReadResult))
    while True:
        out.error = check_offset(partition, offset, isolation, &bounds)
        out.last_stable_offset = bounds.last_stable
        out.high_watermark = bounds.high_watermark
        out.log_start_offset = bounds.log_start
        if out.error == KAFKA_STORAGE_ERROR:
            count_failure(partition, FAILED_READ, 0)
        if out.error != 0 or offset >= bounds.readable:
            return
        view = view_acquire(partition)
        error = locate(partition, offset, bounds.readable, view, &place)
        if error == -1:                         # retention, or a compaction, ran since the offset was checked
            segment_list_release(view)
            tries += 1
            if tries < READ_TRIES:
                continue
            count_failure(partition, FAILED_READ, place.fault)
            out.error = KAFKA_STORAGE_ERROR
            return
        break
    if error == KAFKA_STORAGE_ERROR:
        count_failure(partition, FAILED_READ, place.fault)
    out.error = error
    if place.segment is not NULL:
        size = max_bytes
        if min_one and size < place.batch_bytes:
            size = place.batch_bytes
        elif size < place.batch_bytes:
            # The first batch does not fit: like Kafka, send none rather than a part, and no list of transactions (-1).
            out.aborted_count = -(size > 0)
            size = 0
        if size > place.limit - place.position:
            size = place.limit - place.position
        if size > 0:
            out.file = place.file
            place.file = NULL
            out.position = place.position
            out.size_bytes = size
            if isolation == 1:
                rc = collect_aborted(view, &place, offset, size, bounds.log_end, out)
                # The file of an index that is read for the first time may have been removed since the view was taken.
                # In that case the log start has passed it, or the partition is closed.
                error = check_offset(partition, offset, isolation, &bounds)
                if error != 0:
                    out.error = error
                elif rc != 0:
                    count_failure(partition, FAILED_READ, -rc if rc != TXN_INDEX_DAMAGED else 0)
                    out.error = KAFKA_STORAGE_ERROR
        if place.file is not NULL:
            open_file_release(place.file)
        segment_release(place.segment)
    segment_list_release(view)
    if out.error == 0 and atomic_load(&partition.closed):       # its file names may belong to another log now
        out.error = UNKNOWN_TOPIC_OR_PARTITION
    if out.error != 0 and out.file is not NULL:
        open_file_release(out.file)
        out.file = NULL
        out.size_bytes = 0
        free(out.aborted)
        out.aborted = NULL
        out.aborted_count = 0


cdef void partition_probe(Partition *partition, int64_t offset, int64_t max_bytes, int8_t isolation,
                          ReadProbe *out) noexcept nogil:
    """Probe without opening a file if offset and bound are among the recent appends, otherwise as a read does."""
    cdef SegmentList *view
    cdef Place place
    cdef Bounds bounds
    cdef RecentAppend recent
    cdef int64_t size
    cdef LogSegment *active
    memset(out, 0, sizeof(ReadProbe))
    out.error = check_offset(partition, offset, isolation, &bounds)
    if out.error != 0 or offset >= bounds.readable:
        return
    view = view_and_recent(partition, offset, &recent)
    active = view.segments[view.count - 1]
    if recent.segment_base == active.base_offset and offset == recent.base_offset:
        size = atomic_load(&active.size_bytes)
        if bounds.readable >= atomic_load(&partition.log_end):
            out.available_bytes = size - recent.position
            if out.available_bytes > max_bytes:
                out.available_bytes = max_bytes
            segment_list_release(view)
            return
    out.error = locate(partition, offset, bounds.readable, view, &place)
    if out.error == -1:
        out.error = 0
        out.crosses_segment = True              # the segment was removed, which a read reports
    if place.segment is not NULL:
        out.available_bytes = place.limit - place.position
        if out.available_bytes > max_bytes:
            out.available_bytes = max_bytes
        out.crosses_segment = place.is_cut_short
        open_file_release(place.file)
        segment_release(place.segment)
    segment_list_release(view)


# ------------------------------------------------------------------------------------------- offsets by timestamp

cdef int32_t scan_batch(OpenFile *file, int64_t position, const BatchHeader *header, int64_t target_ms,
                        int64_t from_offset,
                        Found *out) noexcept nogil:
    """Search a batch: 1 a record matches, 0 none does, else -errno."""
    cdef int64_t total = <int64_t>header.batch_length + 12
    cdef int64_t size = total - BATCH_HEADER_BYTES, unpacked_bytes = 0, at = 0
    cdef char *data
    cdef char *unpacked = NULL
    cdef const char *records
    cdef RecordView record
    cdef int32_t _slot, rc = 0
    if header.attributes & LOG_APPEND_TIME_BIT:  # log append time: every record has the largest timestamp
        if header.max_timestamp_ms < target_ms or header.base_offset + header.last_offset_delta < from_offset:
            return 0
        out.offset = header.base_offset if header.base_offset > from_offset else from_offset
        out.timestamp_ms = header.max_timestamp_ms
        out.leader_epoch = header.leader_epoch
        return 1
    data = <char *>malloc(total)
    if data is NULL:
        return -ENOMEM
    if io_read(file.fd, data, total, position) != total:
        free(data)
        return -EIO
    records = data + BATCH_HEADER_BYTES
    if header.attributes & CODEC_MASK:
        if batch_decompress(data, header, UNPACK_CAP_BYTES, &unpacked, &unpacked_bytes) != 0:
            free(data)
            return -EIO
        records = unpacked
        size = unpacked_bytes
    for _slot in range(header.record_count):
        if record_next(records, size, &at, header, &record) != 0:
            rc = -EIO
            break
        if record.timestamp_ms >= target_ms and record.offset >= from_offset:
            out.offset = record.offset
            out.timestamp_ms = record.timestamp_ms
            out.leader_epoch = header.leader_epoch
            rc = 1
            break
    free(data)
    free(unpacked)
    return rc


cdef int32_t search_segment(LogSegment *segment, int64_t target_ms, int64_t from_offset, Found *out) noexcept nogil:
    cdef int64_t limit = atomic_load(&segment.size_bytes), stamp, offset, position = 0
    cdef BatchHeader header
    cdef int32_t rc, error = 0
    cdef OpenFile *file
    time_index_lookup(&segment.times, target_ms, &stamp, &offset)
    file = segment_open(segment, &error)
    if file is NULL:
        return error
    rc = segment_find_indexed(segment, file, offset if offset > from_offset else from_offset, limit, &position, &header)
    while rc == 1:
        if header.max_timestamp_ms >= target_ms:
            rc = scan_batch(file, position, &header, target_ms, from_offset, out)
            if rc != 0:
                break
        position += <int64_t>header.batch_length + 12
        rc = segment_find(segment, file, from_offset, position, limit, &position, &header)
    open_file_release(file)
    return rc


cdef int32_t search_view(Partition *partition, int64_t target_ms, int64_t start, Found *out) noexcept nogil:
    cdef SegmentList *view = view_acquire(partition)
    cdef LogSegment *best = NULL
    cdef int64_t largest = -1
    cdef int32_t slot, rc = 0
    for slot in range(max(segment_list_floor(view, start), 0), view.count):
        if target_ms == MAX_TIMESTAMP:
            if atomic_load(&view.segments[slot].size_bytes) > 0 and (
                    best is NULL or atomic_load(&view.segments[slot].max_timestamp_ms) > largest):
                best = view.segments[slot]
                largest = atomic_load(&best.max_timestamp_ms)
        elif rc == 0 and atomic_load(&view.segments[slot].max_timestamp_ms) >= target_ms:
            rc = search_segment(view.segments[slot], target_ms, start, out)
    if best is not NULL:
        # As in Kafka, deleted records count as long as their segment has records that are not deleted.
        rc = search_segment(best, largest, best.base_offset, out)
    segment_list_release(view)
    return rc


cdef int32_t find_timestamp(Partition *partition, int64_t target_ms, int64_t upper_offset, Found *out) noexcept nogil:
    cdef int32_t rc = -ENOENT, tries = 0
    while rc == -ENOENT and tries < READ_TRIES:     # retention, or a compaction, has removed a file meanwhile
        out.offset = -1
        rc = search_view(partition, target_ms, atomic_load(&partition.log_start), out)
        tries += 1
    if out.offset >= upper_offset or rc < 0 or out.offset < 0:
        out.offset = -1
        out.timestamp_ms = -1
        out.leader_epoch = -1
    if rc < 0 and not atomic_load(&partition.closed):
        count_failure(partition, FAILED_READ, -rc if rc != -1 else 0)
    return min(rc, 0)
