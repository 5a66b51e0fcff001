"""Writing the responses of a channel: many in one system call, file regions without a copy."""
from libc.stdint cimport int64_t
from kbroker._core.network.channel cimport Channel
from kbroker._core.network.event_loop cimport EventLoop
from kbroker._core.requests.request cimport Request

# 0: everything left; KB_AGAIN: the rest when writable; otherwise the connection is broken. Calls loop.sent per answer.
cdef int64_t channel_write(EventLoop *loop, Channel *channel) noexcept nogil
cdef void loop_queue_response(Channel *channel, Request *request) noexcept nogil
cdef void loop_write(EventLoop *loop, Channel *channel) noexcept nogil  # may close the channel
cdef void loop_want_write(EventLoop *loop, Channel *channel) noexcept nogil     # when the poller says it is writable
