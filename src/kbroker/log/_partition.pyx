"""A partition: its lifetime, offsets, published view of its segments, leader epochs, watermarks, flush, config, and
the failed operations of the native handlers.

Append: _append; read: _read; roll and retention: _retention; opening: _recovery; Python's handle: _partition_log.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport strcmp, strdup, strlen, strncmp, strrchr
from kbroker._core.clock cimport clock_release
from kbroker._core.codec.crc32c cimport crc32c
from kbroker._core.containers.array cimport array_reserve
from kbroker._core.open_file cimport OpenFile, open_file_release
from kbroker._core.sync cimport (
    AtomicI64, Mutex, atomic_add_fetch, atomic_load, atomic_store, atomic_swap, cond_broadcast, cond_destroy, cond_wait,
    cond_wait_ns, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.log._posix cimport (
    EIO, EMFILE, ENFILE, ENOENT, ENOMEM, PATH_BYTES, io_close, io_open, io_sync, io_sync_directory, io_write_file,
    io_yield,
)
from kbroker.log.producers._producer_state cimport (
    producer_state_first_unstable_offset, producer_state_free, producer_state_set_high_watermark,
)
from kbroker.log.segment._segment cimport (
    SegmentList, directory_release, file_cache_release, segment_list_release, segment_list_retain, segment_open,
    segment_release,
)
from kbroker.log.segment._txn_index cimport TxnSum, txn_index_sum, txn_index_sync
from kbroker.protocol._compression cimport CODEC_LEVEL

import os

from kbroker.protocol.compression import CompressionType

cdef enum:
    READS_POLL_NS = 1_000_000


cdef Partition *partition_retain(Partition *partition) noexcept nogil:
    atomic_add_fetch(&partition.refs, 1)
    return partition


cdef void partition_release(Partition *partition) noexcept nogil:
    cdef DeletedSegment *entry
    if partition is NULL or atomic_add_fetch(&partition.refs, -1) != 0:
        return
    while partition.deleted is not NULL:
        entry = partition.deleted
        partition.deleted = entry.next
        segment_release(entry.segment)
        free(entry)
    segment_list_release(partition.view)
    producer_state_free(partition.producers)
    directory_release(partition.directory)
    file_cache_release(partition.files)
    clock_release(partition.clock)
    free(partition.epochs)
    free(partition.epoch_starts)
    free(partition.recent)
    free(partition.damage_text)
    free(partition.cut_text)
    mutex_destroy(&partition.append_lock)
    mutex_destroy(&partition.view_lock)
    mutex_destroy(&partition.flush_lock)
    cond_destroy(&partition.flush_done)
    free(partition)


cdef bint partition_is_closed(Partition *partition) noexcept nogil:
    return atomic_load(&partition.closed) != 0


cdef int64_t partition_log_end_offset(Partition *partition) noexcept nogil:
    return atomic_load(&partition.log_end)


cdef int64_t partition_flushed_offset(Partition *partition) noexcept nogil:
    return atomic_load(&partition.flushed)


cdef int32_t partition_leader_epoch(Partition *partition) noexcept nogil:
    return <int32_t>atomic_load(&partition.leader_epoch)


cdef void partition_set_high_watermark_hook(Partition *partition, partition_hook hook, void *arg) noexcept nogil:
    mutex_lock(&partition.view_lock)
    partition.on_high_watermark = hook
    partition.on_high_watermark_arg = arg
    mutex_unlock(&partition.view_lock)


cdef void partition_set_dirty_hook(Partition *partition, partition_hook hook, void *arg) noexcept nogil:
    mutex_lock(&partition.view_lock)
    partition.on_dirty = hook
    partition.on_dirty_arg = arg
    mutex_unlock(&partition.view_lock)


cdef void partition_end_hook(Partition *partition, const void *arg) noexcept nogil:
    mutex_lock(&partition.view_lock)
    if partition.on_high_watermark_arg == arg:
        partition.on_high_watermark = NULL
        partition.on_high_watermark_arg = NULL
    mutex_unlock(&partition.view_lock)
    while atomic_load(&partition.hook_calls) != 0:      # a call takes microseconds, and no new one gets this argument
        io_yield()


cdef void call_hook(Partition *partition, bint dirty) noexcept nogil:
    cdef partition_hook hook
    cdef void *arg
    mutex_lock(&partition.view_lock)
    hook = partition.on_dirty if dirty else partition.on_high_watermark
    arg = partition.on_dirty_arg if dirty else partition.on_high_watermark_arg
    atomic_add_fetch(&partition.hook_calls, 1)
    mutex_unlock(&partition.view_lock)
    if hook is not NULL:
        hook(arg, partition)
    atomic_add_fetch(&partition.hook_calls, -1)


cdef SegmentList *view_acquire(Partition *partition) noexcept nogil:
    cdef SegmentList *view
    mutex_lock(&partition.view_lock)
    view = segment_list_retain(partition.view)
    mutex_unlock(&partition.view_lock)
    return view


cdef void view_publish(Partition *partition, SegmentList *segments) noexcept nogil:
    cdef SegmentList *old
    mutex_lock(&partition.view_lock)
    old = partition.view
    partition.view = segments
    mutex_unlock(&partition.view_lock)
    partition.active = segments.segments[segments.count - 1]
    segment_list_release(old)


# ----------------------------------------------------------------------------------------------------- leader epochs

cdef int32_t write_leader_epochs(Partition *partition) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef char *text
    cdef int64_t capacity, used
    cdef int32_t slot, rc
    if partition.directory is NULL:
        return 0
    capacity = 64 + 40 * <int64_t>partition.epoch_count
    text = <char *>malloc(capacity)
    if text is NULL:
        return -ENOMEM
    used = snprintf(text, capacity, b"0\n%d\n", partition.epoch_count)
    for slot in range(partition.epoch_count):
        used += snprintf(text + used, capacity - used, b"%d %lld\n", partition.epochs[slot],
                         <long long>partition.epoch_starts[slot])
    snprintf(path, PATH_BYTES, b"%s/leader-epoch-checkpoint", partition.directory.path)
    rc = io_write_file(path, text, used, False)
    free(text)
    return rc


cdef bint partition_end_of_epoch(Partition *partition, int32_t wanted, int32_t *epoch, int64_t *end) noexcept nogil:
    """Source: ``LeaderEpochFileCache.endOffsetFor``, which has the leader's epoch from its election on."""
    cdef int32_t latest = <int32_t>atomic_load(&partition.leader_epoch), above
    cdef int64_t log_start
    cdef bint is_known
    if wanted == -1 or wanted > latest:
        return False
    mutex_lock(&partition.view_lock)
    above = partition.epoch_count
    while above > 0 and partition.epochs[above - 1] > wanted:
        above -= 1
    log_start = atomic_load(&partition.log_start)
    is_known = above > 0        # epochs before the first record's epoch are forgotten
    end[0] = atomic_load(&partition.log_end)    # the log has no records of an epoch that is not in the list yet
    if above < partition.epoch_count:
        end[0] = partition.epoch_starts[above]
        if end[0] <= log_start:
            end[0] = log_start
            is_known = False
    epoch[0] = partition.epochs[above - 1] if is_known and wanted != latest else wanted
    mutex_unlock(&partition.view_lock)
    return True


cdef int32_t note_leader_epoch(Partition *partition, int32_t epoch, int64_t start_offset) noexcept nogil:
    cdef int32_t count = partition.epoch_count, rc = -ENOMEM
    if count > 0 and partition.epochs[count - 1] >= epoch:
        return 0
    mutex_lock(&partition.view_lock)
    if array_reserve(&partition.epochs, count) and array_reserve(&partition.epoch_starts, count):
        partition.epochs[count] = epoch
        partition.epoch_starts[count] = start_offset
        partition.epoch_count = count + 1
        rc = 1
    mutex_unlock(&partition.view_lock)
    return rc


cdef void forget_latest_epoch(Partition *partition) noexcept nogil:
    mutex_lock(&partition.view_lock)
    partition.epoch_count -= 1
    mutex_unlock(&partition.view_lock)


# -------------------------------------------------------------------------------------------------- transaction indexes

cdef void write_txn_checkpoint(Partition *partition, bint with_active) noexcept nogil:
    """Write txnindex-checkpoint, without a sync: a start compares it, so losing it only costs a scan.

    No effect for a damaged log, one in memory, or an unreadable index. ``with_active``: cover the last segment.

    Content: version, end (not covered: segments that begin there or later), then base, entries and CRC of each covered
    index that is not empty.
    """
    cdef SegmentList *view = partition.view
    cdef int32_t slot, covered = view.count if with_active else view.count - 1
    cdef int64_t capacity = 64 + 64 * <int64_t>covered, used, end, crc
    cdef char path[PATH_BYTES]
    cdef char *text
    cdef TxnSum found
    if partition.directory is NULL or atomic_load(&partition.damage_offset) != INT64_MAX:
        return
    text = <char *>malloc(capacity)
    if text is NULL:
        return
    end = view.segments[covered].base_offset if covered < view.count else atomic_load(&partition.log_end)
    used = snprintf(text, capacity, b"0\n%lld\n", <long long>end)
    for slot in range(covered):
        if txn_index_sum(&view.segments[slot].aborted, &found) != 0:
            free(text)
            return
        if found.count > 0:
            used += snprintf(text + used, capacity - used, b"%lld %lld %u\n",
                             <long long>view.segments[slot].base_offset, <long long>found.count, found.crc)
    crc = crc32c(0, text, used)
    if crc != partition.txn_checkpoint:
        snprintf(path, PATH_BYTES, b"%s/txnindex-checkpoint", partition.directory.path)
        partition.txn_checkpoint = crc if io_write_file(path, text, used, False) == 0 else -1
    free(text)


# ----------------------------- watermarks, and UnifiedLog.flush, which moves the flushed offset and the high watermark

cdef bint advance_watermarks(Partition *partition) noexcept nogil:
    """Move the high watermark to the log end, or to the flushed offset if flush.messages records are unflushed.

    It stays while fewer replicas are in sync than min.insync.replicas (KIP-966). The last stable offset follows.
    Returns: whether the high watermark has moved.
    """
    cdef int64_t end = atomic_load(&partition.log_end), flushed = atomic_load(&partition.flushed)
    cdef int64_t old = atomic_load(&partition.high_watermark), start = atomic_load(&partition.log_start)
    cdef int64_t mark, unstable
    mark = end if end - flushed < partition.config.flush_messages else flushed
    if mark < old or atomic_load(&partition.is_under_min_isr):
        mark = old
    producer_state_set_high_watermark(partition.producers, mark)
    unstable = producer_state_first_unstable_offset(partition.producers)
    if 0 <= unstable < start:
        unstable = start                        # the first records of the transaction are deleted
    atomic_store(&partition.high_watermark, mark)
    atomic_store(&partition.last_stable, unstable if 0 <= unstable < mark else mark)
    return mark > old


# ------------------------------------------------------------------------------------------------------------- flush

cdef int32_t sync_topic_id(const char *directory) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int fd, rc
    snprintf(path, PATH_BYTES, b"%s/partition.metadata", directory)
    fd = io_open(path, False)
    if fd < 0:
        return 0 if fd == -ENOENT else fd       # a log opened without a manager has no such file
    rc = io_sync(fd)
    io_close(fd)
    return rc


cdef int32_t sync_names(Partition *partition) noexcept nogil:
    """Sync new names: the topic id's file, the folder, and its parent if the folder is new; return 0 or -errno."""
    cdef int64_t names = atomic_swap(&partition.new_names, 0)
    cdef char *parent
    cdef char *slash
    cdef int32_t rc = 0
    if names == 0 or partition.directory is NULL:
        return 0
    if names & NEW_TOPIC_ID:
        rc = sync_topic_id(partition.directory.path)
    if rc == 0:
        rc = io_sync_directory(partition.directory.path)
    if rc == 0 and names & NEW_FOLDER:
        parent = strdup(partition.directory.path)
        if parent is NULL:
            rc = -ENOMEM
        else:
            slash = strrchr(parent, c'/')
            if slash is not NULL and slash != parent:
                slash[0] = 0
                rc = io_sync_directory(parent)
            free(parent)
    if rc != 0:
        atomic_store(&partition.new_names, names | atomic_load(&partition.new_names))
    return rc


cdef int32_t sync_files(Partition *partition, int64_t from_offset, int64_t up_to) noexcept nogil:
    cdef SegmentList *view = view_acquire(partition)
    cdef OpenFile *file
    cdef int32_t slot, rc = 0
    for slot in range(view.count):
        if view.segments[slot].base_offset >= up_to:
            break
        if slot + 1 < view.count and view.segments[slot + 1].base_offset <= from_offset:
            continue
        if atomic_load(&view.segments[slot].is_deleted):
            continue                            # retention deleted it, so no later start reads it
        file = segment_open(view.segments[slot], &rc)
        if file is NULL:
            if atomic_load(&view.segments[slot].is_deleted):
                rc = 0
                continue
            break
        rc = io_sync(file.fd)
        open_file_release(file)
        if rc != 0:
            rc = -EIO                           # not the errno itself: the sync must not be retried
            break
        rc = txn_index_sync(&view.segments[slot].aborted)
        if rc != 0:
            break
    segment_list_release(view)
    if rc == 0:
        rc = sync_names(partition)
    if atomic_load(&partition.sync_fault) != 0:
        rc = -<int32_t>atomic_load(&partition.sync_fault)
    return rc


cdef inline bint was_deleted(Partition *partition, int32_t rc) noexcept nogil:
    """Return whether the error comes from the deletion of the partition, and not from the disk."""
    return rc == -ENOENT and atomic_load(&partition.closed) != 0


cdef void hold_flushes(Partition *partition) noexcept nogil:
    mutex_lock(&partition.flush_lock)
    while partition.is_flushing:
        cond_wait(&partition.flush_done, &partition.flush_lock)
    partition.is_flushing = True
    mutex_unlock(&partition.flush_lock)


cdef void release_flushes(Partition *partition) noexcept nogil:
    mutex_lock(&partition.flush_lock)
    partition.is_flushing = False
    cond_broadcast(&partition.flush_done)
    mutex_unlock(&partition.flush_lock)


cdef void await_reads(Partition *partition, SegmentList *segments) noexcept nogil:
    mutex_lock(&partition.flush_lock)
    while atomic_load(&segments.refs) > 1:      # polled: a signal would burden every read; only a bad disk takes long
        cond_wait_ns(&partition.flush_done, &partition.flush_lock, READS_POLL_NS)
    mutex_unlock(&partition.flush_lock)


cdef int32_t flush_log(Partition *partition, int64_t up_to) noexcept nogil:
    cdef int64_t target, flushed
    cdef int32_t rc = 0
    mutex_lock(&partition.flush_lock)
    while partition.is_flushing:
        cond_wait(&partition.flush_done, &partition.flush_lock)
    flushed = atomic_load(&partition.flushed)
    target = atomic_load(&partition.log_end)
    if 0 <= up_to < target:
        target = up_to
    if atomic_load(&partition.is_failed):
        rc = -EIO
    if rc != 0 or target <= flushed:
        mutex_unlock(&partition.flush_lock)
        return rc
    partition.is_flushing = True
    mutex_unlock(&partition.flush_lock)
    if partition.directory is not NULL:
        rc = sync_files(partition, flushed, target)
    if rc != 0 and not was_deleted(partition, rc):
        count_failure(partition, FAILED_SYNC, -rc)
    if rc == 0:
        mutex_lock(&partition.append_lock)
        if target > atomic_load(&partition.flushed):
            atomic_store(&partition.flushed, target)
        advance_watermarks(partition)
        mutex_unlock(&partition.append_lock)
    elif rc != -ENOMEM and rc != -EMFILE and rc != -ENFILE:     # for these no sync was tried: a later flush may succeed
        # The kernel may have dropped the pages: a second sync would wrongly succeed.
        atomic_store(&partition.is_failed, 1)
    release_flushes(partition)
    return rc if rc != 0 else 1     # 1: the hook is called even if an append has moved the high watermark


cdef int32_t partition_flush(Partition *partition, int64_t up_to) noexcept nogil:
    cdef int32_t rc = flush_log(partition, up_to)
    if rc != 0:                 # moved or failed: operations that wait for the disk complete either way
        call_hook(partition, False)
    return 0 if rc == 1 else rc


# -------------------------------------------------------------------------------------------------------------- config

DEFAULTS = {
    "segment.bytes": 1073741824, "segment.ms": 604800000, "segment.jitter.ms": 0, "index.interval.bytes": 4096,
    "segment.index.bytes": 10485760, "max.message.bytes": 1048588, "retention.ms": 604800000, "retention.bytes": -1,
    "file.delete.delay.ms": 60000, "flush.messages": 9223372036854775807,
    "message.timestamp.before.max.ms": 9223372036854775807, "message.timestamp.after.max.ms": 3600000,
    "message.timestamp.type": "CreateTime", "cleanup.policy": "delete", "producer.id.expiration.ms": 86400000,
    "compression.type": "producer",
    "max.compaction.lag.ms": 9223372036854775807,
}

INT64_MIN = -9223372036854775808
MIN_INDEX_BYTES = 24


cdef int parse_config(values, LogConfig *out) except -1:
    """Parse topic settings by name; absent settings get Kafka's defaults, unknown settings are ignored.

    Raises: TypeError, ValueError.
    """
    def number(name: str, least: int, most: int = 9223372036854775807) -> int:
        given = values.get(name)
        value = int(DEFAULTS[name] if given is None else given)
        if not least <= value <= most:
            raise ValueError(f"{name} must be between {least} and {most}, got {value}")
        return value
    if not hasattr(values, "get"):
        raise TypeError(f"config must be a mapping of setting names to values, got {type(values).__name__}")
    out.segment_bytes = number("segment.bytes", 61, 2147483647)
    out.segment_ms = number("segment.ms", 1)
    out.segment_jitter_ms = min(max(number("segment.jitter.ms", INT64_MIN), 0), out.segment_ms)
    out.index_interval_bytes = number("index.interval.bytes", 0)
    # An index for fewer than two time entries is full before its first. Kafka 4.3.1 accepts such values too: below 12
    # it cannot open the log afterwards (error 6), from 12 on each append rolls a segment. Here the index has its
    # minimum size.
    out.segment_index_bytes = max(number("segment.index.bytes", 0, 2147483647), MIN_INDEX_BYTES)
    out.max_message_bytes = number("max.message.bytes", 0, 2147483647)
    # Kafka treats any negative number as no limit.
    out.retention_ms = max(number("retention.ms", INT64_MIN), -1)
    out.retention_bytes = max(number("retention.bytes", INT64_MIN), -1)
    out.file_delete_delay_ms = number("file.delete.delay.ms", 0)
    out.flush_messages = number("flush.messages", 1)
    out.timestamp_before_max_ms = number("message.timestamp.before.max.ms", 0)
    out.timestamp_after_max_ms = number("message.timestamp.after.max.ms", 0)
    out.producer_expiration_ms = number("producer.id.expiration.ms", 1)
    out.decompress_cap_bytes = max(16 * out.max_message_bytes, 16777216)
    kind = values.get("message.timestamp.type") or DEFAULTS["message.timestamp.type"]
    if kind not in ("CreateTime", "LogAppendTime"):
        raise ValueError(f"message.timestamp.type must be CreateTime or LogAppendTime, got {kind!r}")
    out.log_append_time = kind == "LogAppendTime"
    codec = values.get("compression.type") or DEFAULTS["compression.type"]
    out.target_codec = -1 if codec == "producer" else CompressionType.of_config_name(codec)
    level = values.get(f"compression.{codec}.level")
    out.compression_level = CODEC_LEVEL if level is None else int(level)
    out.preallocate = values.get("preallocate") in (True, "true")
    policy = values.get("cleanup.policy") or DEFAULTS["cleanup.policy"]
    policies = [part.strip() for part in policy.split(",")] if isinstance(policy, str) else list(policy)
    out.compacted = "compact" in policies
    out.delete_by_age = "delete" in policies
    out.has_gaps = out.compacted or bool(values.get("was.compacted"))
    if out.compacted:
        out.segment_ms = min(out.segment_ms, number("max.compaction.lag.ms", 1))
        out.segment_jitter_ms = min(out.segment_jitter_ms, out.segment_ms)
    return 0


def check_config(values):
    """Check that a log can be opened with a config. Raises: ValueError, TypeError."""
    cdef LogConfig unused
    parse_config(values, &unused)


# ------------------------------------------------------------------------------------------------------------ failures

cdef enum:
    SLOTS = 256  # distinct failures since the last call; further failures are counted for the last slot

cdef struct FailureCount:
    char *path                  # owned: the partition's folder; NULL: free
    Failed kind
    int32_t error
    int64_t count

cdef Mutex failures_lock
cdef FailureCount failures[SLOTS]
cdef AtomicI64 failures_used    # number of slots in use, from the first on

mutex_init(&failures_lock)
atomic_store(&failures_used, 0)

KINDS = ("append", "read", "sync")     # indexed by Failed


cdef void count_failure(Partition *partition, Failed kind, int32_t error) noexcept nogil:
    cdef FailureCount *slot
    cdef int64_t i, used
    if partition.directory is NULL:
        return
    mutex_lock(&failures_lock)
    used = atomic_load(&failures_used)
    for i in range(used):
        slot = &failures[i]
        if slot.kind == kind and slot.error == error and strcmp(slot.path, partition.directory.path) == 0:
            slot.count += 1
            mutex_unlock(&failures_lock)
            return
    slot = &failures[used if used < SLOTS else SLOTS - 1]
    if used < SLOTS:
        slot.path = strdup(partition.directory.path)
        if slot.path is not NULL:
            slot.kind = kind
            slot.error = error
            slot.count = 1
            atomic_store(&failures_used, used + 1)
    else:
        slot.count += 1
    mutex_unlock(&failures_lock)


def take_failures(str folder not None):
    cdef FailureCount taken[SLOTS]
    cdef bytes prefix = os.fsencode(folder).rstrip(b"/") + b"/"
    cdef const char *start = prefix
    cdef size_t start_bytes = strlen(start)
    cdef int64_t i, kept = 0, count = 0, used
    if atomic_load(&failures_used) == 0:
        return []
    with nogil:
        mutex_lock(&failures_lock)
        used = atomic_load(&failures_used)
        for i in range(used):
            if strncmp(failures[i].path, start, start_bytes) == 0:
                taken[count] = failures[i]
                count += 1
            else:
                failures[kept] = failures[i]
                kept += 1
        atomic_store(&failures_used, kept)
        mutex_unlock(&failures_lock)
    found = []
    for i in range(count):
        name = os.path.basename(os.fsdecode(taken[i].path))
        found.append((name, KINDS[<int>taken[i].kind], taken[i].error, taken[i].count))
        free(taken[i].path)
    return found
