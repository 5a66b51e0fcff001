# cython: freethreading_compatible=True
"""LogLoader and LogSegment.recover: which bytes of a folder are a log.

After an unclean stop every batch from the recovery point on is read and its checksum compared; the torn tail of the
last
segment is cut. Damage anywhere else (a sealed segment, or below what was known to be on disk) is never cut: the
partition
serves what lies before it, refuses the rest, and keeps the reason.
"""
import os
import re

from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove, strdup
from kbroker._core.clock cimport clock_wall_ms
from kbroker._core.request cimport OpenFile, open_file_release
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker.log._index cimport index_load, index_reset, offset_index_lookup, time_index_last
from kbroker.log._maintenance cimport (
    NEW_FILE, advance_watermarks, note_leader_epoch, view_publish, write_leader_epochs,
)
from kbroker.log._partition cimport Partition
from kbroker.log._posix cimport (
    ENOMEM, PATH_ROOM, io_fd_size, io_path_size, io_read, io_sync, io_sync_directory, io_truncate, log_path,
)
from kbroker.log._producer_snapshot cimport producer_state_load_snapshot
from kbroker.log._producer_state cimport (
    AbortedTxn, BatchFacts, producer_state_apply, producer_state_clear,
)
from kbroker.log._segment cimport (
    LogSegment, SegmentList, segment_create_file, segment_find_indexed, segment_list_new, segment_list_release,
    segment_new, segment_note_append, segment_open, segment_path, segment_seal,
)
from kbroker.log._txn_index cimport txn_index_append, txn_index_truncate
from kbroker.log._validate cimport batch_facts
from kbroker.protocol._records cimport BATCH_HEADER_BYTES, BatchHeader, batch_crc_ok, batch_parse

cdef enum:
    SCAN_CRC = 1                # compare checksums
    SCAN_INDEX = 2              # note every batch in indexes and largest time stamp
    SCAN_STAMPS = 4             # largest time stamp only
    SCAN_PRODUCERS = 8          # replay into the producer state
    SCAN_ABORTED = 16           # and into the transaction index
    SCAN_EPOCHS = 32
    BUFFER_BYTES = 1048576
    MAX_INT32 = 2147483647

cdef struct Scan:
    int32_t rc                  # 0 all bytes are batches; 1 no batch at valid_bytes; -errno
    int64_t valid_bytes
    int64_t next_offset
    const char *reason          # of rc 1


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
                       int64_t from_offset,
                       int64_t file_bytes, int32_t what, Scan *out) noexcept nogil:
    cdef int64_t at = from_position, start = from_position, filled = 0, room = BUFFER_BYTES, total, want, got
    cdef char *buffer = <char *>malloc(room)
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
                if total == BATCH_HEADER_BYTES or not (what & SCAN_CRC or header.attributes & 32):
                    break
                continue
            if at + total > file_bytes:
                out.rc = 1
                out.reason = b"the last batch is cut off"
                break
            if total > room:
                grown = <char *>realloc(buffer, total)
                if grown is NULL:
                    out.rc = -ENOMEM
                    break
                buffer = grown
                room = total
            if at >= start + filled:
                filled = 0
            else:
                memmove(buffer, buffer + (at - start), start + filled - at)
                filled = start + filled - at
            start = at
            want = room - filled
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
                header.attributes & 32 and header.record_count == 0):       # compaction emptied it
            batch_facts(batch, &header, False, &facts)
            if producer_state_apply(partition.producers, &facts, &aborted) and what & SCAN_ABORTED:
                txn_index_append(&segment.aborted, &aborted)
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
    cdef char path[PATH_ROOM]
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


cdef void set_cut(Partition *partition, LogSegment *segment, OpenFile *file, const Scan *scan) noexcept nogil:
    """Say what is cut off the last segment."""
    cdef char text[512]
    snprintf(text, sizeof(text), b"%lld bytes from byte %lld of segment %020lld.log on were cut, the tail of an "
             b"unclean stop (%s); the log ends at offset %lld", <long long>(io_fd_size(file.fd) - scan.valid_bytes),
             <long long>scan.valid_bytes, <long long>segment.base_offset, scan.reason, <long long>scan.next_offset)
    free(partition.cut_text)
    partition.cut_text = strdup(text)


cdef int64_t start_position(LogSegment *segment, OpenFile *file, int64_t offset, int64_t size) noexcept nogil:
    """Where the batch with offset begins: the end of the file when there is none."""
    cdef int64_t position = 0
    cdef BatchHeader header
    cdef int32_t rc = segment_find_indexed(segment, file, offset, size, &position, &header)
    return position if rc == 1 else size


cdef int32_t replay_producers(Partition *partition, SegmentList *list_, int64_t from_offset,
                              int64_t aborted_from) noexcept nogil:
    """Apply the batches from from_offset on; transaction indexes of segments based at or past aborted_from are made
    anew.
    """
    cdef int32_t slot, error = 0
    cdef LogSegment *segment
    cdef OpenFile *file
    cdef Scan scan
    cdef int64_t size, offset, position
    for slot in range(list_.count):
        segment = list_.segments[slot]
        size = atomic_load(&segment.size_bytes)
        if segment.base_offset >= aborted_from and segment.base_offset >= from_offset:
            txn_index_truncate(&segment.aborted, segment.base_offset)
        if size == 0 or (slot + 1 < list_.count and list_.segments[slot + 1].base_offset <= from_offset):
            continue
        if segment.base_offset >= atomic_load(&partition.damage_offset):
            break
        file = segment_open(segment, &error)
        if file is NULL:
            return error
        position = 0
        offset = segment.base_offset
        if from_offset > segment.base_offset:
            position = start_position(segment, file, from_offset, size)
        if segment.base_offset >= from_offset:
            scan_segment(partition, segment, file, 0, offset, size,
                         SCAN_PRODUCERS | (SCAN_ABORTED if segment.base_offset >= aborted_from else 0), &scan)
        else:
            scan_segment(partition, segment, file, position, offset, size, SCAN_PRODUCERS, &scan)
        open_file_release(file)
        if scan.rc < 0:
            return scan.rc
    return 0


SEGMENT_NAME = re.compile(r"(\d{20})\.log\Z")
SNAPSHOT_NAME = re.compile(r"(\d{20})\.snapshot\Z")


SEGMENT_FILES = (".log", ".index", ".timeindex", ".txnindex")


def end_of_batches(path: str) -> int:
    """The offset after the last batch of a segment file, by its headers; its base when it is empty."""
    end = int(os.path.basename(path)[:20])
    with open(path, "rb") as file:
        while len(header := file.read(BATCH_HEADER_BYTES)) == BATCH_HEADER_BYTES:
            end = int.from_bytes(header[:8], "big") + int.from_bytes(header[23:27], "big") + 1
            file.seek(int.from_bytes(header[8:12], "big") + 12 - BATCH_HEADER_BYTES, os.SEEK_CUR)
    return end


def finish_swaps(directory: str) -> None:
    """Compacted segments whose .log has the name .swap are whole: what they were made from goes, they take its place.

    The same again after another stop: the log is the last to get its name. Indexes without such a log are dropped.
    """
    names = sorted(os.listdir(directory))
    for name in names:
        if not (name.endswith(".log.swap") and SEGMENT_NAME.match(name.removesuffix(".swap"))):
            continue
        base = int(name[:20])
        end = end_of_batches(os.path.join(directory, name))
        for old in names:                       # oldest first: what supersedes a record goes after it
            if SEGMENT_NAME.match(old) and base < int(old[:20]) < end:
                for suffix in (*SEGMENT_FILES, ".snapshot"):
                    remove_if_there(os.path.join(directory, old[:20] + suffix))
        for suffix in (".index", ".timeindex", ".txnindex"):    # not there: it has its name already
            swap = os.path.join(directory, name[:20] + suffix + ".swap")
            if os.path.exists(swap):
                os.replace(swap, swap.removesuffix(".swap"))
        sync_directory(directory)
        os.replace(os.path.join(directory, name), os.path.join(directory, name.removesuffix(".swap")))


cdef int remove_if_there(str path) except -1:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    return 0


cdef int sync_directory(str directory) except -1:
    cdef bytes path = os.fsencode(directory)
    cdef int rc = io_sync_directory(<const char *>path)
    if rc != 0:
        raise OSError(-rc, os.strerror(-rc), directory)
    return 0


def tidy_folder(directory: str) -> tuple[list[int], list[int]]:
    """Finish or drop what a stop left half done; return the bases of the segments and the offsets of the snapshots."""
    names = os.listdir(directory)
    if any(name.endswith(".swap") for name in names):
        finish_swaps(directory)
        names = os.listdir(directory)
    bases: list[int] = []
    snapshots: list[int] = []
    for name in names:
        if name.endswith((".cleaned", ".deleted", ".tmp", ".swap")):
            os.unlink(os.path.join(directory, name))
        elif match := SEGMENT_NAME.match(name):
            if int(match[1]) <= INT64_MAX:
                bases.append(int(match[1]))
        elif match := SNAPSHOT_NAME.match(name):
            if int(match[1]) <= INT64_MAX:
                snapshots.append(int(match[1]))
    known = set(bases)
    for name in names:
        if name.endswith((".index", ".timeindex", ".txnindex")) and name[:20].isdigit() and int(name[:20]) not in known:
            os.unlink(os.path.join(directory, name))
    return sorted(bases), sorted(snapshots)


cdef int fail(int32_t rc, str directory, int64_t base) except -1:
    raise OSError(-rc, os.strerror(-rc), os.path.join(directory, f"{base:020d}.log"))


cdef int remove_snapshot(str directory, int64_t offset) except -1:
    try:
        os.unlink(os.path.join(directory, f"{offset:020d}.snapshot"))
    except FileNotFoundError:
        pass
    return 0


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
    cdef char path[PATH_ROOM]
    cdef int32_t rc
    cdef int64_t offset, from_offset = log_start, now = clock_wall_ms(partition.clock)
    cdef int64_t expiration = partition.config.producer_expiration_ms
    producer_state_clear(partition.producers)
    partition.snapshot_offset = -1
    for offset in reversed(snapshots):
        if offset > atomic_load(&partition.log_end):
            remove_snapshot(directory, offset)
            continue
        if offset > newest_allowed or offset < log_start:
            continue
        log_path(path, PATH_ROOM, partition.directory.path, offset, b".snapshot")
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
        if not bases:
            atomic_store(&partition.new_names, atomic_load(&partition.new_names) | NEW_FILE)
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
                for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                    try:
                        os.unlink(os.path.join(directory, f"{base:020d}{suffix}"))
                    except FileNotFoundError:
                        pass
            for offset in snapshots:
                remove_snapshot(directory, offset)
            snprintf(text, sizeof(text), b"all of the log was removed: it ended at offset %lld, below its start %lld",
                     <long long>end, <long long>log_start)
            free(partition.cut_text)
            partition.cut_text = strdup(text)
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
    """The caller took the append lock without the GIL and nothing on the lane takes the GIL under it: no
    deadlock, but a
    lane thread may wait here for Python. Only repair and tests cut a log."""
    cdef SegmentList *view = partition.view
    cdef LogSegment *segment
    cdef OpenFile *file
    cdef BatchHeader header
    cdef int64_t position
    cdef int32_t slot, rc, error = 0
    for slot in range(view.count - 1, -1, -1):
        segment = view.segments[slot]
        if segment.base_offset >= offset and slot > 0:
            for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
                try:
                    os.unlink(os.path.join(directory, f"{segment.base_offset:020d}{suffix}"))
                except FileNotFoundError:
                    pass
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
        txn_index_truncate(&segment.aborted, offset)
        for suffix in (".index", ".timeindex"):     # readers keep their mapping of the old file; loading makes new ones
            try:
                os.unlink(os.path.join(directory, f"{segment.base_offset:020d}{suffix}"))
            except FileNotFoundError:
                pass
        break
    return 0
