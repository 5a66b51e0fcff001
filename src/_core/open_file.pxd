"""A counted file descriptor: a region that is queued for sending or read by another thread keeps its file open.

Header only, no lock.
"""
from libc.stdlib cimport calloc, free

from kbroker._core.sync cimport AtomicI64, atomic_add_fetch, atomic_store

cdef extern from *:
    """
    #ifndef KBROKER_OPEN_FILE_H
    #define KBROKER_OPEN_FILE_H
    #ifdef _WIN32
    #include <io.h>
    static inline void kb_close_fd(int fd) { _close(fd); }
    #else
    #include <unistd.h>
    static inline void kb_close_fd(int fd) { close(fd); }
    #endif
    #endif
    """
    void kb_close_fd(int fd) noexcept nogil

cdef struct OpenFile:
    AtomicI64 refs
    int fd


cdef inline OpenFile *open_file_new(int fd) noexcept nogil:
    """Take a descriptor; the count is 1. NULL: out of memory, the descriptor stays the caller's."""
    cdef OpenFile *file = <OpenFile *>calloc(1, sizeof(OpenFile))
    if file is not NULL:
        atomic_store(&file.refs, 1)
        file.fd = fd
    return file


cdef inline OpenFile *open_file_retain(OpenFile *file) noexcept nogil:
    atomic_add_fetch(&file.refs, 1)
    return file


cdef inline void open_file_release(OpenFile *file) noexcept nogil:
    """Release a count, unless ``file`` is NULL; the last one closes the descriptor."""
    if file is NULL or atomic_add_fetch(&file.refs, -1) != 0:
        return
    if file.fd >= 0:
        kb_close_fd(file.fd)
    free(file)
