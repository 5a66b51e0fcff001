"""Reading a partition's log, with no append lock. See _partition.pxd for the results."""
from libc.stdint cimport int8_t, int64_t
from kbroker.log._partition cimport Partition, ReadProbe, ReadResult

# max_bytes caps the response; min_one lets the first batch exceed it. isolation 0 = up to the high watermark, 1 = the
# LSO.
cdef void partition_read(Partition *partition, int64_t offset, int64_t max_bytes, bint min_one, int8_t isolation,
                         ReadResult *out) noexcept nogil
cdef void partition_probe(Partition *partition, int64_t offset, int64_t max_bytes, int8_t isolation,
                          ReadProbe *out) noexcept nogil
