"""Opening a partition's folder after a clean or an unclean stop, and cutting it back to an offset."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition

# Fills view, offsets, indexes and producer state from the folder. Raises OSError naming the file when it cannot be
# read.
cdef int load_partition(Partition *partition, str directory, bint clean, int64_t recovery_point,
                        int64_t log_start) except -1
# Under the append lock: forgets everything at or past offset, then loads again. 0 or -errno.
cdef int cut_partition(Partition *partition, str directory, int64_t offset) except -1
