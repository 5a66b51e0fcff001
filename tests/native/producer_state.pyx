"""Producer state of a partition as a Python object, for tests."""
cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memset

from kbroker.log.producers._producer_state cimport (
    PRODUCER_CHECK_DUPLICATE, AbortedTxn, BatchFacts, Duplicate, ProducerFacts, producer_state_apply,
    producer_state_check, producer_state_clear, producer_state_count, producer_state_expire,
    producer_state_first_unstable_offset, producer_state_free, producer_state_has_late_transaction,
    producer_state_list, producer_state_new, producer_state_set_high_watermark, producer_state_verify,
)
from kbroker.log.producers._producer_table cimport (
    NO_GUARD, NOT_VERIFIED, SNAPSHOT_CORRUPT, ProducerState, producer_state_encode_snapshot,
    producer_state_load_snapshot,
)

from pathlib import Path
import os

cdef int64_t INT32_MAX = 0x7FFFFFFF
cdef int64_t INT64_MAX = 0x7FFFFFFFFFFFFFFF


cdef int64_t checked(object value, str name, int64_t low, int64_t high) except? -2:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")
    return <int64_t>value


cdef int64_t checked_offset(object value, str name) except? -2:
    return checked(value, name, 0, INT64_MAX - 1)


@cython.final
@cython.no_gc
cdef class ProducerStateManager:
    """Producer state of one partition. Threads: one at a time."""
    cdef ProducerState *state

    def __cinit__(self):
        self.state = producer_state_new()
        if self.state == NULL:
            raise MemoryError

    def __dealloc__(self):
        producer_state_free(self.state)

    def append(self, producer_id, producer_epoch, base_sequence, base_offset, *, record_count=1, timestamp_ms=0,
               transactional=False, from_client=True, guard=NOT_VERIFIED):
        """Check a batch and apply it if it may be written.

        Args: ``from_client``: apply the sequence rules; False for batches of the broker's coordinators. ``guard`` of a
        transactional batch: the result of ``verify``, -1 if not needed.
        Returns: (error, base offset, timestamp_ms): 0 with the batch's values, or those of the remembered batch for a
        duplicate; 45, 47, 48 or 56 with -1, -1.
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
        facts.guard = checked(guard, "guard", -1, INT64_MAX)
        code = producer_state_check(self.state, &facts, &duplicate)
        if code == PRODUCER_CHECK_DUPLICATE:
            return 0, duplicate.base_offset, duplicate.timestamp_ms
        if code != 0:
            return code, -1, -1
        producer_state_apply(self.state, &facts, &aborted)
        return 0, facts.base_offset, facts.max_timestamp_ms

    def verify(self, producer_id, producer_epoch, base_sequence, *, bumps_epochs=False, now_ms=0):
        """Start or join the verification of a producer's transactional batch.

        Args: ``bumps_epochs``: the client uses transaction version 2.
        Returns: (error 0, 47 or 56; the guard that the append needs, 0 if the transaction is already open).
        """
        cdef int64_t guard = NO_GUARD
        cdef int32_t code = producer_state_verify(
            self.state, checked(producer_id, "producer_id", 0, INT64_MAX),
            <int16_t>checked(producer_epoch, "producer_epoch", 0, 32767),
            <int32_t>checked(base_sequence, "base_sequence", -1, INT32_MAX), bool(bumps_epochs),
            checked(now_ms, "now_ms", 0, INT64_MAX), &guard)
        return code, guard

    def has_late_transaction(self, now_ms, max_timeout_ms):
        return bool(producer_state_has_late_transaction(
            self.state, checked(now_ms, "now_ms", 0, INT64_MAX),
            checked(max_timeout_ms, "max_timeout_ms", 0, INT32_MAX)))

    @property
    def verifications(self):
        return self.state.verifications.count

    def end_transaction(self, producer_id, producer_epoch, offset, *, commit, coordinator_epoch=0, timestamp_ms=0,
                        transaction_version=0):
        """Check and apply an end marker of the coordinator at ``offset``.

        Returns: (error 0, 47, 52, 56 or -1; the entry (producer id, first, last, last stable offset) for the
        transaction index if a transaction was aborted, else None).
        """
        cdef BatchFacts facts
        cdef Duplicate duplicate
        cdef AbortedTxn aborted
        cdef int32_t code
        memset(&facts, 0, sizeof(facts))
        facts.producer_id = checked(producer_id, "producer_id", 0, INT64_MAX)
        facts.producer_epoch = <int16_t>checked(producer_epoch, "producer_epoch", -32768, 32767)
        facts.base_offset = facts.last_offset = checked_offset(offset, "offset")
        facts.base_sequence = facts.last_sequence = -1
        facts.coordinator_epoch = <int32_t>checked(coordinator_epoch, "coordinator_epoch", -INT32_MAX, INT32_MAX)
        facts.max_timestamp_ms = checked(timestamp_ms, "timestamp_ms", -1, INT64_MAX)
        facts.is_transactional = facts.is_control = True
        facts.control_type = 1 if commit else 0
        facts.transaction_version = <int16_t>checked(transaction_version, "transaction_version", -1, 32767)
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
        cdef int64_t size = 0
        cdef char *data = producer_state_encode_snapshot(self.state, &size)
        if data == NULL:
            raise MemoryError
        try:
            Path(path).write_bytes(data[:size])
        finally:
            free(data)

    def load_snapshot(self, path, *, now_ms=0, expiration_ms=86_400_000):
        cdef bytes encoded = os.fsencode(path)
        cdef int32_t code = producer_state_load_snapshot(
            self.state, encoded, checked(now_ms, "now_ms", 0, INT64_MAX),
            checked(expiration_ms, "expiration_ms", 1, INT64_MAX))
        if code == SNAPSHOT_CORRUPT:
            raise ValueError(f"corrupt producer snapshot: {os.fsdecode(encoded)}")
        if code != 0:
            raise OSError(-code, os.strerror(-code), os.fsdecode(encoded))
