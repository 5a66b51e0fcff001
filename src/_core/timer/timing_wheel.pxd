"""The timer by its public name: the C timer of ``timer_core``, and Python's handle of it."""
from kbroker._core.timer.timer_core cimport (
    Timer, TimerEntry, TimerFigures, timer_add, timer_advance, timer_cancel, timer_clock, timer_close, timer_collect,
    timer_figures, timer_is_closed, timer_is_quiet, timer_new, timer_pending, timer_release, timer_retain,
    timer_take_due, timer_take_due_batch, timer_take_due_with_gil, timer_wake,
)

cdef class TimerHandle:         # ``Timer`` in Python
    cdef Timer *timer           # owned count

cdef Timer *borrow_timer(object timer) except NULL     # TypeError unless an open Timer
