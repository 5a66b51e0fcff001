"""Append that takes long, simulated by a test that holds the append lock of a partition."""
from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker.log._partition_log cimport PartitionLog


def hold(PartitionLog log not None):
    """Make every append wait until ``release``, which the same thread calls."""
    with nogil:
        mutex_lock(&log.partition.append_lock)


def release(PartitionLog log not None):
    """Release the lock, so that waiting appends continue."""
    with nogil:
        mutex_unlock(&log.partition.append_lock)
