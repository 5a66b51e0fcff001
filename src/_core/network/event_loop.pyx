"""One pass of the network loop: resume channels muted for memory, handle poll events, expire time-outs."""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.network.channel cimport loop_close, set_interest
from kbroker._core.network.loop_types cimport (
    CLOSE_EXPIRED, CLOSE_FRAME_TIMEOUT, CLOSE_PEER, KB_AGAIN, KB_WANT_WRITE, SCRATCH_BYTES, Channel, Link, count,
    list_append, list_append_once, list_empty, list_init, list_remove, list_take,
)
from kbroker._core.network.channel_io cimport (
    can_resume, has_buffered, loop_read, loop_unmute, loop_want_write, loop_write, read_due,
)
from kbroker._core.clock cimport (
    Clock, clock_add_waker, clock_now_ns, clock_release, clock_remove_waker, clock_retain,
)
from kbroker._core.codec.framing cimport Framing
from kbroker._core.requests.memory_pool cimport (
    Pool, pool_is_low, pool_is_out_of_memory, pool_dequeue_waiter, pool_is_next, pool_decref, pool_retain,
    pool_enqueue_waiter,
)
from kbroker._core.network.mute cimport NOT_MUTED
from kbroker._core.network.poller cimport KB_HANGUP, KB_MAX_EVENTS, KB_READ, KB_WRITE, Poller, kb_event
from kbroker._core.network.loop_snapshot cimport SNAPSHOTS_CLOSED, loop_snapshot_step
from kbroker._core.sync cimport atomic_load_relaxed, atomic_load_seq, atomic_store, atomic_swap

cdef extern from "network/socket_io.h" nogil:
    int kb_has_unread(int fd)
    int kb_take_error(int fd)

cdef extern from "allocator.h" nogil:
    void kb_fix_big_allocations()

cdef enum:
    POOL_TURN_TIMEOUT_NS = 200000000         # how long free memory waits for the loop whose turn it is


cdef void wake_for_clock(void *arg) noexcept nogil:
    loop_wake(<EventLoop *>arg)


cdef bint loop_init(EventLoop *loop, Poller *poller, Clock *clock, Pool *pool, Framing *framing) noexcept nogil:
    loop.scratch = <char *>malloc(SCRATCH_BYTES)
    loop.events = <kb_event *>malloc(KB_MAX_EVENTS * sizeof(kb_event))
    if loop.scratch is NULL or loop.events is NULL:
        free(loop.scratch)
        free(loop.events)
        return False
    kb_fix_big_allocations()
    loop.poller = poller
    loop.clock = clock_retain(clock)
    loop.pool = pool_retain(pool)
    memcpy(&loop.framing, framing, sizeof(Framing))
    loop.idle_ns = -1
    loop.frame_limit = 1
    loop.reading = True
    loop.shuffle_state = 1
    loop.now_ns = clock_now_ns(clock)
    loop.busy_since_ns = loop.now_ns
    list_init(&loop.lru)
    list_init(&loop.registered)
    list_init(&loop.partial_reads)
    list_init(&loop.memory_muted)
    list_init(&loop.pending_reads)
    list_init(&loop.completed_receives)
    list_init(&loop.pending_writes)
    list_init(&loop.disconnected)
    loop.waker.wake = wake_for_clock
    loop.waker.arg = loop
    loop.pool_waiter.wake = wake_for_clock
    loop.pool_waiter.arg = loop
    if clock.is_virtual:
        clock_add_waker(clock, &loop.waker)
    return True


cdef void loop_destroy(EventLoop *loop) noexcept nogil:
    pool_dequeue_waiter(loop.pool, &loop.pool_waiter)
    if loop.clock.is_virtual:
        clock_remove_waker(loop.clock, &loop.waker)
    loop.poller.destroy(loop.poller)
    clock_release(loop.clock)
    pool_decref(loop.pool)
    free(loop.scratch)
    free(loop.events)


cdef Channel *loop_lowest_priority(EventLoop *loop) noexcept nogil:
    cdef Link *link = loop.lru.next
    while link != &loop.lru:            # one that is closing anyway
        if link.channel.end_of_stream or link.channel.close_when_sent:
            return link.channel
        link = link.next
    return loop.lru.next.channel        # least recently active; NULL when there is none


cdef void loop_wake(EventLoop *loop) noexcept nogil:
    if atomic_swap(&loop.sleeping, 0) == 1:
        loop.poller.wake(loop.poller)


cdef void resume_memory_muted(EventLoop *loop) noexcept nogil:
    """Resume channels muted for memory in their order, before any other read of this loop; then yield to the next loop
    that waits for the pool."""
    cdef Channel *channel
    cdef Link others
    list_take(&loop.pending_reads, &others)
    loop.out_of_memory = False
    loop.passed_over_ns = 0
    while not list_empty(&loop.memory_muted):
        channel = loop.memory_muted.next.channel
        list_remove(&channel.memory_muted)
        if not channel.explicit_mute:
            loop_unmute(loop, channel)
    read_due(loop)
    while not list_empty(&others):
        channel = others.next.channel
        list_remove(&channel.pending_reads)
        list_append_once(&loop.pending_reads, &channel.pending_reads)
    pool_dequeue_waiter(loop.pool, &loop.pool_waiter)
    if not list_empty(&loop.memory_muted):
        pool_enqueue_waiter(loop.pool, &loop.pool_waiter)


cdef bint is_next_for_memory(EventLoop *loop) noexcept nogil:
    """Return whether memory is free and no loop is ahead; a turn unused for POOL_TURN_TIMEOUT_NS is lost."""
    if pool_is_out_of_memory(loop.pool):
        loop.passed_over_ns = 0
        return False
    if pool_is_next(loop.pool, &loop.pool_waiter):
        return True
    if loop.passed_over_ns == 0:
        loop.passed_over_ns = clock_now_ns(loop.clock)
    return clock_now_ns(loop.clock) - loop.passed_over_ns > POOL_TURN_TIMEOUT_NS


cdef void check_pool(EventLoop *loop) noexcept nogil:
    if loop.reading and list_empty(&loop.memory_muted):
        loop.out_of_memory = loop.out_of_memory and pool_is_out_of_memory(loop.pool)
        pool_dequeue_waiter(loop.pool, &loop.pool_waiter)    # the channels that waited are closed
    elif not loop.reading:
        pool_dequeue_waiter(loop.pool, &loop.pool_waiter)
    elif is_next_for_memory(loop):
        resume_memory_muted(loop)


cdef uint64_t next_random(EventLoop *loop) noexcept nogil:
    """xorshift64*: reproducible from its seed."""
    cdef uint64_t x = loop.shuffle_state
    x ^= x >> 12
    x ^= x << 25
    x ^= x >> 27
    loop.shuffle_state = x
    return x * <uint64_t>2685821657736338717


cdef void shuffle(EventLoop *loop, int n) noexcept nogil:
    """Shuffle the ready channels under low memory, so that no channel is always first (KIP-72)."""
    cdef int i, j
    cdef kb_event kept
    for i in range(n - 1, 0, -1):
        j = <int>(next_random(loop) % <uint64_t>(i + 1))
        kept = loop.events[i]
        loop.events[i] = loop.events[j]
        loop.events[j] = kept


cdef bint is_cut_off(EventLoop *loop, Channel *channel, int mask) noexcept nogil:
    """The peer reset the connection, and no complete request of it is left to deliver but at most the one in work.

    A peer that has only ended its own direction still gets its responses. The portable poller reports no hang-up. A
    throttled peer is looked at when its time is over, as in Kafka: until then it keeps its place.
    """
    if channel.throttles > 0:
        return False
    if not mask & KB_HANGUP and loop.poller.python is NULL:
        return False
    if (channel.reader.staged_count > 0 or channel.left is not NULL or channel.early is not NULL
            or channel.requeued_first is not NULL or channel.outstanding > 1):
        return False
    if has_buffered(channel):
        return False
    return not kb_has_unread(channel.fd) and (mask & KB_HANGUP or kb_take_error(channel.fd))


cdef bint shake_hands(EventLoop *loop, Channel *channel) noexcept nogil:
    """Return whether the transport is ready now; until then nothing is read or written but by itself."""
    cdef int ready = channel.transport.handshake(channel)
    if ready == KB_WANT_WRITE:
        loop_want_write(loop, channel)
        return False
    if channel.wants_write:
        channel.wants_write = False
        set_interest(loop, channel, channel.interest & ~KB_WRITE)
    if ready == KB_AGAIN or channel.close_reason != 0:
        return False
    if ready != 1:
        loop_close(loop, channel, CLOSE_PEER)
        return False
    channel.handshaking = False
    list_remove(&channel.partial_reads)
    return True


cdef void loop_handshake(EventLoop *loop, Channel *channel) noexcept nogil:
    channel.handshaking = True
    channel.frame_started_ns = loop.now_ns
    list_append(&loop.partial_reads, &channel.partial_reads)


cdef void on_event(EventLoop *loop, Channel *channel, int mask) noexcept nogil:
    if channel.close_reason != 0:
        return
    channel.last_active_ns = loop.now_ns
    list_remove(&channel.lru)
    list_append(&loop.lru, &channel.lru)
    if channel.handshaking:
        if not shake_hands(loop, channel):
            return
        mask |= KB_READ                 # the last bytes of the handshake may have brought some of the first frame
    if mask & (KB_READ | KB_HANGUP):
        if can_resume(loop, channel):
            loop_read(loop, channel)
        elif is_cut_off(loop, channel, mask):       # else its descriptor is held until its request is answered
            loop_close(loop, channel, CLOSE_PEER)
        else:
            channel.may_be_readable = True
            set_interest(loop, channel, channel.interest & ~KB_READ)
    if mask & (KB_WRITE | KB_HANGUP) and channel.wants_write:
        loop_write(loop, channel)


cdef void expire_frames(EventLoop *loop) noexcept nogil:
    cdef Channel *channel
    while not list_empty(&loop.partial_reads):
        channel = loop.partial_reads.next.channel
        if loop.now_ns - channel.frame_started_ns <= loop.frame_timeout_ns:
            return
        if channel.mute_state != NOT_MUTED or not loop.reading:     # it was we who did not read
            list_remove(&channel.partial_reads)
            channel.frame_started_ns = loop.now_ns
            list_append(&loop.partial_reads, &channel.partial_reads)
        else:
            count(&loop.counters.frames_expired, 1)
            loop_close(loop, channel, CLOSE_FRAME_TIMEOUT)


cdef void expire_idle(EventLoop *loop) noexcept nogil:
    """At most one channel per poll, the least recently active."""
    cdef Channel *channel
    if loop.now_ns <= loop.next_idle_check_ns:
        return
    if list_empty(&loop.lru):
        loop.next_idle_check_ns = loop.now_ns + loop.idle_ns
        return
    channel = loop.lru.next.channel
    loop.next_idle_check_ns = channel.last_active_ns + loop.idle_ns
    if loop.now_ns > loop.next_idle_check_ns:
        count(&loop.counters.connections_expired, 1)
        loop_close(loop, channel, CLOSE_EXPIRED)


cdef void loop_poll(EventLoop *loop, int64_t timeout_ns) noexcept nogil:
    cdef int64_t started, at
    cdef int i, n
    cdef Channel *channel
    if loop.out_of_memory or loop.pool_waiter.is_queued:
        check_pool(loop)
    if atomic_load_relaxed(&loop.snapshot) != 0 and loop_snapshot_step(loop):
        timeout_ns = 0
    if not list_empty(&loop.pending_reads) or not list_empty(&loop.completed_receives):
        timeout_ns = 0
    if timeout_ns > 0:
        atomic_swap(&loop.sleeping, 1)
        if loop.has_mail is not NULL and loop.has_mail(loop):
            timeout_ns = 0
        elif loop.pool_waiter.is_queued and is_next_for_memory(loop):     # given back since we looked
            timeout_ns = 0
        elif atomic_load_seq(&loop.snapshot) > SNAPSHOTS_CLOSED:
            timeout_ns = 0
    started = clock_now_ns(loop.clock)
    n = loop.poller.wait(loop.poller, loop.events, KB_MAX_EVENTS, timeout_ns)
    atomic_store(&loop.sleeping, 0)
    loop.now_ns = clock_now_ns(loop.clock)
    count(&loop.counters.polls, 1)
    count(&loop.counters.wait_ns, loop.now_ns - started)
    count(&loop.counters.work_ns, started - loop.busy_since_ns)
    loop.busy_since_ns = loop.now_ns
    if loop.pool_waiter.is_queued:      # memory that was freed meanwhile is first for the channels that were refused
        check_pool(loop)
    read_due(loop)
    if n < 0:
        count(&loop.counters.poll_failures, 1)
    elif n > 1 and not loop.out_of_memory and pool_is_low(loop.pool):
        shuffle(loop, n)
    at = clock_now_ns(loop.clock)
    for i in range(n):
        channel = <Channel *>loop.events[i].tag
        on_event(loop, channel, loop.events[i].mask)
        started = clock_now_ns(loop.clock)
        channel.network_ns += started - at
        at = started
    if loop.frame_timeout_ns > 0:
        expire_frames(loop)
    if loop.idle_ns >= 0:
        expire_idle(loop)
