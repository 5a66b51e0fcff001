"""The network loop: one pass of it, and what its owner (a Processor, a Selector) calls beside.

Threads: one thread runs the loop; only ``loop_wake`` may be called from others.
"""
from libc.stdint cimport int64_t
from kbroker._core.clock cimport Clock
from kbroker._core.codec.framing cimport Framing
from kbroker._core.network.loop_types cimport Channel, EventLoop
from kbroker._core.network.poller cimport Poller
from kbroker._core.requests.memory_pool cimport Pool

# ``loop`` is zeroed memory. Takes the poller, and counts of clock and pool; false: memory is out, nothing was taken.
cdef bint loop_init(EventLoop *loop, Poller *poller, Clock *clock, Pool *pool, Framing *framing) noexcept nogil
cdef void loop_destroy(EventLoop *loop) noexcept nogil      # every channel was closed and freed before
# After the transport was replaced by one with a handshake, which must be over within the time a frame may take.
cdef void loop_handshake(EventLoop *loop, Channel *channel) noexcept nogil
cdef void loop_poll(EventLoop *loop, int64_t timeout_ns) noexcept nogil
cdef Channel *loop_lowest_priority(EventLoop *loop) noexcept nogil
cdef void loop_wake(EventLoop *loop) noexcept nogil
