"""System settings of a thread, made before its work begins; see thread_setup.h."""

cdef extern from "thread_setup.h" nogil:
    void kb_block_signals()     # they are for the main thread
    void kb_short_slice()       # be run soon after waking: its work is due at a time
