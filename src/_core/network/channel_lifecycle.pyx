"""A channel's life in its loop.

Interest is lazy: muting a channel costs no system call. Only an event that arrives while the channel may not be read
drops the interest; when it may be read again it is read at once, and the interest comes back when there was nothing.
"""
from libc.stdlib cimport free

from kbroker._core.network.channel cimport CLOSE_PEER, Channel, channel_drop_io, channel_new, list_append, list_remove
from kbroker._core.clock cimport clock_now_ns
from kbroker._core.network.event_loop cimport EventLoop, count
from kbroker._core.network.poller cimport KB_READ
from kbroker._core.requests.request cimport Request, request_free
from kbroker._core.sync cimport atomic_store

cdef extern from "network/socket_io.h" nogil:
    int kb_prepare_socket(int fd)
    void kb_close_socket(int fd)


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
    channel.last_active_ns = clock_now_ns(loop.clock)
    list_append(&loop.lru, &channel.lru)
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
