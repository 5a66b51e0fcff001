"""Hook of a partition whose first call waits for a lock that a test holds."""
from kbroker._core.sync cimport (
    AtomicI64, Mutex, atomic_cas, atomic_load, atomic_store, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.log._partition cimport Partition, call_hook, partition_set_high_watermark_hook
from kbroker.log._partition_log cimport PartitionLog

cdef Mutex gate
cdef AtomicI64 entered
mutex_init(&gate)


cdef void wait_at_gate(void *arg, Partition *partition) noexcept nogil:
    if atomic_cas(&entered, 0, 1):
        mutex_lock(&gate)
        mutex_unlock(&gate)


def hold(PartitionLog log not None):
    """Connect the hook to a partition, and make its first call wait until ``release``, which the same thread calls."""
    with nogil:
        atomic_store(&entered, 0)
        partition_set_high_watermark_hook(log.partition, wait_at_gate, NULL)
        mutex_lock(&gate)


def release():
    """End the call that waits."""
    with nogil:
        mutex_unlock(&gate)


def call(PartitionLog log not None):
    """Call the hook, as a thread that has moved the high watermark."""
    with nogil:
        call_hook(log.partition, False)


def is_waiting():
    """Return whether the hook was called."""
    return atomic_load(&entered) != 0
