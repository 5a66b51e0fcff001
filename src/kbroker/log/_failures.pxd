"""Failed appends, reads and syncs of the native handlers, counted by partition until a broker collects those of its
folders.

Native threads write no log lines; ``kbroker.log.failed_io`` logs these counts. There is one table for the process,
because descriptors and disks are shared by the process; entries are keyed by folder, so brokers do not mix.
Lock: a leaf mutex, locked on failures only.
"""
from libc.stdint cimport int32_t
from kbroker.log._partition cimport Partition

cdef enum Failed:
    FAILED_APPEND, FAILED_READ, FAILED_SYNC

# error: errno, or 0 when the partition itself refuses because it is damaged or a sync of it has failed.
cdef void count_failure(Partition *partition, Failed kind, int32_t error) noexcept nogil
