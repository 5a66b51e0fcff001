# cython: freethreading_compatible=True
"""The producers a partition remembers, for people to look at (DescribeProducers)."""
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker.log._partition cimport Partition
from kbroker.log._partition_log cimport PartitionLog
from kbroker.log.producers._producer_state cimport ProducerFacts, producer_state_count, producer_state_list

from kbroker.log.log_types import ActiveProducer


def active_producers(PartitionLog log not None):
    cdef Partition *partition = log.partition
    cdef ProducerFacts *rows
    cdef int64_t count = 0, slot
    cdef bint failed
    with nogil:
        mutex_lock(&partition.append_lock)
        rows = producer_state_list(partition.producers, &count)
        failed = rows is NULL and producer_state_count(partition.producers) > 0
        mutex_unlock(&partition.append_lock)
    if failed:
        raise MemoryError
    try:
        found = [ActiveProducer(rows[slot].producer_id, rows[slot].producer_epoch, rows[slot].coordinator_epoch,
                                rows[slot].last_timestamp_ms, rows[slot].last_sequence,
                                rows[slot].current_txn_first_offset) for slot in range(count)]
    finally:
        free(rows)
    return sorted(found)
