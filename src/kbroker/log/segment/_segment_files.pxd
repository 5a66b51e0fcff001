"""The files of a partition's folder by name."""
from libc.stdint cimport int64_t

cdef int remove_if_there(str path) except -1
cdef int remove_segment(str directory, int64_t base) except -1          # removes its log and indexes
cdef int remove_snapshot(str directory, int64_t offset) except -1
