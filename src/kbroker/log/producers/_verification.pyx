"""Verifications in progress, by producer id. See _verification.pxd. Source: ``VerificationStateEntry``, KIP-890."""
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free
from kbroker._core.containers.hash_table cimport (
    HashNode, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.sync cimport AtomicI64, atomic_add_fetch
from kbroker.log.producers._producer_table cimport is_expired, producer_hash

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
