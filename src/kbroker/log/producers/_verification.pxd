"""Producers whose next transactional batch is being verified: Kafka's VerificationStateEntry (KIP-890).

The table keeps a guard from the request to the transaction coordinator until the append. A marker, or the first batch
of the transaction, removes it, so that an append that was verified for an older transaction is refused.

Lock: the partition's append lock guards every call.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.containers.hash_table cimport HashNode
from kbroker.log.producers._producer_table cimport ProducerState

cdef enum:
    NO_GUARD = 0                # the transaction is open here: no verification
    NOT_VERIFIED = -1           # transaction.partition.verification.enable=false: the append needs no verification

cdef struct Verification:
    HashNode node               # first
    int64_t producer_id
    int64_t guard               # above 0, unique in the process
    int64_t timestamp_ms        # time of the begin
    int32_t lowest_sequence     # of the batches so far: a higher one must not overtake it
    int16_t epoch
    bint bumps_epochs           # each of the client's transactions has its own epoch (transaction version 2)

cdef Verification *verification_find(ProducerState *state, int64_t producer_id) noexcept nogil
# Return the verification in progress, with its lowest sequence updated, or a new one; NULL: out of memory.
cdef Verification *verification_begin(ProducerState *state, int64_t producer_id, int16_t epoch, int32_t sequence,
                                      bint bumps_epochs, int64_t now_ms) noexcept nogil
cdef void verification_end(ProducerState *state, int64_t producer_id) noexcept nogil
cdef void verification_expire(ProducerState *state, int64_t now_ms, int64_t expiration_ms) noexcept nogil
cdef void verification_clear(ProducerState *state) noexcept nogil
