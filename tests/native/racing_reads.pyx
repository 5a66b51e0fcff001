"""Reads without the GIL for races with the maintenance of a log, for tests."""
from libc.stdint cimport int64_t
from libc.stdlib cimport free

from kbroker._core.open_file cimport open_file_release
from kbroker._core.sync cimport atomic_load
from kbroker.log._partition cimport ReadResult
from kbroker.log._partition_log cimport PartitionLog
from kbroker.log._read cimport partition_read


def read_until_closed(PartitionLog log not None):
    """Read at the log start offset until the log is closed; return the counts of reads and of reads without effect.

    A read has no effect if it returns neither records nor an error below the high watermark.
    """
    cdef ReadResult result
    cdef int64_t offset, reads = 0, without_effect = 0
    with nogil:
        while not atomic_load(&log.partition.closed):
            offset = atomic_load(&log.partition.log_start)
            partition_read(log.partition, offset, 1 << 20, True, 0, &result)
            reads += 1
            if result.error == 0 and result.size_bytes == 0 and offset < result.high_watermark:
                without_effect += 1
            if result.file is not NULL:
                open_file_release(result.file)
            free(result.aborted)
    return reads, without_effect
