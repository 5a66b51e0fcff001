"""Offset and time index of a segment, in Kafka's formats.

Each is a mapped file; it is neither created nor mapped before the first entry or look-up. One writer (under the append
lock); readers see a count published after its entry. ``lock`` (the segment's leaf lock) guards the mapping, never
during a system call.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.sync cimport AtomicI64, Mutex

cdef enum:
    OFFSET_ENTRY_BYTES = 8      # int32 relative offset, int32 file position
    TIME_ENTRY_BYTES = 12       # int64 timestamp, int32 relative offset
    INDEX_OUT_OF_ORDER = -10001
    INDEX_FULL = -10002
    INDEX_MISSING = -10003
    INDEX_CORRUPT = -10004

cdef struct Index:
    const char *directory       # borrowed from the segment; NULL: memory only
    int64_t base_offset
    int32_t entry_bytes
    bint writable               # active segment: preallocated to max_entries; sealed: as long as its entries
    int64_t max_entries
    int64_t map_bytes
    # The file has blocks up to this offset: a store beyond them could end the process when the disk is full.
    int64_t reserved_bytes
    AtomicI64 map               # address of the first entry, 0: not mapped
    AtomicI64 entries
    Mutex *lock

cdef void index_init(Index *index, const char *directory, int64_t base_offset, int32_t entry_bytes, int64_t max_bytes,
                     bint writable, Mutex *lock) noexcept nogil
cdef void index_destroy(Index *index) noexcept nogil
# Map the file if it is not mapped; for the active segment it is created and preallocated. 0 or -errno; -ENOENT: no
# entries
cdef int32_t index_ensure(Index *index) noexcept nogil
# Count the entries of the file and check it: 0, INDEX_MISSING, INDEX_CORRUPT or -errno. end_offset, file_bytes: of its
# segment.
cdef int32_t index_load(Index *index, int64_t end_offset, int64_t file_bytes) noexcept nogil
cdef int32_t index_reset(Index *index) noexcept nogil  # remove all entries; the caller rebuilds them
cdef int32_t index_seal(Index *index) noexcept nogil                       # trim the file to its entries
cdef bint index_is_full(Index *index) noexcept nogil
cdef void index_truncate(Index *index, int64_t offset) noexcept nogil      # remove entries at or past offset
cdef int32_t offset_index_append(Index *index, int64_t offset, int64_t position) noexcept nogil
cdef void offset_index_lookup(Index *index, int64_t target, int64_t *offset, int64_t *position) noexcept nogil
# Return the offset of the first entry at or past a position, an upper bound for the records before that position, or -1
cdef int64_t offset_index_offset_after(Index *index, int64_t position) noexcept nogil
# Append an entry if its timestamp is above the last entry's; is_closing: it may use the last place
cdef int32_t time_index_maybe_append(Index *index, int64_t timestamp_ms, int64_t offset, bint is_closing) noexcept nogil
cdef void time_index_lookup(Index *index, int64_t target_ms, int64_t *timestamp_ms, int64_t *offset) noexcept nogil
cdef bint time_index_last(Index *index, int64_t *timestamp_ms, int64_t *offset) noexcept nogil
