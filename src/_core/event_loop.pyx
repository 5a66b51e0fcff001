"""One pass of the network loop and everything done to a channel in it.

Interest is lazy: muting a channel costs no system call. Only an event that arrives while the channel may not be read
drops the interest; when it may be read again it is read at once, and the interest comes back when there was nothing.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.channel cimport (
    CLOSE_EXPIRED, CLOSE_FRAME_TIMEOUT, CLOSE_LOCAL, CLOSE_PEER, KB_AGAIN, KB_WANT_WRITE, Channel, Link,
    channel_drop_io, channel_new, is_linked, list_append, list_append_once, list_empty, list_init, list_remove,
)
from kbroker._core.clock cimport (
    Clock, borrow_clock, clock_add_waker, clock_now_ns, clock_release, clock_remove_waker, clock_retain,
)
from kbroker._core.event_loop cimport count
from kbroker._core.framing cimport (
    FEED_FULL, FEED_INVALID, FEED_MEMORY, FEED_MORE, FEED_NO_MEMORY, FRAMING_LENGTH_PREFIX, Framing, frames_feed,
    frames_filled, frames_target,
)
from kbroker._core.memory_pool cimport (
    Pool, pool_is_low, pool_is_out_of_memory, pool_leave, pool_may_take, pool_new, pool_release, pool_retain, pool_wait,
)
from kbroker._core.mute cimport NOT_MUTED, mute_muted, mute_unmuted
from kbroker._core.poller cimport KB_HANGUP, KB_MAX_EVENTS, KB_READ, KB_WRITE, Poller, kb_event
from kbroker._core.request cimport Request, request_free
from kbroker._core.sync cimport atomic_store, atomic_swap
from kbroker._core.channel_writer cimport channel_write

cdef extern from "socket_io.h" nogil:
    int kb_prepare_socket(int fd)
    void kb_close_socket(int fd)
    int kb_has_unread(int fd)
    int kb_take_error(int fd)
    void kb_fix_big_allocations()

cdef enum:
    SCRATCH_BYTES = 65536
    DIRECT_BYTES = 8192         # a frame that lacks more is read in place, a smaller rest through the scratch buffer
    DIRECT_READS = 8            # reads in place per channel and poll
    TURN_NS = 200000000         # how long memory may lie there for a loop whose turn it is


cdef Pool *HEAP = pool_new(borrow_clock(None), -1, INT64_MAX, False)    # of frames of authentication; never freed
if HEAP is NULL:
    raise MemoryError


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
    list_init(&loop.by_activity)
    list_init(&loop.filling)
    list_init(&loop.starved)
    list_init(&loop.due)
    list_init(&loop.ready)
    list_init(&loop.touched)
    list_init(&loop.gone)
    loop.waker.wake = wake_for_clock
    loop.waker.arg = loop
    loop.pool_waiter.wake = wake_for_clock
    loop.pool_waiter.arg = loop
    if clock.is_virtual:
        clock_add_waker(clock, &loop.waker)
    return True


cdef void loop_destroy(EventLoop *loop) noexcept nogil:
    pool_leave(loop.pool, &loop.pool_waiter)
    if loop.clock.is_virtual:
        clock_remove_waker(loop.clock, &loop.waker)
    loop.poller.destroy(loop.poller)
    clock_release(loop.clock)
    pool_release(loop.pool)
    free(loop.scratch)
    free(loop.events)


cdef Channel *loop_register(EventLoop *loop, int fd) noexcept nogil:
    cdef Channel *channel
    if kb_prepare_socket(fd) < 0:
        kb_close_socket(fd)
        return NULL
    channel = channel_new(fd)
    if channel is NULL or loop.poller.set(loop.poller, fd, channel, 0, KB_READ) < 0:
        free(channel)
        kb_close_socket(fd)
        return NULL
    channel.interest = KB_READ
    channel.number = loop.next_number
    loop.next_number += 1
    channel.last_active_ns = clock_now_ns(loop.clock)
    list_append(&loop.by_activity, &channel.by_activity)
    loop.open_channels += 1
    count(&loop.counters.connections_created, 1)
    return channel


cdef void set_interest(EventLoop *loop, Channel *channel, int mask) noexcept nogil:
    if mask == channel.interest or channel.fd < 0:
        return
    if loop.poller.set(loop.poller, channel.fd, channel, channel.interest, mask) < 0:
        channel.interest = 0
        loop_close(loop, channel, CLOSE_PEER)
        return
    channel.interest = mask


cdef inline bint may_feed(EventLoop *loop, Channel *channel) noexcept nogil:
    """Frames may be cut for this channel. At most one batch of complete frames is with the owner at a time."""
    return (loop.reading and channel.mute_state == NOT_MUTED and not channel.close_when_sent
            and not is_linked(&channel.ready) and channel.close_reason == 0 and not channel.handshaking)


cdef inline bint has_buffered(Channel *channel) noexcept nogil:
    return channel.transport.has_buffered is not NULL and channel.transport.has_buffered(channel)


cdef inline bint has_ended(Channel *channel) noexcept nogil:
    return (channel.end_of_stream and channel.reader.staged_count == 0 and channel.left is NULL
            and channel.returned_first is NULL and channel.outstanding == 0 and channel.send_first is NULL
            and channel.early is NULL)


cdef void end_stream(EventLoop *loop, Channel *channel) noexcept nogil:
    """Nothing more comes. Complete frames are still delivered, their answers tried; then the channel closes."""
    channel.end_of_stream = True
    channel.may_be_readable = False
    list_remove(&channel.filling)
    set_interest(loop, channel, channel.interest & ~KB_READ)
    if channel.close_reason == 0 and has_ended(channel):
        loop_close(loop, channel, CLOSE_PEER)


cdef void drop_left(Channel *channel) noexcept nogil:
    free(channel.left)
    channel.left = NULL
    channel.left_at = 0
    channel.left_end = 0


cdef bint keep_left(Channel *channel, const char *data, int64_t size_bytes) noexcept nogil:
    channel.left = <char *>malloc(<size_t>size_bytes)
    if channel.left is NULL:
        return False
    memcpy(channel.left, data, <size_t>size_bytes)
    channel.left_at = 0
    channel.left_end = size_bytes
    return True


cdef void starve(EventLoop *loop, Channel *channel) noexcept nogil:
    """The memory mute: the channel waits its turn in this loop, and the loop among all of the pool."""
    count(&loop.counters.memory_mutes, 1)
    channel.mute_state = mute_muted(channel.mute_state)
    channel.may_be_readable = True
    list_append_once(&loop.starved, &channel.starved)
    pool_wait(loop.pool, &loop.pool_waiter)


cdef inline bint is_not_its_turn(EventLoop *loop, Channel *channel) noexcept nogil:
    """Others of this loop were refused memory before, and this channel holds none: it would overtake them."""
    return (not list_empty(&loop.starved) and channel.reader.partial is NULL and channel.reader.staged_count == 0
            and not channel.authenticating)


cdef void after_feed(EventLoop *loop, Channel *channel, int result) noexcept nogil:
    if result == FEED_MEMORY:
        loop.out_of_memory = True
        if channel.reader.staged_count == 0:        # else it asks again when its frames are answered
            starve(loop, channel)
    elif result == FEED_INVALID:                    # what came before it is still served
        count(&loop.counters.invalid_frames, 1)
        drop_left(channel)
        end_stream(loop, channel)
    elif result == FEED_NO_MEMORY:
        loop_close(loop, channel, CLOSE_PEER)


cdef int64_t receive(EventLoop *loop, Channel *channel, char *into, int64_t room) noexcept nogil:
    """Bytes, or 0 when there is nothing (more) now: then the channel's state says why."""
    cdef int64_t n = channel.transport.receive(channel, into, room)
    if n > 0:
        count(&loop.counters.bytes_received, n)
        return n
    channel.may_be_readable = False
    if n != KB_AGAIN:
        end_stream(loop, channel)
    return 0


cdef void read_in_place(EventLoop *loop, Channel *channel, int32_t reads) noexcept nogil:
    """Read prefix and body exactly where they belong, up to the end of one frame."""
    cdef char *into = NULL
    cdef int64_t room = 0, n
    cdef int result
    while reads > 0:
        reads -= 1
        result = frames_target(
            &loop.framing, HEAP if channel.authenticating else loop.pool, &channel.reader, &into, &room)
        if result != FEED_MORE:
            after_feed(loop, channel, result)
            return
        n = 0
        if room > 0:
            n = receive(loop, channel, into, room)
            if n == 0:
                return
        result = frames_filled(&loop.framing, &channel.reader, n, loop.now_ns)
        if result != FEED_MORE:
            after_feed(loop, channel, result)
            return
        if n < room or channel.reader.staged_count > 0:
            return


cdef void read_ahead(EventLoop *loop, Channel *channel) noexcept nogil:
    cdef Request *partial = channel.reader.partial
    cdef int64_t n, taken = 0
    cdef int result
    if (loop.framing.kind == FRAMING_LENGTH_PREFIX and partial is not NULL
            and partial.size_bytes - partial.filled_bytes > DIRECT_BYTES):
        read_in_place(loop, channel, DIRECT_READS)
        return
    n = receive(loop, channel, loop.scratch, SCRATCH_BYTES)
    if n == 0:
        return
    result = frames_feed(
        &loop.framing, loop.pool, &channel.reader, loop.scratch, n, loop.frame_limit, loop.now_ns, &taken)
    if (result == FEED_FULL or result == FEED_MEMORY) and taken < n:
        if not keep_left(channel, loop.scratch + taken, n - taken):
            result = FEED_NO_MEMORY
    after_feed(loop, channel, result)


cdef void track_filling(EventLoop *loop, Channel *channel, bint completed) noexcept nogil:
    """Keep the list of begun frames in order of their begin: its first one is the next to run out of time."""
    cdef bint begun = (channel.reader.partial is not NULL or channel.reader.size_known
                       or channel.reader.head_filled > 0)
    if channel.close_reason != 0 or channel.end_of_stream:
        return
    if not begun or completed:
        list_remove(&channel.filling)
    if begun and not is_linked(&channel.filling):
        channel.frame_started_ns = loop.now_ns
        list_append(&loop.filling, &channel.filling)


cdef void loop_read(EventLoop *loop, Channel *channel) noexcept nogil:
    cdef int64_t taken = 0
    cdef int result = FEED_MORE
    cdef int32_t staged = channel.reader.staged_count
    list_remove(&channel.due)
    if not may_feed(loop, channel):
        return
    if is_not_its_turn(loop, channel):
        loop.out_of_memory = True
        starve(loop, channel)
        return
    if channel.left is not NULL:
        result = frames_feed(
            &loop.framing, loop.pool, &channel.reader, channel.left + channel.left_at,
            channel.left_end - channel.left_at, loop.frame_limit, loop.now_ns, &taken)
        channel.left_at += taken
        if channel.left_at == channel.left_end:
            drop_left(channel)
        after_feed(loop, channel, result)
        if result == FEED_MORE and channel.reader.staged_count == 0 and channel.end_of_stream:
            end_stream(loop, channel)
    if (result == FEED_MORE and channel.reader.staged_count == 0 and not channel.end_of_stream
            and channel.close_reason == 0):
        if loop.framing.kind == FRAMING_LENGTH_PREFIX and (
                loop.exact or channel.authenticating or pool_is_low(loop.pool)):
            read_in_place(loop, channel, DIRECT_READS)
        else:
            read_ahead(loop, channel)
    if channel.close_reason != 0:
        return
    track_filling(loop, channel, channel.reader.staged_count > staged)
    if channel.reader.staged_count > 0:
        list_append_once(&loop.ready, &channel.ready)
    elif channel.mute_state == NOT_MUTED and not channel.end_of_stream:
        if channel.left is not NULL:
            list_append_once(&loop.due, &channel.due)
        else:
            set_interest(loop, channel, channel.interest | KB_READ)
            if channel.close_reason == 0 and has_buffered(channel):
                list_append_once(&loop.due, &channel.due)


cdef void loop_resume(EventLoop *loop, Channel *channel) noexcept nogil:
    if channel.close_reason != 0 or channel.mute_state != NOT_MUTED:
        return
    if channel.reader.staged_count > 0:
        list_append_once(&loop.ready, &channel.ready)
        return
    list_remove(&channel.ready)
    if channel.left is not NULL:
        list_append_once(&loop.due, &channel.due)
    elif channel.end_of_stream:
        if has_ended(channel):
            loop_close(loop, channel, CLOSE_PEER)
    elif channel.may_be_readable or not channel.interest & KB_READ or has_buffered(channel):
        list_append_once(&loop.due, &channel.due)


cdef void loop_mute(Channel *channel) noexcept nogil:
    channel.mute_state = mute_muted(channel.mute_state)


cdef bint loop_unmute(EventLoop *loop, Channel *channel) noexcept nogil:
    channel.mute_state = mute_unmuted(channel.mute_state)
    if channel.mute_state != NOT_MUTED:
        return False
    list_remove(&channel.starved)
    loop_resume(loop, channel)
    return True


cdef void loop_queue_answer(Channel *channel, Request *request) noexcept nogil:
    request.next = NULL
    if channel.send_last is NULL:
        channel.send_first = request
        channel.prefix_sent = 0
        channel.segment_at = 0
        channel.segment_sent = 0
    else:
        channel.send_last.next = request
    channel.send_last = request


cdef void loop_want_write(EventLoop *loop, Channel *channel) noexcept nogil:
    channel.wants_write = True
    set_interest(loop, channel, channel.interest | KB_WRITE)


cdef void loop_write(EventLoop *loop, Channel *channel) noexcept nogil:
    cdef int64_t result
    if channel.close_reason != 0:
        return
    if channel.send_first is not NULL:
        result = channel_write(loop, channel)
        if result != 0 and result != KB_AGAIN:
            loop_close(loop, channel, CLOSE_PEER)
            return
        if result == KB_AGAIN:
            loop_want_write(loop, channel)
            return
    if channel.wants_write:
        channel.wants_write = False
        set_interest(loop, channel, channel.interest & ~KB_WRITE)
    if channel.close_reason == 0:
        if channel.close_when_sent:
            loop_close(loop, channel, CLOSE_LOCAL)
        elif has_ended(channel):
            loop_close(loop, channel, CLOSE_PEER)


cdef void loop_close(EventLoop *loop, Channel *channel, int reason) noexcept nogil:
    cdef Request *request
    if channel.close_reason != 0:
        return
    channel.close_reason = reason
    atomic_store(&channel.is_gone, 1)
    if channel.interest != 0:
        loop.poller.set(loop.poller, channel.fd, channel, channel.interest, 0)
        channel.interest = 0
    list_remove(&channel.by_activity)
    list_remove(&channel.filling)
    list_remove(&channel.starved)
    list_remove(&channel.due)
    list_remove(&channel.ready)
    list_remove(&channel.touched)
    list_remove(&channel.refused)
    while channel.send_first is not NULL:
        request = channel.send_first
        channel.send_first = request.next
        loop.sent(loop, channel, request)
    channel.send_last = NULL
    while channel.returned_first is not NULL:
        request = channel.returned_first
        channel.returned_first = request.next
        request_free(request)
    channel.returned_last = NULL
    channel.returned_count = 0
    while channel.early is not NULL:
        request = channel.early
        channel.early = request.next
        loop.sent(loop, channel, request)
    channel_drop_io(channel)
    loop.open_channels -= 1
    count(&loop.counters.connections_closed, 1)
    list_append(&loop.gone, &channel.gone)


cdef Channel *loop_lowest_priority(EventLoop *loop) noexcept nogil:
    cdef Link *link = loop.by_activity.next
    while link != &loop.by_activity:            # one that is closing anyway
        if link.channel.end_of_stream or link.channel.close_when_sent:
            return link.channel
        link = link.next
    return loop.by_activity.next.channel        # least recently active; NULL when there is none


cdef void loop_wake(EventLoop *loop) noexcept nogil:
    if atomic_swap(&loop.sleeping, 0) == 1:
        loop.poller.wake(loop.poller)


cdef void take_list(Link *from_list, Link *into) noexcept nogil:
    """Move all of a list, the head of the other one being uninitialised."""
    list_init(into)
    if list_empty(from_list):
        return
    into.next = from_list.next
    into.prev = from_list.prev
    into.next.prev = into
    into.prev.next = into
    list_init(from_list)


cdef void feed_starved(EventLoop *loop) noexcept nogil:
    """Let the starved ones read, in their order, before anybody else of this loop; then it is another loop's turn."""
    cdef Channel *channel
    cdef Link others
    take_list(&loop.due, &others)
    loop.out_of_memory = False
    loop.passed_over_ns = 0
    while not list_empty(&loop.starved):
        channel = loop.starved.next.channel
        list_remove(&channel.starved)
        if not channel.explicit_mute:
            loop_unmute(loop, channel)
    read_due(loop)
    while not list_empty(&others):
        channel = others.next.channel
        list_remove(&channel.due)
        list_append_once(&loop.due, &channel.due)
    pool_leave(loop.pool, &loop.pool_waiter)
    if not list_empty(&loop.starved):
        pool_wait(loop.pool, &loop.pool_waiter)


cdef bint is_our_turn(EventLoop *loop) noexcept nogil:
    """There is memory, and no other loop is due; but whoever does not take its turn in a while has lost it."""
    if pool_is_out_of_memory(loop.pool):
        loop.passed_over_ns = 0
        return False
    if pool_may_take(loop.pool, &loop.pool_waiter):
        return True
    if loop.passed_over_ns == 0:
        loop.passed_over_ns = clock_now_ns(loop.clock)
    return clock_now_ns(loop.clock) - loop.passed_over_ns > TURN_NS


cdef void look_at_pool(EventLoop *loop) noexcept nogil:
    if loop.reading and list_empty(&loop.starved):
        loop.out_of_memory = loop.out_of_memory and pool_is_out_of_memory(loop.pool)
        pool_leave(loop.pool, &loop.pool_waiter)    # those who waited have gone
    elif not loop.reading:
        pool_leave(loop.pool, &loop.pool_waiter)
    elif is_our_turn(loop):
        feed_starved(loop)


cdef uint64_t next_random(EventLoop *loop) noexcept nogil:
    """xorshift64*: reproducible from its seed."""
    cdef uint64_t x = loop.shuffle_state
    x ^= x >> 12
    x ^= x << 25
    x ^= x >> 27
    loop.shuffle_state = x
    return x * <uint64_t>2685821657736338717


cdef void shuffle(EventLoop *loop, int n) noexcept nogil:
    """Under low memory nobody is always first (KIP-72)."""
    cdef int i, j
    cdef kb_event kept
    for i in range(n - 1, 0, -1):
        j = <int>(next_random(loop) % <uint64_t>(i + 1))
        kept = loop.events[i]
        loop.events[i] = loop.events[j]
        loop.events[j] = kept


cdef bint is_cut_off(EventLoop *loop, Channel *channel, int mask) noexcept nogil:
    """The peer reset the connection, and no complete request of it is left to deliver but at most the one in work.

    A peer that has only ended its own direction still gets its answers. The portable poller tells no hang-up.
    """
    if not mask & KB_HANGUP and loop.poller.python is NULL:
        return False
    if (channel.reader.staged_count > 0 or channel.left is not NULL or channel.early is not NULL
            or channel.returned_first is not NULL or channel.outstanding > 1):
        return False
    if has_buffered(channel):
        return False
    return not kb_has_unread(channel.fd) and (mask & KB_HANGUP or kb_take_error(channel.fd))


cdef bint shake_hands(EventLoop *loop, Channel *channel) noexcept nogil:
    """Whether the transport is ready now; until then nothing is read or written but by itself."""
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
    list_remove(&channel.filling)
    return True


cdef void loop_handshake(EventLoop *loop, Channel *channel) noexcept nogil:
    channel.handshaking = True
    channel.frame_started_ns = loop.now_ns
    list_append(&loop.filling, &channel.filling)


cdef void on_event(EventLoop *loop, Channel *channel, int mask) noexcept nogil:
    if channel.close_reason != 0:
        return
    channel.last_active_ns = loop.now_ns
    list_remove(&channel.by_activity)
    list_append(&loop.by_activity, &channel.by_activity)
    if channel.handshaking:
        if not shake_hands(loop, channel):
            return
        mask |= KB_READ                 # the last bytes of the handshake may have brought some of the first frame
    if mask & (KB_READ | KB_HANGUP):
        if may_feed(loop, channel):
            loop_read(loop, channel)
        elif is_cut_off(loop, channel, mask):       # else its descriptor is held until its request is answered
            loop_close(loop, channel, CLOSE_PEER)
        else:
            channel.may_be_readable = True
            set_interest(loop, channel, channel.interest & ~KB_READ)
    if mask & (KB_WRITE | KB_HANGUP) and channel.wants_write:
        loop_write(loop, channel)


cdef void read_due(EventLoop *loop) noexcept nogil:
    """Channels with bytes in our own memory, or readable by what an earlier event said."""
    cdef Link batch
    cdef Channel *channel
    cdef int64_t at, ended
    if list_empty(&loop.due):
        return
    at = clock_now_ns(loop.clock)       # also called before a wait
    take_list(&loop.due, &batch)        # what becomes due meanwhile waits for the next poll
    while not list_empty(&batch):
        channel = batch.next.channel
        list_remove(&channel.due)
        loop_read(loop, channel)
        ended = clock_now_ns(loop.clock)
        channel.network_ns += ended - at
        at = ended


cdef void expire_frames(EventLoop *loop) noexcept nogil:
    cdef Channel *channel
    while not list_empty(&loop.filling):
        channel = loop.filling.next.channel
        if loop.now_ns - channel.frame_started_ns <= loop.frame_timeout_ns:
            return
        if channel.mute_state != NOT_MUTED or not loop.reading:     # it was we who did not read
            list_remove(&channel.filling)
            channel.frame_started_ns = loop.now_ns
            list_append(&loop.filling, &channel.filling)
        else:
            count(&loop.counters.frames_expired, 1)
            loop_close(loop, channel, CLOSE_FRAME_TIMEOUT)


cdef void expire_idle(EventLoop *loop) noexcept nogil:
    """At most one channel per poll, the least recently active."""
    cdef Channel *channel
    if loop.now_ns <= loop.next_idle_check_ns:
        return
    if list_empty(&loop.by_activity):
        loop.next_idle_check_ns = loop.now_ns + loop.idle_ns
        return
    channel = loop.by_activity.next.channel
    loop.next_idle_check_ns = channel.last_active_ns + loop.idle_ns
    if loop.now_ns > loop.next_idle_check_ns:
        count(&loop.counters.connections_expired, 1)
        loop_close(loop, channel, CLOSE_EXPIRED)


cdef void loop_poll(EventLoop *loop, int64_t timeout_ns) noexcept nogil:
    cdef int64_t started, at
    cdef int i, n
    cdef Channel *channel
    if loop.out_of_memory or loop.pool_waiter.is_queued:
        look_at_pool(loop)
    if not list_empty(&loop.due) or not list_empty(&loop.ready):
        timeout_ns = 0
    if timeout_ns > 0:
        atomic_swap(&loop.sleeping, 1)
        if loop.has_mail is not NULL and loop.has_mail(loop):
            timeout_ns = 0
        elif loop.pool_waiter.is_queued and is_our_turn(loop):     # given back since we looked
            timeout_ns = 0
    started = clock_now_ns(loop.clock)
    n = loop.poller.wait(loop.poller, loop.events, KB_MAX_EVENTS, timeout_ns)
    atomic_store(&loop.sleeping, 0)
    loop.now_ns = clock_now_ns(loop.clock)
    count(&loop.counters.polls, 1)
    count(&loop.counters.wait_ns, loop.now_ns - started)
    count(&loop.counters.work_ns, started - loop.busy_since_ns)
    loop.busy_since_ns = loop.now_ns
    if loop.pool_waiter.is_queued:      # what was given back meanwhile is first theirs who were refused
        look_at_pool(loop)
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
