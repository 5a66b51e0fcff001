"""One partition's log on disk in Kafka's format: append, read, roll, index, recover; native, no GIL, no Python object.

Locks, in order: ``append_lock`` (appends, rolls, truncation, producer state; may span the page-cache write, never an
fsync) -> ``view_lock`` (leaf: swaps the immutable segment list). End offset, high watermark and log start are atomics.
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t
from kbroker._core.clock cimport Clock
from kbroker._core.requests.request cimport OpenFile
from kbroker._core.sync cimport AtomicI64, Cond, Mutex
from kbroker.log._config cimport LogConfig
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.producers._producer_table cimport ProducerState
from kbroker.log.segment._segment cimport Directory, FileCache, LogSegment, SegmentList

cdef struct AppendResult:
    int16_t error               # Kafka error code, 0 = appended or duplicate
    int64_t base_offset         # -1 on error
    int64_t last_offset
    int64_t log_append_time_ms  # -1 unless LogAppendTime (a duplicate answers its own time stamp)
    int64_t log_start_offset
    int32_t bad_record          # batch_index of the first refused record, -1: none
    int32_t *bad_records        # malloc'ed, the caller frees it: batch_index of each refused record; NULL when none
    int32_t bad_count
    const char *message         # static text for the client, or NULL
    bint is_duplicate
    bint high_watermark_moved   # waiting fetches may look
    # > 0: answer only when partition_flushed_offset() >= this (log.flush.interval.messages reached)
    int64_t flush_offset
    int64_t conversion_ns       # spent on building the batch anew in the topic's codec, 0: it came in that

cdef struct ReadResult:
    int16_t error               # 0, 1 out of range, 3 closed, 56 storage error
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    OpenFile *file              # owned count of the caller, NULL when size_bytes is 0
    int64_t position
    int64_t size_bytes
    AbortedTxn *aborted         # malloc'ed, caller frees; NULL when none
    int32_t aborted_count

cdef struct ReadProbe:          # what a delayed fetch needs to know, without opening anything
    int16_t error
    int64_t available_bytes     # readable from the offset in its own segment, capped by max_bytes
    bint crosses_segment        # the end is in a later segment than the offset: answer now

cdef enum:
    RECENT_APPENDS = 32

cdef struct RecentAppend:       # the position of a batch, so that readers at the tail need not search
    int64_t base_offset
    int64_t end_offset
    int64_t segment_base
    int64_t position

cdef struct DeletedSegment:     # renamed; removed from the disk when due
    LogSegment *segment         # counted
    int64_t deleted_ms
    DeletedSegment *next

cdef enum:                      # of Partition.new_names
    NEW_FILE = 1
    NEW_FOLDER = 2
    NEW_TOPIC_ID = 4            # partition.metadata: records on the disk name their topic there

cdef struct Partition           # opaque to all but log/: use the functions below
ctypedef void (*partition_hook)(void *arg, Partition *partition) noexcept nogil

cdef struct Partition:
    AtomicI64 refs
    AtomicI64 closed            # 1: deleted or shut
    Clock *clock                # counted
    FileCache *files            # counted
    Directory *directory        # counted; NULL: in memory
    int32_t index               # partition number
    char topic_id[16]
    Mutex append_lock           # appends, rolls, truncation, producer state
    Mutex view_lock             # leaf: view, config, recent appends, damage text, hooks
    SegmentList *view           # counted; replaced whole
    LogConfig config
    RecentAppend recent[RECENT_APPENDS]
    int64_t recent_count        # ever; the newest is at (recent_count - 1) % RECENT_APPENDS
    char *damage_text           # owned, NULL: sound
    char *cut_text              # owned, NULL: opening found nothing to cut
    partition_hook on_high_watermark
    partition_hook on_dirty
    void *on_high_watermark_arg
    void *on_dirty_arg
    AtomicI64 log_end
    AtomicI64 high_watermark
    AtomicI64 last_stable
    AtomicI64 log_start
    AtomicI64 flushed
    AtomicI64 leader_epoch
    AtomicI64 damage_offset     # reads at or past it are refused; INT64_MAX: sound
    AtomicI64 is_failed         # an fsync failed: no append until a restart
    AtomicI64 new_names         # files made since the folder was last synced
    AtomicI64 write_fault       # tests: errno of the next writes, 0 none
    AtomicI64 sync_fault
    LogSegment *active          # append lock; borrowed from the view
    ProducerState *producers    # append lock
    int32_t *epochs             # append lock; owned: (epoch) with its first offset in epoch_starts
    int64_t *epoch_starts
    int32_t epoch_count
    int64_t txn_checkpoint      # append lock; CRC-32C of the txnindex-checkpoint on the disk, -1: none
    int64_t jitter_ms           # of this segment
    int64_t snapshot_offset     # of the newest producer snapshot, -1: none
    DeletedSegment *deleted     # append lock
    Mutex flush_lock            # leaf: who syncs; never held during the sync
    Cond flush_done
    bint is_flushing

cdef Partition *partition_retain(Partition *partition) noexcept nogil
cdef void partition_release(Partition *partition) noexcept nogil
cdef bint partition_is_closed(Partition *partition) noexcept nogil            # deleted: answer 3 or 100
cdef int64_t partition_log_end_offset(Partition *partition) noexcept nogil
cdef int64_t partition_flushed_offset(Partition *partition) noexcept nogil    # exclusive: all below is on disk
cdef int32_t partition_leader_epoch(Partition *partition) noexcept nogil

# Called without any lock when the high watermark was moved by anything but an append of the native handlers: by a flush
# or an append through Python's handle.
cdef void partition_set_high_watermark_hook(Partition *partition, partition_hook hook, void *arg) noexcept nogil
# Called without any lock, on the appending thread, when partition_flush_target() has risen: a flush is wanted.
cdef void partition_set_dirty_hook(Partition *partition, partition_hook hook, void *arg) noexcept nogil
# No lock held: calls the one hook or the other.
cdef void call_hook(Partition *partition, bint dirty) noexcept nogil

# The segments as of now, with a count for the caller; they stay readable until segment_list_release.
cdef SegmentList *view_acquire(Partition *partition) noexcept nogil
# Under the append lock: publishes segments (takes the list's count), the last one is the active one.
cdef void view_publish(Partition *partition, SegmentList *segments) noexcept nogil

# Under the append lock: remembers where an epoch began. 1: it is new, 0: known, or -ENOMEM.
cdef int32_t note_leader_epoch(Partition *partition, int32_t epoch, int64_t start_offset) noexcept nogil
# Under the append lock: writes leader-epoch-checkpoint. 0 or -errno.
cdef int32_t write_leader_epochs(Partition *partition) noexcept nogil
# Under the append lock: writes txnindex-checkpoint, the sums of the transaction indexes by which a clean start finds a
# damaged one; with_active: the last segment's too. Without it the next start reads the batches instead.
cdef void write_txn_checkpoint(Partition *partition, bint with_active) noexcept nogil
