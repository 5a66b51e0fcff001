# cython: freethreading_compatible=True
"""UnifiedLog.fetchOffsetByTimestamp: which record is the first at or after a time."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from kbroker._core.requests.request cimport OpenFile, open_file_release
from kbroker._core.sync cimport atomic_load
from kbroker.log.segment._index cimport time_index_lookup
from kbroker.log._maintenance cimport view_acquire
from kbroker.log._partition cimport Partition
from kbroker.log._posix cimport EIO, ENOMEM, io_read
from kbroker.log.segment._segment cimport (
    LogSegment, SegmentList, segment_find, segment_find_indexed, segment_list_release, segment_open,
)
from kbroker.protocol._compression cimport batch_decompress
from kbroker.protocol._records cimport BATCH_HEADER_BYTES, BatchHeader, RecordView, record_next

cdef enum:
    UNPACK_CAP_BYTES = 268435456


cdef int32_t scan_batch(OpenFile *file, int64_t position, const BatchHeader *header, int64_t target_ms,
                        int64_t from_offset,
                        Found *out) noexcept nogil:
    """1: a record of the batch answers; 0: none does; else -errno."""
    cdef int64_t total = <int64_t>header.batch_length + 12
    cdef int64_t size = total - BATCH_HEADER_BYTES, unpacked_bytes = 0, at = 0
    cdef char *data
    cdef char *unpacked = NULL
    cdef const char *records
    cdef RecordView record
    cdef int32_t _slot, rc = 0
    if header.attributes & 8:                   # log append time: every record reads as the largest
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
    if header.attributes & 7:
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


cdef int32_t search_segment(Partition *partition, LogSegment *segment, int64_t target_ms, int64_t from_offset,
                            Found *out) noexcept nogil:
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


cdef int32_t find_timestamp(Partition *partition, int64_t target_ms, int64_t upper_offset, Found *out) noexcept nogil:
    cdef SegmentList *view = view_acquire(partition)
    cdef LogSegment *best = NULL
    cdef int64_t start = atomic_load(&partition.log_start), largest = -1
    cdef int32_t slot, rc = 0
    out.offset = -1
    out.timestamp_ms = -1
    out.leader_epoch = -1
    if target_ms == MAX_TIMESTAMP:
        for slot in range(view.count):
            if atomic_load(&view.segments[slot].max_timestamp_ms) > largest:
                best = view.segments[slot]
                largest = atomic_load(&best.max_timestamp_ms)
        if best is not NULL:
            rc = search_segment(partition, best, largest, start, out)
    else:
        for slot in range(view.count):
            if atomic_load(&view.segments[slot].max_timestamp_ms) >= target_ms:
                rc = search_segment(partition, view.segments[slot], target_ms, start, out)
                if rc != 0:
                    break
    segment_list_release(view)
    if out.offset >= upper_offset or rc < 0:
        out.offset = -1
        out.timestamp_ms = -1
        out.leader_epoch = -1
    return rc if rc < 0 else 0
