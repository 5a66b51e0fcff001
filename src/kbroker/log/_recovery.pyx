"""Opening of a partition's log from its folder (``LogLoader``).

After an unclean stop every segment that reaches above the recovery point is read and its checksums are compared; the
torn tail of the last segment is cut. Damage anywhere else (in a sealed segment, or below the recovery point) is never
cut: the partition serves the records before it, refuses the others, and keeps the reason.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport strdup, strlen
from kbroker._core.clock cimport clock_wall_ms
from kbroker._core.open_file cimport OpenFile, open_file_release
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker.log._partition cimport (
    NEW_FILE, NEW_TOPIC_ID, Partition, advance_watermarks, note_leader_epoch, view_publish, write_leader_epochs,
    write_txn_checkpoint,
)
from kbroker.log._posix cimport EIO, ENOENT, PATH_BYTES, io_fd_size, io_sync, io_sync_directory, io_truncate, log_path
from kbroker.log.producers._producer_state cimport producer_state_clear
from kbroker.log.producers._producer_table cimport SNAPSHOT_CORRUPT, producer_state_load_snapshot
from kbroker.log.segment._segment cimport (
    Directory, LogSegment, SegmentList, segment_create_file, segment_find_indexed, segment_list_new,
    segment_list_release, segment_list_retain, segment_new, segment_open,
)
from kbroker.log.segment._segment_recovery cimport (
    SCAN_ABORTED, SCAN_CRC, SCAN_EPOCHS, SCAN_PRODUCERS, Scan, load_segment, remove_segment, remove_snapshot,
    scan_segment,
)
from kbroker.log.segment._txn_index cimport (
    TxnSum, txn_index_begin_rebuild, txn_index_end_rebuild, txn_index_expect, txn_index_matches, txn_index_sum,
    txn_index_sync,
)
from kbroker.protocol._records cimport BatchHeader

import os

from kbroker.log.checkpoints import read_leader_epochs, read_txn_checkpoint
from kbroker.log.segment._segment_recovery import tidy_folder


cdef void set_damage(Partition *partition, int64_t offset, LogSegment *segment, int64_t position,
                     const char *reason) noexcept nogil:
    cdef char text[512]
    if atomic_load(&partition.damage_offset) <= offset:
        return
    snprintf(text, sizeof(text), b"segment %020lld.log: %s at byte %lld; offsets from %lld on are refused",
             <long long>segment.base_offset, reason, <long long>position, <long long>offset)
    mutex_lock(&partition.view_lock)
    free(partition.damage_text)
    partition.damage_text = strdup(text)
    mutex_unlock(&partition.view_lock)
    atomic_store(&partition.damage_offset, offset)


cdef void note_cut(Partition *partition, const char *text) noexcept nogil:
    """Add a text to the report of bytes that were cut or skipped, and of indexes that were rebuilt."""
    cdef size_t capacity
    cdef char *joined
    if partition.cut_text is NULL:
        partition.cut_text = strdup(text)
        return
    capacity = strlen(partition.cut_text) + strlen(text) + 3
    joined = <char *>malloc(capacity)
    if joined is not NULL:
        snprintf(joined, capacity, b"%s; %s", partition.cut_text, text)
        free(partition.cut_text)
        partition.cut_text = joined


cdef int32_t pass_over(Partition *partition, LogSegment *segment, const Scan *scan) noexcept nogil:
    """Report the skipped bytes after the batches of a sealed segment that has all its records; return 0 or -errno."""
    cdef char text[512]
    cdef int32_t error = 0
    cdef OpenFile *file = segment_open(segment, &error)
    if file is NULL:
        return error
    snprintf(text, sizeof(text), b"%lld bytes from byte %lld of segment %020lld.log on are skipped (%s); no record "
             b"is missing, the next segment begins at offset %lld", <long long>(io_fd_size(file.fd) - scan.valid_bytes),
             <long long>scan.valid_bytes, <long long>segment.base_offset, scan.reason, <long long>scan.next_offset)
    open_file_release(file)
    note_cut(partition, text)
    return 0


cdef void set_cut(Partition *partition, LogSegment *segment, OpenFile *file, const Scan *scan) noexcept nogil:
    """Report the bytes that are cut off the last segment."""
    cdef char text[512]
    snprintf(text, sizeof(text), b"%lld bytes from byte %lld of segment %020lld.log on were cut, the tail of an "
             b"unclean stop (%s); the log ends at offset %lld", <long long>(io_fd_size(file.fd) - scan.valid_bytes),
             <long long>scan.valid_bytes, <long long>segment.base_offset, scan.reason, <long long>scan.next_offset)
    note_cut(partition, text)


cdef void note_rebuilt(Partition *partition, LogSegment *segment) noexcept nogil:
    cdef char text[512]
    snprintf(text, sizeof(text), b"%020lld.txnindex did not agree with the batches of its segment: rebuilt from them, "
             b"it lists %lld aborted transactions now", <long long>segment.base_offset,
             <long long>segment.aborted.entries.count)
    note_cut(partition, text)


cdef void note_gap(Partition *partition, LogSegment *segment, int64_t first, int64_t last) noexcept nogil:
    cdef char text[512]
    snprintf(text, sizeof(text), b"no batch has the offsets %lld to %lld, up to the end of segment %020lld.log: the "
             b"topic was compacted, or records are lost",
             <long long>first, <long long>last, <long long>segment.base_offset)
    note_cut(partition, text)


cdef int64_t start_position(LogSegment *segment, OpenFile *file, int64_t offset, int64_t size) noexcept nogil:
    """Return the position of the batch with this offset, or size if there is none."""
    cdef int64_t position = 0
    cdef BatchHeader header
    cdef int32_t rc = segment_find_indexed(segment, file, offset, size, &position, &header)
    return position if rc == 1 else size


cdef int32_t replay_segment(Partition *partition, LogSegment *segment, int64_t from_offset,
                            int32_t flags) noexcept nogil:
    cdef int64_t size = atomic_load(&segment.size_bytes), position = 0
    cdef int32_t error = 0
    cdef Scan scan
    cdef OpenFile *file = segment_open(segment, &error)
    if file is NULL:
        return error
    if from_offset > segment.base_offset:
        position = start_position(segment, file, from_offset, size)
    scan_segment(partition, segment, file, position, segment.base_offset, size, flags, &scan)
    open_file_release(file)
    if scan.rc == 1 and flags & SCAN_CRC:
        set_damage(partition, scan.next_offset, segment, scan.valid_bytes, scan.reason)
    return min(scan.rc, 0)


cdef int32_t replay_producers(Partition *partition, SegmentList *list_, int64_t from_offset, int64_t aborted_from,
                              int64_t reported_below) noexcept nogil:
    """Apply the batches from from_offset on, and rebuild transaction indexes; return 0 or -errno.

    Segments that begin at or after aborted_from (at least from_offset) get new indexes. An index that differs is
    reported if its segment begins below reported_below.
    """
    cdef int32_t slot, rc, flags
    cdef LogSegment *segment
    for slot in range(list_.count):
        segment = list_.segments[slot]
        if segment.base_offset >= atomic_load(&partition.damage_offset):
            break
        rc = 0
        flags = SCAN_PRODUCERS
        if segment.base_offset >= aborted_from:
            flags |= SCAN_ABORTED
            if segment.base_offset < reported_below:
                flags |= SCAN_CRC               # loading has not compared the checksums
            rc = txn_index_begin_rebuild(&segment.aborted)
        if rc == 0 and atomic_load(&segment.size_bytes) > 0 and (
                slot + 1 == list_.count or list_.segments[slot + 1].base_offset > from_offset):
            rc = replay_segment(partition, segment, from_offset, flags)
        if rc == 0 and segment.base_offset >= aborted_from:
            rc = txn_index_end_rebuild(&segment.aborted)
            if rc == 1 and segment.base_offset < reported_below:
                note_rebuilt(partition, segment)
        if rc < 0:
            return rc
    return 0


cdef int fail(int32_t rc, str directory, int64_t base) except -1:
    raise OSError(-rc, os.strerror(-rc), os.path.join(directory, f"{base:020d}.log"))


cdef int load_producers(Partition *partition, str directory, list snapshots, SegmentList *list_, int64_t newest_allowed,
                        int64_t aborted_from, int64_t reported_below) except -1:
    """Load the newest sound snapshot at or below newest_allowed, then replay the batches after it.

    Snapshots above the log end are removed.
    """
    cdef char path[PATH_BYTES]
    cdef int32_t rc
    # After DeleteRecords the log starts inside a segment, whose transaction index needs all of its batches.
    cdef int64_t offset, log_start = atomic_load(&partition.log_start), from_offset = min(log_start, aborted_from)
    cdef int64_t expiration = partition.config.producer_expiration_ms, now = clock_wall_ms(partition.clock)
    producer_state_clear(partition.producers)
    partition.snapshot_offset = -1
    for offset in reversed(snapshots):
        if offset > atomic_load(&partition.log_end):
            remove_snapshot(directory, offset)
            continue
        if offset > newest_allowed or offset < log_start:
            continue
        log_path(path, PATH_BYTES, partition.directory.path, offset, b".snapshot")
        with nogil:
            rc = producer_state_load_snapshot(partition.producers, path, now, expiration)
        if rc == 0:
            from_offset = offset
            partition.snapshot_offset = offset
            break
        # After any other error the snapshot may be sound, and the batches of its producers may already be deleted.
        # -ENOENT: an earlier call has removed a damaged snapshot.
        if rc not in (SNAPSHOT_CORRUPT, -EIO, -ENOENT):
            raise OSError(-rc, os.strerror(-rc), os.fsdecode(path))
        producer_state_clear(partition.producers)
        remove_snapshot(directory, offset)
    with nogil:
        rc = replay_producers(partition, list_, from_offset, aborted_from, reported_below)
    if rc != 0:
        fail(rc, directory, list_.segments[0].base_offset)
    return 0


cdef int64_t first_unchecked(Partition *partition, str directory, SegmentList *list_, int64_t end) except -2:
    """Return the base of the first segment below end whose transaction index the checkpoint does not confirm, or -1.

    Thus a start after a clean stop finds a damaged index without reading batches.
    """
    cdef TxnSum expected
    cdef LogSegment *segment
    cdef int32_t slot, rc
    covered, sums, crc = read_txn_checkpoint(directory)
    partition.txn_checkpoint = crc
    for slot in range(list_.count):
        segment = list_.segments[slot]
        if segment.base_offset >= min(end, atomic_load(&partition.damage_offset)):
            break
        if atomic_load(&segment.size_bytes) == 0:
            continue
        rc = 0
        if segment.base_offset < <int64_t>covered:
            expected.count, expected.crc = sums.get(segment.base_offset, (0, 0))
            rc = txn_index_matches(&segment.aborted, &expected)
        if rc < 0:
            fail(rc, directory, segment.base_offset)
        if rc == 0:
            return segment.base_offset
    return -1


cdef int load_transactions(Partition *partition, str directory, list snapshots, SegmentList *list_,
                           int64_t first_scanned) except -1:
    """Load the producers; rebuild the transaction indexes of scanned segments, and from the first that differs on."""
    cdef int64_t end = atomic_load(&partition.log_end), newest_allowed = min(first_scanned, end), unchecked = -1
    if end > list_.segments[0].base_offset:
        unchecked = first_unchecked(partition, directory, list_, first_scanned)
    if unchecked >= 0:
        # The rebuild needs the producers as of that segment, since the newest snapshot includes later batches; they are
        # loaded again afterwards.
        load_producers(partition, directory, snapshots, list_, unchecked, unchecked, first_scanned)
        first_scanned = INT64_MAX
    load_producers(partition, directory, snapshots, list_, newest_allowed, first_scanned, 0)
    return 0


cdef SegmentList *new_segments(Partition *partition, list bases, int64_t now_ms) except NULL:
    cdef int32_t slot, count = <int32_t>len(bases)
    cdef SegmentList *list_ = segment_list_new(count)
    if list_ is NULL:
        raise MemoryError
    for slot in range(count):
        list_.segments[slot] = segment_new(partition.directory, partition.files, bases[slot],
                                           partition.config.segment_index_bytes, slot == count - 1, now_ms)
        if list_.segments[slot] is NULL:
            segment_list_release(list_)
            raise MemoryError
    return list_


cdef int cut_tail(Partition *partition, str directory, LogSegment *segment, const Scan *scan) except -1:
    cdef int32_t rc = 0
    cdef OpenFile *file = segment_open(segment, &rc)
    if file is not NULL:
        with nogil:
            set_cut(partition, segment, file, scan)
            rc = io_truncate(file.fd, scan.valid_bytes)
            if rc == 0:
                rc = io_sync(file.fd)
            open_file_release(file)
    return fail(rc, directory, segment.base_offset) if rc != 0 else 0


cdef int judge_segment(Partition *partition, str directory, LogSegment *segment, int64_t next_base,
                       int64_t recovery_point, const Scan *scan) except -1:
    """Cut or skip the bytes that are not batches, or note the damage; report offsets that no batch has."""
    cdef bint is_last = next_base < 0
    cdef int32_t rc
    if scan.rc == 1 and is_last and scan.next_offset >= recovery_point:
        return cut_tail(partition, directory, segment, scan)
    if scan.rc == 1 and not is_last and scan.valid_bytes > 0 and scan.next_offset == next_base:
        rc = pass_over(partition, segment, scan)
        return fail(rc, directory, segment.base_offset) if rc != 0 else 0
    if scan.rc == 1:
        set_damage(partition, scan.next_offset, segment, scan.valid_bytes, scan.reason)
    elif not is_last and scan.next_offset > next_base:
        set_damage(partition, next_base, segment, scan.valid_bytes, b"the batches reach into the next segment")
    elif scan.next_offset < next_base and not partition.config.has_gaps:
        note_gap(partition, segment, scan.next_offset, next_base - 1)
    return 0


cdef int64_t load_segments(Partition *partition, str directory, SegmentList *list_, bint clean, int64_t recovery_point,
                           int64_t *first_scanned) except -2:
    """Check all segments. Returns the end offset; *first_scanned: base of the first segment that was read completely.

    Returns -1 after removing an empty segment file, left by a failed roll, whose base is inside the segment before.
    """
    cdef LogSegment *segment
    cdef int64_t next_base, end = list_.segments[0].base_offset
    cdef int32_t slot
    cdef bint check_all, is_inside
    cdef Scan scan
    for slot in range(list_.count):
        segment = list_.segments[slot]
        next_base = list_.segments[slot + 1].base_offset if slot + 1 < list_.count else -1
        check_all = not clean and (next_base < 0 or next_base > recovery_point)
        if check_all and segment.base_offset < first_scanned[0]:
            first_scanned[0] = segment.base_offset
        with nogil:
            load_segment(partition, segment, next_base, check_all, &scan)
        if scan.rc < 0:
            fail(scan.rc, directory, segment.base_offset)
        # The file of the last segment stays after damage: otherwise the damaged segment would be the last and be cut.
        if scan.rc == 0:
            is_inside = scan.next_offset > next_base
        else:
            is_inside = scan.next_offset < next_base and slot + 2 < list_.count
        if next_base >= 0 and is_inside and os.path.getsize(os.path.join(directory, f"{next_base:020d}.log")) == 0:
            remove_segment(directory, next_base)
            return -1
        judge_segment(partition, directory, segment, next_base, recovery_point, &scan)
        end = scan.next_offset
    return end


cdef int clear_damage(Partition *partition) except -1:
    atomic_store(&partition.damage_offset, INT64_MAX)
    mutex_lock(&partition.view_lock)
    free(partition.damage_text)
    partition.damage_text = NULL
    partition.recent_count = 0
    mutex_unlock(&partition.view_lock)
    return 0


cdef int load_partition(Partition *partition, str directory, bint clean, int64_t recovery_point,
                        int64_t log_start) except -1:
    cdef SegmentList *list_ = NULL
    cdef int64_t end, first_scanned = INT64_MAX
    cdef int32_t rc
    cdef char text[128]
    cdef list bases = [], snapshots = []
    cdef bint has_epochs = False
    if directory is not None:
        bases, snapshots, has_epochs = tidy_folder(directory)
        if not bases or not clean:  # after a kill, names that no flush has synced may exist only in the cache
            atomic_store(&partition.new_names, atomic_load(&partition.new_names) | NEW_FILE | NEW_TOPIC_ID)
    clear_damage(partition)
    list_ = new_segments(partition, bases or [log_start], clock_wall_ms(partition.clock))
    try:
        with nogil:
            rc = segment_create_file(list_.segments[list_.count - 1])
        if rc != 0:
            fail(rc, directory, list_.segments[list_.count - 1].base_offset)
        end = list_.segments[0].base_offset
        if directory is not None:
            end = load_segments(partition, directory, list_, clean, recovery_point, &first_scanned)
            if end < 0:
                segment_list_release(list_)
                list_ = NULL
                return load_partition(partition, directory, clean, recovery_point, log_start)
        if end < log_start and directory is not None and atomic_load(&partition.damage_offset) == INT64_MAX:
            # All remaining records are below the log's start and must not be served. Start again, empty, at the log
            # start.
            segment_list_release(list_)
            list_ = NULL
            for base in bases:
                remove_segment(directory, base)
            for offset in snapshots:
                remove_snapshot(directory, offset)
            snprintf(text, sizeof(text), b"all of the log was removed: it ended at offset %lld, below its start %lld",
                     <long long>end, <long long>log_start)
            note_cut(partition, text)
            return load_partition(partition, directory, clean, recovery_point, log_start)
        log_start = max(log_start, list_.segments[0].base_offset)
        atomic_store(&partition.log_end, end)
        atomic_store(&partition.log_start, log_start)
        atomic_store(&partition.flushed, end if directory is None or clean else min(max(recovery_point, log_start),
                                                                                    end))
        if directory is not None:
            load_state(partition, directory, list_, bases, snapshots, has_epochs, clean, recovery_point, first_scanned)
        with nogil:
            view_publish(partition, list_)
        list_ = NULL
        if directory is not None and end > log_start:
            write_txn_checkpoint(partition, clean)
        atomic_store(&partition.high_watermark, min(end, atomic_load(&partition.flushed)))
        advance_watermarks(partition)
        return 0
    finally:
        segment_list_release(list_)


cdef int load_state(Partition *partition, str directory, SegmentList *list_, list bases, list snapshots,
                    bint has_epochs, bint clean, int64_t recovery_point, int64_t first_scanned) except -1:
    """Load producers, indexes and epochs; sync the segments if flush.messages limits the readable records.

    Snapshots are removed, except the loaded one and those at the bases of segments.
    """
    cdef int64_t offset, end = atomic_load(&partition.log_end)
    cdef int32_t rc
    load_transactions(partition, directory, snapshots, list_, first_scanned)
    for offset in snapshots:                    # keep snapshots at segment bases, and the newest
        if offset not in bases and offset != partition.snapshot_offset:
            remove_snapshot(directory, offset)
    load_epochs(partition, directory, list_, end, has_epochs, first_scanned)
    if not clean and partition.config.flush_messages != INT64_MAX and end > atomic_load(&partition.log_start):
        with nogil:
            rc = sync_unflushed(list_, recovery_point, partition.directory.path)
        if rc != 0:
            fail(rc, directory, list_.segments[0].base_offset)
        atomic_store(&partition.flushed, end)
    return 0


cdef int32_t sync_unflushed(SegmentList *list_, int64_t recovery_point, const char *path) noexcept nogil:
    cdef int32_t slot, rc = 0
    cdef OpenFile *file
    for slot in range(list_.count):
        if slot + 1 < list_.count and list_.segments[slot + 1].base_offset <= recovery_point:
            continue
        file = segment_open(list_.segments[slot], &rc)
        if file is NULL:
            return rc
        rc = io_sync(file.fd)
        open_file_release(file)
        if rc == 0:
            rc = txn_index_sync(&list_.segments[slot].aborted)
        if rc != 0:
            return rc
    return io_sync_directory(path)


cdef int load_epochs(Partition *partition, str directory, SegmentList *list_, int64_t end, bint has_file,
                     int64_t first_scanned) except -1:
    """Load the epoch file, and the epochs of the batches that may be newer than the file after a power cut.

    If the file is missing or unreadable, load the epochs of all batches.
    """
    cdef int32_t slot, known, error = 0
    cdef OpenFile *file
    cdef Scan scan
    partition.epoch_count = 0
    entries = read_leader_epochs(directory) if has_file else []
    for epoch, start in entries:
        if start < end or start == 0:
            if note_leader_epoch(partition, epoch, start) < 0:
                raise MemoryError
    known = partition.epoch_count
    if end > list_.segments[0].base_offset:
        for slot in range(list_.count):
            if known > 0 and list_.segments[slot].base_offset < first_scanned:
                continue
            file = segment_open(list_.segments[slot], &error)
            if file is NULL:
                fail(error, directory, list_.segments[slot].base_offset)
            with nogil:
                scan_segment(partition, list_.segments[slot], file, 0, list_.segments[slot].base_offset,
                             atomic_load(&list_.segments[slot].size_bytes), SCAN_EPOCHS, &scan)
                open_file_release(file)
        if partition.epoch_count > known:
            write_leader_epochs(partition)
    return 0


cdef SegmentList *adopt_copy(Partition *partition, str directory, Directory *target) except NULL:
    cdef SegmentList *old = partition.view
    cdef SegmentList *list_ = segment_list_new(old.count)
    cdef LogSegment *source
    cdef LogSegment *segment
    cdef Scan scan
    cdef TxnSum aborted
    cdef int64_t next_base
    cdef int32_t slot
    cdef bint is_last
    if list_ is NULL:
        raise MemoryError
    try:
        for slot in range(old.count):
            source = old.segments[slot]
            is_last = slot == old.count - 1
            next_base = -1 if is_last else old.segments[slot + 1].base_offset
            segment = segment_new(target, partition.files, source.base_offset, partition.config.segment_index_bytes,
                                  is_last, source.created_ms)
            list_.segments[slot] = segment
            if segment is NULL:
                raise MemoryError
            with nogil:
                load_segment(partition, segment, next_base, False, &scan)
            if scan.rc < 0:
                fail(scan.rc, directory, segment.base_offset)
            if scan.rc == 1 or scan.valid_bytes != atomic_load(&source.size_bytes):
                fail(-EIO, directory, segment.base_offset)
            atomic_store(&segment.max_timestamp_ms, atomic_load(&source.max_timestamp_ms))
            atomic_store(&segment.offset_of_max, atomic_load(&source.offset_of_max))
            segment.first_timestamp_ms = source.first_timestamp_ms
            if txn_index_sum(&source.aborted, &aborted) == 0:
                txn_index_expect(&segment.aborted, &aborted)
        segment_list_retain(old)
        target.former = partition.directory
        partition.directory = target
        atomic_store(&partition.new_names, 0)
        with nogil:
            view_publish(partition, list_)
        list_ = NULL
        partition.txn_checkpoint = -1           # the new folder has no checkpoint
        write_txn_checkpoint(partition, False)
        atomic_store(&partition.flushed, atomic_load(&partition.log_end))
        advance_watermarks(partition)
        return old
    finally:
        segment_list_release(list_)
