"""Writing the answers of a channel: many in one system call, file regions without a copy."""
from libc.stdint cimport int64_t
from kbroker._core.channel cimport Channel
from kbroker._core.event_loop cimport EventLoop

# 0: everything left; KB_AGAIN: the rest when writable; otherwise the connection is broken. Calls loop.sent per answer.
cdef int64_t channel_write(EventLoop *loop, Channel *channel) noexcept nogil
