"""The design that the timing wheel replaced: a heap as timer, watch lists, and a purge by the number of entries."""
from libc.stdint cimport int64_t
from kbroker._core.clock cimport Clock
from purgatory_study.study_request cimport Design

# False: no memory.
cdef bint old_design_init(
    Design *design, Clock *clock, int64_t keys, int64_t key_space, int64_t purge_interval) noexcept nogil
