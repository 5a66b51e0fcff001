"""A channel in its loop: registered, of interest to the poller, read within the pool's memory, written, closed."""
from libc.stdint cimport int64_t

from kbroker._core.network.loop_types cimport Channel, EventLoop, is_linked
from kbroker._core.network.mute cimport NOT_MUTED
from kbroker._core.requests.request cimport Request

cdef Channel *loop_register(EventLoop *loop, int fd) noexcept nogil     # takes the descriptor even if it returns NULL
cdef void set_interest(EventLoop *loop, Channel *channel, int mask) noexcept nogil     # may close the channel
# End the incoming stream. Complete frames are still delivered and their responses tried; then the channel closes.
cdef void end_stream(EventLoop *loop, Channel *channel) noexcept nogil
cdef void loop_close(EventLoop *loop, Channel *channel, int reason) noexcept nogil     # ends in loop.disconnected
cdef void channel_free(Channel *channel) noexcept nogil     # in no list, nothing outstanding

# Return whether the stream has ended and all its frames and responses are done.
cdef inline bint has_ended(Channel *channel) noexcept nogil:
    return (channel.end_of_stream and channel.reader.staged_count == 0 and channel.left is NULL
            and channel.requeued_first is NULL and channel.outstanding == 0 and channel.send_first is NULL
            and channel.early is NULL)

# ---------------------------------------------- reading and writing

cdef void loop_read(EventLoop *loop, Channel *channel) noexcept nogil
# Read the channels that have bytes in memory, or that an earlier event reported as readable.
cdef void read_due(EventLoop *loop) noexcept nogil
# Resume a channel after its frames were taken, or when it may be read again: the next poll handles its staged frames,
# its bytes and its socket.
cdef void loop_resume(EventLoop *loop, Channel *channel) noexcept nogil
cdef void loop_mute(Channel *channel) noexcept nogil
cdef bint loop_unmute(EventLoop *loop, Channel *channel) noexcept nogil    # true: it is NOT_MUTED now

# Write responses. 0: all are sent; KB_AGAIN: the rest follows when the socket is writable; otherwise the connection is
# broken. loop.sent takes the sent responses.
cdef int64_t channel_write(EventLoop *loop, Channel *channel) noexcept nogil
cdef void loop_queue_response(Channel *channel, Request *request) noexcept nogil
cdef void loop_write(EventLoop *loop, Channel *channel) noexcept nogil  # may close the channel
cdef void loop_want_write(EventLoop *loop, Channel *channel) noexcept nogil     # once the poller reports it writable

cdef inline bint can_resume(EventLoop *loop, Channel *channel) noexcept nogil:
    """Return whether frames may be cut for this channel. The owner has at most one batch of them at a time."""
    return (loop.reading and channel.mute_state == NOT_MUTED and not channel.close_when_sent
            and not is_linked(&channel.completed_receives) and channel.close_reason == 0 and not channel.handshaking)


cdef inline bint has_buffered(Channel *channel) noexcept nogil:
    return channel.transport.has_buffered is not NULL and channel.transport.has_buffered(channel)
