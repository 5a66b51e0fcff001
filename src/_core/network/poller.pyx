"""Native poller, and the portable one over any object with the interface of the standard ``selectors`` module."""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free

import socket
import time

cdef extern from "network/poller.h" nogil:
    const char *kb_poller_name()
    int kb_poller_open(kb_poller *p)
    void kb_poller_close(kb_poller *p)
    int kb_poller_set(kb_poller *p, int fd, void *tag, int before, int after)
    int kb_poller_wait(kb_poller *p, kb_event *out, int max, int64_t timeout_ns)
    void kb_poller_wake(kb_poller *p)

cdef extern from "network/socket_io.h" nogil:
    ctypedef struct kb_piece:
        pass
    void kb_piece_set(kb_piece *p, const char *data, int64_t n)
    int64_t kb_send(int fd, kb_piece *pieces, int count, int more)

cdef int64_t LONGEST_WAIT_NS = 3600000000000LL       # select() rejects a time-out that its clock type cannot represent


cdef object logger():
    """Return the module's logger; ``logging`` is imported by the first call."""
    import logging

    return logging.getLogger("kbroker._core.network.poller")


cdef int native_set(Poller *self, int fd, void *tag, int before, int after) noexcept nogil:
    return kb_poller_set(&self.native, fd, tag, before, after)


cdef int native_wait(Poller *self, kb_event *out, int limit, int64_t timeout_ns) noexcept nogil:
    return kb_poller_wait(&self.native, out, limit, timeout_ns)


cdef void native_wake(Poller *self) noexcept nogil:
    kb_poller_wake(&self.native)


cdef void native_destroy(Poller *self) noexcept nogil:
    kb_poller_close(&self.native)
    free(self)


cdef Poller *poller_new_native() noexcept nogil:
    cdef Poller *poller = <Poller *>calloc(1, sizeof(Poller))
    if poller is NULL:
        return NULL
    if kb_poller_open(&poller.native) < 0:
        free(poller)
        return NULL
    poller.set = native_set
    poller.wait = native_wait
    poller.wake = native_wake
    poller.destroy = native_destroy
    return poller


@cython.final
cdef class PortablePoller:
    """Adapter of a selectors-like object. All calls except wake hold the GIL; the object's wait releases it."""
    cdef object selector
    cdef object wake_receiver
    cdef object wake_sender
    cdef set tags                   # of registered channels: a foreign object's stale event has no such tag

    def __init__(self, selector):
        for name in ("register", "unregister", "modify", "select", "close"):
            if not callable(getattr(selector, name, None)):
                raise TypeError(f"a poller back end needs {name}(), {type(selector).__name__} has none")
        self.selector = selector
        self.tags = set()
        self.wake_receiver, self.wake_sender = socket.socketpair()
        self.wake_receiver.setblocking(False)
        self.wake_sender.setblocking(False)
        selector.register(self.wake_receiver.fileno(), KB_READ, 0)

    cdef int set(self, int fd, uintptr_t tag, int before, int after) except -2:
        if before == 0:
            self.selector.register(fd, after, tag)
            self.tags.add(tag)
        elif after == 0:
            self.tags.discard(tag)
            self.selector.unregister(fd)
        else:
            self.selector.modify(fd, after, tag)
        return 0

    cdef int wait(self, kb_event *out, int limit, int64_t timeout_ns) except -2:
        cdef int n = 0
        for key, mask in self.selector.select(min(timeout_ns, LONGEST_WAIT_NS) / 1e9 if timeout_ns > 0 else 0):
            if key.data == 0:
                try:
                    while self.wake_receiver.recv(4096):
                        pass
                except BlockingIOError:
                    pass
            elif n < limit and isinstance(key.data, int) and key.data in self.tags:
                out[n].tag = <void *><uintptr_t>key.data
                out[n].mask = mask
                n += 1
        return n

    cdef int close(self) except -2:
        self.selector.close()
        self.wake_receiver.close()
        self.wake_sender.close()
        return 0


cdef int portable_set(Poller *self, int fd, void *tag, int before, int after) noexcept nogil:
    if before == after:
        return 0
    with gil:
        try:
            return (<PortablePoller>self.python).set(fd, <uintptr_t>tag, before, after)
        except Exception as why:
            logger().warning("selector refused descriptor %d: %s", fd, why)
            return -1


cdef int portable_wait(Poller *self, kb_event *out, int limit, int64_t timeout_ns) noexcept nogil:
    with gil:
        try:
            return (<PortablePoller>self.python).wait(out, limit, timeout_ns)
        except Exception as why:
            logger().error("selector failed: %s", why)
            time.sleep(0.01)            # a selector that fails at once must not make a busy loop
            return -1


cdef void portable_wake(Poller *self) noexcept nogil:
    cdef kb_piece piece                 # without the GIL: a virtual clock wakes under its lock
    kb_piece_set(&piece, b"w", 1)
    kb_send(self.native.wake_fd, &piece, 1, 0)      # would block: a wake-up is pending already


cdef void portable_destroy(Poller *self) noexcept nogil:
    with gil:
        try:
            (<PortablePoller>self.python).close()
        except Exception as why:
            logger().warning("closing the selector failed: %s", why)
        Py_DECREF(<object>self.python)
    free(self)


cdef Poller *poller_from(object backend) except NULL:
    cdef Poller *poller
    cdef PortablePoller portable
    if isinstance(backend, str):
        name = (<bytes>kb_poller_name()).decode()
        if backend == "auto" and not name:
            import selectors
            return poller_from(selectors.DefaultSelector())
        if backend not in ("auto", name):
            raise ValueError(f"backend must be 'auto', {name!r} or a selectors-like object, got {backend!r}")
        poller = poller_new_native()
        if poller is NULL:
            raise OSError("no descriptor left for the poller")
        return poller
    portable = PortablePoller(backend)
    poller = <Poller *>calloc(1, sizeof(Poller))
    if poller is NULL:
        raise MemoryError
    Py_INCREF(portable)
    poller.python = <void *>portable
    poller.native.wake_fd = portable.wake_sender.fileno()
    poller.set = portable_set
    poller.wait = portable_wait
    poller.wake = portable_wake
    poller.destroy = portable_destroy
    return poller
