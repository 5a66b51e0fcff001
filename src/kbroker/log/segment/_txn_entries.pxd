"""Entries of a transaction index in memory, as varints of differences. Header only, no lock: one owner each.

A log can have millions of entries; an entry takes 32 bytes as a struct, and 5 or 6 here.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memset
from kbroker._core.codec.bytes cimport VARLONG_MAX_BYTES, get_varlong, put_varlong
from kbroker._core.containers.array cimport array_reserve
from kbroker._core.containers.buffer cimport Buffer, buffer_free, buffer_reserve
from kbroker.log.producers._producer_state cimport AbortedTxn

cdef enum:
    BLOCK_ENTRIES = 64          # a search decodes half a block
    ENTRY_MAX_BYTES = 4 * VARLONG_MAX_BYTES

cdef struct TxnBlock:           # entries that are decoded without those before them
    int64_t position            # of the first entry
    int64_t last_offset         # at least that of the last entry, and equal to it before any cut

cdef struct TxnEntries:         # zeroed: empty
    Buffer packed
    TxnBlock *blocks            # owned; the last one may be partly filled
    int64_t count
    AbortedTxn last             # the last entry, if there is one

cdef struct TxnCursor:          # zeroed: before the first entry
    int64_t slot                # of the next entry
    int64_t position            # of the next entry
    AbortedTxn entry            # the entry before slot


cdef inline void txn_entries_free(TxnEntries *entries) noexcept nogil:
    buffer_free(&entries.packed)
    free(entries.blocks)
    memset(entries, 0, sizeof(TxnEntries))


cdef inline bint txn_entries_reserve(TxnEntries *entries) noexcept nogil:
    """Reserve memory for one more entry; return False, with the entries unchanged, if memory is exhausted."""
    return buffer_reserve(&entries.packed, ENTRY_MAX_BYTES) and (
        entries.count % BLOCK_ENTRIES != 0 or array_reserve(&entries.blocks, entries.count // BLOCK_ENTRIES))


cdef inline int put_difference(char *at, int64_t value, int64_t base) noexcept nogil:
    return put_varlong(at, <int64_t>(<uint64_t>value - <uint64_t>base))


cdef inline void txn_entries_add(TxnEntries *entries, const AbortedTxn *entry) noexcept nogil:
    """Add an entry whose memory is reserved and whose last offset is above that of the others."""
    cdef char *at = entries.packed.data + entries.packed.size
    cdef TxnBlock *block = &entries.blocks[entries.count // BLOCK_ENTRIES]
    if entries.count % BLOCK_ENTRIES == 0:
        block.position = entries.packed.size
        memset(&entries.last, 0, sizeof(AbortedTxn))
    at += put_difference(at, entry.producer_id, entries.last.producer_id)
    at += put_difference(at, entry.last_offset, entries.last.last_offset)
    at += put_difference(at, entry.last_offset, entry.first_offset)
    at += put_difference(at, entry.last_stable_offset, entry.last_offset)
    entries.packed.size = at - entries.packed.data
    block.last_offset = entry.last_offset
    entries.last = entry[0]
    entries.count += 1


cdef inline int64_t take_difference(const TxnEntries *entries, TxnCursor *cursor) noexcept nogil:
    cdef const char *data = entries.packed.data
    cdef int64_t value = 0
    cursor.position += get_varlong(data + cursor.position, data + entries.packed.size, &value)
    return value


cdef inline void txn_cursor_next(const TxnEntries *entries, TxnCursor *cursor) noexcept nogil:
    """Decode the entry of the cursor's slot, which must exist, and move behind it."""
    cdef AbortedTxn *entry = &cursor.entry
    if cursor.slot % BLOCK_ENTRIES == 0:
        memset(entry, 0, sizeof(AbortedTxn))
    entry.producer_id = <int64_t>(<uint64_t>entry.producer_id + <uint64_t>take_difference(entries, cursor))
    entry.last_offset = <int64_t>(<uint64_t>entry.last_offset + <uint64_t>take_difference(entries, cursor))
    entry.first_offset = <int64_t>(<uint64_t>entry.last_offset - <uint64_t>take_difference(entries, cursor))
    entry.last_stable_offset = <int64_t>(<uint64_t>entry.last_offset + <uint64_t>take_difference(entries, cursor))
    cursor.slot += 1


cdef inline bint txn_cursor_take(const TxnEntries *entries, TxnCursor *cursor, const AbortedTxn *entry) noexcept nogil:
    """Move behind the next entry if it equals the given one; return whether it does."""
    cdef TxnCursor after = cursor[0]
    if cursor.slot == entries.count:
        return False
    txn_cursor_next(entries, &after)
    if memcmp(&after.entry, entry, sizeof(AbortedTxn)) != 0:
        return False
    cursor[0] = after
    return True


cdef inline TxnCursor txn_entries_find(const TxnEntries *entries, int64_t offset) noexcept nogil:
    """Return a cursor at most a block before the first entry whose transaction ends at or after offset."""
    cdef TxnCursor cursor
    cdef int64_t low = 0, high = (entries.count + BLOCK_ENTRIES - 1) // BLOCK_ENTRIES, middle, blocks = high
    while low < high:
        middle = low + (high - low) // 2
        if entries.blocks[middle].last_offset >= offset:
            high = middle
        else:
            low = middle + 1
    memset(&cursor, 0, sizeof(TxnCursor))
    cursor.slot = entries.count
    if low < blocks:
        cursor.slot, cursor.position = low * BLOCK_ENTRIES, entries.blocks[low].position
    return cursor


cdef inline void txn_entries_cut(TxnEntries *entries, const TxnCursor *cursor) noexcept nogil:
    """Remove the entries from the cursor on."""
    entries.count, entries.packed.size, entries.last = cursor.slot, cursor.position, cursor.entry
