"""Opening of a partition's folder after a clean or an unclean stop."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition
from kbroker.log.segment._segment cimport Directory, SegmentList

# Fill view, offsets, indexes and producer state from the folder. Raises OSError naming the file that cannot be read.
cdef int load_partition(Partition *partition, str directory, bint clean, int64_t recovery_point,
                        int64_t log_start) except -1
# Continue the partition in a folder with copies of all its segments; takes the reference to the folder. Under the
# append lock, with flushes held. Returns a counted reference to the former segments. Raises: OSError, when a copy
# cannot be read or differs; the partition is then unchanged.
cdef SegmentList *adopt_copy(Partition *partition, str directory, Directory *target) except NULL
