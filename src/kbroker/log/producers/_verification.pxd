"""Producers whose next transactional batch is being verified: Kafka's VerificationStateEntry (KIP-890).

Between the question to the transaction coordinator and the append its guard is kept here. A marker, or the first batch
of the transaction, forgets it, so that an append that was verified for an older transaction is refused.

Lock: the partition's append lock guards every call.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.containers.hash_table cimport HashNode
from kbroker.log.producers._producer_table cimport ProducerState

cdef enum:
    NO_GUARD = 0                # the transaction is open here: nothing is to be verified
    NOT_VERIFIED = -1           # the append needs no verification: transaction.partition.verification.enable=false

cdef struct Verification:
    HashNode node               # first
    int64_t producer_id
    int64_t guard               # above 0, unique in this process
    int64_t timestamp_ms        # when it began
    int32_t lowest_sequence     # seen while it lasts: a higher one must not overtake it
    int16_t epoch
    bint bumps_epochs           # each of the client's transactions has its own epoch (transaction version 2)

cdef Verification *verification_find(ProducerState *state, int64_t producer_id) noexcept nogil
# The one that is under way, with the lowest sequence brought up to date, or a new one; NULL: memory is out.
cdef Verification *verification_begin(ProducerState *state, int64_t producer_id, int16_t epoch, int32_t sequence,
                                      bint bumps_epochs, int64_t now_ms) noexcept nogil
cdef void verification_end(ProducerState *state, int64_t producer_id) noexcept nogil
cdef void verification_expire(ProducerState *state, int64_t now_ms, int64_t expiration_ms) noexcept nogil
cdef void verification_clear(ProducerState *state) noexcept nogil
