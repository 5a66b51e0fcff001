"""One pass of the network loop: resume channels muted for memory, handle poll events, expire time-outs. Snapshots."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strlen

from kbroker._core.clock cimport Clock, clock_add_waker, clock_now_ns, clock_release, clock_remove_waker, clock_retain
from kbroker._core.codec.framing cimport Framing
from kbroker._core.network.channel cimport (
    can_resume, has_buffered, loop_close, loop_read, loop_unmute, loop_want_write, loop_write, read_due, set_interest,
)
from kbroker._core.network.loop_types cimport (
    CLOSE_EXPIRED, CLOSE_FRAME_TIMEOUT, CLOSE_PEER, KB_AGAIN, KB_REFUSED, KB_WANT_WRITE, SCRATCH_BYTES, Channel,
    EventLoop, Link, count, is_linked, list_append, list_append_once, list_empty, list_init, list_remove, list_take,
)
from kbroker._core.network.mute cimport NOT_MUTED
from kbroker._core.network.poller cimport KB_HANGUP, KB_MAX_EVENTS, KB_READ, KB_WRITE, Poller, kb_event
from kbroker._core.requests.memory_pool cimport (
    Pool, pool_decref, pool_dequeue_waiter, pool_enqueue_waiter, pool_is_low, pool_is_next, pool_is_out_of_memory,
    pool_retain,
)
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_cas, atomic_load, atomic_load_relaxed, atomic_load_seq, atomic_store, atomic_store_seq,
    atomic_swap, cond_broadcast, cond_destroy, cond_init, cond_wait_ns, mutex_destroy, mutex_init, mutex_lock,
    mutex_unlock,
)


cdef extern from "network/socket_io.h" nogil:
    int kb_has_unread(int fd)
    int kb_take_error(int fd)

cdef extern from "allocator.h" nogil:
    void kb_fix_big_allocations()

cdef enum:
    POOL_TURN_TIMEOUT_NS = 200000000         # time for which free memory waits for the loop whose turn it is


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
    while link != &loop.lru:            # a channel that is closing anyway
        if link.channel.end_of_stream or link.channel.close_when_sent:
            return link.channel
        link = link.next
    return loop.lru.next.channel        # least recently active; NULL without channels


cdef void loop_wake(EventLoop *loop) noexcept nogil:
    if atomic_swap(&loop.sleeping, 0) == 1:
        loop.poller.wake(loop.poller)


cdef void resume_memory_muted(EventLoop *loop) noexcept nogil:
    """Resume channels muted for memory, in order, before the loop reads others; then yield to the next waiting loop."""
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
    """Return the next number of xorshift64*, which are reproducible from the seed."""
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
    """Return whether the peer reset the connection and no complete request is left except the one in progress.

    A peer that has only ended its own direction still gets its responses. The portable poller reports no hang-up. A
    throttled peer is checked when its throttle time has passed, as in Kafka: until then its connection is counted.
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
    """Return whether the transport is ready now; until then only the handshake reads and writes."""
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
        if ready == KB_REFUSED:
            count(&loop.counters.handshakes_refused, 1)
        loop_close(loop, channel, CLOSE_PEER)
        return False
    count(&loop.counters.handshakes, 1)
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
        elif is_cut_off(loop, channel, mask):       # else its descriptor is held until the response to its request
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
        if channel.mute_state != NOT_MUTED or not loop.reading:     # the loop itself did not read
            list_remove(&channel.partial_reads)
            channel.frame_started_ns = loop.now_ns
            list_append(&loop.partial_reads, &channel.partial_reads)
        else:
            count(&loop.counters.frames_expired, 1)
            loop_close(loop, channel, CLOSE_FRAME_TIMEOUT)


cdef void expire_idle(EventLoop *loop) noexcept nogil:
    """Close the least recently active channel if it is idle for too long: at most one per poll."""
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
        elif loop.pool_waiter.is_queued and is_next_for_memory(loop):     # freed since the check
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
    if loop.pool_waiter.is_queued:      # memory that was freed meanwhile goes first to the channels that were refused
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


# --------------------------------------------------- snapshots

cdef enum:
    SPURIOUS = 4                # maximum number of wake-ups before a wait gives up

MUTE_REASONS = (
    "throttled", "memory_pool", "refusal_delayed", "response_unsent", "explicit", "batch_in_flight", "stopping")
STATES = (
    "NOT_MUTED", "MUTED", "MUTED_AND_RESPONSE_PENDING", "MUTED_AND_THROTTLED",
    "MUTED_AND_THROTTLED_AND_RESPONSE_PENDING",
)
STAGES = ("handshake", "authentication", "open")


cdef LoopSnapshot *loop_snapshot_new(int64_t capacity, int64_t extra_bytes) noexcept nogil:
    cdef LoopSnapshot *snapshot = <LoopSnapshot *>calloc(1, sizeof(LoopSnapshot))
    if snapshot is NULL:
        return NULL
    snapshot.channels = <ChannelCopy *>malloc(<size_t>(capacity if capacity > 0 else 1) * sizeof(ChannelCopy))
    snapshot.extra = calloc(1, <size_t>extra_bytes) if extra_bytes > 0 else NULL
    if snapshot.channels is NULL or extra_bytes > 0 and snapshot.extra is NULL:
        free(snapshot.channels)
        free(snapshot.extra)
        free(snapshot)
        return NULL
    snapshot.capacity = capacity
    atomic_store(&snapshot.refs, 1)
    mutex_init(&snapshot.lock)
    cond_init(&snapshot.changed)
    return snapshot


cdef void loop_snapshot_release(LoopSnapshot *snapshot) noexcept nogil:
    if snapshot is NULL or atomic_add_fetch(&snapshot.refs, -1) != 0:
        return
    cond_destroy(&snapshot.changed)
    mutex_destroy(&snapshot.lock)
    free(snapshot.channels)
    free(snapshot.extra)
    free(snapshot)


cdef int loop_snapshot_ask(EventLoop *loop, LoopSnapshot *snapshot, int64_t timeout_ns) noexcept nogil:
    cdef int state, waits = 0
    cdef bint in_time = True
    atomic_add_fetch(&snapshot.refs, 1)
    if not atomic_cas(&loop.snapshot, 0, <int64_t>snapshot):
        atomic_add_fetch(&snapshot.refs, -1)
        return SNAPSHOT_ENDED if atomic_load(&loop.snapshot) == SNAPSHOTS_CLOSED else SNAPSHOT_BUSY
    if atomic_swap(&loop.sleeping, 0) == 1:
        loop.poller.wake(loop.poller)
    mutex_lock(&snapshot.lock)
    while snapshot.state == SNAPSHOT_WANTED and in_time and waits < SPURIOUS:
        in_time = cond_wait_ns(&snapshot.changed, &snapshot.lock, timeout_ns)
        waits += 1
    state = snapshot.state
    mutex_unlock(&snapshot.lock)
    if state == SNAPSHOT_WANTED:
        atomic_store(&snapshot.is_abandoned, 1)
        return SNAPSHOT_LATE
    return state


# ---- the loop's thread

cdef void finish(EventLoop *loop, LoopSnapshot *snapshot, int state) noexcept nogil:
    list_remove(&snapshot.cursor)
    snapshot.open_channels = loop.open_channels
    snapshot.done_ns = clock_now_ns(loop.clock)
    if state == SNAPSHOT_DONE:
        if loop.on_snapshot is not NULL and snapshot.extra is not NULL:
            loop.on_snapshot(loop, snapshot.extra)
        atomic_store_seq(&loop.snapshot, 0)     # the next request for a snapshot is accepted
    mutex_lock(&snapshot.lock)
    snapshot.state = state
    cond_broadcast(&snapshot.changed)
    mutex_unlock(&snapshot.lock)
    loop_snapshot_release(snapshot)


cdef bint loop_snapshot_step(EventLoop *loop) noexcept nogil:
    cdef int64_t wanted = atomic_load(&loop.snapshot)
    cdef LoopSnapshot *snapshot = <LoopSnapshot *>wanted
    cdef Link *link
    cdef int32_t n = 0
    if wanted <= SNAPSHOTS_CLOSED:
        return False
    if not snapshot.is_begun:
        snapshot.is_begun = True
        snapshot.begun_ns = clock_now_ns(loop.clock)
        list_append(loop.registered.next, &snapshot.cursor)     # before the first
    while n < CHANNELS_PER_STEP and snapshot.cursor.next is not &loop.registered:
        link = snapshot.cursor.next
        list_remove(&snapshot.cursor)
        list_append(link.next, &snapshot.cursor)
        if snapshot.count < snapshot.capacity:
            channel_copy(loop, link.channel, &snapshot.channels[snapshot.count])
            snapshot.count += 1
        n += 1
    if snapshot.cursor.next is not &loop.registered and not atomic_load_relaxed(&snapshot.is_abandoned):
        return True
    finish(loop, snapshot, SNAPSHOT_DONE)
    return False


cdef void loop_snapshots_close(EventLoop *loop) noexcept nogil:
    cdef int64_t wanted = atomic_swap(&loop.snapshot, SNAPSHOTS_CLOSED)
    if wanted != 0 and wanted != SNAPSHOTS_CLOSED:
        finish(loop, <LoopSnapshot *>wanted, SNAPSHOT_ENDED)


cdef int32_t why_muted(EventLoop *loop, Channel *channel) noexcept nogil:
    cdef int32_t why = 0
    if channel.throttles > 0:
        why |= MUTED_THROTTLED
    if is_linked(&channel.memory_muted):
        why |= MUTED_MEMORY
    if is_linked(&channel.failed_auth):
        why |= MUTED_REFUSAL
    if channel.wants_write and channel.send_first is not NULL:
        why |= MUTED_UNSENT
    if channel.explicit_mute:
        why |= MUTED_EXPLICITLY
    if channel.outstanding > 0:
        why |= MUTED_IN_FLIGHT
    if not loop.reading:
        why |= MUTED_STOPPING
    return why


cdef void copy_text(char *into, int64_t size_bytes, const char *text) noexcept nogil:
    cdef size_t n = strlen(text) if text is not NULL else 0
    if n >= <size_t>size_bytes:
        n = <size_t>size_bytes - 1
    if n > 0:                       # text may be NULL, which memcpy does not accept
        memcpy(into, text, n)
    into[n] = 0


cdef void channel_copy(EventLoop *loop, Channel *channel, ChannelCopy *copy) noexcept nogil:
    cdef Request *request
    memset(copy, 0, sizeof(ChannelCopy))
    copy.why_muted = why_muted(loop, channel)
    copy.stage = STAGE_OPEN
    if channel.handshaking:
        copy.stage = STAGE_HANDSHAKE
    elif channel.authenticating:
        copy.stage = STAGE_AUTHENTICATION
    copy.mute_state = channel.mute_state
    if channel.throttles > 0:
        copy.throttle_kind = channel.throttle_kind
        copy.throttled_until_ns = channel.throttled_until_ns
    if is_linked(&channel.failed_auth):
        copy.close_due_ns = channel.close_due_ns
    copy.opened_ns = channel.opened_ns
    copy.last_active_ns = channel.last_active_ns
    copy.handed_over_ns = channel.handed_over_ns
    copy.number = channel.number
    copy.requests = channel.next_sequence
    copy.outstanding = channel.outstanding
    copy.staged = channel.reader.staged_count
    if channel.reader.partial is not NULL:
        copy.wanted_bytes = channel.reader.partial.size_bytes
        copy.arrived_bytes = channel.reader.partial.filled_bytes
    elif channel.reader.size_known:
        copy.wanted_bytes = channel.reader.declared_bytes
    request = channel.send_first
    while request is not NULL:
        copy.unsent_responses += 1
        copy.unsent_bytes += request.response_bytes
        request = request.next
    copy.charged_bytes = atomic_load_relaxed(&channel.reader.charged_bytes)
    copy.bytes_received = channel.bytes_received
    copy.bytes_sent = channel.bytes_sent
    copy.index = channel.metadata.index
    copy.local_port = channel.metadata.local_port
    copy.remote_port = channel.metadata.remote_port
    memcpy(copy.local_host, channel.metadata.local_host, sizeof(copy.local_host))
    memcpy(copy.remote_host, channel.metadata.remote_host, sizeof(copy.remote_host))
    copy_text(copy.principal, PRINCIPAL_BYTES, channel.session.principal if channel.session is not NULL else NULL)
    if channel.label is not NULL:
        copy.label_bytes = channel.label_bytes if channel.label_bytes < LABEL_BYTES else LABEL_BYTES
        memcpy(copy.label, channel.label, <size_t>copy.label_bytes)
    copy.owner = channel.owner


# ---- with the GIL

cdef object milliseconds(int64_t ns):
    return round(ns / 1e6, 3)


cdef dict channel_facts(ChannelCopy *copy, int64_t now_ns):
    """Return the facts of a channel as a dict; times in milliseconds."""
    cdef dict facts = {
        "address": copy.remote_host.decode("utf-8", "replace"),
        "port": copy.remote_port,
        "stage": STAGES[copy.stage],
        "muted": [MUTE_REASONS[i] for i in range(MUTED_REASONS) if copy.why_muted >> i & 1],
        "mute_state": STATES[copy.mute_state],
        "open_ms": milliseconds(now_ns - copy.opened_ns),
        "idle_ms": milliseconds(now_ns - copy.last_active_ns),
        "requests": copy.requests,
        "in_flight": copy.outstanding,
        "in_flight_ms": milliseconds(now_ns - copy.handed_over_ns) if copy.outstanding else None,
        "staged": copy.staged,
        "bytes_received": copy.bytes_received,
        "bytes_sent": copy.bytes_sent,
        "unsent_bytes": copy.unsent_bytes,
        "memory_pool_bytes": copy.charged_bytes,
        "frame_bytes": copy.wanted_bytes,
        "frame_arrived_bytes": copy.arrived_bytes,
        "throttle_left_ms": None,
        "refusal_left_ms": None,
    }
    if copy.throttled_until_ns:
        facts["throttle_left_ms"] = milliseconds(max(0, copy.throttled_until_ns - now_ns))
    if copy.close_due_ns:
        facts["refusal_left_ms"] = milliseconds(max(0, copy.close_due_ns - now_ns))
    return facts
