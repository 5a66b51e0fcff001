"""TLS of a channel by the ``ssl`` module, and calls of the channel's Python authenticator.

The module's ``SSLObject`` performs the handshake; records are then read and written by the module's OpenSSL, without
the GIL. Where that library cannot be found (``openssl.h``), the ``SSLObject`` works between two memory buffers, and
only the socket is used without the GIL. Plaintext counts as sent only when all of its ciphertext is in the kernel, so
that a response is complete when Kafka's would be. Source: ``SslTransportLayer``, ``SaslServerAuthenticator``.
"""
import os

cimport cython

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strcpy

from kbroker._core.arguments cimport integer, ms_to_ns
from kbroker._core.network.loop_types cimport (
    KB_AGAIN, KB_FAILED, KB_REFUSED, KB_WANT_WRITE, Channel, Transport, kb_piece, kb_piece_bytes, kb_piece_data,
    kb_piece_set,
)
from kbroker._core.requests.request cimport Request, Session, request_reserve, session_new, session_release
from kbroker.common.loggers import get_logger
from kbroker.network._kafka_request cimport kafka_clear_response
from kbroker.network.connections._client_information cimport client_information_announce


# ------------------------------------------------------ TLS

cdef extern from "network/socket_io.h" nogil:
    int64_t kb_receive(int fd, char *into, int64_t n)
    int64_t kb_send(int fd, kb_piece *pieces, int count, int more)
    void kb_close_socket(int fd)

cdef extern from "kbroker/network/transport/openssl.h" nogil:
    ctypedef struct kb_tls:
        int fd
        bint ended
        bint failed
    bint kb_openssl_load(const char *path)
    bint kb_tls_attach(kb_tls *tls, PyObject *context, PyObject *connection, size_t read_bytes)
    int64_t kb_tls_read(kb_tls *tls, char *into, int64_t size_bytes)
    int64_t kb_tls_write(kb_tls *tls, const char *data, int64_t size_bytes, bint more)
    bint kb_tls_has_pending(kb_tls *tls)
    const char *kb_tls_reason(kb_tls *tls)

cdef enum:
    CIPHER_BYTES = 32768        # maximum of one receive
    RECORD_BYTES = 16384        # maximum plaintext of one TLS record
    CHUNK_BYTES = 65536         # encrypted before the next send
    SEND_BYTES = 1048576        # maximum per turn; then other channels are served

cdef object ssl = None          # loaded with the first TlsServer: most brokers have none
cdef bint has_openssl = False   # its library was found then


@cython.final
cdef class TlsServer:
    """State shared by the TLS connections of a listener.

    Args:
        context: a server-side SSLContext.
        principal_of: returns the principal for a client's certificate (DER; None if the client sent none); None keeps
            the listener's principal, as when SASL follows. An exception refuses the connection.
        on_failure: called for a connection that fails: host and port of the client, the reason, and whether the
            handshake was complete. Clients can cause any number of calls.
        on_refusal: called, with the reason, for each connection on which TLS cannot begin because of an error of the
            broker; it limits its own log lines.
    Raises: TypeError for anything but a context.
    """
    def __cinit__(self, context, principal_of=None, on_failure=None, on_refusal=None):
        global ssl, has_openssl
        if ssl is None:
            import _ssl
            import ssl as loaded
            ssl = loaded
            has_openssl = kb_openssl_load(os.fsencode(getattr(_ssl, "__file__", "")))
        if not isinstance(context, ssl.SSLContext):
            raise TypeError(f"context must be an ssl.SSLContext, not {type(context).__name__}")
        self.context = context
        self.principal_of = principal_of
        self.on_failure = on_failure
        self.on_refusal = on_refusal


cdef struct TlsState:
    kb_tls tls
    PyObject *connection        # owned: the SSLObject, its two buffers unless it uses the socket, and the TlsServer
    PyObject *incoming
    PyObject *outgoing
    PyObject *server
    PyObject *unsent            # owned: bytes to be sent to the socket
    const char *unsent_data
    int64_t unsent_bytes
    int64_t unsent_at
    int64_t covers              # number of plaintext bytes encrypted in unsent
    bint is_ready
    bint has_ended              # the peer has closed its sending side
    bint buffered


cdef Transport TLS                      # constant tables, filled once at import
TLS.receive = tls_receive
TLS.send = tls_send
TLS.send_file = NULL
TLS.handshake = tls_handshake
TLS.has_buffered = tls_has_buffered
TLS.close = tls_close

cdef Transport BUFFERED_TLS = TLS       # through memory buffers
BUFFERED_TLS.receive = buffered_receive
BUFFERED_TLS.send = buffered_send
BUFFERED_TLS.handshake = buffered_handshake


cdef PyObject *hold(object thing) noexcept:
    Py_INCREF(thing)
    return <PyObject *>thing


cdef bint tls_open(Channel *channel, void *server) noexcept nogil:
    cdef TlsState *state = <TlsState *>calloc(1, sizeof(TlsState))
    if state is NULL:
        return False
    with gil:
        try:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            connection = (<TlsServer>server).context.wrap_bio(incoming, outgoing, server_side=True)
        except BaseException as error:
            free(state)
            report_refusal(<TlsServer>server, error)
            return False
        state.connection = hold(connection)
        state.server = hold(<TlsServer>server)
        state.tls.fd = channel.fd
        if has_openssl and attach(state, connection):
            channel.transport = &TLS
        else:
            state.incoming = hold(incoming)
            state.outgoing = hold(outgoing)
            channel.transport = &BUFFERED_TLS
    channel.transport_state = state
    return True


cdef bint attach(TlsState *state, object connection) noexcept:
    """Connect OpenSSL to the socket by the module's object in the ``SSLObject``; false if that is impossible."""
    cdef object context = connection.context, made = getattr(connection, "_sslobj", None)
    return (made is not None and type(made).__name__ == "_SSLSocket"
            and kb_tls_attach(&state.tls, <PyObject *>context, <PyObject *>made, CIPHER_BYTES))


cdef void report_refusal(TlsServer server, object error) noexcept:
    if server.on_refusal is not None:
        server.on_refusal(error)


cdef void report_failure(Channel *channel, TlsState *state, object error) noexcept:
    cdef TlsServer server = <TlsServer>state.server
    if server.on_failure is not None:
        server.on_failure(channel.metadata.remote_host.decode("utf-8", "replace"), channel.metadata.remote_port, error,
                          state.is_ready)


cdef void identify(Channel *channel, TlsState *state) except *:
    """Set the client's principal; no request has been read yet, so that nothing refers to the previous one."""
    cdef TlsServer server = <TlsServer>state.server
    cdef Session *session
    cdef bytes name
    if server.principal_of is None:
        return
    name = server.principal_of((<object>state.connection).getpeercert(True)).encode()
    session = session_new(name)
    if session is NULL:
        raise MemoryError
    session_release(channel.session)
    channel.session = session


# ---- by OpenSSL, without the GIL after the handshake

cdef int tls_handshake(Channel *channel) noexcept nogil:
    cdef TlsState *state = <TlsState *>channel.transport_state
    with gil:
        try:
            (<object>state.connection).do_handshake()
            identify(channel, state)
        except ssl.SSLWantReadError:
            return KB_AGAIN
        except ssl.SSLWantWriteError:
            return KB_WANT_WRITE
        except BaseException as error:
            if state.tls.ended or state.tls.failed:
                return KB_FAILED
            report_failure(channel, state, error)
            return KB_REFUSED
    state.is_ready = True
    state.buffered = kb_tls_has_pending(&state.tls)
    return 1


cdef int64_t tls_receive(Channel *channel, char *into, int64_t size_bytes) noexcept nogil:
    cdef TlsState *state = <TlsState *>channel.transport_state
    cdef int64_t filled = 0, n = 0
    state.buffered = False
    while filled < size_bytes:
        n = kb_tls_read(&state.tls, into + filled, size_bytes - filled)
        if n <= 0:
            break
        filled += n
        if not kb_tls_has_pending(&state.tls):
            return filled
    if n == KB_FAILED:
        report_broken(channel, state)
        return n
    state.buffered = n >= 0             # more, or the end
    return filled if filled > 0 else n


cdef int64_t tls_send(Channel *channel, kb_piece *pieces, int count, bint more) noexcept nogil:
    cdef TlsState *state = <TlsState *>channel.transport_state
    cdef char block[RECORD_BYTES]
    cdef const char *data
    cdef int64_t total = 0, wanted = wanted_bytes(pieces, count), size, n
    while total < wanted and total < SEND_BYTES:
        size = next_record(pieces, count, total, block, &data)
        n = kb_tls_write(&state.tls, data, size, more or total + size < wanted)
        if n == KB_FAILED:
            report_broken(channel, state)
            return n
        if n == KB_AGAIN:
            return total if total > 0 else n
        total += n
    return total


cdef void report_broken(Channel *channel, TlsState *state) noexcept nogil:
    """Report the reason why OpenSSL refused a record; a broken socket needs no report."""
    cdef const char *reason = kb_tls_reason(&state.tls)
    if reason is not NULL:
        with gil:
            report_failure(channel, state, ssl.SSLError(1, reason.decode("utf-8", "replace")))


cdef int64_t wanted_bytes(kb_piece *pieces, int count) noexcept nogil:
    cdef int64_t total = 0
    cdef int i
    for i in range(count):
        total += kb_piece_bytes(&pieces[i])
    return total


cdef int64_t next_record(
        kb_piece *pieces, int count, int64_t skipped, char *block, const char **data) noexcept nogil:
    """Return the size of the next record's plaintext and set ``data`` to it; small pieces are joined in ``block``."""
    cdef int64_t size, n, filled = 0
    cdef int i
    for i in range(count):
        size = kb_piece_bytes(&pieces[i])
        if skipped >= size:
            skipped -= size
            continue
        data[0] = kb_piece_data(&pieces[i]) + skipped
        size -= skipped
        skipped = 0
        if filled == 0 and size >= RECORD_BYTES:
            return RECORD_BYTES
        n = size if size < RECORD_BYTES - filled else RECORD_BYTES - filled
        memcpy(block + filled, data[0], <size_t>n)
        filled += n
        if filled == RECORD_BYTES:
            break
    data[0] = block
    return filled


# ---- through memory buffers

cdef void collect(TlsState *state) except *:
    """Move the pending output of the buffer to ``unsent``, once its previous content is sent."""
    cdef object found
    if state.unsent is not NULL or not (<object>state.outgoing).pending:
        return
    found = (<object>state.outgoing).read()
    state.unsent_data = PyBytes_AS_STRING(found)
    state.unsent_bytes = PyBytes_GET_SIZE(found)
    state.unsent_at = 0
    state.unsent = hold(found)


cdef int64_t flush(Channel *channel, TlsState *state) noexcept nogil:
    """Return 0 when all is in the kernel, else KB_AGAIN or KB_FAILED."""
    cdef kb_piece piece
    cdef int64_t n
    while state.unsent is not NULL:
        kb_piece_set(&piece, state.unsent_data + state.unsent_at, state.unsent_bytes - state.unsent_at)
        n = kb_send(channel.fd, &piece, 1, False)
        if n < 0:
            return n
        state.unsent_at += n
        if state.unsent_at == state.unsent_bytes:
            with gil:
                Py_XDECREF(state.unsent)
                state.unsent = NULL
                try:
                    collect(state)      # a session ticket, or the response to a key update
                except BaseException:
                    return KB_FAILED
    return 0


cdef int buffered_handshake(Channel *channel) noexcept nogil:
    cdef TlsState *state = <TlsState *>channel.transport_state
    cdef char cipher[CIPHER_BYTES]
    cdef int64_t n = 0
    cdef int step
    while True:
        n = flush(channel, state)
        if n != 0:
            return KB_WANT_WRITE if n == KB_AGAIN else KB_FAILED
        if state.is_ready:
            return 1
        n = kb_receive(channel.fd, cipher, CIPHER_BYTES)
        if n <= 0:
            return KB_AGAIN if n == KB_AGAIN else KB_FAILED
        step = shake(channel, state, cipher, n)
        if step == KB_REFUSED:
            flush(channel, state)       # the alert; it is lost if the peer cannot receive it now
            return KB_REFUSED


cdef int shake(Channel *channel, TlsState *state, const char *cipher, int64_t size_bytes) noexcept nogil:
    """Perform one step of the handshake. Return 1: ready, KB_AGAIN: it continues, KB_REFUSED."""
    cdef int step = KB_AGAIN
    with gil:
        try:
            (<object>state.incoming).write(PyMemoryView_FromMemory(<char *>cipher, size_bytes, PyBUF_READ))
            try:
                (<object>state.connection).do_handshake()
                identify(channel, state)
                state.is_ready = True
                state.buffered = (<object>state.incoming).pending > 0
                step = 1
            except ssl.SSLWantReadError:
                pass
            finally:
                collect(state)
        except BaseException as error:
            step = KB_REFUSED
            report_failure(channel, state, error)
    return step


cdef bint tls_has_buffered(Channel *channel) noexcept nogil:
    return (<TlsState *>channel.transport_state).buffered


cdef int64_t buffered_receive(Channel *channel, char *into, int64_t size_bytes) noexcept nogil:
    cdef TlsState *state = <TlsState *>channel.transport_state
    cdef char cipher[CIPHER_BYTES]
    cdef int64_t n, got
    if state.buffered:
        got = decrypt(channel, state, NULL, 0, into, size_bytes)
        if got != KB_AGAIN:
            return got
    while True:
        if state.has_ended:
            return 0
        n = kb_receive(channel.fd, cipher, CIPHER_BYTES)
        if n < 0:
            return n
        got = decrypt(channel, state, cipher, n, into, size_bytes)
        if got != KB_AGAIN:
            return got


cdef int64_t decrypt(
        Channel *channel, TlsState *state, const char *cipher, int64_t n, char *into,
        int64_t size_bytes) noexcept nogil:
    """Return the number of plaintext bytes, KB_AGAIN: more ciphertext is needed, 0: end, or KB_FAILED.

    Without ``cipher``, decrypt the bytes that are buffered.
    """
    cdef int64_t filled = 0, got
    cdef int64_t result
    with gil:
        state.buffered = False
        try:
            if cipher is not NULL:
                if n > 0:
                    (<object>state.incoming).write(PyMemoryView_FromMemory(<char *>cipher, n, PyBUF_READ))
                else:
                    (<object>state.incoming).write_eof()
            try:
                while filled < size_bytes:
                    got = (<object>state.connection).read(
                        size_bytes - filled, PyMemoryView_FromMemory(into + filled, size_bytes - filled, PyBUF_WRITE))
                    if got == 0:
                        state.has_ended = True
                        break
                    filled += got
                    if not (<object>state.incoming).pending and not (<object>state.connection).pending():
                        break
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                state.has_ended = True
                state.buffered = filled > 0     # the end itself is still to be reported
            else:
                state.buffered = bool(
                    state.has_ended or (<object>state.incoming).pending or (<object>state.connection).pending())
            result = filled if filled > 0 else 0 if state.has_ended else KB_AGAIN
            collect(state)
        except BaseException as error:
            report_failure(channel, state, error)
            result = KB_FAILED
    if result != KB_FAILED and state.unsent is not NULL and state.covers == 0:
        flush(channel, state)           # output that cannot be sent now goes before the next response
    return result


cdef int64_t buffered_send(Channel *channel, kb_piece *pieces, int count, bint more) noexcept nogil:
    cdef TlsState *state = <TlsState *>channel.transport_state
    cdef int64_t total = 0, wanted = wanted_bytes(pieces, count), n
    while True:
        n = flush(channel, state)
        if n == KB_FAILED:
            return n
        if n != 0:
            return total if total > 0 else n
        total += state.covers
        state.covers = 0
        if total >= wanted or total >= SEND_BYTES:
            return total
        if not encrypt(channel, state, pieces, count, total):
            return KB_FAILED


cdef bint encrypt(Channel *channel, TlsState *state, kb_piece *pieces, int count, int64_t skipped) noexcept nogil:
    """Encrypt the next bytes of the pieces; false: the failure was reported."""
    cdef char block[RECORD_BYTES]
    cdef const char *data
    cdef int64_t size, taken = 0
    with gil:
        try:
            while taken < CHUNK_BYTES:
                size = next_record(pieces, count, skipped + taken, block, &data)
                if size == 0:
                    break
                write_all(state, data, size)
                taken += size
            collect(state)
            state.covers = taken
            return True
        except BaseException as error:
            report_failure(channel, state, error)
            return False


cdef void write_all(TlsState *state, const char *data, int64_t size_bytes) except *:
    cdef int64_t at = 0
    while at < size_bytes:
        at += (<object>state.connection).write(
            PyMemoryView_FromMemory(<char *>data + at, size_bytes - at, PyBUF_READ))


# ---- the end

cdef void tls_close(Channel *channel) noexcept nogil:
    cdef TlsState *state = <TlsState *>channel.transport_state
    with gil:
        if state.is_ready:
            try:
                (<object>state.connection).unwrap()     # notifies the peer, does not wait for its response
            except BaseException:
                pass
            try:
                if state.outgoing is not NULL:
                    collect(state)
            except BaseException:
                pass
    flush(channel, state)
    kb_close_socket(channel.fd)
    channel.transport_state = NULL
    with gil:
        Py_XDECREF(state.unsent)
        Py_XDECREF(state.connection)
        Py_XDECREF(state.incoming)
        Py_XDECREF(state.outgoing)
        Py_XDECREF(state.server)
    free(state)


# ------------------------------------------------- authentication

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
    cdef bytes principal, name, version, host
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
        host = step.remote_host.encode()
        if 0 < len(host) < <int>sizeof(channel.metadata.remote_host):
            strcpy(channel.metadata.remote_host, <const char *>host)
        session_release(channel.session)
        channel.session = session
        channel.session_expires_ns = now_ns + ms_to_ns(lifetime_ms) if lifetime_ms > 0 else 0
        channel.authenticating = False
        channel.reader.limit_bytes = 0
        if not step.is_renewable:
            outcome = AUTHENTICATION_COMPLETE_ONCE
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
