"""The network loop's core: who may be read, framing, writing, idle and frame time-outs. Processor and Selector own one.

Threads: one thread runs the loop; only ``loop_wake`` may be called from others.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.network.channel cimport Channel, Link
from kbroker._core.clock cimport Clock, Waker
from kbroker._core.codec.framing cimport Framing
from kbroker._core.requests.memory_pool cimport Pool, PoolWaiter
from kbroker._core.network.poller cimport Poller, kb_event
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64, atomic_load_relaxed, atomic_store

cdef enum:
    SCRATCH_BYTES = 65536

cdef struct LoopCounters:       # written by the loop's thread, read by any
    AtomicI64 connections_created
    AtomicI64 connections_closed
    AtomicI64 connections_expired
    AtomicI64 frames_expired
    AtomicI64 invalid_frames
    AtomicI64 bytes_received
    AtomicI64 bytes_sent
    AtomicI64 requests
    AtomicI64 responses
    AtomicI64 polls
    AtomicI64 wait_ns           # inside the poller
    AtomicI64 work_ns           # everything else of a poll
    AtomicI64 memory_mutes
    AtomicI64 poll_failures

cdef inline void count(AtomicI64 *counter, int64_t n) noexcept nogil:   # one writer: no locked instruction
    atomic_store(counter, atomic_load_relaxed(counter) + n)

cdef struct EventLoop:
    Poller *poller              # owned
    Clock *clock                # counted
    Pool *pool                  # counted
    Waker waker
    PoolWaiter pool_waiter      # queued while channels are memory_muted
    int64_t passed_over_ns      # since when there has been memory, but for another loop; 0: it is not so
    Framing framing
    int64_t idle_ns             # negative: never
    int64_t frame_timeout_ns    # 0: never
    int32_t frame_limit         # complete frames a channel may hold before it is read again
    bint exact                  # read exactly one frame at a time
    bint copy_files             # send file regions by pread and send, as a transport without sendfile does
    bint reading                # false: nothing is read any more
    bint out_of_memory
    int64_t now_ns              # after the last wait
    int64_t busy_since_ns       # when the last wait ended
    int64_t next_idle_check_ns
    uint64_t shuffle_state
    int64_t next_number
    int64_t open_channels
    char *scratch               # owned: SCRATCH_BYTES
    kb_event *events            # owned
    AtomicI64 sleeping          # 1: about to wait or waiting
    bint (*has_mail)(EventLoop *loop) noexcept nogil    # asked after ``sleeping`` is set; NULL: never
    # A response left, or its channel closed: takes the request.
    void (*sent)(EventLoop *loop, Channel *channel, Request *request) noexcept nogil
    Link lru            # all open channels, least recently active first
    Link partial_reads
    Link memory_muted
    Link pending_reads
    Link completed_receives
    Link pending_writes
    Link disconnected
    LoopCounters counters

# ``loop`` is zeroed memory. Takes the poller, and counts of clock and pool; false: memory is out, nothing was taken.
cdef bint loop_init(EventLoop *loop, Poller *poller, Clock *clock, Pool *pool, Framing *framing) noexcept nogil
cdef void loop_destroy(EventLoop *loop) noexcept nogil      # every channel was closed and freed before
# After the transport was replaced by one with a handshake, which must be over within the time a frame may take.
cdef void loop_handshake(EventLoop *loop, Channel *channel) noexcept nogil
cdef void loop_poll(EventLoop *loop, int64_t timeout_ns) noexcept nogil
cdef Channel *loop_lowest_priority(EventLoop *loop) noexcept nogil
cdef void loop_wake(EventLoop *loop) noexcept nogil
