"""TLS as a transport of a channel: Python's ssl on memory buffers; the GIL is held only while it works."""
from kbroker._core.network.loop_types cimport Channel

# Give a fresh channel the transport; ``server`` is a borrowed TlsServer. False: memory is out, or the context refuses.
cdef bint tls_open(Channel *channel, void *server) noexcept nogil

cdef class TlsServer:
    cdef readonly object context
    cdef object principal_of
    cdef object on_failure
    cdef object on_refusal
