"""Design under study: kbroker's purgatory on its timing wheel."""
from libc.stdint cimport int64_t
from kbroker._core.timer.timer_core cimport Timer
from purgatory_study.study_request cimport Design

cdef bint kbroker_purgatory_init(
    Design *design, Timer *timer, int64_t keys, int64_t purge_interval) noexcept nogil     # false if out of memory
