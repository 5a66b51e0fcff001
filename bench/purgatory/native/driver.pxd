"""Interface of another design that runs as kbroker's purgatory does, such as the old one of bench/purgatory."""
from libc.stdint cimport int64_t
from kbroker._core.clock cimport Clock
from purgatory_study.study_request cimport Design

cdef class StudyDesign:
    """A design from elsewhere; overrides `set_up`."""

    # Fills in `design`, whose `free` undoes it; false: no memory. Args: `clock`: borrowed, outlives the design.
    cdef bint set_up(
        self, Design *design, Clock *clock, int64_t keys, int64_t key_space, int64_t purge_interval) noexcept nogil
