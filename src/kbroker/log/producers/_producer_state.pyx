"""Idempotent-producer state of a partition: last sequences of each producer, and open transactions.

Source: ``ProducerStateManager``, ``ProducerAppendInfo``, ``ProducerStateEntry``, KIP-98, KIP-360.
"""
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t
from libc.stdlib cimport calloc
from kbroker._core.containers.linked_list cimport chain_remove
from kbroker.common._errors cimport (
    INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR, OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED, UNKNOWN_SERVER_ERROR,
)
from kbroker.log.producers._producer_table cimport (
    NOT_VERIFIED, NO_GUARD, Entry, ProducerState, RememberedBatch, Txn, Verification, add_entry, find, is_expired,
    remember, remove_slot, reserve, table_clear, table_free, table_new, txn_insert, txn_open, txn_remove,
    verification_begin, verification_clear, verification_end, verification_expire, verification_find,
)


cdef enum:
    NO_EPOCH = -1               # of a producer that is unknown to the partition
    MAX_EPOCH = 32767
    UNKNOWN_TRANSACTION_VERSION = -1

cdef int64_t LATE_TRANSACTION_MS = 300000    # beyond the longest time-out that a producer can request


# -- life --------------------------------------------------------------------------------------------------------------

cdef ProducerState *producer_state_new() noexcept nogil:
    return table_new()


cdef void producer_state_clear(ProducerState *state) noexcept nogil:
    table_clear(state)


cdef void producer_state_free(ProducerState *state) noexcept nogil:
    if state != NULL:
        verification_clear(state)
    table_free(state)


# -- the rules ---------------------------------------------------------------------------------------------------------

cdef inline int32_t first_sequence(const RememberedBatch *batch) noexcept nogil:
    """Return the first sequence of a batch; the one before 0 is the largest int32."""
    if batch.last_sequence >= batch.offset_delta:
        return batch.last_sequence - batch.offset_delta
    return <int32_t>(<int64_t>INT32_MAX - batch.offset_delta + batch.last_sequence + 1)


cdef inline bint in_sequence(int32_t last, int32_t first) noexcept nogil:
    return <int64_t>first == <int64_t>last + 1 or (first == 0 and last == INT32_MAX)


cdef int32_t check_marker(const Entry *entry, const BatchFacts *facts) noexcept nogil:
    if entry != NULL and facts.producer_epoch < entry.epoch:
        return INVALID_PRODUCER_EPOCH
    if facts.transaction_version == UNKNOWN_TRANSACTION_VERSION:
        return UNKNOWN_SERVER_ERROR
    if facts.producer_epoch < NO_EPOCH:
        return INVALID_PRODUCER_EPOCH
    if (facts.transaction_version >= 2 and entry != NULL and entry.txn != NULL
            and facts.producer_epoch == entry.epoch and entry.epoch != MAX_EPOCH):
        # The coordinator raises the epoch for each marker, so this one is late and belongs to a transaction that has
        # ended. Without an open transaction it repeats the marker that ended the last one, which may be written again.
        # The largest epoch cannot be raised: a transaction that was begun with it must be able to end.
        return INVALID_PRODUCER_EPOCH
    if facts.coordinator_epoch < (entry.coordinator_epoch if entry != NULL else -1):
        return TRANSACTION_COORDINATOR_FENCED
    return 0


cdef inline bint is_ongoing(const Entry *entry, int16_t epoch) noexcept nogil:
    return entry != NULL and entry.txn != NULL and entry.epoch == epoch


cdef int32_t check_verified(ProducerState *state, const Entry *entry, const BatchFacts *facts) noexcept nogil:
    """Check that the transaction of a batch is open here, or confirmed by the coordinator. 0 or an error code."""
    cdef Verification *verification
    if is_ongoing(entry, facts.producer_epoch):
        return 0
    if entry != NULL and facts.producer_epoch < entry.epoch:
        return INVALID_PRODUCER_EPOCH
    if facts.guard == NOT_VERIFIED:
        return 0
    verification = verification_find(state, facts.producer_id)
    if verification == NULL or facts.guard != verification.guard:
        return INVALID_TXN_STATE
    return 0


cdef int32_t check_lowest_sequence(ProducerState *state, const Entry *entry, const BatchFacts *facts) noexcept nogil:
    """Check that no batch overtakes an earlier one that will be sent again while its producer is verified.

    Returns: 0 or OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    cdef Verification *verification = verification_find(state, facts.producer_id)
    if verification == NULL:
        return 0
    if verification.bumps_epochs and facts.base_sequence != 0 and (entry == NULL or entry.batch_count == 0):
        return OUT_OF_ORDER_SEQUENCE_NUMBER
    return OUT_OF_ORDER_SEQUENCE_NUMBER if facts.base_sequence > verification.lowest_sequence else 0


cdef int32_t check_sequence(const Entry *entry, const BatchFacts *facts) noexcept nogil:
    cdef int32_t last
    if entry == NULL or entry.epoch == NO_EPOCH:      # unknown producer: any sequence is accepted
        return 0
    if facts.producer_epoch != entry.epoch:
        return 0 if facts.base_sequence == 0 else OUT_OF_ORDER_SEQUENCE_NUMBER
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
        if facts.is_transactional:
            error = check_verified(state, entry, facts)
        if error == 0 and facts.producer_epoch < (entry.epoch if entry != NULL else NO_EPOCH):
            error = INVALID_PRODUCER_EPOCH
        if error == 0 and facts.from_client and state.verifications.count > 0:
            error = check_lowest_sequence(state, entry, facts)
        if error == 0 and facts.from_client:
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


cdef bint producer_state_aborts(ProducerState *state, const BatchFacts *facts, AbortedTxn *aborted) noexcept nogil:
    cdef Entry *entry = find(state, facts.producer_id) if facts.producer_id >= 0 and facts.is_control else NULL
    cdef Txn *other = <Txn *>state.ongoing.first
    if entry == NULL or entry.txn == NULL or facts.control_type != 0:
        return False
    if other == entry.txn:          # a producer has at most one transaction, so the next one has another producer
        other = <Txn *>other.node.next
    aborted.producer_id = entry.producer_id
    aborted.first_offset = entry.txn.first_offset
    aborted.last_offset = facts.base_offset
    aborted.last_stable_offset = other.first_offset if other != NULL else facts.base_offset + 1
    return True


cdef bint apply_marker(ProducerState *state, Entry *entry, const BatchFacts *facts, AbortedTxn *aborted) noexcept nogil:
    cdef Txn *txn = entry.txn
    cdef bint aborts = producer_state_aborts(state, facts, aborted)
    set_epoch(entry, facts.producer_epoch)
    entry.coordinator_epoch = facts.coordinator_epoch
    entry.last_timestamp_ms = facts.max_timestamp_ms
    if txn == NULL:
        return False                # an empty transaction has no index entry
    entry.txn = NULL
    chain_remove(&state.ongoing, &txn.node)
    txn.last_offset = facts.base_offset
    txn_insert(&state.unreplicated, txn)
    return aborts


cdef bint begins_next(ProducerState *state, const BatchFacts *facts) noexcept nogil:
    """Return whether the producer's verification belongs to the transaction after the one that a marker ends: with
    transaction version 2 the client may begin it, with the marker's epoch, before the marker is written. None follows a
    marker of the largest epoch: the client continues with another producer id.
    """
    cdef Verification *verification
    if not facts.is_control or state.verifications.count == 0 or facts.producer_epoch == MAX_EPOCH:
        return False
    verification = verification_find(state, facts.producer_id)
    return verification != NULL and verification.bumps_epochs and verification.epoch == facts.producer_epoch


cdef bint producer_state_apply(ProducerState *state, const BatchFacts *facts, AbortedTxn *aborted) noexcept nogil:
    cdef Entry *entry
    if facts.producer_id < 0:
        return False
    if not reserve(state, facts.is_transactional):
        # Only possible without a preceding check (recovery). A missing producer's next sequence is accepted.
        return False
    entry = find(state, facts.producer_id)
    if entry == NULL:
        entry = add_entry(state, facts.producer_id)
    if facts.is_transactional and not begins_next(state, facts):
        verification_end(state, facts.producer_id)
    if facts.is_control:
        return apply_marker(state, entry, facts, aborted)
    set_epoch(entry, facts.producer_epoch)
    entry.last_timestamp_ms = facts.max_timestamp_ms
    remember(entry, facts.last_sequence, facts.last_offset, <int32_t>(facts.last_offset - facts.base_offset),
             facts.max_timestamp_ms)
    if facts.is_transactional and entry.txn == NULL:
        txn_open(state, entry, facts.base_offset)
    return False


cdef int32_t producer_state_verify(ProducerState *state, int64_t producer_id, int16_t epoch, int32_t sequence,
                                   bint bumps_epochs, int64_t now_ms, int64_t *guard) noexcept nogil:
    cdef Entry *entry = find(state, producer_id)
    cdef Verification *verification
    guard[0] = NO_GUARD
    if entry != NULL and epoch < entry.epoch:
        return INVALID_PRODUCER_EPOCH
    if is_ongoing(entry, epoch):
        return 0
    verification = verification_begin(state, producer_id, epoch, sequence, bumps_epochs, now_ms)
    if verification == NULL:
        return KAFKA_STORAGE_ERROR
    guard[0] = verification.guard
    return 0


cdef bint producer_state_has_late_transaction(ProducerState *state, int64_t now_ms,
                                              int64_t max_timeout_ms) noexcept nogil:
    cdef Txn *oldest = <Txn *>state.ongoing.first
    cdef Entry *entry = find(state, oldest.producer_id) if oldest != NULL else NULL
    if entry == NULL or entry.last_timestamp_ms <= 0 or entry.last_timestamp_ms > now_ms:
        return False
    return now_ms - entry.last_timestamp_ms > max_timeout_ms + LATE_TRANSACTION_MS


cdef void producer_state_set_high_watermark(ProducerState *state, int64_t high_watermark) noexcept nogil:
    cdef Txn *txn = <Txn *>state.unreplicated.first
    cdef Txn *following
    while txn != NULL:
        following = <Txn *>txn.node.next
        if txn.last_offset < high_watermark:
            txn_remove(&state.unreplicated, txn)
        txn = following


cdef int64_t producer_state_first_unstable_offset(ProducerState *state) noexcept nogil:
    cdef Txn *ongoing = <Txn *>state.ongoing.first
    cdef Txn *ended = <Txn *>state.unreplicated.first
    if ongoing == NULL:
        return ended.first_offset if ended != NULL else -1
    if ended != NULL and ended.first_offset < ongoing.first_offset:
        return ended.first_offset
    return ongoing.first_offset


cdef void producer_state_expire(ProducerState *state, int64_t now_ms, int64_t expiration_ms) noexcept nogil:
    cdef int64_t i = 0
    while i < state.capacity:
        if state.slots[i] != NULL and is_expired(
                state.slots[i].txn != NULL, state.slots[i].last_timestamp_ms, now_ms, expiration_ms):
            remove_slot(state, i)   # another entry may have moved into slot i
        else:
            i += 1
    verification_expire(state, now_ms, expiration_ms)


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
