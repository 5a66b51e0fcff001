# cython: freethreading_compatible=True
"""The table of producers of one partition and its lists of transactions. See _producer_table.pxd."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset
from kbroker._core.containers.linked_list cimport Chain, ChainNode, chain_insert, chain_remove
from kbroker._core.containers.hashing cimport mix_hash

cdef enum:
    FIRST_CAPACITY = 16             # slots; always a power of two


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
        home = <int64_t>(mix_hash(<uint64_t>state.slots[i].producer_id) & <uint64_t>mask)
        if ((i - home) & mask) >= ((i - hole) & mask):
            state.slots[hole] = state.slots[i]
            hole = i
    state.slots[hole] = NULL


# -- transactions ------------------------------------------------------------------------------------------------------

cdef void txn_insert(Chain *txns, Txn *txn) noexcept nogil:
    """Sorted; nearly always at the end, since offsets rise."""
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
    entry.any_sequence = False


# -- life --------------------------------------------------------------------------------------------------------------

cdef ProducerState *table_new() noexcept nogil:
    cdef ProducerState *state = <ProducerState *>calloc(1, sizeof(ProducerState))
    if state == NULL:
        return NULL
    state.capacity = FIRST_CAPACITY
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
