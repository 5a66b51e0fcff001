# cython: freethreading_compatible=True
"""Read of one partition: UnifiedLog.read on a counted view of its segments, and what a delayed fetch asks for."""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t
from libc.string cimport memset
from kbroker._core.requests.request cimport OpenFile, open_file_release
from kbroker._core.sync cimport atomic_load, mutex_lock, mutex_unlock
from kbroker.common._errors cimport KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION
from kbroker.log._failures cimport FAILED_READ, count_failure
from kbroker.log.segment._index cimport offset_index_offset_after
from kbroker.log._maintenance cimport view_acquire
from kbroker.log._partition cimport RECENT_APPENDS, Partition, ReadProbe, ReadResult, RecentAppend
from kbroker.log._posix cimport ENOENT
from kbroker.log.segment._segment cimport (
    LogSegment, SegmentList, segment_find, segment_find_indexed, segment_list_floor, segment_list_release,
    segment_list_retain, segment_open, segment_release, segment_retain,
)
from kbroker.log.segment._txn_index cimport txn_index_collect
from kbroker.protocol._records cimport BatchHeader

cdef enum:
    READ_TRIES = 4


cdef SegmentList *view_and_recent(Partition *partition, int64_t offset, RecentAppend *recent) noexcept nogil:
    """The view, and where the recent append that holds offset lies (segment_base -1: not among them)."""
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
    """Where the batch containing offset begins in a segment: 1, 0 when all below limit is before offset, else an
    error.
    """
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


cdef struct Place:              # of an offset among the readable bytes
    LogSegment *segment         # counted; NULL: nothing to read
    OpenFile *file              # counted
    int32_t slot
    int64_t position
    int64_t batch_bytes
    int64_t limit               # readable bytes of its segment
    int32_t fault               # of KAFKA_STORAGE_ERROR: errno, 0: what lies there is no batch
    bint is_cut_short           # the upper bound lies in a later segment


cdef int16_t locate(Partition *partition, int64_t offset, int64_t upper, SegmentList *view,
                    Place *place) noexcept nogil:
    cdef int64_t end, unused, size
    cdef int32_t slot = segment_list_floor(view, offset), rc = 0, error = 0
    cdef LogSegment *segment
    cdef OpenFile *file
    memset(place, 0, sizeof(Place))
    if slot < 0:
        slot = 0
    while slot < view.count:
        segment = view.segments[slot]
        if segment.base_offset >= upper:
            return 0
        size = atomic_load(&segment.size_bytes)
        end = atomic_load(&partition.log_end)   # after the size: what was seen lies below it
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


cdef void collect_aborted(Partition *partition, SegmentList *view, const Place *place, int64_t offset,
                          int64_t size_bytes, int64_t log_end, ReadResult *out) noexcept nogil:
    cdef int64_t upper = offset_index_offset_after(&place.segment.offsets, place.position + size_bytes)
    cdef int32_t slot, rc
    if upper < 0:
        upper = view.segments[place.slot + 1].base_offset if place.slot + 1 < view.count else log_end
    for slot in range(place.slot, view.count):
        rc = txn_index_collect(&view.segments[slot].aborted, offset, upper, &out.aborted, &out.aborted_count)
        if rc != 0:
            if rc < 0:
                count_failure(partition, FAILED_READ, -rc if rc != -1 else 0)
                out.error = KAFKA_STORAGE_ERROR
            return


cdef void partition_read(Partition *partition, int64_t offset, int64_t max_bytes, bint min_one, int8_t isolation,
                         ReadResult *out) noexcept nogil:
    cdef SegmentList *view
    cdef Place place
    cdef int64_t upper, end, size
    cdef int32_t tries = 0
    cdef int16_t error
    memset(out, 0, sizeof(ReadResult))
    while True:
        out.last_stable_offset = atomic_load(&partition.last_stable)
        out.high_watermark = atomic_load(&partition.high_watermark)
        end = atomic_load(&partition.log_end)
        out.log_start_offset = atomic_load(&partition.log_start)
        upper = out.last_stable_offset if isolation == 1 else out.high_watermark
        if offset < out.log_start_offset or offset > end:
            out.error = OFFSET_OUT_OF_RANGE
            return
        if offset >= atomic_load(&partition.damage_offset):
            count_failure(partition, FAILED_READ, 0)
            out.error = KAFKA_STORAGE_ERROR
            return
        if offset >= upper:
            return
        if upper > atomic_load(&partition.damage_offset):
            upper = atomic_load(&partition.damage_offset)
        view = view_acquire(partition)
        error = locate(partition, offset, upper, view, &place)
        if error == -1:                         # its file went away: retention or deletion was faster than this view
            segment_list_release(view)
            tries += 1
            if tries < READ_TRIES:
                continue
            count_failure(partition, FAILED_READ, place.fault)
            error = KAFKA_STORAGE_ERROR
            out.error = error
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
            size = 0                            # not even the first batch fits: Kafka sends none, rather than a cut one
        if size > place.limit - place.position:
            size = place.limit - place.position
        if size > 0:
            out.file = place.file
            place.file = NULL
            out.position = place.position
            out.size_bytes = size
            if isolation == 1:
                collect_aborted(partition, view, &place, offset, size, end, out)
        if place.file is not NULL:
            open_file_release(place.file)
        segment_release(place.segment)
    segment_list_release(view)
    if out.error != 0 and out.file is not NULL:
        open_file_release(out.file)
        out.file = NULL
        out.size_bytes = 0


cdef void partition_probe(Partition *partition, int64_t offset, int64_t max_bytes, int8_t isolation,
                          ReadProbe *out) noexcept nogil:
    """No file is opened while the offset and the bound are among the recent appends; else as a read would."""
    cdef SegmentList *view
    cdef Place place
    cdef RecentAppend recent
    cdef int64_t upper, end, size
    cdef LogSegment *active
    memset(out, 0, sizeof(ReadProbe))
    upper = atomic_load(&partition.last_stable) if isolation == 1 else atomic_load(&partition.high_watermark)
    end = atomic_load(&partition.log_end)
    if atomic_load(&partition.closed):
        out.error = UNKNOWN_TOPIC_OR_PARTITION
        return
    if offset < atomic_load(&partition.log_start) or offset > end:
        out.error = OFFSET_OUT_OF_RANGE
        return
    if offset >= atomic_load(&partition.damage_offset):
        out.error = KAFKA_STORAGE_ERROR
        return
    if offset >= upper:
        return
    view = view_and_recent(partition, offset, &recent)
    active = view.segments[view.count - 1]
    if recent.segment_base == active.base_offset and offset == recent.base_offset:
        size = atomic_load(&active.size_bytes)
        end = atomic_load(&partition.log_end)
        if upper >= end:
            out.available_bytes = size - recent.position
            if out.available_bytes > max_bytes:
                out.available_bytes = max_bytes
            segment_list_release(view)
            return
    if upper > atomic_load(&partition.damage_offset):
        upper = atomic_load(&partition.damage_offset)
    out.error = locate(partition, offset, upper, view, &place)
    if out.error == -1:
        out.error = 0
        out.crosses_segment = True              # its file went away: let a read find out
    if place.segment is not NULL:
        out.available_bytes = place.limit - place.position
        if out.available_bytes > max_bytes:
            out.available_bytes = max_bytes
        out.crosses_segment = place.is_cut_short
        open_file_release(place.file)
        segment_release(place.segment)
    segment_list_release(view)
