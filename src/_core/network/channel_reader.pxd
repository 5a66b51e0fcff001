"""Reading frames from a channel: what is there, within the memory of the pool, and whose turn it is."""
from kbroker._core.network.channel cimport Channel, is_linked
from kbroker._core.network.event_loop cimport EventLoop
from kbroker._core.network.mute cimport NOT_MUTED

cdef void loop_read(EventLoop *loop, Channel *channel) noexcept nogil
# Channels with bytes in our own memory, or readable by what an earlier event said.
cdef void read_due(EventLoop *loop) noexcept nogil
# After its frames were taken, or it may be read again: what is staged, read or readable is looked at in the next poll.
cdef void loop_resume(EventLoop *loop, Channel *channel) noexcept nogil
cdef void loop_mute(Channel *channel) noexcept nogil
cdef bint loop_unmute(EventLoop *loop, Channel *channel) noexcept nogil    # true: it is NOT_MUTED now


cdef inline bint can_resume(EventLoop *loop, Channel *channel) noexcept nogil:
    """Frames may be cut for this channel. At most one batch of complete frames is with the owner at a time."""
    return (loop.reading and channel.mute_state == NOT_MUTED and not channel.close_when_sent
            and not is_linked(&channel.completed_receives) and channel.close_reason == 0 and not channel.handshaking)


cdef inline bint has_buffered(Channel *channel) noexcept nogil:
    return channel.transport.has_buffered is not NULL and channel.transport.has_buffered(channel)
