"""Idempotent-producer state of one partition: the rules of sequences (Kafka's ``ProducerAppendInfo``) over the entries.

Lock: the partition's append lock guards every call.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker.log.producers._producer_table cimport ProducerState

cdef enum:
    PRODUCER_CHECK_DUPLICATE = -100

cdef struct BatchFacts:         # header fields of a v2 batch, parsed once by the append
    int64_t base_offset         # assigned by the append
    int64_t last_offset
    int32_t last_offset_delta
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t last_sequence       # wraps after the largest int32
    int64_t max_timestamp_ms
    bint is_transactional
    bint is_control
    int16_t control_type        # of a control batch: 0 abort, 1 commit
    int32_t coordinator_epoch   # of an end marker
    bint from_client            # a client's batch: sequence rules apply; else (coordinator, recovery) they do not
    int64_t guard               # of a transactional batch: NO_GUARD, NOT_VERIFIED, or the guard of its verification
    int16_t transaction_version     # of an end marker: -1 unknown; from 2 on its epoch is above that of the transaction

cdef struct Duplicate:          # the remembered batch that a repeat matches
    int64_t base_offset
    int64_t timestamp_ms

cdef struct AbortedTxn:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset
    int64_t last_stable_offset

cdef struct ProducerFacts:      # a producer as described by DescribeProducers
    int64_t producer_id
    int16_t producer_epoch
    int32_t coordinator_epoch   # -1: no marker yet
    int64_t last_timestamp_ms
    int32_t last_sequence       # -1: no remembered batch
    int64_t last_offset         # -1: no remembered batch
    int64_t current_txn_first_offset    # -1: none
    int32_t batch_count         # 0 to 5

cdef ProducerState *producer_state_new() noexcept nogil
cdef void producer_state_free(ProducerState *state) noexcept nogil
cdef void producer_state_clear(ProducerState *state) noexcept nogil
# Check a batch before the write. 0: it may be written; -100: duplicate, *duplicate is filled; else Kafka's error code
# (45, 47, 48, 52; 56 when memory is exhausted). The check reserves the memory for the apply, which cannot fail after
# it. An end marker is checked as the coordinator's (47, 52, -1); recovery applies without a check.
cdef int32_t producer_state_check(ProducerState *state, const BatchFacts *facts, Duplicate *duplicate) noexcept nogil
# Apply a batch after the write. True when a marker aborted a transaction: *aborted is then its .txnindex entry.
cdef bint producer_state_apply(ProducerState *state, const BatchFacts *facts, AbortedTxn *aborted) noexcept nogil
# Begin the verification of a transactional batch, unless its transaction is open here (*guard: NO_GUARD): 0, 47, or 56
# when memory is exhausted. ``bumps_epochs``: the client uses transaction version 2.
cdef int32_t producer_state_verify(ProducerState *state, int64_t producer_id, int16_t epoch, int32_t sequence,
                                   bint bumps_epochs, int64_t now_ms, int64_t *guard) noexcept nogil
# Return whether the oldest open transaction has had no batch for longer than max_timeout_ms plus five minutes.
cdef bint producer_state_has_late_transaction(ProducerState *state, int64_t now_ms,
                                              int64_t max_timeout_ms) noexcept nogil
# Return whether a batch that may be written aborts a transaction: *aborted is then the entry that apply will return.
cdef bint producer_state_aborts(ProducerState *state, const BatchFacts *facts, AbortedTxn *aborted) noexcept nogil
cdef void producer_state_set_high_watermark(ProducerState *state, int64_t high_watermark) noexcept nogil
cdef int64_t producer_state_first_unstable_offset(ProducerState *state) noexcept nogil   # -1: none
cdef void producer_state_expire(ProducerState *state, int64_t now_ms, int64_t expiration_ms) noexcept nogil
cdef int64_t producer_state_count(ProducerState *state) noexcept nogil
# Return a malloc'ed list that the caller frees, NULL when empty or when memory is exhausted (*count is then 0).
cdef ProducerFacts *producer_state_list(ProducerState *state, int64_t *count) noexcept nogil
