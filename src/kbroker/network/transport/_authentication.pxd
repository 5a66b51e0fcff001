"""Authenticators of connections, which are Python objects, behind functions for the network's loop."""
from libc.stdint cimport int64_t
from kbroker._core.network.loop_types cimport Channel
from kbroker._core.requests.request cimport Request

cdef enum SessionKind:              # ``Session.kind``
    SESSION_BY_TOKEN = 1            # by a delegation token

cdef enum AuthenticationOutcome:    # ``authentication.Outcome``
    AUTHENTICATION_CONTINUES = 0
    AUTHENTICATION_COMPLETE = 1
    AUTHENTICATION_FAILED = 2
    AUTHENTICATION_CLOSES = 3

# Passes the channel's frames to an authenticator from now on, under its own size limit.
cdef void authentication_open(Channel *channel, int64_t max_receive_bytes) noexcept nogil
# Processes one frame: its response is put into the request; when complete, the channel has its session. ``listener`` is
# a borrowed Authentication.
cdef AuthenticationOutcome authentication_step(
    Channel *channel, void *listener, Request *request, int64_t now_ns) noexcept nogil
cdef bint authentication_begin_again(Channel *channel) noexcept nogil
cdef void authentication_end(Channel *channel) noexcept nogil   # drops the authenticator
cdef bint is_sasl_handshake(Request *frame) noexcept nogil
