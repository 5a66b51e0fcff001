"""Calls the Python authenticator of a channel and stores its result. The GIL is held only here."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from kbroker._core.arguments cimport integer, ms_to_ns
from kbroker._core.network.loop_types cimport Channel
from kbroker._core.requests.request cimport Request, Session, request_reserve, session_new, session_release
from kbroker.network._kafka_request cimport kafka_clear_response
from kbroker.network.connections._client_information cimport client_information_announce

from kbroker.common.loggers import get_logger

cdef enum:
    SASL_HANDSHAKE = 17
    MAX_LIFETIME_MS = 9223372036854775807

logger = get_logger("kbroker.network.transport.authentication")


cdef void authentication_open(Channel *channel, int64_t max_receive_bytes) noexcept nogil:
    channel.authenticating = True
    channel.reader.limit_bytes = max_receive_bytes


cdef bint is_sasl_handshake(Request *frame) noexcept nogil:
    return frame.size_bytes >= 2 and frame.payload[0] == 0 and frame.payload[1] == SASL_HANDSHAKE


cdef AuthenticationOutcome authentication_step(
        Channel *channel, void *listener, Request *request, int64_t now_ns) noexcept nogil:
    cdef AuthenticationOutcome outcome
    with gil:
        try:
            if channel.authenticator is NULL:
                begin(channel, <object>listener)
            outcome = judge(channel, request, now_ns)
        except BaseException:           # a defect of the broker, not of the client
            logger.exception("cannot authenticate a connection")
            kafka_clear_response(request)
            outcome = AUTHENTICATION_CLOSES
    return outcome


cdef void begin(Channel *channel, object listener) except *:
    cdef object authenticator = listener.begin(
        channel.metadata.remote_host.decode("utf-8", "replace"), channel.metadata.remote_port)
    Py_INCREF(authenticator)
    channel.authenticator = <void *>authenticator


cdef AuthenticationOutcome judge(Channel *channel, Request *request, int64_t now_ns) except *:
    cdef object step = (<object>channel.authenticator).receive(
        PyBytes_FromStringAndSize(request.payload, <Py_ssize_t>request.size_bytes))
    cdef AuthenticationOutcome outcome = <AuthenticationOutcome><int>step.outcome
    cdef bytes response = step.response
    cdef bytes principal, name, version
    cdef char *into
    cdef Session *session
    cdef int64_t lifetime_ms
    if response is not None and outcome != AUTHENTICATION_CLOSES:
        into = request_reserve(request, len(response))
        if into is NULL:
            raise MemoryError
        memcpy(into, PyBytes_AS_STRING(response), len(response))
    if step.client_software is not None:
        name, version = (text.encode() for text in step.client_software)
        if not client_information_announce(request, name, <int32_t>len(name), version, <int32_t>len(version)):
            raise MemoryError
    if outcome == AUTHENTICATION_COMPLETE:
        principal = step.principal.encode()
        lifetime_ms = integer(step.session_lifetime_ms, "session_lifetime_ms", 0, MAX_LIFETIME_MS)
        session = session_new(principal)
        if session is NULL:
            raise MemoryError
        if step.is_token_authenticated:
            session.kind = SESSION_BY_TOKEN
        session_release(channel.session)
        channel.session = session
        channel.session_expires_ns = now_ns + ms_to_ns(lifetime_ms) if lifetime_ms > 0 else 0
        channel.authenticating = False
        channel.reader.limit_bytes = 0
    return outcome


cdef bint authentication_begin_again(Channel *channel) noexcept nogil:
    cdef bint allowed = False
    if channel.authenticator is NULL:
        return False
    with gil:
        try:
            allowed = bool((<object>channel.authenticator).begin_again())
        except BaseException:
            logger.exception("cannot authenticate a connection again")
    return allowed


cdef void authentication_end(Channel *channel) noexcept nogil:
    cdef PyObject *authenticator = <PyObject *>channel.authenticator
    if authenticator is NULL:
        return
    channel.authenticator = NULL
    with gil:
        Py_DECREF(<object>authenticator)
