"""A channel's life in its loop, the plaintext transport, reading frames and writing responses.

Interest is lazy: muting a channel costs no system call. Only an event that arrives while the channel may not be read
drops the interest; when it may be read again it is read at once, and the interest returns when there was nothing to
read. Frames are read through the loop's scratch buffer, the rest of a large one in its place. Many responses are
written in one system call, file regions without a copy.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from kbroker._core.clock cimport borrow_clock, clock_now_ns
from kbroker._core.codec.bytes cimport load_i32, store_32
from kbroker._core.codec.framing cimport (
    FEED_FULL, FEED_INVALID, FEED_MEMORY, FEED_MORE, FEED_NO_MEMORY, FRAMING_LENGTH_PREFIX, frames_clear, frames_feed,
    frames_filled, frames_target,
)
from kbroker._core.network.loop_types cimport (
    CLOSE_LOCAL, CLOSE_PEER, KB_AGAIN, KB_FAILED, KB_MAX_PIECES, SCRATCH_BYTES, Channel, EventLoop, Link, Transport,
    count, is_linked, kb_piece, kb_piece_set, list_append, list_append_once, list_empty, list_remove, list_take,
)
from kbroker._core.network.mute cimport NOT_MUTED, mute_state_after_mute, mute_state_after_unmute
from kbroker._core.network.poller cimport KB_READ, KB_WRITE
from kbroker._core.requests.memory_pool cimport Pool, pool_enqueue_waiter, pool_is_low, pool_new
from kbroker._core.open_file cimport OpenFile
from kbroker._core.requests.request cimport SEGMENT_FILE, Request, Segment, request_free, session_release
from kbroker._core.sync cimport atomic_store


cdef extern from "network/socket_io.h" nogil:
    int64_t kb_receive(int fd, char *into, int64_t n)
    int64_t kb_send(int fd, kb_piece *pieces, int count, int more)
    int64_t kb_send_file(int out, int fd, int64_t at, int64_t n)
    int kb_prepare_socket(int fd)
    void kb_close_socket(int fd)
    void kb_address(int fd, int peer, char *host, int *port)


cdef int64_t plain_receive(Channel *channel, char *into, int64_t size_bytes) noexcept nogil:
    return kb_receive(channel.fd, into, size_bytes)


cdef int64_t plain_send(Channel *channel, kb_piece *pieces, int pieces_count, bint more) noexcept nogil:
    return kb_send(channel.fd, pieces, pieces_count, more)


cdef int64_t plain_send_file(Channel *channel, OpenFile *file, int64_t at, int64_t size_bytes) noexcept nogil:
    return kb_send_file(channel.fd, file.fd, at, size_bytes)


cdef void plain_close(Channel *channel) noexcept nogil:
    kb_close_socket(channel.fd)


cdef Transport PLAINTEXT                # a constant table, filled once at import
PLAINTEXT.receive = plain_receive
PLAINTEXT.send = plain_send
PLAINTEXT.send_file = plain_send_file
PLAINTEXT.handshake = NULL
PLAINTEXT.has_buffered = NULL
PLAINTEXT.close = plain_close


cdef void init_link(Link *link, Channel *channel) noexcept nogil:
    link.channel = channel


cdef Channel *channel_new(int fd) noexcept nogil:
    cdef Channel *channel = <Channel *>calloc(1, sizeof(Channel))
    cdef int port = 0
    if channel is NULL:
        return NULL
    channel.fd = fd
    channel.transport = &PLAINTEXT
    init_link(&channel.lru, channel)
    init_link(&channel.registered, channel)
    init_link(&channel.partial_reads, channel)
    init_link(&channel.memory_muted, channel)
    init_link(&channel.pending_reads, channel)
    init_link(&channel.completed_receives, channel)
    init_link(&channel.pending_writes, channel)
    init_link(&channel.disconnected, channel)
    init_link(&channel.failed_auth, channel)
    kb_address(fd, 0, channel.metadata.local_host, &port)
    channel.metadata.local_port = port
    kb_address(fd, 1, channel.metadata.remote_host, &port)
    channel.metadata.remote_port = port
    return channel


cdef void channel_drop_io(Channel *channel) noexcept nogil:
    if channel.fd >= 0:
        channel.transport.close(channel)
        channel.fd = -1
    frames_clear(&channel.reader)
    drop_left(channel)


cdef void channel_free(Channel *channel) noexcept nogil:
    channel_drop_io(channel)
    if channel.observed is not NULL:
        channel.release_observed(channel.observed)
    session_release(channel.session)
    free(channel.label)
    free(channel)


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
    channel.opened_ns = clock_now_ns(loop.clock)
    channel.last_active_ns = channel.opened_ns
    list_append(&loop.lru, &channel.lru)
    list_append(&loop.registered, &channel.registered)
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


cdef void end_stream(EventLoop *loop, Channel *channel) noexcept nogil:
    channel.end_of_stream = True
    channel.may_be_readable = False
    list_remove(&channel.partial_reads)
    set_interest(loop, channel, channel.interest & ~KB_READ)
    if channel.close_reason == 0 and has_ended(channel):
        loop_close(loop, channel, CLOSE_PEER)


cdef void loop_close(EventLoop *loop, Channel *channel, int reason) noexcept nogil:
    cdef Request *request
    if channel.close_reason != 0:
        return
    channel.close_reason = reason
    atomic_store(&channel.is_closed, 1)
    if channel.interest != 0:
        loop.poller.set(loop.poller, channel.fd, channel, channel.interest, 0)
        channel.interest = 0
    list_remove(&channel.lru)
    list_remove(&channel.registered)
    list_remove(&channel.partial_reads)
    list_remove(&channel.memory_muted)
    list_remove(&channel.pending_reads)
    list_remove(&channel.completed_receives)
    list_remove(&channel.pending_writes)
    list_remove(&channel.failed_auth)
    while channel.send_first is not NULL:
        request = channel.send_first
        channel.send_first = request.next
        loop.sent(loop, channel, request)
    channel.send_last = NULL
    while channel.requeued_first is not NULL:
        request = channel.requeued_first
        channel.requeued_first = request.next
        request_free(request)
    channel.returned_last = NULL
    channel.returned_count = 0
    while channel.early is not NULL:
        request = channel.early
        channel.early = request.next
        loop.sent(loop, channel, request)
    if loop.closing is not NULL:
        loop.closing(loop, channel)
    channel_drop_io(channel)
    loop.open_channels -= 1
    count(&loop.counters.connections_closed, 1)
    list_append(&loop.disconnected, &channel.disconnected)


# ---------------------------------------------- reading and writing

cdef extern from "network/socket_io.h" nogil:
    int64_t kb_pread(int fd, char *into, int64_t n, int64_t at)

cdef enum:
    DIRECT_BYTES = 8192         # a frame that lacks more is read in place, a smaller rest through the scratch buffer
    DIRECT_READS = 8            # reads in place per channel and poll
    FAIR_BYTES = 4194304        # then the other channels get their turn
    COPY_BYTES = 65536          # of a file region, where the transport cannot send files: the loop's scratch buffer


# ---- reading

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


cdef void memory_mute(EventLoop *loop, Channel *channel) noexcept nogil:
    """Mute a channel for memory: it waits for its turn in this loop, and the loop for its turn in the pool."""
    count(&loop.counters.memory_mutes, 1)
    channel.mute_state = mute_state_after_mute(channel.mute_state)
    channel.may_be_readable = True
    list_append_once(&loop.memory_muted, &channel.memory_muted)
    pool_enqueue_waiter(loop.pool, &loop.pool_waiter)


cdef inline bint is_not_its_turn(EventLoop *loop, Channel *channel) noexcept nogil:
    """Return whether channels of this loop were refused memory earlier and would be overtaken by this one."""
    return (not list_empty(&loop.memory_muted) and channel.reader.partial is NULL and channel.reader.staged_count == 0
            and not channel.authenticating)


cdef void after_feed(EventLoop *loop, Channel *channel, int result) noexcept nogil:
    if result == FEED_MEMORY:
        loop.out_of_memory = True
        if channel.reader.staged_count == 0:        # else it is retried when the responses to its frames are sent
            memory_mute(loop, channel)
    elif result == FEED_INVALID:                    # the frames before it are still served
        count(&loop.counters.invalid_frames, 1)
        channel.has_invalid_frame = True
        channel.invalid_size_bytes = load_i32(channel.reader.head)
        drop_left(channel)
        end_stream(loop, channel)
    elif result == FEED_NO_MEMORY:
        loop_close(loop, channel, CLOSE_PEER)


cdef int64_t receive(EventLoop *loop, Channel *channel, char *into, int64_t size_bytes) noexcept nogil:
    """Return the bytes received; 0: none (more) now, for the reason in the channel's state."""
    cdef int64_t n = channel.transport.receive(channel, into, size_bytes)
    if n > 0:
        count(&loop.counters.bytes_received, n)
        channel.bytes_received += n
        return n
    channel.may_be_readable = False
    if n != KB_AGAIN:
        end_stream(loop, channel)
    return 0


cdef void read_in_place(EventLoop *loop, Channel *channel, int32_t reads) noexcept nogil:
    """Read prefix and body exactly where they belong, up to the end of one frame."""
    cdef char *into = NULL
    cdef int64_t size_bytes = 0, n
    cdef int result
    while reads > 0:
        reads -= 1
        result = frames_target(
            &loop.framing, HEAP if channel.authenticating else loop.pool, &channel.reader, &into, &size_bytes)
        if result != FEED_MORE:
            after_feed(loop, channel, result)
            return
        n = 0
        if size_bytes > 0:
            n = receive(loop, channel, into, size_bytes)
            if n == 0:
                return
        result = frames_filled(&loop.framing, &channel.reader, n, loop.now_ns)
        if result != FEED_MORE:
            after_feed(loop, channel, result)
            return
        if n < size_bytes or channel.reader.staged_count > 0:
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
    """Keep the list of incomplete frames in the order in which they began: the first one times out next."""
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
        memory_mute(loop, channel)
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
    list_take(&loop.pending_reads, &batch)        # channels that become due meanwhile wait for the next poll
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


# ---- writing

cdef inline int32_t prefix_bytes(EventLoop *loop) noexcept nogil:
    return 4 if loop.framing.kind == FRAMING_LENGTH_PREFIX else 0


cdef void finish_responses(EventLoop *loop, Channel *channel, int32_t prefix, int64_t now_ns) noexcept nogil:
    """Pass each response at the front that is sent completely to the loop's owner."""
    cdef Request *request
    while channel.send_first is not NULL:
        request = channel.send_first
        if channel.prefix_sent < prefix:
            return
        while (channel.segment_at < request.segment_count
                and channel.segment_sent >= request.segments[channel.segment_at].size_bytes):
            channel.segment_at += 1
            channel.segment_sent = 0
        if channel.segment_at < request.segment_count:
            return
        channel.send_first = request.next
        if channel.send_first is NULL:
            channel.send_last = NULL
        channel.prefix_sent = 0
        channel.segment_at = 0
        channel.segment_sent = 0
        request.next = NULL
        request.response_sent_ns = now_ns
        count(&loop.counters.responses, 1)
        loop.sent(loop, channel, request)


cdef void advance(EventLoop *loop, Channel *channel, int64_t sent, int32_t prefix) noexcept nogil:
    cdef Request *request
    cdef int64_t n, now_ns = clock_now_ns(loop.clock)
    count(&loop.counters.bytes_sent, sent)
    channel.bytes_sent += sent
    finish_responses(loop, channel, prefix, now_ns)
    while sent > 0 and channel.send_first is not NULL:
        request = channel.send_first
        if channel.prefix_sent < prefix:
            n = prefix - channel.prefix_sent
            n = n if n < sent else sent
            channel.prefix_sent += <int32_t>n
        else:
            n = request.segments[channel.segment_at].size_bytes - channel.segment_sent
            n = n if n < sent else sent
            channel.segment_sent += n
        sent -= n
        finish_responses(loop, channel, prefix, now_ns)


cdef int64_t send_region(EventLoop *loop, Channel *channel, Segment *segment) noexcept nogil:
    """Send a piece of a file region; 0: the file is shorter than the response states."""
    cdef kb_piece piece
    cdef int64_t n = segment.size_bytes - channel.segment_sent
    cdef int64_t at = segment.position + channel.segment_sent
    if channel.transport.send_file is not NULL and not loop.copy_files:
        return channel.transport.send_file(channel, segment.file, at, n)
    n = kb_pread(segment.file.fd, loop.scratch, n if n < COPY_BYTES else COPY_BYTES, at)
    if n <= 0:
        return n
    kb_piece_set(&piece, loop.scratch, n)
    return channel.transport.send(channel, &piece, 1, False)


cdef int64_t channel_write(EventLoop *loop, Channel *channel) noexcept nogil:
    cdef kb_piece pieces[KB_MAX_PIECES]
    cdef unsigned char prefixes[KB_MAX_PIECES][4]
    cdef int32_t prefix = prefix_bytes(loop)
    cdef int32_t pieces_count, at, prefix_at
    cdef int64_t offset, total, n, written = 0
    cdef Request *request
    cdef Segment *segment
    cdef bint file_next
    if prefix == 0:                 # an empty response is complete without a write
        finish_responses(loop, channel, prefix, clock_now_ns(loop.clock))
    while channel.send_first is not NULL:
        request = channel.send_first
        if channel.prefix_sent == prefix and request.segments[channel.segment_at].kind == SEGMENT_FILE:
            n = send_region(loop, channel, &request.segments[channel.segment_at])
            if n == 0:
                return KB_FAILED
            total = n
        else:
            pieces_count = 0
            total = 0
            file_next = False
            prefix_at = channel.prefix_sent
            at = channel.segment_at
            offset = channel.segment_sent
            while request is not NULL and pieces_count < KB_MAX_PIECES and not file_next:
                if prefix_at < prefix:
                    store_32(prefixes[pieces_count], request.response_bytes)
                    kb_piece_set(
                        &pieces[pieces_count], <const char *>prefixes[pieces_count] + prefix_at, prefix - prefix_at)
                    total += prefix - prefix_at
                    pieces_count += 1
                while at < request.segment_count and pieces_count < KB_MAX_PIECES:
                    segment = &request.segments[at]
                    if segment.kind == SEGMENT_FILE:
                        file_next = segment.size_bytes > offset
                        if file_next:
                            break
                    elif segment.size_bytes > offset:
                        kb_piece_set(&pieces[pieces_count], segment.data + offset, segment.size_bytes - offset)
                        total += segment.size_bytes - offset
                        pieces_count += 1
                    at += 1
                    offset = 0
                if at < request.segment_count:
                    break
                request = request.next
                prefix_at = 0
                at = 0
                offset = 0
            n = channel.transport.send(channel, pieces, pieces_count, file_next)
        if n < 0:
            return n
        advance(loop, channel, n, prefix)
        written += n
        if n < total or (written >= FAIR_BYTES and channel.send_first is not NULL):
            return KB_AGAIN
    return 0


cdef void loop_queue_response(Channel *channel, Request *request) noexcept nogil:
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
