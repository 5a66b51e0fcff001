"""Transactional batches of a Produce: immediate appends, and verification with the transaction coordinator.

A batch whose transaction is open in its partition is appended at once. For the others the request goes to Python once:
Python sends them to the coordinator (from version 12 on it adds the partitions to the transaction, in older versions it
only verifies them), stores the results here and returns the request. Nothing is appended before.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.requests.request cimport Request
from kbroker.log._partition cimport Partition
from kbroker.apis.api00_produce._produce_request cimport ProduceRequest
from kbroker.requests._native_types cimport Handler
from kbroker.replica._topics cimport Topic, TopicTable

cdef struct VerifiedPart:       # one partition of the request, with the same index as its ProducePart
    int64_t guard               # for its append
    int16_t error               # result, NONE: append
    const char *message         # static, or NULL
    bint is_pending             # the coordinator verifies it
    int32_t index
    int32_t base_sequence
    const Topic *topic          # in Verdicts.topics

cdef struct Verdicts:           # Request.state while Python has the request; owned with it
    TopicTable *topics          # reference-counted
    int64_t transactional_id_at     # position in the payload
    int64_t transactional_id_bytes
    int64_t producer_id         # -1: no batch has a producer
    int16_t producer_epoch
    int16_t version
    int32_t asked_count
    int32_t part_count
    VerifiedPart *parts         # after the struct

cdef enum Verification:
    VERIFY_DONE = 0             # verdicts[0] has the results
    VERIFY_ASK = 1              # request.state has them: the request goes to Python
    VERIFY_REFUSED = 2          # the whole request is refused, with *error

# Verify a request with transactional records. VERIFY_DONE: the caller frees *verdicts, unless they are request.state.
cdef Verification verify_produce(Handler *handler, Request *request, ProduceRequest *parsed, Verdicts **verdicts,
                                 int16_t *error) noexcept nogil
cdef void free_verdicts(Verdicts *verdicts) noexcept nogil
