"""Interface of a design that runs in place of kbroker's purgatory, such as the old design of bench/purgatory."""
from libc.stdint cimport int64_t
from kbroker._core.clock cimport Clock
from purgatory_study.study_request cimport Design

cdef class StudyDesign:
    """Design of another module; overrides `set_up`."""

    # Initializes `design`, whose `free` releases it; false if out of memory. `clock`: borrowed, outlives the design.
    cdef bint set_up(
        self, Design *design, Clock *clock, int64_t keys, int64_t key_space, int64_t purge_interval) noexcept nogil
