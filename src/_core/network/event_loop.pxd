"""The network loop: one pass of it, the functions that its owner (a Processor, a Selector) calls, and snapshots.

Threads: one thread runs the loop; others may call ``loop_wake`` and ``loop_snapshot_ask`` only.

No other thread may read a channel: it leaves a LoopSnapshot with the loop and waits, and the loop copies
CHANNELS_PER_STEP channels before each poll, until it has copied all. A channel is copied as it is at one moment; those
that open meanwhile are copied too. A poll without a requested snapshot costs one more relaxed load.

Lock: ``LoopSnapshot.lock``, a leaf that guards its state; the rest is the loop's until the state is no longer WANTED.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.clock cimport Clock
from kbroker._core.codec.framing cimport Framing
from kbroker._core.network.loop_types cimport Channel, EventLoop, Link
from kbroker._core.network.poller cimport Poller
from kbroker._core.requests.memory_pool cimport Pool
from kbroker._core.sync cimport AtomicI64, Cond, Mutex

# Initialize ``loop``, which is zeroed memory; it owns the poller, and references to clock and pool. False: out of
# memory, nothing is owned.
cdef bint loop_init(EventLoop *loop, Poller *poller, Clock *clock, Pool *pool, Framing *framing) noexcept nogil
cdef void loop_destroy(EventLoop *loop) noexcept nogil      # every channel was closed and freed before
# Call it after the transport was replaced by one with a handshake, which must end within the time limit of a frame.
cdef void loop_handshake(EventLoop *loop, Channel *channel) noexcept nogil
cdef void loop_poll(EventLoop *loop, int64_t timeout_ns) noexcept nogil
cdef Channel *loop_lowest_priority(EventLoop *loop) noexcept nogil
cdef void loop_wake(EventLoop *loop) noexcept nogil

# --------------------------------------------------- snapshots

cdef enum:
    SNAPSHOTS_CLOSED = 1        # no pointer has this value
    CHANNELS_PER_STEP = 256     # some 50 us
    PRINCIPAL_BYTES = 128       # maximum of a copied text; a longer one is cut
    LABEL_BYTES = 64

cdef enum WhyMuted:             # bits: why a channel is not read
    MUTED_THROTTLED = 1
    MUTED_MEMORY = 2            # the pool had no memory for its next frame
    MUTED_REFUSAL = 4           # authentication failed: the response and the close are delayed
    MUTED_UNSENT = 8            # a response waits until the peer reads
    MUTED_EXPLICITLY = 16       # by its owner
    MUTED_IN_FLIGHT = 32        # frames were handed over, and not all of their responses are sent
    MUTED_STOPPING = 64         # the loop no longer reads
    MUTED_REASONS = 7           # number of bits

cdef enum ChannelStage:
    STAGE_HANDSHAKE = 0
    STAGE_AUTHENTICATION = 1
    STAGE_OPEN = 2

cdef struct ChannelCopy:
    int32_t why_muted           # WhyMuted bits
    int32_t stage
    int32_t mute_state
    int32_t throttle_kind
    int64_t throttled_until_ns  # 0: not throttled, or for an unknown time
    int64_t close_due_ns        # of a refusal
    int64_t opened_ns
    int64_t last_active_ns
    int64_t handed_over_ns
    int64_t number
    int64_t requests            # frames handed over so far
    int64_t outstanding         # of them, those without a response
    int64_t staged              # complete frames that wait to be handed over
    int64_t wanted_bytes        # size of the frame that is being read or waits for memory
    int64_t arrived_bytes       # received part of that frame
    int64_t unsent_responses
    int64_t unsent_bytes        # of them, the first one's sent part included
    int64_t charged_bytes       # of the pool
    int64_t bytes_received
    int64_t bytes_sent
    int32_t index
    int32_t local_port
    int32_t remote_port
    int32_t label_bytes
    char local_host[64]
    char remote_host[64]
    char principal[PRINCIPAL_BYTES]     # NUL terminated, empty without a session
    char label[LABEL_BYTES]
    void *owner                 # the channel's; for the loop's own thread only

cdef enum SnapshotState:
    SNAPSHOT_WANTED = 0
    SNAPSHOT_DONE = 1
    SNAPSHOT_ENDED = 2          # the loop has ended
    SNAPSHOT_BUSY = 3           # another snapshot is in progress
    SNAPSHOT_LATE = 4           # the loop did not process it in time

cdef struct LoopSnapshot:       # counted: the requesting thread, and the loop while it has it
    AtomicI64 refs
    AtomicI64 is_abandoned
    Mutex lock
    Cond changed
    int state
    bint is_begun
    Link cursor                 # after the channels that are copied
    int64_t capacity
    int64_t count               # copied, capacity at most
    int64_t open_channels
    int64_t begun_ns
    int64_t done_ns
    ChannelCopy *channels       # owned
    void *extra                 # owned, malloc'ed: for the loop's on_snapshot; NULL: nothing

# Create a snapshot; ``extra_bytes`` may be 0. NULL: out of memory.
cdef LoopSnapshot *loop_snapshot_new(int64_t capacity, int64_t extra_bytes) noexcept nogil
cdef void loop_snapshot_release(LoopSnapshot *snapshot) noexcept nogil
# Request a snapshot from any thread but the loop's, and wait. The caller keeps its count; the copies exist if the state
# is DONE.
cdef int loop_snapshot_ask(EventLoop *loop, LoopSnapshot *snapshot, int64_t timeout_ns) noexcept nogil
# Take one step of the requested snapshot, on the loop's thread; return whether there is more to do.
cdef bint loop_snapshot_step(EventLoop *loop) noexcept nogil
cdef void loop_snapshots_close(EventLoop *loop) noexcept nogil      # the loop's thread, at its end
cdef void channel_copy(EventLoop *loop, Channel *channel, ChannelCopy *copy) noexcept nogil
cdef dict channel_facts(ChannelCopy *copy, int64_t now_ns)
