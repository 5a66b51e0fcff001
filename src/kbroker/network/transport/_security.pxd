"""TLS as a transport of a channel, and authenticators of connections: the GIL is held only for calls of Python."""
from libc.stdint cimport int64_t

from kbroker._core.network.loop_types cimport Channel
from kbroker._core.requests.request cimport Request

# ------------------------------------------------------ TLS
# Set the transport of a new channel; ``server`` is a borrowed TlsServer. False: out of memory, or the context fails.
cdef bint tls_open(Channel *channel, void *server) noexcept nogil

cdef class TlsServer:
    cdef readonly object context
    cdef object principal_of
    cdef object on_failure
    cdef object on_refusal

# ------------------------------------------------- authentication

cdef enum SessionKind:              # ``Session.kind``
    SESSION_BY_TOKEN = 1            # by a delegation token

cdef enum AuthenticationOutcome:    # ``authentication.Outcome``
    AUTHENTICATION_CONTINUES = 0
    AUTHENTICATION_COMPLETE = 1
    AUTHENTICATION_FAILED = 2
    AUTHENTICATION_CLOSES = 3
    AUTHENTICATION_COMPLETE_ONCE = 4    # complete, and the client cannot renew it; not an Outcome

# Pass the channel's frames to an authenticator from now on, under its own size limit.
cdef void authentication_open(Channel *channel, int64_t max_receive_bytes) noexcept nogil
# Process one frame: its response is put into the request; when complete, the channel has its session. ``listener`` is
# a borrowed Authentication.
cdef AuthenticationOutcome authentication_step(
    Channel *channel, void *listener, Request *request, int64_t now_ns) noexcept nogil
cdef bint authentication_begin_again(Channel *channel) noexcept nogil
cdef void authentication_end(Channel *channel) noexcept nogil   # drops the authenticator
cdef bint is_sasl_handshake(Request *frame) noexcept nogil
