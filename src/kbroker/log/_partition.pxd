"""One partition's log on disk in Kafka's format: append, read, roll, index, recover; native, no GIL, no Python object.

Locks, in order: ``append_lock`` (appends, rolls, truncation, producer state; may span the page-cache write, never an
fsync) -> ``view_lock`` (leaf: swaps the immutable segment list). End offset, high watermark and log start are atomics.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, int8_t
from kbroker._core.clock cimport Clock
from kbroker._core.open_file cimport OpenFile
from kbroker._core.sync cimport AtomicI64, Cond, Mutex
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.producers._producer_table cimport ProducerState
from kbroker.log.segment._segment cimport Directory, FileCache, LogSegment, SegmentList

cdef struct LogConfig:          # config of a topic: plain values, copied whole under the partition's view_lock
    int64_t segment_bytes
    int64_t segment_ms
    int64_t segment_jitter_ms
    int64_t index_interval_bytes
    int64_t segment_index_bytes
    int64_t max_message_bytes
    int64_t retention_ms            # -1: no limit
    int64_t retention_bytes         # -1: no limit
    int64_t file_delete_delay_ms
    int64_t flush_messages
    int64_t timestamp_before_max_ms
    int64_t timestamp_after_max_ms
    int64_t producer_expiration_ms
    int64_t decompress_cap_bytes    # limit of a compressed batch's unpacked records; above it: MESSAGE_TOO_LARGE
    int32_t target_codec            # compression.type; -1: as the producer sent it
    int32_t compression_level       # level of target_codec
    bint preallocate                # allocate the whole size of segment files when they are created
    bint log_append_time
    bint compacted                  # cleanup.policy contains compact: every record needs a key
    bint delete_by_age              # cleanup.policy contains delete: retention.ms and retention.bytes apply
    bint has_gaps                   # is or was compacted: offsets may be missing between batches

cdef enum BadRecordFault:
    NO_KEY
    OUT_OF_TIME
    STAMPED                     # with the attribute of LogAppendTime, which only the broker sets

cdef struct BadRecord:          # a refused record of a batch
    int32_t batch_index
    BadRecordFault fault
    int64_t offset              # as sent
    int64_t timestamp_ms
    int64_t earliest_ms         # of the timestamps that the topic accepted at that time
    int64_t latest_ms

cdef struct AppendResult:
    int16_t error               # Kafka error code, 0: appended or duplicate
    int64_t base_offset         # -1 on error
    int64_t last_offset
    int64_t log_append_time_ms  # -1 unless LogAppendTime (for a duplicate: the original's timestamp)
    int64_t log_start_offset
    int32_t bad_record          # batch_index of the first refused record, or -1
    BadRecord *bad_records      # malloc'ed, freed by the caller: the refused records, or NULL
    int32_t bad_count
    const char *message         # static text for the client, or NULL
    bint is_duplicate
    bint high_watermark_moved   # the caller must check delayed fetches
    # > 0: send the response only when partition_flushed_offset() >= this (log.flush.interval.messages reached)
    int64_t flush_offset
    int64_t conversion_ns       # duration of rebuilding the batch in the topic's codec, 0 when it had that codec

cdef struct ReadResult:
    int16_t error               # 0, 1 out of range, 3 closed, 56 storage error
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    OpenFile *file              # counted, released by the caller; NULL when size_bytes is 0
    int64_t position
    int64_t size_bytes
    AbortedTxn *aborted         # malloc'ed, freed by the caller; NULL when there are none
    int32_t aborted_count

cdef struct ReadProbe:          # facts that a delayed fetch needs, mostly found without opening a file
    int16_t error
    int64_t available_bytes     # readable from the offset in its own segment, capped by max_bytes
    bint crosses_segment        # the end is in a later segment than the offset: respond now

cdef enum:
    RECENT_APPENDS = 32

cdef struct RecentAppend:       # the position of a batch, so that reads at the end of the log need no search
    int64_t base_offset
    int64_t end_offset
    int64_t segment_base
    int64_t position

cdef struct DeletedSegment:     # a segment with renamed files, which are removed when due
    LogSegment *segment         # counted
    int64_t deleted_ms
    DeletedSegment *next

cdef enum:                      # bits of Partition.new_names
    NEW_FILE = 1
    NEW_FOLDER = 2
    NEW_TOPIC_ID = 4            # partition.metadata, the file with the topic id

cdef struct Partition           # opaque outside log/: use the functions below
ctypedef void (*partition_hook)(void *arg, Partition *partition) noexcept nogil

cdef struct Partition:
    AtomicI64 refs
    AtomicI64 closed            # 1: deleted or closed
    Clock *clock                # counted
    FileCache *files            # counted
    Directory *directory        # counted; NULL: in memory
    int32_t index               # partition number
    char topic_id[16]
    Mutex append_lock           # appends, rolls, truncation, producer state
    Mutex view_lock             # leaf: view, config, recent appends, leader epochs, damage text, hooks
    SegmentList *view           # counted; replaced whole
    LogConfig config
    RecentAppend *recent        # owned ring of RECENT_APPENDS; NULL before the first append
    int64_t recent_count        # total number; the newest is at (recent_count - 1) % RECENT_APPENDS
    char *damage_text           # owned; NULL: undamaged
    char *cut_text              # owned; NULL: opening cut nothing
    partition_hook on_high_watermark
    AtomicI64 hook_calls        # calls in progress; the target of a hook's argument is not freed before they end
    partition_hook on_dirty
    void *on_high_watermark_arg
    void *on_dirty_arg
    AtomicI64 log_end
    AtomicI64 high_watermark
    AtomicI64 last_stable
    AtomicI64 log_start
    AtomicI64 flushed
    AtomicI64 leader_epoch
    AtomicI64 damage_offset     # reads from this offset on are refused; INT64_MAX: undamaged
    AtomicI64 is_failed         # an fsync failed: no append until the partition is opened again
    AtomicI64 is_under_min_isr  # fewer replicas are in sync than min.insync.replicas: no append with acks=all
    AtomicI64 new_names         # bits: names created since the folder was last synced
    AtomicI64 write_fault       # for tests: errno of the next writes; 0: none
    AtomicI64 sync_fault
    LogSegment *active          # append lock; borrowed from the view
    ProducerState *producers    # append lock
    int32_t *epochs             # owned, with the start offsets in epoch_starts; both locks to change, one to read
    int64_t *epoch_starts
    int32_t epoch_count
    int64_t txn_checkpoint      # append lock; CRC-32C of the txnindex-checkpoint on disk, or -1
    int64_t jitter_ms           # delay subtracted from segment.ms for the active segment
    int64_t snapshot_offset     # offset of the newest producer snapshot, or -1
    DeletedSegment *deleted     # append lock
    Mutex flush_lock            # leaf: elects the syncing thread; never held during the sync
    Cond flush_done
    bint is_flushing

cdef Partition *partition_retain(Partition *partition) noexcept nogil
cdef void partition_release(Partition *partition) noexcept nogil
# Return whether an append rebuilds batches of this codec; a hint, since the config may change meanwhile.
cdef inline bint partition_recodes(const Partition *partition, int32_t codec) noexcept nogil:
    return partition.config.target_codec >= 0 and partition.config.target_codec != codec

cdef bint partition_is_closed(Partition *partition) noexcept nogil            # deleted: respond with error 3 or 100
cdef int64_t partition_log_end_offset(Partition *partition) noexcept nogil
# Return the exclusive end of the records that are on disk.
cdef int64_t partition_flushed_offset(Partition *partition) noexcept nogil
cdef int32_t partition_leader_epoch(Partition *partition) noexcept nogil

# Set the hook that completes delayed operations. It is called without any lock after a flush, a close, a new leader
# epoch, or an append through Python's handle; native handlers check the operations after their own appends.
cdef void partition_set_high_watermark_hook(Partition *partition, partition_hook hook, void *arg) noexcept nogil
# Set the hook that is called without any lock, on the appending thread, when a flush is needed:
# after flush.messages records or a roll.
cdef void partition_set_dirty_hook(Partition *partition, partition_hook hook, void *arg) noexcept nogil
# Disconnect the high watermark hook if it has this argument, and wait until no thread calls it.
cdef void partition_end_hook(Partition *partition, const void *arg) noexcept nogil
# Call the dirty hook or the high watermark hook, if it is set; no lock held.
cdef void call_hook(Partition *partition, bint dirty) noexcept nogil

# Return a counted reference to the current segments; they stay readable until segment_list_release.
cdef SegmentList *view_acquire(Partition *partition) noexcept nogil
# Replace the view by segments, whose reference it takes; the last one becomes active. Under the append lock.
cdef void view_publish(Partition *partition, SegmentList *segments) noexcept nogil

# Find the latest epoch at or below wanted, and the offset after its last record. False: wanted is -1 or above the
# leader epoch.
cdef bint partition_end_of_epoch(Partition *partition, int32_t wanted, int32_t *epoch, int64_t *end) noexcept nogil
# Add an epoch to the list, without writing the file; under the append lock. 1: new, 0: known, or -ENOMEM.
cdef int32_t note_leader_epoch(Partition *partition, int32_t epoch, int64_t start_offset) noexcept nogil
cdef void forget_latest_epoch(Partition *partition) noexcept nogil      # under the append lock
# Write leader-epoch-checkpoint; under the append lock. 0 or -errno.
cdef int32_t write_leader_epochs(Partition *partition) noexcept nogil
# Write txnindex-checkpoint, the checksums by which a start after a clean stop detects a damaged transaction index; a
# start without the file reads the batches instead. with_active: include the last segment. Under the append lock.
cdef void write_txn_checkpoint(Partition *partition, bint with_active) noexcept nogil

# Move the high watermark and last stable offset; return True when the former moved. Under the append lock.
cdef bint advance_watermarks(Partition *partition) noexcept nogil
# Flush like partition_flush, without calling the hook. 1: flushed; 0: nothing to flush; else -errno.
cdef int32_t flush_log(Partition *partition, int64_t up_to) noexcept nogil
# Sync the records below up_to (negative: all), outside every lock; concurrent callers share one sync. 0 or -errno;
# after an error of the disk the partition refuses appends until it is opened again.
cdef int32_t partition_flush(Partition *partition, int64_t up_to) noexcept nogil
# Wait for the flush in progress and prevent others until release_flushes. No lock held; call before the append lock.
cdef void hold_flushes(Partition *partition) noexcept nogil
cdef void release_flushes(Partition *partition) noexcept nogil
# Wait until the caller's reference to former segments is the last one. No lock held.
cdef void await_reads(Partition *partition, SegmentList *segments) noexcept nogil

# Parse settings by name; absent settings get Kafka's defaults. Raises: ValueError, TypeError.
cdef int parse_config(values, LogConfig *out) except -1

# Failed appends, reads and syncs of the native handlers, counted by partition until a broker collects those of its
# folders: native threads write no log lines; kbroker.log.failed_io logs these counts. There is one table for the
# process, because descriptors and disks are shared by the process; entries are keyed by folder, so brokers do not mix.
# Lock: a leaf mutex, locked on failures only.
cdef enum Failed:
    FAILED_APPEND, FAILED_READ, FAILED_SYNC

# Count a failure. error: errno, or 0 if the partition itself refuses because it is damaged or a sync of it has failed.
cdef void count_failure(Partition *partition, Failed kind, int32_t error) noexcept nogil
