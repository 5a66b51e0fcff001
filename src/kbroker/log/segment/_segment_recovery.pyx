"""LogSegment.recover: which bytes of one segment are batches; indexes that are unsound are rebuilt from them."""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove
from kbroker._core.requests.request cimport OpenFile, open_file_release
from kbroker._core.sync cimport atomic_load, atomic_store
from kbroker.log.segment._index cimport index_load, index_reset, offset_index_lookup, time_index_last
from kbroker.log._partition cimport Partition, note_leader_epoch
from kbroker.log._posix cimport ENOMEM, PATH_BYTES, io_fd_size, io_path_size, io_read
from kbroker.log.producers._producer_state cimport AbortedTxn, BatchFacts, producer_state_apply
from kbroker.log.segment._segment cimport LogSegment, segment_note_append, segment_open, segment_path, segment_seal
from kbroker.log.segment._txn_index cimport txn_index_append
from kbroker.log._validate cimport batch_facts
from kbroker.protocol._batch_format cimport BATCH_HEADER_BYTES, CONTROL_BIT
from kbroker.protocol._records cimport BatchHeader, batch_crc_ok, batch_parse

cdef enum:
    BUFFER_BYTES = 1048576
    MAX_INT32 = 2147483647


cdef const char *judge(LogSegment *segment, const BatchHeader *header, int64_t left, int64_t next_offset,
                       bint gapless) noexcept nogil:
    # No checksum covers the base offset; but where nothing compacts, each batch begins where the one before ended.
    cdef int64_t total = <int64_t>header.batch_length + 12
    if total < BATCH_HEADER_BYTES:
        return b"a batch is shorter than its header"
    if header.magic != 2:
        return b"not a record batch of version 2"
    if header.last_offset_delta < 0 or header.record_count < 0:
        return b"a batch header is impossible"
    if header.base_offset < next_offset or (gapless and header.base_offset != next_offset):
        return b"a batch's offset does not follow the one before"
    if header.base_offset + header.last_offset_delta - segment.base_offset > MAX_INT32:
        return b"a batch's offset does not follow the one before"
    if total > left:
        return b"the last batch is cut off"
    return NULL


cdef void scan_segment(Partition *partition, LogSegment *segment, OpenFile *file, int64_t from_position,
                       int64_t from_offset, int64_t file_bytes, int32_t what, Scan *out) noexcept nogil:
    cdef int64_t at = from_position, start = from_position, filled = 0, capacity = BUFFER_BYTES, total, want, got
    cdef char *buffer = <char *>malloc(capacity)
    cdef char *grown
    cdef char *batch = NULL
    cdef BatchHeader header
    cdef BatchFacts facts
    cdef AbortedTxn aborted
    out.rc = 0
    out.valid_bytes = from_position
    out.next_offset = from_offset
    out.reason = NULL
    if buffer is NULL:
        out.rc = -ENOMEM
        return
    while at < file_bytes:
        total = BATCH_HEADER_BYTES
        while True:                             # the header, then the whole batch when its bytes matter
            if at + total <= start + filled:
                batch = buffer + (at - start)
                if total > BATCH_HEADER_BYTES:
                    break
                batch_parse(batch, BATCH_HEADER_BYTES, &header)
                out.reason = judge(segment, &header, file_bytes - at, out.next_offset,
                                   not partition.config.has_gaps and (at != from_position or at == 0))
                if out.reason is not NULL:
                    out.rc = 1
                    break
                total = <int64_t>header.batch_length + 12
                if total == BATCH_HEADER_BYTES or not (what & SCAN_CRC or header.attributes & CONTROL_BIT):
                    break
                continue
            if at + total > file_bytes:
                out.rc = 1
                out.reason = b"the last batch is cut off"
                break
            if total > capacity:
                grown = <char *>realloc(buffer, total)
                if grown is NULL:
                    out.rc = -ENOMEM
                    break
                buffer = grown
                capacity = total
            if at >= start + filled:
                filled = 0
            else:
                memmove(buffer, buffer + (at - start), start + filled - at)
                filled = start + filled - at
            start = at
            want = capacity - filled
            if want > file_bytes - (start + filled):
                want = file_bytes - (start + filled)
            got = io_read(file.fd, buffer + filled, want, start + filled)
            if got <= 0:
                out.rc = <int32_t>got if got < 0 else 1
                out.reason = b"the file ended early"
                break
            filled += got
        if out.rc != 0:
            break
        if what & SCAN_CRC and not batch_crc_ok(batch, &header):
            out.rc = 1
            out.reason = b"a checksum does not match"
            break
        total = <int64_t>header.batch_length + 12
        if what & SCAN_EPOCHS:
            note_leader_epoch(partition, header.leader_epoch, header.base_offset)
        if what & SCAN_INDEX:
            segment_note_append(segment, at, total, header.base_offset + header.last_offset_delta,
                                header.max_timestamp_ms,
                                header.base_offset + header.last_offset_delta, partition.config.index_interval_bytes)
        elif what & SCAN_STAMPS and header.max_timestamp_ms > atomic_load(&segment.max_timestamp_ms):
            atomic_store(&segment.max_timestamp_ms, header.max_timestamp_ms)
            atomic_store(&segment.offset_of_max, header.base_offset + header.last_offset_delta)
        if what & SCAN_PRODUCERS and header.producer_id >= 0 and not (
                header.attributes & CONTROL_BIT and header.record_count == 0):       # compaction emptied it
            batch_facts(batch, &header, False, &facts)
            if producer_state_apply(partition.producers, &facts, &aborted) and what & SCAN_ABORTED:
                out.rc = txn_index_append(&segment.aborted, &aborted)
                if out.rc != 0:                 # without the entry readers would take aborted records for committed
                    break
        at += total
        out.valid_bytes = at
        out.next_offset = header.base_offset + header.last_offset_delta + 1
    free(buffer)


cdef void load_segment(Partition *partition, LogSegment *segment, int64_t next_base, bint is_last, bint check_all,
                       Scan *out) noexcept nogil:
    """Judge one segment; its size and time stamps are published, its indexes sound, when this returns with rc >= 0."""
    cdef int32_t rc, error = 0
    cdef OpenFile *file
    cdef int64_t file_bytes, offset, position, timestamp
    cdef BatchHeader header
    cdef char path[PATH_BYTES]
    cdef char head[BATCH_HEADER_BYTES]
    out.reason = NULL
    out.valid_bytes = 0
    out.next_offset = segment.base_offset
    if is_last:
        segment_path(segment, b".log", path)
        if io_path_size(path) == 0:             # thousands of empty partitions open no file
            out.rc = index_reset(&segment.offsets)
            if out.rc == 0:
                out.rc = index_reset(&segment.times)
            return
    file = segment_open(segment, &error)
    if file is NULL:
        out.rc = error
        return
    file_bytes = io_fd_size(file.fd)
    if file_bytes < 0:
        out.rc = <int32_t>file_bytes
        open_file_release(file)
        return
    if not check_all:
        rc = index_load(&segment.offsets, next_base, file_bytes)
        if rc == 0:
            rc = index_load(&segment.times, next_base, file_bytes)
        if rc != 0 and file_bytes > 0:
            check_all = True                    # missing, corrupt or unreadable: rebuilt from the batches
    if not check_all:
        if time_index_last(&segment.times, &timestamp, &offset):
            atomic_store(&segment.max_timestamp_ms, timestamp)
            atomic_store(&segment.offset_of_max, offset)
        offset_index_lookup(&segment.offsets, INT64_MAX, &offset, &position)
        scan_segment(partition, segment, file, position, segment.base_offset, file_bytes, SCAN_STAMPS, out)
        segment.bytes_since_index = out.valid_bytes - position
        if out.rc == 1 and position > 0:
            check_all = True                    # the entry may be what is wrong
    if check_all:
        rc = index_reset(&segment.offsets)
        if rc == 0:
            rc = index_reset(&segment.times)
        if rc != 0:
            out.rc = rc
            open_file_release(file)
            return
        atomic_store(&segment.max_timestamp_ms, -1)
        segment.bytes_since_index = 0
        segment.offsets.writable = True         # until it is sealed again
        segment.times.writable = True
        scan_segment(partition, segment, file, 0, segment.base_offset, file_bytes, SCAN_CRC | SCAN_INDEX, out)
        if out.rc >= 0 and not is_last:
            segment_seal(segment)
    if out.rc >= 0 and is_last and out.valid_bytes >= BATCH_HEADER_BYTES:
        if io_read(file.fd, head, BATCH_HEADER_BYTES, 0) == BATCH_HEADER_BYTES and batch_parse(head, BATCH_HEADER_BYTES,
                                                                                               &header):
            segment.first_timestamp_ms = header.max_timestamp_ms
    atomic_store(&segment.size_bytes, out.valid_bytes)
    open_file_release(file)
