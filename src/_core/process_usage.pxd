"""Resources that this process and the calling thread have used; see process_usage.h. 0 where it is unknown."""
from libc.stdint cimport int64_t

cdef extern from "process_usage.h" nogil:
    int64_t kb_process_cpu_ns()
    int64_t kb_thread_cpu_ns()
    int64_t kb_thread_waits()           # voluntary context switches
    int64_t kb_resident_bytes()         # of the process
