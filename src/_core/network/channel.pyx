"""Birth and death of a channel, and the plaintext transport."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.codec.framing cimport frames_clear
from kbroker._core.requests.request cimport OpenFile, session_release

cdef extern from "network/socket_io.h" nogil:
    int64_t kb_receive(int fd, char *into, int64_t n)
    int64_t kb_send(int fd, kb_piece *pieces, int count, int more)
    int64_t kb_send_file(int out, int fd, int64_t at, int64_t n)
    void kb_close_socket(int fd)
    void kb_address(int fd, int peer, char *host, int *port)


cdef int64_t plain_receive(Channel *channel, char *into, int64_t size_bytes) noexcept nogil:
    return kb_receive(channel.fd, into, size_bytes)


cdef int64_t plain_send(Channel *channel, kb_piece *pieces, int count, bint more) noexcept nogil:
    return kb_send(channel.fd, pieces, count, more)


cdef int64_t plain_send_file(Channel *channel, OpenFile *file, int64_t at, int64_t size_bytes) noexcept nogil:
    return kb_send_file(channel.fd, file.fd, at, size_bytes)


cdef void plain_close(Channel *channel) noexcept nogil:
    kb_close_socket(channel.fd)


cdef Transport PLAINTEXT                # a constant table, filled once at import
PLAINTEXT.receive = plain_receive
PLAINTEXT.send = plain_send
PLAINTEXT.send_file = plain_send_file
PLAINTEXT.handshake = NULL
PLAINTEXT.has_buffered = NULL
PLAINTEXT.close = plain_close


cdef void init_link(Link *link, Channel *channel) noexcept nogil:
    link.channel = channel


cdef Channel *channel_new(int fd) noexcept nogil:
    cdef Channel *channel = <Channel *>calloc(1, sizeof(Channel))
    cdef int port = 0
    if channel is NULL:
        return NULL
    channel.fd = fd
    channel.transport = &PLAINTEXT
    init_link(&channel.lru, channel)
    init_link(&channel.partial_reads, channel)
    init_link(&channel.memory_muted, channel)
    init_link(&channel.pending_reads, channel)
    init_link(&channel.completed_receives, channel)
    init_link(&channel.pending_writes, channel)
    init_link(&channel.disconnected, channel)
    init_link(&channel.failed_auth, channel)
    kb_address(fd, 0, channel.metadata.local_host, &port)
    channel.metadata.local_port = port
    kb_address(fd, 1, channel.metadata.remote_host, &port)
    channel.metadata.remote_port = port
    return channel


cdef void channel_drop_io(Channel *channel) noexcept nogil:
    if channel.fd >= 0:
        channel.transport.close(channel)
        channel.fd = -1
    frames_clear(&channel.reader)
    free(channel.left)
    channel.left = NULL
    channel.left_at = 0
    channel.left_end = 0


cdef void channel_free(Channel *channel) noexcept nogil:
    channel_drop_io(channel)
    if channel.observed is not NULL:
        channel.release_observed(channel.observed)
    session_release(channel.session)
    free(channel)
