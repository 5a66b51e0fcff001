"""Responses are sent in the order in which their frames were handed over.

A channel is muted from the hand-over of a request batch until all its responses are in the kernel; more frames are cut
or read only then. Source: ``Processor.processNewResponses``, ``processCompletedSends``.
"""
from libc.stdint cimport int64_t

from kbroker._core.network.loop_types cimport Channel, EventLoop, count, list_append_once, list_empty, list_remove
from kbroker._core.network.channel_io cimport loop_queue_response, loop_unmute, loop_write
from kbroker._core.clock cimport clock_now_ns
from kbroker._core.network.event_loop cimport loop_wake
from kbroker._core.codec.framing cimport frames_clear, frames_put_back
from kbroker._core.network.mute cimport (
    MUTED_AND_RESPONSE_PENDING, MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, RESPONSE_SENT, THROTTLE_ENDED,
    THROTTLE_STARTED,
)
from kbroker._core.requests.request cimport (
    ACTION_END_THROTTLE, ACTION_NO_OP, ACTION_RETURN, ACTION_SEND, ACTION_START_THROTTLE, Request, Responder,
    request_free,
)
from kbroker._core.sync cimport atomic_add_fetch, atomic_cas, atomic_load, atomic_swap
from kbroker.network._kafka_request cimport kafka_clear_response
from kbroker.network.processor._processor_core cimport (
    ProcessorCore, complete, complete_request, core_release, free_if_done, mute_event,
)

cdef enum:
    INBOX_DEAD = 1              # no pointer has this value


# ---- from any thread

cdef void respond(Responder *responder, Request *first) noexcept nogil:
    """Push a list, newest on top, and wake the loop if it sleeps. The caller may not use the requests afterwards."""
    cdef ProcessorCore *core = <ProcessorCore *>responder.owner
    cdef Request *reversed = NULL
    cdef Request *last = NULL
    cdef Request *following
    cdef int64_t head, number = 0
    atomic_add_fetch(&core.refs, 1)           # the pushed requests may be the last that keep the core alive
    while first is not NULL:
        following = first.next
        if first.response_hook is NULL or first.action == ACTION_RETURN or not first.response_hook(first):
            if first.action == ACTION_START_THROTTLE:
                atomic_add_fetch(&core.refs, 1)   # until its END_THROTTLE
            if last is NULL:
                last = first
            first.next = reversed
            reversed = first
            number += 1
        first = following
    atomic_add_fetch(&core.inbox_size, number)    # before they can be taken: never below 0
    while reversed is not NULL:
        head = atomic_load(&core.inbox)
        if head == INBOX_DEAD:
            atomic_add_fetch(&core.inbox_size, -number)
            drop_late(core, reversed, last)
            break
        last.next = <Request *>head
        if atomic_cas(&core.inbox, head, <int64_t>reversed):
            loop_wake(&core.loop)
            break
    core_release(core)


cdef bint is_closed(Request *request) noexcept nogil:
    """Return whether the request's connection is closed. A channel lives as long as it has outstanding requests."""
    return atomic_load(&(<Channel *>request.channel).is_closed) != 0


cdef void drop_late(ProcessorCore *core, Request *request, Request *last) noexcept nogil:
    """Complete requests after the thread has ended, because their responses can no longer be sent."""
    cdef Request *following
    last.next = NULL
    while request is not NULL:
        following = request.next
        drop_one(core, request)
        request = following


cdef void drop_one(ProcessorCore *core, Request *request) noexcept nogil:
    if request.action == ACTION_START_THROTTLE:
        request_free(request)
        return
    if request.action == ACTION_END_THROTTLE:
        request_free(request)
    else:
        complete_request(core, request, True)
    core_release(core)


# ---- the loop's thread

cdef void on_sent(EventLoop *loop, Channel *channel, Request *request) noexcept nogil:
    complete(<ProcessorCore *>loop, channel, request)
    if channel.close_reason == 0:
        list_append_once(&loop.pending_writes, &channel.pending_writes)


cdef void accept_response(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil:
    """Apply the response that is next in order on its channel."""
    channel.send_sequence += 1
    if request.action == ACTION_RETURN and (request.payload is not NULL or request.size_bytes == 0):
        channel.outstanding -= 1
        core.in_flight -= 1
        count(&core.loop.counters.requests, -1)     # it will be counted when it is handed over again
        kafka_clear_response(request)
        request.action = ACTION_SEND
        request.next = NULL
        if channel.returned_last is NULL:
            channel.requeued_first = request
        else:
            channel.returned_last.next = request
        channel.returned_last = request
        channel.returned_count += 1
    elif request.action == ACTION_SEND and not channel.close_when_sent:
        loop_queue_response(channel, request)
    else:
        if request.action != ACTION_NO_OP and not channel.close_when_sent:     # close; unknown actions close as well
            channel.close_when_sent = True
            frames_clear(&channel.reader)
            list_remove(&channel.partial_reads)
        complete(core, channel, request)


cdef void keep_early(Channel *channel, Request *request) noexcept nogil:
    cdef Request **at = &channel.early
    while at[0] is not NULL and at[0].sequence < request.sequence:
        at = &at[0].next
    request.next = at[0]
    at[0] = request


cdef void take_control(ProcessorCore *core, Request *request) noexcept nogil:
    cdef Channel *channel = <Channel *>request.channel
    if request.action == ACTION_START_THROTTLE:
        channel.throttles += 1
        if channel.throttles == 1 or request.response_ready_ns > channel.throttled_until_ns:
            channel.throttled_until_ns = request.response_ready_ns
            channel.throttle_kind = <int>request.sequence
        if channel.throttles == 1 and channel.close_reason == 0:
            mute_event(core, channel, THROTTLE_STARTED)
    else:
        channel.throttles -= 1
        if channel.throttles == 0 and channel.close_reason == 0:
            mute_event(core, channel, THROTTLE_ENDED)
            if channel.close_reason == 0:
                loop_unmute(&core.loop, channel)
        core_release(core)              # counted since its START_THROTTLE; the handle keeps the core alive here
    request_free(request)
    free_if_done(channel)


cdef void take_response(ProcessorCore *core, Request *request) noexcept nogil:
    cdef Channel *channel = <Channel *>request.channel
    if channel.close_reason != 0:
        complete(core, channel, request)
        free_if_done(channel)
        return
    if request.sequence != channel.send_sequence:
        keep_early(channel, request)
        return
    accept_response(core, channel, request)
    while channel.early is not NULL and channel.early.sequence == channel.send_sequence:
        request = channel.early
        channel.early = request.next
        accept_response(core, channel, request)
    list_append_once(&core.loop.pending_writes, &channel.pending_writes)


cdef void process_new_responses(ProcessorCore *core) noexcept nogil:
    cdef Request *newest
    cdef Request *oldest = NULL
    cdef Request *following
    cdef int64_t now, number = 0
    if atomic_load(&core.inbox) == 0:
        return
    newest = <Request *>atomic_swap(&core.inbox, 0)
    while newest is not NULL:
        following = newest.next
        newest.next = oldest
        oldest = newest
        newest = following
        number += 1
    atomic_add_fetch(&core.inbox_size, -number)
    now = clock_now_ns(core.loop.clock)
    while oldest is not NULL:
        following = oldest.next
        oldest.next = NULL
        oldest.response_dequeue_ns = now
        if oldest.action == ACTION_START_THROTTLE or oldest.action == ACTION_END_THROTTLE:
            take_control(core, oldest)
        else:
            take_response(core, oldest)
        oldest = following


cdef void finish_batch(ProcessorCore *core, Channel *channel) noexcept nogil:
    """Unmute the channel: all frames of the batch returned and their responses are in the kernel."""
    if channel.close_reason != 0 or channel.outstanding != 0 or channel.send_first is not NULL:
        return
    if (channel.mute_state != MUTED_AND_RESPONSE_PENDING
            and channel.mute_state != MUTED_AND_THROTTLED_AND_RESPONSE_PENDING):
        return
    if channel.requeued_first is not NULL:
        frames_put_back(&channel.reader, channel.requeued_first, channel.returned_last, channel.returned_count)
        channel.requeued_first = NULL
        channel.returned_last = NULL
        channel.returned_count = 0
    mute_event(core, channel, RESPONSE_SENT)
    if channel.close_reason == 0:
        loop_unmute(&core.loop, channel)


cdef void process_touched(ProcessorCore *core) noexcept nogil:
    """Write the responses that are ready (first without polling), then finish the batches that are complete."""
    cdef Channel *channel
    cdef int64_t started, ended
    if list_empty(&core.loop.pending_writes):
        return
    started = clock_now_ns(core.loop.clock)
    while not list_empty(&core.loop.pending_writes):
        channel = core.loop.pending_writes.next.channel
        if channel.send_first is not NULL and not channel.wants_write or channel.close_when_sent:
            loop_write(&core.loop, channel)
        finish_batch(core, channel)
        list_remove(&channel.pending_writes)
        ended = clock_now_ns(core.loop.clock)
        channel.network_ns += ended - started
        started = ended


cdef void close_inbox(ProcessorCore *core) noexcept nogil:
    cdef Request *request
    cdef Request *following
    atomic_add_fetch(&core.refs, core.in_flight)
    request = <Request *>atomic_swap(&core.inbox, INBOX_DEAD)
    while request is not NULL:
        following = request.next
        drop_one(core, request)
        request = following
