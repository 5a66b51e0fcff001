"""Appends, reads and syncs that failed on the native handlers, counted by partition until a broker asks for those of
its folders.

Native threads write no log lines; what they count here is told by ``kbroker.log.failed_io``. One table for the process,
as descriptors and disks are the process's; its entries are named by folder, so that brokers do not mix.
Lock: a leaf mutex, taken on failures only.
"""
from libc.stdint cimport int32_t
from kbroker.log._partition cimport Partition

cdef enum Failed:
    FAILED_APPEND, FAILED_READ, FAILED_SYNC

# error: errno, or 0 where the partition itself refuses: it is damaged, or a sync of it has failed.
cdef void count_failure(Partition *partition, Failed kind, int32_t error) noexcept nogil
