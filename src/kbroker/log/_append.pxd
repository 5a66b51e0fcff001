"""Appends to a partition's log. See _partition.pxd for the locks and the result."""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker.log._partition cimport AppendResult, Partition

cdef enum:
    RUN_PARTS = 64

cdef struct AppendPart:         # record data of one Produce request without a transaction
    char *records
    int64_t size_bytes
    int16_t acks
    int16_t api_version
    AppendResult result

# Append ``batch``, the record data of one partition of a Produce request, and patch it in place (offset, epoch, maybe
# timestamp and CRC). ``api_version`` 7+ allows zstd. is_client = 0 (internal writers) skips client-only checks and
# allows several batches, none of them a control batch. ``guard`` of a transactional batch: the
# result of its verification, or NO_GUARD or NOT_VERIFIED.
cdef void partition_append(Partition *partition, char *batch, int64_t size_bytes, int16_t acks, int16_t api_version,
                           bint is_client, int64_t guard, AppendResult *out) noexcept nogil
# Append the batches of several Produce requests, at most RUN_PARTS, in their order and as if each were appended alone:
# with as few writes as possible, so that all batches of one write succeed or fail together.
cdef void partition_append_run(Partition *partition, AppendPart *parts, int32_t count) noexcept nogil
# Append the control batch with which the transaction coordinator ends a producer's transaction. Errors include 47, 52
# and 56. ``transaction_version`` is that of the transaction; from 2 on the marker's epoch must be above that of the
# records.
cdef void partition_append_end_marker(Partition *partition, int64_t producer_id, int16_t producer_epoch,
                                      int32_t coordinator_epoch, bint is_commit, int16_t transaction_version,
                                      AppendResult *out) noexcept nogil
# Return 0 and the guard for the append of the first batch of a producer's transaction (NO_GUARD: the transaction is
# open), or an error: 47, an older epoch; 3, the partition is closed; 56, out of memory. ``bumps_epochs``:
# transaction version 2.
cdef int32_t partition_start_verification(Partition *partition, int64_t producer_id, int16_t producer_epoch,
                                          int32_t base_sequence, bint bumps_epochs, int64_t *guard) noexcept nogil
# Append one batch without a producer, which the broker has built with its checksum. It is stored unchanged, unless
# the topic requires another codec or timestamp.
cdef void partition_append_built(Partition *partition, char *batch, int64_t size_bytes,
                                 AppendResult *out) noexcept nogil
