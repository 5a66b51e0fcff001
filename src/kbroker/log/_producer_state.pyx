"""Idempotent-producer state of one partition: who wrote last, with which sequence, and whose transaction is open.

Entries live in an open-addressing table (linear probing, deletion by shifting back) of pointers keyed by producer id;
transactions in two lists sorted by first offset: the ongoing ones, and those that ended but whose marker the high
watermark has not passed yet. Nothing here waits or locks.

Source: ``ProducerStateManager``, ``ProducerAppendInfo``, ``ProducerStateEntry``, KIP-98, KIP-360.
"""
cimport cython
from libc.errno cimport EACCES, EINTR, EIO, ENOMEM, EPERM, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memmove, memset, strlen
from kbroker._core.crc32c cimport crc32c

import os


cdef extern from *:
    """
    #include <cstdio>
    #include <fcntl.h>
    #include <sys/stat.h>
    #ifdef _WIN32
      #include <io.h>
      #include <windows.h>
      #define KB_SNAP_READ (_O_RDONLY | _O_BINARY | _O_NOINHERIT)
      #define KB_SNAP_WRITE (_O_WRONLY | _O_CREAT | _O_TRUNC | _O_BINARY | _O_NOINHERIT)
      static inline int kb_snap_open(const char *p, int f) { return _open(p, f, _S_IREAD | _S_IWRITE); }
      static inline long kb_snap_read(int fd, char *b, long n) { return _read(fd, b, (unsigned)n); }
      static inline long kb_snap_write(int fd, const char *b, long n) { return _write(fd, b, (unsigned)n); }
      static inline int kb_snap_close(int fd) { return _close(fd); }
      static inline int kb_snap_sync(int fd) { return _commit(fd); }
      static inline int kb_snap_unlink(const char *p) { return _unlink(p); }
      static inline int kb_snap_rename(const char *a, const char *b) {
          if (MoveFileExA(a, b, MOVEFILE_REPLACE_EXISTING)) return 0;
          errno = EIO; return -1; }
      static inline long long kb_snap_size(int fd) {
          struct _stat64 s;
          return _fstat64(fd, &s) ? -1 : (long long)s.st_size; }
    #else
      #include <unistd.h>
      #define KB_SNAP_READ (O_RDONLY | O_CLOEXEC)
      #define KB_SNAP_WRITE (O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC)
      static inline int kb_snap_open(const char *p, int f) { return open(p, f, 0644); }
      static inline long kb_snap_read(int fd, char *b, long n) { return (long)read(fd, b, (size_t)n); }
      static inline long kb_snap_write(int fd, const char *b, long n) { return (long)write(fd, b, (size_t)n); }
      static inline int kb_snap_close(int fd) { return close(fd); }
      static inline int kb_snap_unlink(const char *p) { return unlink(p); }
      static inline int kb_snap_sync(int fd) {
      #ifdef F_FULLFSYNC
          if (fcntl(fd, F_FULLFSYNC) == 0) return 0;
      #endif
          return fsync(fd); }
      static inline int kb_snap_rename(const char *a, const char *b) { return rename(a, b); }
      static inline long long kb_snap_size(int fd) { struct stat s; return fstat(fd, &s) ? -1 : (long long)s.st_size; }
    #endif
    """
    int OPEN_READ "KB_SNAP_READ"
    int OPEN_WRITE "KB_SNAP_WRITE"
    int file_open "kb_snap_open"(const char *path, int flags) noexcept nogil
    long file_read "kb_snap_read"(int fd, char *buf, long n) noexcept nogil
    long file_write "kb_snap_write"(int fd, const char *buf, long n) noexcept nogil
    int file_close "kb_snap_close"(int fd) noexcept nogil
    int file_sync "kb_snap_sync"(int fd) noexcept nogil
    int file_unlink "kb_snap_unlink"(const char *path) noexcept nogil
    int file_rename "kb_snap_rename"(const char *old, const char *new) noexcept nogil
    long long file_size "kb_snap_size"(int fd) noexcept nogil


cdef enum:
    REMEMBERED_BATCHES = 5
    FIRST_CAPACITY = 16             # slots; always a power of two
    SNAPSHOT_VERSION = 1
    SNAPSHOT_HEADER_BYTES = 10      # version 2, crc 4, count 4
    SNAPSHOT_ENTRY_BYTES = 46
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTION_COORDINATOR_FENCED = 52
    KAFKA_STORAGE_ERROR = 56

cdef int32_t INT32_MAX = 0x7FFFFFFF
cdef int64_t MAX_SNAPSHOT_BYTES = 1 << 31   # Kafka's own limit: the file is one Java array


cdef struct RememberedBatch:
    int32_t last_sequence
    int32_t offset_delta
    int64_t last_offset
    int64_t timestamp_ms

cdef struct Txn:                    # in one of the two lists; owned by the list
    Txn *next
    Txn *prev
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset             # the marker's; -1 while ongoing

cdef struct TxnList:                # sorted by first_offset
    Txn *head
    Txn *tail

cdef struct Entry:
    int64_t producer_id
    int16_t epoch                   # -1: none known
    int32_t coordinator_epoch       # -1: no marker seen
    int64_t last_timestamp_ms
    Txn *txn                        # the ongoing one, owned by state.ongoing; NULL: none
    bint any_sequence               # its batches were cut off: the next sequence cannot be judged
    int32_t batch_count
    RememberedBatch batches[REMEMBERED_BATCHES]     # oldest first

cdef struct ProducerState:
    Entry **slots
    int64_t capacity                # power of two
    int64_t count
    TxnList ongoing
    TxnList unreplicated
    Entry *spare_entry              # made by a check, used by the apply that follows
    Txn *spare_txn


# -- the table ---------------------------------------------------------------------------------------------------------

cdef inline uint64_t mix(int64_t producer_id) noexcept nogil:
    cdef uint64_t x = <uint64_t>producer_id     # splitmix64: ids are counted up in blocks
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline int64_t find_slot(Entry **slots, int64_t capacity, int64_t producer_id) noexcept nogil:
    """The slot that holds the producer, or the free one where it belongs."""
    cdef int64_t mask = capacity - 1
    cdef int64_t i = <int64_t>(mix(producer_id) & <uint64_t>mask)
    while slots[i] != NULL and slots[i].producer_id != producer_id:
        i = (i + 1) & mask
    return i


cdef inline Entry *find(ProducerState *state, int64_t producer_id) noexcept nogil:
    return state.slots[find_slot(state.slots, state.capacity, producer_id)]


cdef bint rehash(ProducerState *state, int64_t capacity) noexcept nogil:
    cdef Entry **slots = <Entry **>calloc(<size_t>capacity, sizeof(Entry *))
    cdef int64_t i
    if slots == NULL:
        return False
    for i in range(state.capacity):
        if state.slots[i] != NULL:
            slots[find_slot(slots, capacity, state.slots[i].producer_id)] = state.slots[i]
    free(state.slots)
    state.slots = slots
    state.capacity = capacity
    return True


cdef bint reserve(ProducerState *state, bint is_transactional) noexcept nogil:
    """Takes all memory one apply may need: a slot, an entry, a transaction."""
    if (state.count + 1) * 4 > state.capacity * 3 and not rehash(state, state.capacity * 2):
        return False
    if state.spare_entry == NULL:
        state.spare_entry = <Entry *>calloc(1, sizeof(Entry))
    if is_transactional and state.spare_txn == NULL:
        state.spare_txn = <Txn *>calloc(1, sizeof(Txn))
    return state.spare_entry != NULL and (not is_transactional or state.spare_txn != NULL)


cdef Entry *add_entry(ProducerState *state, int64_t producer_id) noexcept nogil:
    """After a reserve."""
    cdef Entry *entry = state.spare_entry
    state.spare_entry = NULL
    memset(entry, 0, sizeof(Entry))
    entry.producer_id = producer_id
    entry.epoch = -1
    entry.coordinator_epoch = -1
    entry.last_timestamp_ms = -1
    state.slots[find_slot(state.slots, state.capacity, producer_id)] = entry
    state.count += 1
    return entry


cdef void remove_slot(ProducerState *state, int64_t hole) noexcept nogil:
    """Frees the entry and shifts later ones of its run back, so that no tombstone is needed."""
    cdef int64_t mask = state.capacity - 1
    cdef int64_t i = hole
    cdef int64_t home
    if state.slots[hole].txn != NULL:
        txn_remove(&state.ongoing, state.slots[hole].txn)
    free(state.slots[hole])
    state.count -= 1
    while True:
        i = (i + 1) & mask
        if state.slots[i] == NULL:
            break
        home = <int64_t>(mix(state.slots[i].producer_id) & <uint64_t>mask)
        if ((i - home) & mask) >= ((i - hole) & mask):
            state.slots[hole] = state.slots[i]
            hole = i
    state.slots[hole] = NULL


# -- transactions ------------------------------------------------------------------------------------------------------

cdef void txn_insert(TxnList *txns, Txn *txn) noexcept nogil:
    """Sorted; nearly always at the end, since offsets rise."""
    cdef Txn *after = txns.tail
    while after != NULL and after.first_offset > txn.first_offset:
        after = after.prev
    txn.prev = after
    txn.next = after.next if after != NULL else txns.head
    if after != NULL:
        after.next = txn
    else:
        txns.head = txn
    if txn.next != NULL:
        txn.next.prev = txn
    else:
        txns.tail = txn


cdef void txn_unlink(TxnList *txns, Txn *txn) noexcept nogil:
    if txn.prev != NULL:
        txn.prev.next = txn.next
    else:
        txns.head = txn.next
    if txn.next != NULL:
        txn.next.prev = txn.prev
    else:
        txns.tail = txn.prev
    txn.next = txn.prev = NULL


cdef void txn_remove(TxnList *txns, Txn *txn) noexcept nogil:
    txn_unlink(txns, txn)
    free(txn)


cdef void txn_open(ProducerState *state, Entry *entry, int64_t first_offset) noexcept nogil:
    """After a reserve with is_transactional."""
    cdef Txn *txn = state.spare_txn
    state.spare_txn = NULL
    txn.producer_id = entry.producer_id
    txn.first_offset = first_offset
    txn.last_offset = -1
    txn_insert(&state.ongoing, txn)
    entry.txn = txn


# -- life --------------------------------------------------------------------------------------------------------------

cdef ProducerState *producer_state_new() noexcept nogil:
    cdef ProducerState *state = <ProducerState *>calloc(1, sizeof(ProducerState))
    if state == NULL:
        return NULL
    state.capacity = FIRST_CAPACITY
    state.slots = <Entry **>calloc(<size_t>state.capacity, sizeof(Entry *))
    if state.slots == NULL:
        free(state)
        return NULL
    return state


cdef void producer_state_clear(ProducerState *state) noexcept nogil:
    cdef int64_t i
    while state.ongoing.head != NULL:
        txn_remove(&state.ongoing, state.ongoing.head)
    while state.unreplicated.head != NULL:
        txn_remove(&state.unreplicated, state.unreplicated.head)
    for i in range(state.capacity):
        free(state.slots[i])
        state.slots[i] = NULL
    state.count = 0


cdef void producer_state_free(ProducerState *state) noexcept nogil:
    if state == NULL:
        return
    producer_state_clear(state)
    free(state.spare_entry)
    free(state.spare_txn)
    free(state.slots)
    free(state)


# -- the rules ---------------------------------------------------------------------------------------------------------

cdef inline int32_t first_sequence(const RememberedBatch *batch) noexcept nogil:
    """Counted back over the wrap: the sequence before 0 is max int32."""
    if batch.last_sequence >= batch.offset_delta:
        return batch.last_sequence - batch.offset_delta
    return <int32_t>(<int64_t>INT32_MAX - (batch.offset_delta - batch.last_sequence) + 1)


cdef inline bint in_sequence(int32_t last, int32_t first) noexcept nogil:
    return <int64_t>first == <int64_t>last + 1 or (first == 0 and last == INT32_MAX)


cdef int32_t check_marker(const Entry *entry, const BatchFacts *facts) noexcept nogil:
    if entry == NULL:
        return 0
    if facts.producer_epoch < entry.epoch:
        return INVALID_PRODUCER_EPOCH
    if facts.coordinator_epoch < entry.coordinator_epoch:
        return TRANSACTION_COORDINATOR_FENCED
    return 0


cdef int32_t check_sequence(const Entry *entry, const BatchFacts *facts) noexcept nogil:
    cdef int32_t last
    if entry == NULL or entry.epoch == -1:      # unknown producer: any sequence
        return 0
    if facts.producer_epoch != entry.epoch:
        return 0 if facts.base_sequence == 0 else OUT_OF_ORDER_SEQUENCE_NUMBER
    if entry.any_sequence:
        return 0
    last = entry.batches[entry.batch_count - 1].last_sequence if entry.batch_count > 0 else -1
    return 0 if in_sequence(last, facts.base_sequence) else OUT_OF_ORDER_SEQUENCE_NUMBER


cdef int32_t producer_state_check(ProducerState *state, const BatchFacts *facts, Duplicate *duplicate) noexcept nogil:
    cdef Entry *entry
    cdef RememberedBatch *batch
    cdef int32_t i
    cdef int32_t error = 0
    if facts.producer_id < 0:
        return 0
    entry = find(state, facts.producer_id)
    if facts.is_control:
        error = check_marker(entry, facts)
    else:
        if facts.from_client and entry != NULL and entry.epoch == facts.producer_epoch:
            for i in range(entry.batch_count):
                batch = &entry.batches[i]
                if batch.last_sequence == facts.last_sequence and first_sequence(batch) == facts.base_sequence:
                    duplicate.base_offset = batch.last_offset - batch.offset_delta
                    duplicate.timestamp_ms = batch.timestamp_ms
                    return PRODUCER_CHECK_DUPLICATE
        if facts.from_client:
            if entry != NULL and facts.producer_epoch < entry.epoch:
                return INVALID_PRODUCER_EPOCH
            error = check_sequence(entry, facts)
        if error == 0 and entry != NULL and entry.txn != NULL and not facts.is_transactional:
            error = INVALID_TXN_STATE
    if error == 0 and not reserve(state, facts.is_transactional):
        error = KAFKA_STORAGE_ERROR
    return error


cdef void set_epoch(Entry *entry, int16_t epoch) noexcept nogil:
    if entry.epoch != epoch:
        entry.epoch = epoch
        entry.batch_count = 0
        entry.any_sequence = False


cdef void remember(Entry *entry, int32_t last_sequence, int64_t last_offset, int32_t offset_delta,
                   int64_t timestamp_ms) noexcept nogil:
    cdef RememberedBatch *batch
    if entry.batch_count == REMEMBERED_BATCHES:
        memmove(&entry.batches[0], &entry.batches[1], (REMEMBERED_BATCHES - 1) * sizeof(RememberedBatch))
        entry.batch_count -= 1
    batch = &entry.batches[entry.batch_count]
    batch.last_sequence = last_sequence
    batch.offset_delta = offset_delta
    batch.last_offset = last_offset
    batch.timestamp_ms = timestamp_ms
    entry.batch_count += 1
    entry.any_sequence = False


cdef bint apply_marker(ProducerState *state, Entry *entry, const BatchFacts *facts, AbortedTxn *aborted) noexcept nogil:
    cdef Txn *txn = entry.txn
    cdef Txn *other
    set_epoch(entry, facts.producer_epoch)
    entry.coordinator_epoch = facts.coordinator_epoch
    entry.last_timestamp_ms = facts.max_timestamp_ms
    if txn == NULL:
        return False                # an empty transaction: nothing to index
    entry.txn = NULL
    txn_unlink(&state.ongoing, txn)
    txn.last_offset = facts.base_offset
    txn_insert(&state.unreplicated, txn)
    if facts.control_type != 0:
        return False
    other = state.ongoing.head      # a producer has one transaction at most, so these are all others'
    aborted.producer_id = entry.producer_id
    aborted.first_offset = txn.first_offset
    aborted.last_offset = facts.base_offset
    aborted.last_stable_offset = other.first_offset if other != NULL else facts.base_offset + 1
    return True


cdef bint producer_state_apply(ProducerState *state, const BatchFacts *facts, AbortedTxn *aborted) noexcept nogil:
    cdef Entry *entry
    if facts.producer_id < 0:
        return False
    if not reserve(state, facts.is_transactional):
        # Only without a check before (recovery). A forgotten producer's next sequence is accepted as it comes.
        return False
    entry = find(state, facts.producer_id)
    if entry == NULL:
        entry = add_entry(state, facts.producer_id)
    if facts.is_control:
        return apply_marker(state, entry, facts, aborted)
    set_epoch(entry, facts.producer_epoch)
    entry.last_timestamp_ms = facts.max_timestamp_ms
    remember(entry, facts.last_sequence, facts.last_offset, <int32_t>(facts.last_offset - facts.base_offset),
             facts.max_timestamp_ms)
    if facts.is_transactional and entry.txn == NULL:
        txn_open(state, entry, facts.base_offset)
    return False


cdef void producer_state_set_high_watermark(ProducerState *state, int64_t high_watermark) noexcept nogil:
    cdef Txn *txn = state.unreplicated.head
    cdef Txn *following
    while txn != NULL:
        following = txn.next
        if txn.last_offset < high_watermark:
            txn_remove(&state.unreplicated, txn)
        txn = following


cdef int64_t producer_state_first_unstable_offset(ProducerState *state) noexcept nogil:
    cdef Txn *ongoing = state.ongoing.head
    cdef Txn *ended = state.unreplicated.head
    if ongoing == NULL:
        return ended.first_offset if ended != NULL else -1
    if ended != NULL and ended.first_offset < ongoing.first_offset:
        return ended.first_offset
    return ongoing.first_offset


cdef inline bint is_expired(bint has_txn, int64_t last_timestamp_ms, int64_t now_ms,
                            int64_t expiration_ms) noexcept nogil:
    # written so that a hostile time stamp (near int64 min or max) cannot overflow
    if has_txn or expiration_ms < 0:
        return False
    if last_timestamp_ms < 0:
        last_timestamp_ms = -1
    if now_ms < last_timestamp_ms:
        return False
    return now_ms - last_timestamp_ms >= expiration_ms


cdef void producer_state_expire(ProducerState *state, int64_t now_ms, int64_t expiration_ms) noexcept nogil:
    cdef int64_t i = 0
    while i < state.capacity:
        if state.slots[i] != NULL and is_expired(
                state.slots[i].txn != NULL, state.slots[i].last_timestamp_ms, now_ms, expiration_ms):
            remove_slot(state, i)   # another may have moved into slot i
        else:
            i += 1


cdef int64_t producer_state_count(ProducerState *state) noexcept nogil:
    return state.count


cdef ProducerFacts *producer_state_list(ProducerState *state, int64_t *count) noexcept nogil:
    cdef ProducerFacts *rows
    cdef ProducerFacts *row
    cdef Entry *entry
    cdef int64_t i
    cdef int64_t n = 0
    count[0] = 0
    if state.count == 0:
        return NULL
    rows = <ProducerFacts *>calloc(<size_t>state.count, sizeof(ProducerFacts))
    if rows == NULL:
        return NULL
    for i in range(state.capacity):
        entry = state.slots[i]
        if entry == NULL:
            continue
        row = &rows[n]
        n += 1
        row.producer_id = entry.producer_id
        row.producer_epoch = entry.epoch
        row.coordinator_epoch = entry.coordinator_epoch
        row.last_timestamp_ms = entry.last_timestamp_ms
        row.last_sequence = row.last_offset = -1
        if entry.batch_count > 0:
            row.last_sequence = entry.batches[entry.batch_count - 1].last_sequence
            row.last_offset = entry.batches[entry.batch_count - 1].last_offset
        row.current_txn_first_offset = entry.txn.first_offset if entry.txn != NULL else -1
        row.batch_count = entry.batch_count
    count[0] = n
    return rows


cdef void producer_state_truncate(ProducerState *state, int64_t end_offset) noexcept nogil:
    """What was at or after end_offset did not happen. An epoch seen there stays known; its sequence is not judged."""
    cdef int64_t i = 0
    cdef int32_t kept
    cdef Entry *entry
    cdef Txn *txn = state.unreplicated.head
    cdef Txn *following
    while txn != NULL:              # ended at or after the cut: open again, or never begun
        following = txn.next
        if txn.last_offset >= end_offset:
            entry = find(state, txn.producer_id)
            if txn.first_offset < end_offset and entry != NULL and (
                    entry.txn == NULL or entry.txn.first_offset >= end_offset):
                if entry.txn != NULL:
                    txn_remove(&state.ongoing, entry.txn)
                txn_unlink(&state.unreplicated, txn)
                txn.last_offset = -1
                txn_insert(&state.ongoing, txn)
                entry.txn = txn
            else:
                txn_remove(&state.unreplicated, txn)
        txn = following
    while i < state.capacity:
        entry = state.slots[i]
        if entry == NULL:
            i += 1
            continue
        if entry.txn != NULL and entry.txn.first_offset >= end_offset:
            txn_remove(&state.ongoing, entry.txn)
            entry.txn = NULL
        kept = entry.batch_count
        while kept > 0 and entry.batches[kept - 1].last_offset >= end_offset:
            kept -= 1
        if kept < entry.batch_count:
            entry.batch_count = kept
            if kept == 0 and entry.txn == NULL:
                remove_slot(state, i)   # nothing left to judge by: an unknown producer
                continue
            entry.any_sequence = kept == 0
        i += 1


# -- snapshots ---------------------------------------------------------------------------------------------------------

cdef inline char *put16(char *p, int16_t x) noexcept nogil:
    p[0], p[1] = <char>((<uint16_t>x >> 8) & 0xFF), <char>(<uint16_t>x & 0xFF)
    return p + 2


cdef inline char *put32(char *p, int32_t x) noexcept nogil:
    cdef uint32_t u = <uint32_t>x
    cdef int i
    for i in range(4):
        p[i] = <char>((u >> (24 - 8 * i)) & 0xFF)
    return p + 4


cdef inline char *put64(char *p, int64_t x) noexcept nogil:
    cdef uint64_t u = <uint64_t>x
    cdef int i
    for i in range(8):
        p[i] = <char>((u >> (56 - 8 * i)) & 0xFF)
    return p + 8


cdef inline int16_t get16(const char *p) noexcept nogil:
    return <int16_t>((<uint16_t><uint8_t>p[0] << 8) | <uint8_t>p[1])


cdef inline int32_t get32(const char *p) noexcept nogil:
    cdef uint32_t u = 0
    cdef int i
    for i in range(4):
        u = (u << 8) | <uint8_t>p[i]
    return <int32_t>u


cdef inline int64_t get64(const char *p) noexcept nogil:
    cdef uint64_t u = 0
    cdef int i
    for i in range(8):
        u = (u << 8) | <uint8_t>p[i]
    return <int64_t>u


cdef char *producer_state_encode_snapshot(ProducerState *state, int64_t *size_bytes) noexcept nogil:
    cdef int64_t size = SNAPSHOT_HEADER_BYTES + state.count * SNAPSHOT_ENTRY_BYTES
    cdef char *data
    cdef char *p
    cdef Entry *entry
    cdef RememberedBatch *batch
    cdef int64_t i
    size_bytes[0] = 0
    if size >= MAX_SNAPSHOT_BYTES:
        return NULL
    data = <char *>malloc(<size_t>size)
    if data == NULL:
        return NULL
    p = put32(put16(data, SNAPSHOT_VERSION) + 4, <int32_t>state.count)
    for i in range(state.capacity):
        entry = state.slots[i]
        if entry == NULL:
            continue
        batch = &entry.batches[entry.batch_count - 1] if entry.batch_count > 0 else NULL
        p = put16(put64(p, entry.producer_id), entry.epoch)
        p = put32(p, batch.last_sequence if batch != NULL else -1)
        p = put64(p, batch.last_offset if batch != NULL else -1)
        p = put32(p, batch.offset_delta if batch != NULL else 0)
        p = put32(put64(p, entry.last_timestamp_ms), entry.coordinator_epoch)
        p = put64(p, entry.txn.first_offset if entry.txn != NULL else -1)
    put32(data + 2, <int32_t>crc32c(0, data + 6, size - 6))
    size_bytes[0] = size
    return data


cdef inline int32_t failure() noexcept nogil:
    cdef int e = errno
    if e == EPERM:
        return -EACCES              # -1 is SNAPSHOT_CORRUPT
    return -e if e > 0 else -EIO


cdef int32_t write_all(int fd, const char *data, int64_t size_bytes) noexcept nogil:
    cdef int64_t done = 0
    cdef long n
    while done < size_bytes:
        n = file_write(fd, data + done, <long>min(size_bytes - done, <int64_t>1 << 20))
        if n < 0:
            if errno == EINTR:
                continue
            return failure()
        done += n
    if file_sync(fd) != 0:
        return failure()
    return 0


cdef int32_t producer_state_store_snapshot(const char *path, const char *data, int64_t size_bytes) noexcept nogil:
    cdef size_t room = strlen(path) + 5
    cdef char *temporary = <char *>malloc(room)
    cdef int32_t result
    cdef int fd
    if temporary == NULL:
        return -ENOMEM
    snprintf(temporary, room, "%s.tmp", path)
    fd = file_open(temporary, OPEN_WRITE)
    if fd < 0:
        result = failure()
        free(temporary)
        return result
    result = write_all(fd, data, size_bytes)
    if file_close(fd) != 0 and result == 0:
        result = failure()
    if result == 0 and file_rename(temporary, path) != 0:
        result = failure()
    if result != 0:
        file_unlink(temporary)
    free(temporary)
    return result


cdef int32_t producer_state_write_snapshot(ProducerState *state, const char *path) noexcept nogil:
    cdef int64_t size = 0
    cdef int32_t result
    cdef char *data = producer_state_encode_snapshot(state, &size)
    if data == NULL:
        return -ENOMEM
    result = producer_state_store_snapshot(path, data, size)
    free(data)
    return result


cdef int32_t read_file(const char *path, char **data, int64_t *size_bytes) noexcept nogil:
    cdef int fd = file_open(path, OPEN_READ)
    cdef int64_t size
    cdef int64_t done = 0
    cdef int32_t result = 0
    cdef long n
    if fd < 0:
        return failure()
    size = file_size(fd)
    if size < 0:
        result = failure()
    elif size < SNAPSHOT_HEADER_BYTES or size >= MAX_SNAPSHOT_BYTES:
        result = SNAPSHOT_CORRUPT
    else:
        data[0] = <char *>malloc(<size_t>size)
        if data[0] == NULL:
            result = -ENOMEM
    while result == 0 and done < size:
        n = file_read(fd, data[0] + done, <long>min(size - done, <int64_t>1 << 20))
        if n == 0:
            result = SNAPSHOT_CORRUPT
        elif n > 0:
            done += n
        elif errno != EINTR:
            result = failure()
    file_close(fd)
    size_bytes[0] = size
    if result != 0:
        free(data[0])
        data[0] = NULL
    return result


cdef bint load_entry(ProducerState *state, const char *p, int64_t now_ms, int64_t expiration_ms) noexcept nogil:
    cdef int64_t producer_id = get64(p)
    cdef int64_t last_offset = get64(p + 14)
    cdef int64_t timestamp_ms = get64(p + 26)
    cdef int64_t txn_first_offset = get64(p + 38)
    cdef Entry *entry
    if is_expired(txn_first_offset >= 0, timestamp_ms, now_ms, expiration_ms):
        return True
    if not reserve(state, True):
        return False
    entry = find(state, producer_id)
    if entry != NULL:               # twice in one file: the later one counts
        remove_slot(state, find_slot(state.slots, state.capacity, producer_id))
    entry = add_entry(state, producer_id)
    entry.epoch = get16(p + 8)
    entry.last_timestamp_ms = timestamp_ms
    entry.coordinator_epoch = get32(p + 34)
    if last_offset >= 0:
        remember(entry, get32(p + 10), last_offset, get32(p + 22), timestamp_ms)
    if txn_first_offset >= 0:
        txn_open(state, entry, txn_first_offset)
    return True


cdef int32_t producer_state_load_snapshot(ProducerState *state, const char *path, int64_t now_ms,
                                          int64_t expiration_ms) noexcept nogil:
    cdef char *data = NULL
    cdef int64_t size = 0
    cdef int64_t count
    cdef int64_t i
    cdef int32_t result = read_file(path, &data, &size)
    if result != 0:
        return result
    count = get32(data + 6)
    if (get16(data) != SNAPSHOT_VERSION or count < 0 or size != SNAPSHOT_HEADER_BYTES + count * SNAPSHOT_ENTRY_BYTES
            or <uint32_t>get32(data + 2) != crc32c(0, data + 6, size - 6)):
        free(data)
        return SNAPSHOT_CORRUPT
    for i in range(count):          # a right checksum over nonsense is corrupt too
        if (get64(data + SNAPSHOT_HEADER_BYTES + i * SNAPSHOT_ENTRY_BYTES) < 0
                or get32(data + SNAPSHOT_HEADER_BYTES + i * SNAPSHOT_ENTRY_BYTES + 22) < 0):
            free(data)
            return SNAPSHOT_CORRUPT
    producer_state_clear(state)
    for i in range(count):
        if not load_entry(state, data + SNAPSHOT_HEADER_BYTES + i * SNAPSHOT_ENTRY_BYTES, now_ms, expiration_ms):
            producer_state_clear(state)
            result = -ENOMEM
            break
    free(data)
    return result


# -- Python's handle ---------------------------------------------------------------------------------------------------

cdef int64_t checked(object value, str name, int64_t low, int64_t high) except? -2:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")
    return <int64_t>value


cdef int64_t INT64_MAX = 0x7FFFFFFFFFFFFFFF


cdef int64_t checked_offset(object value, str name) except? -2:
    return checked(value, name, 0, INT64_MAX - 1)


@cython.final
@cython.no_gc
cdef class ProducerStateManager:
    """The producer state of one partition, for tools and tests; the broker uses the native functions.

    Threads: one at a time; the caller's lock, as the partition's append lock does for the native state.
    Source: ``ProducerStateManager``.
    """

    def __cinit__(self):
        self.state = producer_state_new()
        if self.state == NULL:
            raise MemoryError

    def __dealloc__(self):
        producer_state_free(self.state)

    def append(self, producer_id, producer_epoch, base_sequence, base_offset, *, record_count=1, timestamp_ms=0,
               transactional=False, from_client=True):
        """Judge a batch and, if it may be written, apply it.

        Args: ``from_client``: the sequence rules count; False is how recovery and replication apply what was accepted.
        Returns: (error, base offset, timestamp_ms): 0 with the batch's own values, or those of the remembered batch it
        repeats; 45, 47, 48 or 56 with -1, -1.
        Raises: TypeError, ValueError for a number out of range.
        """
        cdef BatchFacts facts
        cdef Duplicate duplicate
        cdef AbortedTxn aborted
        cdef int32_t code
        memset(&facts, 0, sizeof(facts))
        facts.producer_id = checked(producer_id, "producer_id", 0, INT64_MAX)
        facts.producer_epoch = <int16_t>checked(producer_epoch, "producer_epoch", 0, 32767)
        facts.base_sequence = <int32_t>checked(base_sequence, "base_sequence", 0, INT32_MAX)
        facts.base_offset = checked(base_offset, "base_offset", 0, INT64_MAX - 1 - INT32_MAX)
        facts.last_offset_delta = <int32_t>checked(record_count, "record_count", 1, INT32_MAX) - 1
        facts.last_offset = facts.base_offset + facts.last_offset_delta
        if facts.base_sequence > INT32_MAX - facts.last_offset_delta:
            facts.last_sequence = facts.last_offset_delta - (INT32_MAX - facts.base_sequence) - 1
        else:
            facts.last_sequence = facts.base_sequence + facts.last_offset_delta
        facts.max_timestamp_ms = checked(timestamp_ms, "timestamp_ms", -1, INT64_MAX)
        facts.is_transactional = bool(transactional)
        facts.from_client = bool(from_client)
        code = producer_state_check(self.state, &facts, &duplicate)
        if code == PRODUCER_CHECK_DUPLICATE:
            return 0, duplicate.base_offset, duplicate.timestamp_ms
        if code != 0:
            return code, -1, -1
        producer_state_apply(self.state, &facts, &aborted)
        return 0, facts.base_offset, facts.max_timestamp_ms

    def end_transaction(self, producer_id, producer_epoch, offset, *, commit, coordinator_epoch=0, timestamp_ms=0):
        """Judge and apply an end marker of the coordinator at ``offset``.

        Returns: (error 0, 47, 52 or 56; the entry (producer id, first, last, last stable offset) for the transaction
        index when a transaction was aborted, else None).
        """
        cdef BatchFacts facts
        cdef Duplicate duplicate
        cdef AbortedTxn aborted
        cdef int32_t code
        memset(&facts, 0, sizeof(facts))
        facts.producer_id = checked(producer_id, "producer_id", 0, INT64_MAX)
        facts.producer_epoch = <int16_t>checked(producer_epoch, "producer_epoch", 0, 32767)
        facts.base_offset = facts.last_offset = checked_offset(offset, "offset")
        facts.base_sequence = facts.last_sequence = -1
        facts.coordinator_epoch = <int32_t>checked(coordinator_epoch, "coordinator_epoch", 0, INT32_MAX)
        facts.max_timestamp_ms = checked(timestamp_ms, "timestamp_ms", -1, INT64_MAX)
        facts.is_transactional = facts.is_control = True
        facts.control_type = 1 if commit else 0
        code = producer_state_check(self.state, &facts, &duplicate)
        if code != 0:
            return code, None
        if producer_state_apply(self.state, &facts, &aborted):
            return 0, (aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.last_stable_offset)
        return 0, None

    def set_high_watermark(self, offset):
        producer_state_set_high_watermark(self.state, checked_offset(offset, "offset"))

    @property
    def first_unstable_offset(self):
        cdef int64_t offset = producer_state_first_unstable_offset(self.state)
        return None if offset < 0 else offset

    def expire(self, now_ms, expiration_ms):
        producer_state_expire(self.state, checked(now_ms, "now_ms", 0, INT64_MAX),
                              checked(expiration_ms, "expiration_ms", 1, INT64_MAX))

    def truncate(self, end_offset):
        producer_state_truncate(self.state, checked_offset(end_offset, "end_offset"))

    def clear(self):
        producer_state_clear(self.state)

    def __len__(self):
        return producer_state_count(self.state)

    def describe(self):
        cdef int64_t count = 0
        cdef int64_t i
        cdef ProducerFacts *rows = producer_state_list(self.state, &count)
        if rows == NULL and producer_state_count(self.state) > 0:
            raise MemoryError
        try:
            return sorted([
                {
                    "producer_id": rows[i].producer_id,
                    "producer_epoch": rows[i].producer_epoch,
                    "coordinator_epoch": rows[i].coordinator_epoch,
                    "last_timestamp_ms": rows[i].last_timestamp_ms,
                    "last_sequence": rows[i].last_sequence,
                    "last_offset": rows[i].last_offset,
                    "current_txn_first_offset": rows[i].current_txn_first_offset,
                    "batch_count": rows[i].batch_count,
                }
                for i in range(count)
            ], key=lambda row: row["producer_id"])
        finally:
            free(rows)

    def write_snapshot(self, path):
        cdef bytes encoded = os.fsencode(path)
        cdef const char *name = encoded
        cdef int64_t size = 0
        cdef int32_t code
        cdef char *data = producer_state_encode_snapshot(self.state, &size)
        if data == NULL:
            raise MemoryError
        with nogil:
            code = producer_state_store_snapshot(name, data, size)
            free(data)
        if code != 0:
            raise OSError(-code, os.strerror(-code), os.fsdecode(encoded))

    def load_snapshot(self, path, *, now_ms=0, expiration_ms=86_400_000):
        cdef bytes encoded = os.fsencode(path)
        cdef int32_t code = producer_state_load_snapshot(
            self.state, encoded, checked(now_ms, "now_ms", 0, INT64_MAX),
            checked(expiration_ms, "expiration_ms", 1, INT64_MAX))
        if code == SNAPSHOT_CORRUPT:
            raise ValueError(f"corrupt producer snapshot: {os.fsdecode(encoded)}")
        if code != 0:
            raise OSError(-code, os.strerror(-code), os.fsdecode(encoded))
