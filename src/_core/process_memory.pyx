# cython: freethreading_compatible=True
"""What this process holds of the machine's memory, and giving back what it does not use."""
from libc.stdint cimport int64_t

from kbroker._core.process_usage cimport kb_release_free_memory, kb_resident_bytes


def resident_bytes():
    """Memory of this process that lies in RAM; 0 where the system does not tell."""
    cdef int64_t found
    with nogil:
        found = kb_resident_bytes()
    return found


def release_free_memory():
    """Give the system the free pages that the allocator keeps (glibc: malloc_trim); nothing elsewhere.

    Threads: any, without the GIL; others that want memory of an arena wait while its pages are given back.
    """
    with nogil:
        kb_release_free_memory()
