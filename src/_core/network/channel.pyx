"""A channel's life in its loop, and the plaintext transport.

Interest is lazy: muting a channel costs no system call. Only an event that arrives while the channel may not be read
drops the interest; when it may be read again it is read at once, and the interest comes back when there was nothing.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.codec.framing cimport frames_clear
from kbroker._core.network.loop_types cimport (
    CLOSE_PEER, Channel, EventLoop, Link, Transport, count, kb_piece, list_append, list_remove,
)
from kbroker._core.network.poller cimport KB_READ
from kbroker._core.requests.request cimport OpenFile, Request, request_free, session_release
from kbroker._core.sync cimport atomic_store

cdef extern from "network/socket_io.h" nogil:
    int64_t kb_receive(int fd, char *into, int64_t n)
    int64_t kb_send(int fd, kb_piece *pieces, int count, int more)
    int64_t kb_send_file(int out, int fd, int64_t at, int64_t n)
    int kb_prepare_socket(int fd)
    void kb_close_socket(int fd)
    void kb_address(int fd, int peer, char *host, int *port)


cdef int64_t plain_receive(Channel *channel, char *into, int64_t size_bytes) noexcept nogil:
    return kb_receive(channel.fd, into, size_bytes)


cdef int64_t plain_send(Channel *channel, kb_piece *pieces, int pieces_count, bint more) noexcept nogil:
    return kb_send(channel.fd, pieces, pieces_count, more)


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
    init_link(&channel.registered, channel)
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
    free(channel.label)
    free(channel)


cdef Channel *loop_register(EventLoop *loop, int fd) noexcept nogil:
    cdef Channel *channel
    if kb_prepare_socket(fd) < 0:
        kb_close_socket(fd)
        return NULL
    channel = channel_new(fd)
    if channel is NULL or loop.poller.set(loop.poller, fd, channel, 0, KB_READ) < 0:
        free(channel)
        kb_close_socket(fd)
        return NULL
    channel.interest = KB_READ
    channel.number = loop.next_number
    loop.next_number += 1
    channel.opened_ns = clock_now_ns(loop.clock)
    channel.last_active_ns = channel.opened_ns
    list_append(&loop.lru, &channel.lru)
    list_append(&loop.registered, &channel.registered)
    loop.open_channels += 1
    count(&loop.counters.connections_created, 1)
    return channel


cdef void set_interest(EventLoop *loop, Channel *channel, int mask) noexcept nogil:
    if mask == channel.interest or channel.fd < 0:
        return
    if loop.poller.set(loop.poller, channel.fd, channel, channel.interest, mask) < 0:
        channel.interest = 0
        loop_close(loop, channel, CLOSE_PEER)
        return
    channel.interest = mask


cdef void end_stream(EventLoop *loop, Channel *channel) noexcept nogil:
    channel.end_of_stream = True
    channel.may_be_readable = False
    list_remove(&channel.partial_reads)
    set_interest(loop, channel, channel.interest & ~KB_READ)
    if channel.close_reason == 0 and has_ended(channel):
        loop_close(loop, channel, CLOSE_PEER)


cdef void loop_close(EventLoop *loop, Channel *channel, int reason) noexcept nogil:
    cdef Request *request
    if channel.close_reason != 0:
        return
    channel.close_reason = reason
    atomic_store(&channel.is_closed, 1)
    if channel.interest != 0:
        loop.poller.set(loop.poller, channel.fd, channel, channel.interest, 0)
        channel.interest = 0
    list_remove(&channel.lru)
    list_remove(&channel.registered)
    list_remove(&channel.partial_reads)
    list_remove(&channel.memory_muted)
    list_remove(&channel.pending_reads)
    list_remove(&channel.completed_receives)
    list_remove(&channel.pending_writes)
    list_remove(&channel.failed_auth)
    while channel.send_first is not NULL:
        request = channel.send_first
        channel.send_first = request.next
        loop.sent(loop, channel, request)
    channel.send_last = NULL
    while channel.requeued_first is not NULL:
        request = channel.requeued_first
        channel.requeued_first = request.next
        request_free(request)
    channel.returned_last = NULL
    channel.returned_count = 0
    while channel.early is not NULL:
        request = channel.early
        channel.early = request.next
        loop.sent(loop, channel, request)
    channel_drop_io(channel)
    loop.open_channels -= 1
    count(&loop.counters.connections_closed, 1)
    list_append(&loop.disconnected, &channel.disconnected)
