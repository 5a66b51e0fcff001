"""Snapshots of a loop's channels, taken by the loop itself in steps; see the contract in the .pxd."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strlen

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.network.loop_types cimport (
    Channel, EventLoop, Link, is_linked, list_append, list_remove,
)
from kbroker._core.network.mute import STATES
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_cas, atomic_load, atomic_load_relaxed, atomic_store, atomic_store_seq, atomic_swap,
    cond_broadcast, cond_destroy, cond_init, cond_wait_ns, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)

cdef enum:
    SPURIOUS = 4                # wake-ups that are not the end

MUTE_REASONS = (
    "throttled", "memory_pool", "refusal_delayed", "response_unsent", "explicit", "batch_in_flight", "stopping")
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
        atomic_store_seq(&loop.snapshot, 0)     # who asks next finds room
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
        list_append(loop.registered.next, &snapshot.cursor)     # in front of the first
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
    """The facts of a channel for people and programs; times in milliseconds."""
    cdef dict facts = {
        "address": f"{copy.remote_host.decode('utf-8', 'replace')}",
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
