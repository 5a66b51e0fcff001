"""Poller of ready sockets: a table of functions with a native (epoll, kqueue) and a portable implementation.

Threads: ``wake`` from any thread, the rest from the loop's thread only.
"""
from libc.stdint cimport int64_t

cdef extern from "network/poller.h" nogil:
    enum:
        KB_READ
        KB_WRITE
        KB_HANGUP
        KB_MAX_EVENTS
        KB_NATIVE_POLLER
    ctypedef struct kb_event:
        void *tag
        int mask
    ctypedef struct kb_poller:
        int fd
        int wake_fd

cdef struct Poller:
    int (*set)(Poller *self, int fd, void *tag, int before, int after) noexcept nogil  # interest masks; < 0: failed
    int (*wait)(Poller *self, kb_event *out, int limit, int64_t timeout_ns) noexcept nogil   # real time; < 0: failed
    void (*wake)(Poller *self) noexcept nogil
    void (*destroy)(Poller *self) noexcept nogil
    kb_poller native
    void *python                # portable: an owned PortablePoller

cdef Poller *poller_new_native() noexcept nogil         # NULL: none on this platform, or no descriptor left
cdef Poller *poller_from(object backend) except NULL    # "auto", "epoll", "kqueue", or a selectors-like object
