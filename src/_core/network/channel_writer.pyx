"""Gathers answers into pieces, sends them, and keeps the place in the first one that is not finished."""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.network.channel cimport (
    CLOSE_LOCAL, CLOSE_PEER, KB_AGAIN, KB_FAILED, KB_MAX_PIECES, Channel, kb_piece, kb_piece_set,
)
from kbroker._core.network.channel_lifecycle cimport has_ended, loop_close, set_interest
from kbroker._core.clock cimport clock_now_ns
from kbroker._core.network.event_loop cimport EventLoop, count
from kbroker._core.codec.bytes cimport store_32
from kbroker._core.codec.framing cimport FRAMING_LENGTH_PREFIX
from kbroker._core.network.poller cimport KB_WRITE
from kbroker._core.requests.request cimport SEGMENT_FILE, Request, Segment

cdef extern from "network/socket_io.h" nogil:
    int64_t kb_pread(int fd, char *into, int64_t n, int64_t at)

cdef enum:
    FAIR_BYTES = 4194304        # then the other channels get their turn
    COPY_BYTES = 65536          # of a file region, where the transport cannot send files: the loop's scratch buffer


cdef inline int32_t prefix_bytes(EventLoop *loop) noexcept nogil:
    return 4 if loop.framing.kind == FRAMING_LENGTH_PREFIX else 0


cdef void finish_responses(EventLoop *loop, Channel *channel, int32_t prefix) noexcept nogil:
    """Hand over every response at the front that has no byte left."""
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
        request.response_sent_ns = clock_now_ns(loop.clock)
        count(&loop.counters.responses, 1)
        loop.sent(loop, channel, request)


cdef void advance(EventLoop *loop, Channel *channel, int64_t sent, int32_t prefix) noexcept nogil:
    cdef Request *request
    cdef int64_t n
    count(&loop.counters.bytes_sent, sent)
    finish_responses(loop, channel, prefix)
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
        finish_responses(loop, channel, prefix)


cdef int64_t send_region(EventLoop *loop, Channel *channel, Segment *segment) noexcept nogil:
    """A piece of a file region; 0 when the file is shorter than promised."""
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
    finish_responses(loop, channel, prefix)
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
