"""Read that takes long, simulated by a test that holds the segments of a partition as a read does."""
cimport cython
from kbroker.log._partition cimport view_acquire
from kbroker.log._partition_log cimport PartitionLog
from kbroker.log.segment._segment cimport SegmentList, segment_list_release


@cython.final
cdef class SlowRead:
    """Read in progress, until ``end``."""
    cdef SegmentList *segments

    def __cinit__(self, PartitionLog log not None):
        self.segments = view_acquire(log.partition)

    def end(self):
        """End the read. Idempotent."""
        segment_list_release(self.segments)
        self.segments = NULL
