"""Reading frames from a channel: through the loop's scratch buffer, or a large one where it belongs."""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.network.channel cimport (
    CLOSE_PEER, KB_AGAIN, Channel, Link, is_linked, list_append, list_append_once, list_empty, list_remove, list_take,
)
from kbroker._core.network.channel_lifecycle cimport end_stream, has_ended, loop_close, set_interest
from kbroker._core.clock cimport borrow_clock, clock_now_ns
from kbroker._core.network.event_loop cimport SCRATCH_BYTES, EventLoop, count
from kbroker._core.codec.framing cimport (
    FEED_FULL, FEED_INVALID, FEED_MEMORY, FEED_MORE, FEED_NO_MEMORY, FRAMING_LENGTH_PREFIX, frames_feed, frames_filled,
    frames_target,
)
from kbroker._core.requests.memory_pool cimport Pool, pool_is_low, pool_new, pool_enqueue_waiter
from kbroker._core.network.mute cimport NOT_MUTED, mute_state_after_mute, mute_state_after_unmute
from kbroker._core.network.poller cimport KB_READ
from kbroker._core.requests.request cimport Request

cdef enum:
    DIRECT_BYTES = 8192         # a frame that lacks more is read in place, a smaller rest through the scratch buffer
    DIRECT_READS = 8            # reads in place per channel and poll


cdef Pool *HEAP = pool_new(borrow_clock(None), -1, INT64_MAX, False)    # of frames of authentication; never freed
if HEAP is NULL:
    raise MemoryError


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
    channel.mute_state = mute_state_after_mute(channel.mute_state)
    channel.may_be_readable = True
    list_append_once(&loop.memory_muted, &channel.memory_muted)
    pool_enqueue_waiter(loop.pool, &loop.pool_waiter)


cdef inline bint is_not_its_turn(EventLoop *loop, Channel *channel) noexcept nogil:
    """Others of this loop were refused memory before, and this channel holds none: it would overtake them."""
    return (not list_empty(&loop.memory_muted) and channel.reader.partial is NULL and channel.reader.staged_count == 0
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
        list_remove(&channel.partial_reads)
    if begun and not is_linked(&channel.partial_reads):
        channel.frame_started_ns = loop.now_ns
        list_append(&loop.partial_reads, &channel.partial_reads)


cdef void loop_read(EventLoop *loop, Channel *channel) noexcept nogil:
    cdef int64_t taken = 0
    cdef int result = FEED_MORE
    cdef int32_t staged = channel.reader.staged_count
    list_remove(&channel.pending_reads)
    if not can_resume(loop, channel):
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
        list_append_once(&loop.completed_receives, &channel.completed_receives)
    elif channel.mute_state == NOT_MUTED and not channel.end_of_stream:
        if channel.left is not NULL:
            list_append_once(&loop.pending_reads, &channel.pending_reads)
        else:
            set_interest(loop, channel, channel.interest | KB_READ)
            if channel.close_reason == 0 and has_buffered(channel):
                list_append_once(&loop.pending_reads, &channel.pending_reads)


cdef void read_due(EventLoop *loop) noexcept nogil:
    cdef Link batch
    cdef Channel *channel
    cdef int64_t at, ended
    if list_empty(&loop.pending_reads):
        return
    at = clock_now_ns(loop.clock)       # also called before a wait
    list_take(&loop.pending_reads, &batch)        # what becomes due meanwhile waits for the next poll
    while not list_empty(&batch):
        channel = batch.next.channel
        list_remove(&channel.pending_reads)
        loop_read(loop, channel)
        ended = clock_now_ns(loop.clock)
        channel.network_ns += ended - at
        at = ended


cdef void loop_resume(EventLoop *loop, Channel *channel) noexcept nogil:
    if channel.close_reason != 0 or channel.mute_state != NOT_MUTED:
        return
    if channel.reader.staged_count > 0:
        list_append_once(&loop.completed_receives, &channel.completed_receives)
        return
    list_remove(&channel.completed_receives)
    if channel.left is not NULL:
        list_append_once(&loop.pending_reads, &channel.pending_reads)
    elif channel.end_of_stream:
        if has_ended(channel):
            loop_close(loop, channel, CLOSE_PEER)
    elif channel.may_be_readable or not channel.interest & KB_READ or has_buffered(channel):
        list_append_once(&loop.pending_reads, &channel.pending_reads)


cdef void loop_mute(Channel *channel) noexcept nogil:
    channel.mute_state = mute_state_after_mute(channel.mute_state)


cdef bint loop_unmute(EventLoop *loop, Channel *channel) noexcept nogil:
    channel.mute_state = mute_state_after_unmute(channel.mute_state)
    if channel.mute_state != NOT_MUTED:
        return False
    list_remove(&channel.memory_muted)
    loop_resume(loop, channel)
    return True
