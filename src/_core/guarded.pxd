"""Reads of numbers that a lock guards, for Python handles."""
from libc.stdint cimport int64_t
from kbroker._core.sync cimport Mutex, mutex_lock, mutex_unlock

cdef inline int64_t guarded_value(Mutex *lock, const int64_t *value) noexcept:  # the GIL is dropped first
    cdef int64_t found
    with nogil:
        mutex_lock(lock)
        found = value[0]
        mutex_unlock(lock)
    return found
