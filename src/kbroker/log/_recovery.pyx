"""LogLoader: which bytes of a folder are a log.

After an unclean stop every batch from the recovery point on is read and its checksum compared; the torn tail of the
last segment is cut. Damage anywhere else (a sealed segment, or below what was known to be on disk) is never cut: the
partition serves what lies before it, refuses the rest, and keeps the reason.
"""
import os

from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport strdup, strlen
from kbroker._core.clock cimport clock_wall_ms
from kbroker._core.requests.request cimport OpenFile, open_file_release
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker.log._partition cimport (
    NEW_FILE, NEW_TOPIC_ID, Partition, note_leader_epoch, view_publish, write_leader_epochs,
)
from kbroker.log._posix cimport EIO, PATH_BYTES, io_fd_size, io_sync, io_sync_directory, io_truncate, log_path
from kbroker.log.producers._producer_table cimport producer_state_load_snapshot
from kbroker.log.producers._producer_state cimport producer_state_clear
from kbroker.log.segment._segment cimport (
    Directory, LogSegment, SegmentList, segment_create_file, segment_find_indexed, segment_list_new,
    segment_list_release, segment_list_retain, segment_new, segment_open,
)
from kbroker.log.segment._segment_files cimport remove_if_there, remove_segment, remove_snapshot
from kbroker.log.segment._segment_recovery cimport (
    SCAN_ABORTED, SCAN_EPOCHS, SCAN_PRODUCERS, Scan, load_segment, scan_segment,
)
from kbroker.log.segment._txn_index cimport (
    txn_index_begin_rebuild, txn_index_end_rebuild, txn_index_sync, txn_index_truncate,
)
from kbroker.log._watermarks cimport advance_watermarks
from kbroker.protocol._records cimport BatchHeader

from kbroker.log.segment._segment_files import tidy_folder


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
    """Add to the report of what opening cut or skipped."""
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
    """Note the bytes behind the batches of a sealed segment that reaches up to the next one: no record is missing."""
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
    """Say what is cut off the last segment."""
    cdef char text[512]
    snprintf(text, sizeof(text), b"%lld bytes from byte %lld of segment %020lld.log on were cut, the tail of an "
             b"unclean stop (%s); the log ends at offset %lld", <long long>(io_fd_size(file.fd) - scan.valid_bytes),
             <long long>scan.valid_bytes, <long long>segment.base_offset, scan.reason, <long long>scan.next_offset)
    note_cut(partition, text)


cdef int64_t start_position(LogSegment *segment, OpenFile *file, int64_t offset, int64_t size) noexcept nogil:
    """Where the batch with offset begins: the end of the file when there is none."""
    cdef int64_t position = 0
    cdef BatchHeader header
    cdef int32_t rc = segment_find_indexed(segment, file, offset, size, &position, &header)
    return position if rc == 1 else size


cdef int32_t replay_producers(Partition *partition, SegmentList *list_, int64_t from_offset,
                              int64_t aborted_from) noexcept nogil:
    """Apply the batches from from_offset on; segments based at or past aborted_from, which is not below from_offset,
    get new transaction indexes.
    """
    cdef int32_t slot, rc, error = 0
    cdef LogSegment *segment
    cdef OpenFile *file
    cdef Scan scan
    cdef int64_t size, offset, position
    cdef bint is_rebuilt
    for slot in range(list_.count):
        segment = list_.segments[slot]
        if segment.base_offset >= atomic_load(&partition.damage_offset):
            break
        size = atomic_load(&segment.size_bytes)
        is_rebuilt = segment.base_offset >= aborted_from
        if is_rebuilt:
            rc = txn_index_begin_rebuild(&segment.aborted)
            if rc == 0 and size == 0:
                rc = txn_index_end_rebuild(&segment.aborted)
            if rc != 0:
                return rc
        if size == 0 or (slot + 1 < list_.count and list_.segments[slot + 1].base_offset <= from_offset):
            continue
        file = segment_open(segment, &error)
        if file is NULL:
            return error
        position = 0
        offset = segment.base_offset
        if from_offset > segment.base_offset:
            position = start_position(segment, file, from_offset, size)
        if segment.base_offset >= from_offset:
            scan_segment(partition, segment, file, 0, offset, size,
                         SCAN_PRODUCERS | (SCAN_ABORTED if is_rebuilt else 0), &scan)
        else:
            scan_segment(partition, segment, file, position, offset, size, SCAN_PRODUCERS, &scan)
        open_file_release(file)
        if scan.rc < 0:
            return scan.rc
        if is_rebuilt:
            rc = txn_index_end_rebuild(&segment.aborted)
            if rc != 0:
                return rc
    return 0


cdef int fail(int32_t rc, str directory, int64_t base) except -1:
    raise OSError(-rc, os.strerror(-rc), os.path.join(directory, f"{base:020d}.log"))


def read_epochs(directory: str) -> list[tuple[int, int]]:
    """Entries of leader-epoch-checkpoint; an unreadable file counts as none and is written anew."""
    try:
        with open(os.path.join(directory, "leader-epoch-checkpoint"), encoding="ascii") as file:
            lines = file.read().split("\n")
        if lines[0] != "0":
            return []
        entries = [(int(a), int(b)) for a, b in (line.split(" ") for line in lines[2:] if line)]
        in_range = all(0 <= a <= 2147483647 and 0 <= b <= INT64_MAX for a, b in entries)
        return entries if len(entries) == int(lines[1]) and in_range else []
    except (OSError, ValueError, IndexError):
        return []


cdef int load_producers(Partition *partition, str directory, list snapshots, SegmentList *list_, int64_t newest_allowed,
                        int64_t aborted_from, int64_t log_start) except -1:
    """The newest sound snapshot at or below newest_allowed, then a replay of what follows it."""
    cdef char path[PATH_BYTES]
    cdef int32_t rc
    # where records were deleted the log starts inside a segment, whose transaction index needs all of its batches
    cdef int64_t offset, from_offset = min(log_start, aborted_from), now = clock_wall_ms(partition.clock)
    cdef int64_t expiration = partition.config.producer_expiration_ms
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
        producer_state_clear(partition.producers)
        remove_snapshot(directory, offset)
    with nogil:
        rc = replay_producers(partition, list_, from_offset, aborted_from)
    if rc != 0:
        fail(rc, directory, list_.segments[0].base_offset)
    return 0


cdef int load_partition(Partition *partition, str directory, bint clean, int64_t recovery_point,
                        int64_t log_start) except -1:
    cdef SegmentList *list_ = NULL
    cdef LogSegment *segment
    cdef OpenFile *file
    cdef Scan scan
    cdef int64_t next_base, end, first_scanned = INT64_MAX, now = clock_wall_ms(partition.clock)
    cdef int32_t slot, count, rc, error = 0
    cdef bint is_last, check_all
    cdef char text[128]
    cdef list bases = [], snapshots = []
    if directory is not None:
        bases, snapshots = tidy_folder(directory)
        if not bases or not clean:              # after a kill, names that no flush has synced may be in the cache only
            atomic_store(&partition.new_names, atomic_load(&partition.new_names) | NEW_FILE | NEW_TOPIC_ID)
    atomic_store(&partition.damage_offset, INT64_MAX)
    free(partition.damage_text)
    partition.damage_text = NULL
    mutex_lock(&partition.view_lock)
    partition.recent_count = 0
    mutex_unlock(&partition.view_lock)
    if not bases:
        bases = [log_start]
    count = <int32_t>len(bases)
    list_ = segment_list_new(count)
    if list_ is NULL:
        raise MemoryError
    try:
        for slot in range(count):
            list_.segments[slot] = segment_new(partition.directory, partition.files, bases[slot],
                                               partition.config.segment_index_bytes, slot == count - 1, now)
            if list_.segments[slot] is NULL:
                raise MemoryError
        rc = segment_create_file(list_.segments[count - 1])
        if rc != 0:
            fail(rc, directory, bases[count - 1])
        end = list_.segments[0].base_offset
        for slot in range(count if directory is not None else 0):
            segment = list_.segments[slot]
            is_last = slot == count - 1
            next_base = -1 if is_last else list_.segments[slot + 1].base_offset
            check_all = not clean and (is_last or next_base > recovery_point)
            if check_all and segment.base_offset < first_scanned:
                first_scanned = segment.base_offset
            with nogil:
                load_segment(partition, segment, next_base, is_last, check_all, &scan)
            if scan.rc < 0:
                fail(scan.rc, directory, segment.base_offset)
            if scan.rc == 1 and is_last and scan.next_offset >= recovery_point:
                file = segment_open(segment, &error)
                if file is NULL:
                    fail(error, directory, segment.base_offset)
                with nogil:
                    set_cut(partition, segment, file, &scan)
                    rc = io_truncate(file.fd, scan.valid_bytes)
                    if rc == 0:
                        rc = io_sync(file.fd)
                    open_file_release(file)
                if rc != 0:
                    fail(rc, directory, segment.base_offset)
            elif scan.rc == 1 and not is_last and scan.valid_bytes > 0 and scan.next_offset == next_base:
                rc = pass_over(partition, segment, &scan)
                if rc != 0:
                    fail(rc, directory, segment.base_offset)
            elif scan.rc == 1:
                set_damage(partition, scan.next_offset, segment, scan.valid_bytes, scan.reason)
            elif not is_last and scan.valid_bytes > 0 and (
                    scan.next_offset > next_base or (scan.next_offset < next_base and not partition.config.has_gaps)):
                set_damage(partition, min(scan.next_offset, next_base), segment, scan.valid_bytes,
                           b"the batches up to the next segment are missing")
            elif not is_last and scan.valid_bytes == 0 and not partition.config.has_gaps:
                set_damage(partition, segment.base_offset, segment, 0, b"a sealed segment is empty")
            end = scan.next_offset
        if end < log_start and directory is not None and atomic_load(&partition.damage_offset) == INT64_MAX:
            # What is left ends below the log's start: nothing of it may be served. Start again, empty, at the start.
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
        if directory is None:
            end = list_.segments[0].base_offset
        if log_start < list_.segments[0].base_offset:
            log_start = list_.segments[0].base_offset
        atomic_store(&partition.log_end, end)
        atomic_store(&partition.log_start, log_start)
        if directory is not None:
            load_producers(partition, directory, snapshots, list_,
                           end if clean else (first_scanned if first_scanned < end else end), first_scanned, log_start)
            for slot in range(<int32_t>len(snapshots)):         # kept: those at segment bases, and the newest
                if snapshots[slot] not in bases and snapshots[slot] != partition.snapshot_offset:
                    remove_snapshot(directory, snapshots[slot])
            load_epochs(partition, directory, list_, end)
        atomic_store(&partition.flushed, end if directory is None or clean else min(max(recovery_point, log_start),
                                                                                    end))
        if directory is not None and not clean and partition.config.flush_messages != INT64_MAX and end > log_start:
            # What an unclean stop left may be served only when it is on disk.
            with nogil:
                rc = sync_unflushed(list_, recovery_point, partition.directory.path)
            if rc != 0:
                fail(rc, directory, list_.segments[0].base_offset)
            atomic_store(&partition.flushed, end)
        with nogil:
            view_publish(partition, list_)
        list_ = NULL
        atomic_store(&partition.high_watermark, min(end, atomic_load(&partition.flushed)))
        advance_watermarks(partition)
        return 0
    finally:
        segment_list_release(list_)


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


cdef int load_epochs(Partition *partition, str directory, SegmentList *list_, int64_t end) except -1:
    """The epoch file, or, where it is missing or unreadable, what the batches say."""
    cdef int32_t slot, error = 0
    cdef OpenFile *file
    cdef Scan scan
    partition.epoch_count = 0
    entries = read_epochs(directory)
    for epoch, start in entries:
        if start < end or start == 0:
            if note_leader_epoch(partition, epoch, start) < 0:
                raise MemoryError
    if partition.epoch_count == 0 and end > list_.segments[0].base_offset:
        for slot in range(list_.count):
            file = segment_open(list_.segments[slot], &error)
            if file is NULL:
                fail(error, directory, list_.segments[slot].base_offset)
            with nogil:
                scan_segment(partition, list_.segments[slot], file, 0, list_.segments[slot].base_offset,
                             atomic_load(&list_.segments[slot].size_bytes), SCAN_EPOCHS, &scan)
                open_file_release(file)
        if partition.epoch_count > 0:
            write_leader_epochs(partition)
    return 0


cdef int cut_partition(Partition *partition, str directory, int64_t offset) except -1:
    """The caller took the append lock without the GIL, and no native handler takes the GIL under it, so this cannot
    deadlock; but a native handler may wait here for Python. Only repair and tests cut a log.
    """
    cdef SegmentList *view = partition.view
    cdef LogSegment *segment
    cdef OpenFile *file
    cdef BatchHeader header
    cdef int64_t position
    cdef int32_t slot, rc, error = 0
    for slot in range(view.count - 1, -1, -1):
        segment = view.segments[slot]
        if segment.base_offset >= offset and slot > 0:
            remove_segment(directory, segment.base_offset)
            remove_snapshot(directory, segment.base_offset)
            atomic_store(&segment.is_deleted, 1)
            continue
        file = segment_open(segment, &error)
        if file is NULL:
            fail(error, directory, segment.base_offset)
        rc = segment_find_indexed(segment, file, offset, atomic_load(&segment.size_bytes), &position, &header)
        if rc == 1:
            atomic_store(&segment.size_bytes, position)
            rc = io_truncate(file.fd, position)
        else:
            rc = 0
        open_file_release(file)
        if rc != 0:
            fail(rc, directory, segment.base_offset)
        rc = txn_index_truncate(&segment.aborted, offset)
        if rc != 0:
            fail(rc, directory, segment.base_offset)
        for suffix in (".index", ".timeindex"):     # readers keep their mapping of the old file; loading makes new ones
            remove_if_there(os.path.join(directory, f"{segment.base_offset:020d}{suffix}"))
        break
    return 0


cdef SegmentList *adopt_copy(Partition *partition, str directory, Directory *target) except NULL:
    cdef SegmentList *old = partition.view
    cdef SegmentList *list_ = segment_list_new(old.count)
    cdef LogSegment *source
    cdef LogSegment *segment
    cdef Scan scan
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
                load_segment(partition, segment, next_base, is_last, False, &scan)
            if scan.rc < 0:
                fail(scan.rc, directory, segment.base_offset)
            if scan.rc == 1 or scan.valid_bytes != atomic_load(&source.size_bytes):
                fail(-EIO, directory, segment.base_offset)
            atomic_store(&segment.max_timestamp_ms, atomic_load(&source.max_timestamp_ms))
            atomic_store(&segment.offset_of_max, atomic_load(&source.offset_of_max))
            segment.first_timestamp_ms = source.first_timestamp_ms
        segment_list_retain(old)
        target.former = partition.directory
        partition.directory = target
        atomic_store(&partition.new_names, 0)
        with nogil:
            view_publish(partition, list_)
        list_ = NULL
        atomic_store(&partition.flushed, atomic_load(&partition.log_end))
        advance_watermarks(partition)
        return old
    finally:
        segment_list_release(list_)
