"""A channel's life in its loop: registered, of interest to the poller, at the end of its stream, closed, freed."""
from kbroker._core.network.loop_types cimport Channel, EventLoop

cdef Channel *loop_register(EventLoop *loop, int fd) noexcept nogil     # takes the descriptor even when NULL
cdef void set_interest(EventLoop *loop, Channel *channel, int mask) noexcept nogil     # may close the channel
# Nothing more comes. Complete frames are still delivered, their responses tried; then the channel closes.
cdef void end_stream(EventLoop *loop, Channel *channel) noexcept nogil
cdef void loop_close(EventLoop *loop, Channel *channel, int reason) noexcept nogil     # ends in loop.disconnected
cdef void channel_free(Channel *channel) noexcept nogil     # in no list, nothing outstanding

# The stream is over, and so is all that came of it.
cdef inline bint has_ended(Channel *channel) noexcept nogil:
    return (channel.end_of_stream and channel.reader.staged_count == 0 and channel.left is NULL
            and channel.requeued_first is NULL and channel.outstanding == 0 and channel.send_first is NULL
            and channel.early is NULL)
