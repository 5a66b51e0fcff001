"""The producers of one partition, their transactions, and the snapshot file of both. See _producer_table.pxd.

Source of the snapshot: ``ProducerStateManager``; of verifications: ``VerificationStateEntry``, KIP-890.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memmove
from kbroker._core.codec.bytes cimport load_i16, load_i32, load_i64, load_u32, store_16, store_32, store_64
from kbroker._core.codec.crc32c cimport crc32c
from kbroker._core.containers.hash_table cimport (
    HashNode, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.linked_list cimport Chain, ChainNode, chain_insert, chain_remove
from kbroker._core.sync cimport AtomicI64, atomic_add_fetch
from kbroker.log._posix cimport ENOMEM, io_path_size, io_read_file

import os

cdef enum:
    FIRST_CAPACITY = 16             # slots; always a power of two
    SNAPSHOT_VERSION = 1
    SNAPSHOT_HEADER_BYTES = 10      # version 2, crc 4, count 4
    SNAPSHOT_ENTRY_BYTES = 46

cdef uint64_t process_seed = int.from_bytes(os.urandom(8), "little")

cdef int64_t MAX_SNAPSHOT_BYTES = 1 << 31   # Kafka's own limit: the file is one Java array


cdef bint rehash(ProducerState *state, int64_t capacity) noexcept nogil:
    cdef Entry **slots = <Entry **>calloc(<size_t>capacity, sizeof(Entry *))
    cdef int64_t i
    if slots == NULL:
        return False
    for i in range(state.capacity):
        if state.slots[i] != NULL:
            slots[find_slot(state, slots, capacity, state.slots[i].producer_id)] = state.slots[i]
    free(state.slots)
    state.slots = slots
    state.capacity = capacity
    return True


cdef bint reserve(ProducerState *state, bint is_transactional) noexcept nogil:
    if (state.count + 1) * 4 > state.capacity * 3 and not rehash(state, state.capacity * 2):
        return False
    if state.spare_entry == NULL:
        state.spare_entry = <Entry *>calloc(1, sizeof(Entry))
    if is_transactional and state.spare_txn == NULL:
        state.spare_txn = <Txn *>calloc(1, sizeof(Txn))
    return state.spare_entry != NULL and (not is_transactional or state.spare_txn != NULL)


cdef Entry *add_entry(ProducerState *state, int64_t producer_id) noexcept nogil:
    cdef Entry *entry = state.spare_entry
    state.spare_entry = NULL
    entry.producer_id = producer_id
    entry.epoch = -1
    entry.coordinator_epoch = -1
    state.slots[find_slot(state, state.slots, state.capacity, producer_id)] = entry
    state.count += 1
    return entry


cdef void remove_slot(ProducerState *state, int64_t hole) noexcept nogil:
    """Free the entry and shift later ones of its cluster back, so that no tombstone is needed."""
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
        home = <int64_t>(producer_hash(state, state.slots[i].producer_id) & <uint64_t>mask)
        if ((i - home) & mask) >= ((i - hole) & mask):
            state.slots[hole] = state.slots[i]
            hole = i
    state.slots[hole] = NULL


# -- transactions ------------------------------------------------------------------------------------------------------

cdef void txn_insert(Chain *txns, Txn *txn) noexcept nogil:
    """Insert a transaction in order, nearly always at the end, since offsets rise."""
    cdef ChainNode *after = txns.last
    while after != NULL and (<Txn *>after).first_offset > txn.first_offset:
        after = after.prev
    chain_insert(txns, &txn.node, after)


cdef void txn_remove(Chain *txns, Txn *txn) noexcept nogil:
    chain_remove(txns, &txn.node)
    free(txn)


cdef void txn_open(ProducerState *state, Entry *entry, int64_t first_offset) noexcept nogil:
    cdef Txn *txn = state.spare_txn
    state.spare_txn = NULL
    txn.producer_id = entry.producer_id
    txn.first_offset = first_offset
    txn.last_offset = -1
    txn_insert(&state.ongoing, txn)
    entry.txn = txn


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


# -- life --------------------------------------------------------------------------------------------------------------

cdef ProducerState *table_new() noexcept nogil:
    cdef ProducerState *state = <ProducerState *>calloc(1, sizeof(ProducerState))
    if state == NULL:
        return NULL
    state.capacity = FIRST_CAPACITY
    state.seed = process_seed
    state.slots = <Entry **>calloc(<size_t>state.capacity, sizeof(Entry *))
    if state.slots == NULL:
        free(state)
        return NULL
    return state


cdef void table_clear(ProducerState *state) noexcept nogil:
    cdef int64_t i
    while state.ongoing.first != NULL:
        txn_remove(&state.ongoing, <Txn *>state.ongoing.first)
    while state.unreplicated.first != NULL:
        txn_remove(&state.unreplicated, <Txn *>state.unreplicated.first)
    for i in range(state.capacity):
        free(state.slots[i])
        state.slots[i] = NULL
    state.count = 0


cdef void table_free(ProducerState *state) noexcept nogil:
    if state == NULL:
        return
    table_clear(state)
    free(state.spare_entry)
    free(state.spare_txn)
    free(state.slots)
    free(state)


# -- snapshot file -----------------------------------------------------------------------------------------------------

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
    store_16(data, SNAPSHOT_VERSION)
    store_32(data + 6, <uint64_t>state.count)
    p = data + SNAPSHOT_HEADER_BYTES
    for i in range(state.capacity):
        entry = state.slots[i]
        if entry == NULL:
            continue
        batch = &entry.batches[entry.batch_count - 1] if entry.batch_count > 0 else NULL
        store_64(p, <uint64_t>entry.producer_id)
        store_16(p + 8, <uint64_t>entry.epoch)
        store_32(p + 10, <uint64_t>(batch.last_sequence if batch != NULL else -1))
        store_64(p + 14, <uint64_t>(batch.last_offset if batch != NULL else -1))
        store_32(p + 22, <uint64_t>(batch.offset_delta if batch != NULL else 0))
        store_64(p + 26, <uint64_t>entry.last_timestamp_ms)
        store_32(p + 34, <uint64_t>entry.coordinator_epoch)
        store_64(p + 38, <uint64_t>(entry.txn.first_offset if entry.txn != NULL else -1))
        p += SNAPSHOT_ENTRY_BYTES
    store_32(data + 2, crc32c(0, data + 6, size - 6))
    size_bytes[0] = size
    return data


cdef int32_t read_file(const char *path, char **data, int64_t *size_bytes) noexcept nogil:
    cdef int64_t size = io_path_size(path), got
    if size < 0:
        return <int32_t>size
    if size < SNAPSHOT_HEADER_BYTES or size >= MAX_SNAPSHOT_BYTES:
        return SNAPSHOT_CORRUPT
    data[0] = <char *>malloc(<size_t>size)
    if data[0] == NULL:
        return -ENOMEM
    got = io_read_file(path, data[0], size)
    if got == size:
        size_bytes[0] = size
        return 0
    free(data[0])
    return <int32_t>got if got < 0 else SNAPSHOT_CORRUPT


cdef bint load_entry(ProducerState *state, const char *p, int64_t now_ms, int64_t expiration_ms) noexcept nogil:
    cdef int64_t producer_id = load_i64(p)
    cdef int64_t last_offset = load_i64(p + 14)
    cdef int64_t timestamp_ms = load_i64(p + 26)
    cdef int64_t txn_first_offset = load_i64(p + 38)
    cdef Entry *entry
    if is_expired(txn_first_offset >= 0, timestamp_ms, now_ms, expiration_ms):
        return True
    if not reserve(state, True):
        return False
    entry = find(state, producer_id)
    if entry != NULL:               # duplicate in one file: the later one counts
        remove_slot(state, find_slot(state, state.slots, state.capacity, producer_id))
    entry = add_entry(state, producer_id)
    entry.epoch = load_i16(p + 8)
    entry.last_timestamp_ms = timestamp_ms
    entry.coordinator_epoch = load_i32(p + 34)
    if last_offset >= 0:
        remember(entry, load_i32(p + 10), last_offset, load_i32(p + 22), timestamp_ms)
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
    count = load_i32(data + 6)
    if (load_i16(data) != SNAPSHOT_VERSION or count < 0 or size != SNAPSHOT_HEADER_BYTES + count * SNAPSHOT_ENTRY_BYTES
            or load_u32(data + 2) != crc32c(0, data + 6, size - 6)):
        free(data)
        return SNAPSHOT_CORRUPT
    for i in range(count):          # a correct checksum of invalid data is corrupt too
        if (load_i64(data + SNAPSHOT_HEADER_BYTES + i * SNAPSHOT_ENTRY_BYTES) < 0
                or load_i32(data + SNAPSHOT_HEADER_BYTES + i * SNAPSHOT_ENTRY_BYTES + 22) < 0):
            free(data)
            return SNAPSHOT_CORRUPT
    table_clear(state)
    for i in range(count):
        if not load_entry(state, data + SNAPSHOT_HEADER_BYTES + i * SNAPSHOT_ENTRY_BYTES, now_ms, expiration_ms):
            table_clear(state)
            result = -ENOMEM
            break
    free(data)
    return result


# ------------------------------------------------------------------------------------------------------- verifications

# for all partitions: a guard outlives the partition's state, and must never match another one
cdef AtomicI64 guards_given


cdef Verification *verification_find(ProducerState *state, int64_t producer_id) noexcept nogil:
    cdef HashNode *node = hash_first(&state.verifications, producer_hash(state, producer_id))
    while node != NULL and (<Verification *>node).producer_id != producer_id:
        node = hash_next(node)
    return <Verification *>node


cdef Verification *verification_begin(ProducerState *state, int64_t producer_id, int16_t epoch, int32_t sequence,
                                      bint bumps_epochs, int64_t now_ms) noexcept nogil:
    cdef Verification *verification = verification_find(state, producer_id)
    if verification == NULL:
        verification = <Verification *>calloc(1, sizeof(Verification))
        if verification == NULL or not hash_reserve(&state.verifications):
            free(verification)
            return NULL
        verification.producer_id = producer_id
        verification.guard = atomic_add_fetch(&guards_given, 1)
        verification.timestamp_ms = now_ms
        verification.lowest_sequence = sequence
        verification.epoch = epoch
        verification.bumps_epochs = bumps_epochs
        hash_add(&state.verifications, &verification.node, producer_hash(state, producer_id))
    elif epoch == verification.epoch and sequence < verification.lowest_sequence:
        verification.lowest_sequence = sequence
    elif epoch > verification.epoch:
        verification.epoch = epoch
        verification.lowest_sequence = sequence
    return verification


cdef void forget(ProducerState *state, Verification *verification) noexcept nogil:
    hash_remove(&state.verifications, &verification.node)
    free(verification)


cdef void verification_end(ProducerState *state, int64_t producer_id) noexcept nogil:
    cdef Verification *verification
    if state.verifications.count > 0:
        verification = verification_find(state, producer_id)
        if verification != NULL:
            forget(state, verification)


cdef void verification_expire(ProducerState *state, int64_t now_ms, int64_t expiration_ms) noexcept nogil:
    cdef HashNode *node = hash_after(&state.verifications, NULL)
    cdef Verification *verification
    while node != NULL:
        verification = <Verification *>node
        node = hash_after(&state.verifications, node)
        if is_expired(False, verification.timestamp_ms, now_ms, expiration_ms):
            forget(state, verification)


cdef void verification_clear(ProducerState *state) noexcept nogil:
    cdef HashNode *node = hash_after(&state.verifications, NULL)
    cdef Verification *verification
    while node != NULL:
        verification = <Verification *>node
        node = hash_after(&state.verifications, node)
        forget(state, verification)
    hash_clear(&state.verifications)
