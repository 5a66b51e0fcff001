"""System settings of a thread, made before its work begins; see thread_setup.h."""

cdef extern from "thread_setup.h" nogil:
    void kb_block_signals()     # the main thread handles them
    void kb_name_thread(const char *name)
    void kb_short_slice()       # the thread runs soon after it is woken: its work has due times
