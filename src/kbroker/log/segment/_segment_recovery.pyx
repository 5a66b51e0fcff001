"""Segments after a stop: LogSegment.recover finds the bytes of a segment that are batches, and rebuilds unsound indexes
from them; before that, interrupted replacements of files are finished or dropped.

Source of the latter: ``LogLoader.removeTempFilesAndCollectSwapFiles`` and the code after it.
"""
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t
from libc.stdio cimport snprintf
from libc.string cimport memset, strlen
from kbroker._core.open_file cimport OpenFile, open_file_release, open_file_retain
from kbroker._core.sync cimport atomic_load, atomic_store
from kbroker.log._partition cimport Partition, note_leader_epoch
from kbroker.log._posix cimport (
    PATH_BYTES, io_drop_cache, io_fd_size, io_names, io_path_size, io_read, io_read_file, io_sync_directory,
)
from kbroker.log._validate cimport batch_facts
from kbroker.log.producers._producer_state cimport AbortedTxn, BatchFacts, producer_state_apply
from kbroker.log.segment._index cimport index_load, index_reset, index_truncate, offset_index_lookup, time_index_last
from kbroker.log.segment._segment cimport (
    BatchReader, LogSegment, batch_reader_advance, batch_reader_begin, batch_reader_body, batch_reader_free,
    batch_reader_header, segment_note_append, segment_open, segment_path, segment_seal,
)
from kbroker.log.segment._txn_index cimport txn_index_append
from kbroker.protocol._batch_format cimport BATCH_HEADER_BYTES, CONTROL_BIT
from kbroker.protocol._records cimport BatchHeader, batch_crc_ok, batch_parse

import os
import re

from kbroker.common.loggers import get_logger

logger = get_logger(__name__)


# ------------------------------------------------------------------------------------------------- batches and indexes

cdef const char *OUT_OF_PLACE = b"a batch's offset does not follow the one before"


cdef const char *judge(const LogSegment *segment, const BatchReader *reader) noexcept nogil:
    """Return why the bytes at the reader's position cannot be a batch, NULL when they can."""
    cdef const BatchHeader *header = &reader.header
    cdef int64_t total = <int64_t>header.batch_length + 12
    if total < BATCH_HEADER_BYTES:
        return b"a batch is shorter than its header"
    if header.magic != 2:
        return b"not a record batch of version 2"
    if header.last_offset_delta < 0 or header.record_count < 0:
        return b"a batch header is impossible"
    if header.base_offset < reader.next_offset or (
            header.base_offset + header.last_offset_delta - segment.base_offset > INT32_MAX):
        return OUT_OF_PLACE
    if total > reader.limit - reader.at:
        return b"the last batch is cut off"
    return NULL


cdef void step_back(LogSegment *segment, int32_t flags, Scan *out) noexcept nogil:
    """End the scan before its last batch, whose own offset is wrong: the offsets before it are not missing."""
    out.rc = 1
    out.reason = OUT_OF_PLACE
    out.valid_bytes = out.gap_position
    out.next_offset = out.gap_offset
    out.gap_position = -1
    if flags & SCAN_INDEX:
        index_truncate(&segment.offsets, out.gap_offset)
        index_truncate(&segment.times, out.gap_offset)


cdef void read_batch(LogSegment *segment, BatchReader *reader, int32_t flags, Scan *out) noexcept nogil:
    """Read the header of the next batch, and all of it when the scan needs that; out.rc: whether it is a batch."""
    out.rc = batch_reader_header(reader)
    if out.rc == 0:
        out.reason = judge(segment, reader)
        if out.reason is not NULL:
            out.rc = 1
            # No checksum covers the base offset. A gap before a batch comes from compaction, unless the next offset is
            # lower.
            if out.reason == OUT_OF_PLACE and out.gap_position >= 0:
                step_back(segment, flags, out)
            return
        if flags & SCAN_CRC or reader.header.attributes & CONTROL_BIT:
            out.rc = batch_reader_body(reader)
    if out.rc == 1:
        out.reason = b"the last batch is cut off"
    elif out.rc == 0 and flags & SCAN_CRC and not batch_crc_ok(reader.batch, &reader.header):
        out.rc = 1
        out.reason = b"a checksum does not match"


cdef int32_t apply_batch(Partition *partition, LogSegment *segment, const BatchReader *reader,
                         int32_t flags) noexcept nogil:
    """Apply a sound batch as the flags say; 0 or -errno."""
    cdef const BatchHeader *header = &reader.header
    cdef int64_t last_offset = header.base_offset + header.last_offset_delta
    cdef BatchFacts facts
    cdef AbortedTxn aborted
    if flags & SCAN_EPOCHS:
        note_leader_epoch(partition, header.leader_epoch, header.base_offset)
    if flags & SCAN_INDEX:
        segment_note_append(segment, reader.at, <int64_t>header.batch_length + 12, last_offset,
                            header.max_timestamp_ms, last_offset, partition.config.index_interval_bytes)
    elif flags & SCAN_STAMPS and header.max_timestamp_ms > atomic_load(&segment.max_timestamp_ms):
        atomic_store(&segment.max_timestamp_ms, header.max_timestamp_ms)
        atomic_store(&segment.offset_of_max, last_offset)
    if not flags & SCAN_PRODUCERS or header.producer_id < 0:
        return 0
    if header.attributes & CONTROL_BIT and header.record_count == 0:        # compaction emptied the batch
        return 0
    batch_facts(reader.batch, header, False, &facts)
    if producer_state_apply(partition.producers, &facts, &aborted) and flags & SCAN_ABORTED:
        # without the entry readers take aborted records for committed ones
        return txn_index_append(&segment.aborted, &aborted)
    return 0


cdef void scan_segment(Partition *partition, LogSegment *segment, OpenFile *file, int64_t from_position,
                       int64_t from_offset, int64_t file_bytes, int32_t flags, Scan *out) noexcept nogil:
    cdef BatchReader reader
    memset(&reader, 0, sizeof(BatchReader))
    memset(out, 0, sizeof(Scan))
    batch_reader_begin(&reader, open_file_retain(file), from_position, file_bytes, from_offset)
    out.gap_position = -1
    while True:
        out.valid_bytes = reader.at
        out.next_offset = reader.next_offset
        if reader.at >= file_bytes:
            break
        read_batch(segment, &reader, flags, out)
        if out.rc == 0:
            out.rc = apply_batch(partition, segment, &reader, flags)
        if out.rc != 0:
            break
        out.gap_position = -1
        if reader.header.base_offset > reader.next_offset and (reader.at > from_position or reader.at == 0):
            out.gap_position = reader.at
            out.gap_offset = reader.next_offset
        batch_reader_advance(&reader)
    batch_reader_free(&reader)


cdef void judge_end(Partition *partition, LogSegment *segment, int64_t next_base, int32_t flags,
                    Scan *out) noexcept nogil:
    """Check a gap before the last batch; if the offset of the batch is wrong, end the scan before it.

    The offset is wrong if the batch reaches past the next segment, and also in the last segment of a log that was
    never compacted, where no later batch confirms it.
    """
    if out.rc == 0 and out.gap_position >= 0 and (
            out.next_offset > next_base if next_base >= 0 else not partition.config.has_gaps):
        step_back(segment, flags, out)


cdef int32_t reset_indexes(LogSegment *segment) noexcept nogil:
    cdef int32_t rc = index_reset(&segment.offsets)
    return rc if rc != 0 else index_reset(&segment.times)


cdef bint scan_end(Partition *partition, LogSegment *segment, OpenFile *file, int64_t next_base, int64_t file_bytes,
                   Scan *out) noexcept nogil:
    """Scan from the last index entry on. False: an index is missing, corrupt or unreadable, or its entry is wrong."""
    cdef int64_t offset, position, timestamp
    cdef int32_t rc = index_load(&segment.offsets, next_base, file_bytes)
    if rc == 0:
        rc = index_load(&segment.times, next_base, file_bytes)
    if rc != 0 and file_bytes > 0:
        return False
    if time_index_last(&segment.times, &timestamp, &offset):
        atomic_store(&segment.max_timestamp_ms, timestamp)
        atomic_store(&segment.offset_of_max, offset)
    offset_index_lookup(&segment.offsets, INT64_MAX, &offset, &position)
    scan_segment(partition, segment, file, position, segment.base_offset, file_bytes, SCAN_STAMPS, out)
    judge_end(partition, segment, next_base, SCAN_STAMPS, out)
    segment.bytes_since_index = out.valid_bytes - position
    return out.rc != 1 or position == 0


cdef void scan_whole(Partition *partition, LogSegment *segment, OpenFile *file, int64_t next_base, int64_t file_bytes,
                     Scan *out) noexcept nogil:
    """Compare the checksum of every batch and rebuild the indexes."""
    out.rc = reset_indexes(segment)
    if out.rc != 0:
        return
    atomic_store(&segment.max_timestamp_ms, -1)
    segment.bytes_since_index = 0
    segment.offsets.writable = True             # until it is sealed again
    segment.times.writable = True
    scan_segment(partition, segment, file, 0, segment.base_offset, file_bytes, SCAN_CRC | SCAN_INDEX, out)
    judge_end(partition, segment, next_base, SCAN_INDEX, out)
    if out.rc >= 0 and next_base >= 0:
        segment_seal(segment)


cdef void note_first_timestamp(LogSegment *segment, OpenFile *file) noexcept nogil:
    cdef char head[BATCH_HEADER_BYTES]
    cdef BatchHeader header
    if io_read(file.fd, head, BATCH_HEADER_BYTES, 0) == BATCH_HEADER_BYTES and batch_parse(
            head, BATCH_HEADER_BYTES, &header):
        segment.first_timestamp_ms = header.max_timestamp_ms


cdef void load_segment(Partition *partition, LogSegment *segment, int64_t next_base, bint check_all,
                       Scan *out) noexcept nogil:
    """Check a segment, rebuild unsound indexes, and publish size and timestamps; after an error out.rc is below 0."""
    cdef int64_t file_bytes
    cdef OpenFile *file
    cdef char path[PATH_BYTES]
    memset(out, 0, sizeof(Scan))
    out.gap_position = -1
    out.next_offset = segment.base_offset
    if next_base < 0:
        segment_path(segment, b".log", path)
        if io_path_size(path) == 0:             # thousands of empty partitions open no file
            out.rc = reset_indexes(segment)
            return
    file = segment_open(segment, &out.rc)
    if file is NULL:
        return
    file_bytes = io_fd_size(file.fd)
    if check_all and partition.config.flush_messages != INT64_MAX:
        io_drop_cache(file.fd)                  # an acknowledgement relied on the disk, and so must this check
    if file_bytes < 0:
        out.rc = <int32_t>file_bytes
    elif check_all or not scan_end(partition, segment, file, next_base, file_bytes, out):
        scan_whole(partition, segment, file, next_base, file_bytes, out)
    if out.rc >= 0:
        if next_base < 0 and out.valid_bytes >= BATCH_HEADER_BYTES:
            note_first_timestamp(segment, file)
        atomic_store(&segment.size_bytes, out.valid_bytes)
    open_file_release(file)


# --------------------------------------------------------------------------------------------------------------- files

cdef enum:
    NAMES_BYTES = 16384          # about 600 names

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
SEGMENT_NAME = re.compile(r"(\d{20})\.log\Z")
SNAPSHOT_NAME = re.compile(r"(\d{20})\.snapshot\Z")
SEGMENT_FILES = (".log", ".index", ".timeindex", ".txnindex")


def sound_batches(path: str) -> tuple[int, bool]:
    """Return the offset after the sound batches at the begin of a segment file, and whether the file has no others."""
    cdef BatchHeader header
    base = end = int(os.path.basename(path)[:20])
    left = os.path.getsize(path)
    with open(path, "rb") as file:
        while left > 0:
            batch = file.read(BATCH_HEADER_BYTES)
            total = int.from_bytes(batch[8:12], "big", signed=True) + 12
            if not BATCH_HEADER_BYTES <= total <= left:
                return end, False
            batch += file.read(total - BATCH_HEADER_BYTES)
            if not batch_parse(batch, len(batch), &header) or not batch_crc_ok(batch, &header) or not (
                    end <= header.base_offset <= base + INT32_MAX - header.last_offset_delta):  # no checksum covers it
                return end, False
            end = header.base_offset + header.last_offset_delta + 1
            left -= total
    return end, True


def finish_swaps(directory: str) -> None:
    """Replace segments by the complete compacted segments that were made from them: .log files with the suffix .swap.

    This can be repeated after another stop: the log is the last to get its name. Indexes without such a log are
    dropped. A swap file that is empty or damaged, as in an incomplete copy of the folder, replaces no existing segment:
    of those that it was made from, the first is the first to be removed.
    """
    names = sorted(os.listdir(directory))
    for name in names:
        if not (name.endswith(".log.swap") and SEGMENT_NAME.match(name.removesuffix(".swap"))):
            continue
        base, path = int(name[:20]), os.path.join(directory, name)
        end, is_sound = sound_batches(path)
        if name.removesuffix(".swap") in names and (end == base or not is_sound):
            logger.warning("%s is empty or damaged; the segments before its compaction are kept", path)
            os.unlink(path)
            continue
        for old in names:                       # oldest first: a record is removed before the one that supersedes it
            if SEGMENT_NAME.match(old) and base < int(old[:20]) < end:
                for suffix in (*SEGMENT_FILES, ".snapshot"):
                    remove_if_there(os.path.join(directory, old[:20] + suffix))
        for suffix in (".index", ".timeindex", ".txnindex"):    # missing: it already has its final name
            swap = os.path.join(directory, name[:20] + suffix + ".swap")
            if os.path.exists(swap):
                os.replace(swap, swap.removesuffix(".swap"))
        sync_directory(directory)
        os.replace(path, path.removesuffix(".swap"))


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


cdef list folder_names(str directory):
    """Return the names in a folder, with one call without the GIL: `os.listdir` releases it for each name, and the
    threads of a start would wait for each other.
    """
    cdef char names[NAMES_BYTES]
    cdef bytes path = os.fsencode(directory)
    cdef const char *text = path
    cdef int64_t size
    with nogil:
        size = io_names(text, names, NAMES_BYTES)
    if size < 0:                                # an error, which the next call raises, or more names
        return os.listdir(directory)
    return os.fsdecode(names[:size]).split("\0")[:-1]


def has_content(str path, bytes expected) -> bool:
    """Return whether a file has this content, whitespace at its end aside; False if it cannot be read."""
    cdef char content[128]
    cdef bytes encoded = os.fsencode(path)
    cdef const char *text = encoded
    cdef int64_t size
    with nogil:
        size = io_read_file(text, content, sizeof(content))
    return size >= 0 and content[:size].rstrip() == expected


def prefetch_folders(directories: list[str]) -> None:
    """Make the system read the folders, and the sizes of their files, from the disk into its cache.

    Without the GIL: another thread opens the logs meanwhile, and finds them in the cache.
    """
    cdef bytes joined = os.fsencode("\0".join(directories))
    cdef const char *directory = joined
    cdef const char *end = directory + len(joined)
    cdef char names[NAMES_BYTES]
    cdef char path[PATH_BYTES]
    cdef int64_t size, at
    with nogil:
        while directory < end:
            size = io_names(directory, names, NAMES_BYTES)
            at = 0
            while at < size:
                snprintf(path, PATH_BYTES, b"%s/%s", directory, names + at)
                io_path_size(path)
                at += <int64_t>strlen(names + at) + 1
            directory += strlen(directory) + 1


def tidy_folder(directory: str) -> tuple[list[int], list[int], bool]:
    """Finish or drop interrupted replacements in a partition's folder, and remove leftover files.

    Returns: the bases of the segments, the offsets of the snapshots, and whether there is a leader-epoch-checkpoint.
    """
    names = folder_names(directory)
    for name in names:
        if name.endswith(".swap"):
            finish_swaps(directory)
            names = os.listdir(directory)
            break
    bases: list[int] = []
    snapshots: list[int] = []
    indexes: list[str] = []
    for name in names:
        if match := SEGMENT_NAME.match(name):
            if int(match[1]) <= INT64_MAX:
                bases.append(int(match[1]))
        elif match := SNAPSHOT_NAME.match(name):
            if int(match[1]) <= INT64_MAX:
                snapshots.append(int(match[1]))
        elif name.endswith((".cleaned", ".deleted", ".tmp", ".swap")):
            os.unlink(os.path.join(directory, name))
        elif name.endswith((".index", ".timeindex", ".txnindex")):
            indexes.append(name)
    known = set(bases)
    for name in indexes:
        if name[:20].isdigit() and int(name[:20]) not in known:
            os.unlink(os.path.join(directory, name))
    return sorted(bases), sorted(snapshots), LEADER_EPOCH_CHECKPOINT in names


cdef int remove_segment(str directory, int64_t base) except -1:
    for suffix in SEGMENT_FILES:
        remove_if_there(os.path.join(directory, f"{base:020d}{suffix}"))
    return 0


cdef int remove_snapshot(str directory, int64_t offset) except -1:
    return remove_if_there(os.path.join(directory, f"{offset:020d}.snapshot"))
