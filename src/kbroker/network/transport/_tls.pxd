"""TLS as a transport of a channel: Python's ssl on memory buffers; the GIL is held only for its calls."""
from kbroker._core.network.loop_types cimport Channel

# Sets the transport of a new channel; ``server`` is a borrowed TlsServer. False: memory is out, or the context fails.
cdef bint tls_open(Channel *channel, void *server) noexcept nogil

cdef class TlsServer:
    cdef readonly object context
    cdef object principal_of
    cdef object on_failure
    cdef object on_refusal
