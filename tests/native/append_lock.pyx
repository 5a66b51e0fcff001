"""An append that takes long, made by a test that holds the append lock of a partition."""
from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker.log._partition_log cimport PartitionLog


def hold(PartitionLog log not None):
    """Let every append wait until ``release``, which the same thread calls."""
    with nogil:
        mutex_lock(&log.partition.append_lock)


def release(PartitionLog log not None):
    """Let the appends go on."""
    with nogil:
        mutex_unlock(&log.partition.append_lock)
