"""A segment of a log: its file, its indexes, and the cache that bounds the number of open files.

Counts: a segment is held by every ``SegmentList`` (the immutable view that readers use) and by each caller that
retained it. Lock order: ``FileCache.lock``, then ``LogSegment.lock``; never held during a system call on a file. One
writer per segment (the partition's append lock); sizes are published last.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.containers.buffer cimport Buffer
from kbroker._core.open_file cimport OpenFile
from kbroker._core.sync cimport AtomicI64, Mutex
from kbroker.log.segment._index cimport Index
from kbroker.log.segment._txn_index cimport TxnIndex
from kbroker.protocol._records cimport BatchHeader

cdef struct Directory:          # path of a partition's folder, shared by its segments
    AtomicI64 refs
    char *path                  # owned
    Directory *former           # counted: the folder before a move, which a thread without a lock may still read

cdef struct FileCache:          # segments with an open file, in a ring for the clock hand
    AtomicI64 refs
    Mutex lock
    int64_t capacity
    int64_t open_files
    LogSegment *hand

cdef struct LogSegment:
    AtomicI64 refs
    Directory *directory        # counted; NULL: in memory
    FileCache *files            # counted
    int64_t base_offset
    int64_t created_ms
    AtomicI64 size_bytes        # readable bytes
    AtomicI64 max_timestamp_ms  # -1: none
    AtomicI64 offset_of_max     # last offset of the batch with this timestamp
    AtomicI64 is_deleted        # the file has, or will soon have, the suffix .deleted, or is removed
    int64_t first_timestamp_ms  # largest timestamp of the first append, or -1 (roll by time); append lock
    int64_t bytes_since_index   # append lock
    Mutex lock                  # leaf: file, mappings
    Mutex aborted_lock          # leaf: aborted
    OpenFile *file              # counted; NULL: not open
    AtomicI64 used              # second chance of the clock hand
    LogSegment *ring_next       # cache lock
    LogSegment *ring_prev
    Index offsets
    Index times
    TxnIndex aborted

cdef struct BatchReader:        # reader of consecutive batches of a file
    OpenFile *file              # counted
    int64_t at                  # position of the next batch
    int64_t limit               # end of the bytes to read
    int64_t next_offset         # offset after the last batch
    Buffer buffer
    int64_t start               # position of the buffer in the file
    const char *batch           # the current batch, in the buffer
    BatchHeader header

cdef struct SegmentList:        # immutable once published
    AtomicI64 refs
    int32_t count
    LogSegment **segments       # each counted, by base offset

cdef Directory *directory_new(const char *path) noexcept nogil
cdef void directory_release(Directory *directory) noexcept nogil

cdef FileCache *file_cache_shared() noexcept nogil                       # the process's cache, counted
cdef FileCache *file_cache_retain(FileCache *files) noexcept nogil
cdef void file_cache_release(FileCache *files) noexcept nogil

cdef LogSegment *segment_new(Directory *directory, FileCache *files, int64_t base_offset, int64_t index_bytes,
                             bint writable, int64_t now_ms) noexcept nogil
cdef LogSegment *segment_retain(LogSegment *segment) noexcept nogil
cdef void segment_release(LogSegment *segment) noexcept nogil
# Return a counted reference to the file, which is opened (or, in memory, created) if necessary; NULL and
# *error = -errno on failure
cdef OpenFile *segment_open(LogSegment *segment, int32_t *error) noexcept nogil
cdef void segment_close_file(LogSegment *segment) noexcept nogil
# Keep file, mappings and aborted list open until the segment is freed, so that its file names can be used
# again. 0 or -errno
cdef int32_t segment_pin(LogSegment *segment) noexcept nogil
# out has PATH_BYTES bytes.
cdef void segment_path(const LogSegment *segment, const char *suffix, char *out) noexcept nogil
cdef int32_t segment_create_file(LogSegment *segment) noexcept nogil     # creates an empty .log; 0 or -errno
# Reserve disk space for the whole .log (preallocate), 0 or -errno; the second function frees the unused rest.
cdef int32_t segment_reserve(LogSegment *segment, int64_t size_bytes) noexcept nogil
cdef void segment_give_back(LogSegment *segment) noexcept nogil
# Update indexes and largest timestamp after an append at ``position`` that ends before the published size.
cdef void segment_note_append(LogSegment *segment, int64_t position, int64_t size_bytes, int64_t last_offset,
                              int64_t max_timestamp_ms, int64_t offset_of_max, int64_t index_interval) noexcept nogil
cdef int32_t segment_seal(LogSegment *segment) noexcept nogil  # writes the closing time entry and trims both indexes
# Rename the files to .deleted, or unlink them at once. 0, or the first -errno.
cdef int32_t segment_remove(LogSegment *segment, bint at_once) noexcept nogil
# Find the first batch at or after from_position whose last offset >= offset: 1 found (position, its header), 0 none
# below limit, -1 the bytes are not a batch, else -errno
cdef int32_t segment_find(LogSegment *segment, OpenFile *file, int64_t offset, int64_t from_position, int64_t limit,
                          int64_t *position, BatchHeader *header) noexcept nogil
# Call segment_find from the index's entry, or from 0 if that does not point at a batch
cdef int32_t segment_find_indexed(LogSegment *segment, OpenFile *file, int64_t offset, int64_t limit, int64_t *position,
                                  BatchHeader *header) noexcept nogil

# Begin at a position; takes the count of file. The buffer of an earlier file is kept; a new reader is zeroed memory.
cdef void batch_reader_begin(BatchReader *reader, OpenFile *file, int64_t position, int64_t limit,
                             int64_t next_offset) noexcept nogil
cdef void batch_reader_free(BatchReader *reader) noexcept nogil
# Load the header, or all bytes, of the batch at reader.at into the buffer: 0, 1 the file ends before, or -errno
cdef int32_t batch_reader_header(BatchReader *reader) noexcept nogil
cdef int32_t batch_reader_body(BatchReader *reader) noexcept nogil
cdef void batch_reader_advance(BatchReader *reader) noexcept nogil        # continue with the next batch

cdef SegmentList *segment_list_new(int32_t count) noexcept nogil         # with count slots, each NULL
cdef SegmentList *segment_list_retain(SegmentList *segments) noexcept nogil
cdef void segment_list_release(SegmentList *segments) noexcept nogil
# Return the slot of the segment for an offset; -1: before the first segment
cdef int32_t segment_list_floor(const SegmentList *segments, int64_t offset) noexcept nogil

cdef class OpenFileCache:       # Python's handle on a cache shared by partitions
    cdef FileCache *files
