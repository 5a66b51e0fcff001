"""Request batches for the handlers, and frames for the authenticator.

Source: ``Processor.processCompletedReceives``.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.network.channel cimport loop_close
from kbroker._core.network.loop_types cimport (
    CLOSE_LOCAL, CLOSE_SESSION, Channel, count, list_append, list_append_once, list_empty, list_remove,
)
from kbroker._core.clock cimport clock_now_ns, clock_real_wait_ns
from kbroker._core.codec.framing cimport frames_clear, frames_take
from kbroker._core.requests.memory_pool cimport pool_is_low
from kbroker._core.network.mute cimport REQUEST_RECEIVED, mute_state_after_mute
from kbroker._core.requests.request cimport ACTION_CLOSE, ACTION_NO_OP, ACTION_SEND, Request, session_retain
from kbroker._core.requests.request_queue cimport request_queue_put
from kbroker.network.transport._authentication cimport (
    AUTHENTICATION_CLOSES, AUTHENTICATION_COMPLETE, AUTHENTICATION_FAILED, AuthenticationOutcome,
    authentication_begin_again, authentication_open, authentication_step, is_sasl_handshake,
)
from kbroker.network.processor._processor_core cimport ProcessorCore, complete, mute_event
from kbroker.network.processor._processor_responses cimport accept_response, keep_early, take_response

cdef enum:
    POLL_NS = 300000000


cdef Request *take_batch(ProcessorCore *core, Channel *channel, int32_t limit) noexcept nogil:
    cdef Request *head = NULL
    cdef Request *last = NULL
    cdef Request *frame
    cdef int32_t n = 0
    while n < limit:
        frame = frames_take(&channel.reader)
        if frame is NULL:
            break
        frame.responder = &core.responder
        frame.channel = channel
        frame.channel_number = channel.number
        frame.sequence = channel.next_sequence
        channel.next_sequence += 1
        if frame.session is NULL:
            frame.session = session_retain(channel.session)
        frame.batch_next = NULL
        if last is NULL:
            head = frame
        else:
            last.batch_next = frame
        last = frame
        n += 1
    channel.outstanding += n
    channel.handed_over_ns = core.loop.now_ns
    core.in_flight += n
    count(&core.loop.counters.requests, n)
    return head


cdef int32_t before_handshake(Channel *channel, int32_t limit) noexcept nogil:
    """Return the size of the next batch, at least 1; a frame that may begin a re-authentication starts a batch."""
    cdef Request *frame = channel.reader.staged_first
    cdef int32_t n = 0
    if channel.session_expires_ns == 0:
        return limit
    while n < limit and frame is not NULL and (n == 0 or not is_sasl_handshake(frame)):
        frame = frame.next
        n += 1
    return n


cdef bint authenticate(ProcessorCore *core, Channel *channel) noexcept nogil:
    """Handle the first frame if it is the authenticator's or came after the session's end; return whether so."""
    cdef int64_t now
    cdef Request *frame = channel.reader.staged_first
    cdef AuthenticationOutcome outcome
    if frame is NULL:
        return False
    now = clock_now_ns(core.loop.clock)
    if not channel.authenticating:
        if channel.session_expires_ns == 0:
            return False
        if is_sasl_handshake(frame) and authentication_begin_again(channel):
            authentication_open(channel, core.max_receive_bytes)
        elif now > channel.session_expires_ns:
            count(&core.sessions_expired, 1)
            loop_close(&core.loop, channel, CLOSE_SESSION)
            return True
        else:
            return False
    frame = take_batch(core, channel, 1)
    channel.mute_state = mute_state_after_mute(channel.mute_state)
    mute_event(core, channel, REQUEST_RECEIVED)
    outcome = authentication_step(channel, core.authentication, frame, now)
    channel.network_ns += clock_now_ns(core.loop.clock) - now
    if outcome == AUTHENTICATION_COMPLETE:
        count(&core.authenticated, 1)
    if outcome == AUTHENTICATION_CLOSES or outcome == AUTHENTICATION_FAILED:
        count(&core.authentications_failed, 1)
        frame.action = ACTION_CLOSE
    else:
        frame.action = ACTION_NO_OP
    if frame.segment_count > 0:
        frame.action = ACTION_SEND
    if outcome != AUTHENTICATION_FAILED or channel.close_reason != 0:
        take_response(core, frame)
    else:
        keep_early(channel, frame)      # its position is reached, but the response is delayed
        channel.close_due_ns = now + core.refusal_delay_ns
        list_append(&core.failed_auth, &channel.failed_auth)
    return True


cdef void refuse_due(ProcessorCore *core) noexcept nogil:
    """Respond to the channels whose failed authentication was delayed for long enough, and close them."""
    cdef Channel *channel
    cdef Request *frame
    while not list_empty(&core.failed_auth):
        channel = core.failed_auth.next.channel
        if core.loop.now_ns < channel.close_due_ns:
            return
        list_remove(&channel.failed_auth)
        frame = channel.early
        channel.early = frame.next
        accept_response(core, channel, frame)
        channel.close_when_sent = True
        frames_clear(&channel.reader)
        list_remove(&channel.partial_reads)
        list_append_once(&core.loop.pending_writes, &channel.pending_writes)


cdef int64_t until_refusal_ns(ProcessorCore *core) noexcept nogil:
    """Return the longest wait for events: until the next refusal is due, at most POLL_NS."""
    cdef int64_t until
    if list_empty(&core.failed_auth):
        return POLL_NS
    until = clock_real_wait_ns(core.loop.clock, core.failed_auth.next.channel.close_due_ns)
    return until if 0 <= until < POLL_NS else POLL_NS


cdef void process_completed_receives(ProcessorCore *core) noexcept nogil:
    """Hand over one request batch per channel, all under one lock of the queue; waits while the queue is full."""
    cdef Request *first = NULL
    cdef Request *last = NULL
    cdef Request *batch
    cdef Request *frame
    cdef Channel *channel
    cdef int32_t limit = core.request_batch_max
    cdef int32_t length
    if list_empty(&core.loop.completed_receives):
        return
    if core.loop.exact or pool_is_low(core.loop.pool):
        limit = 1
    while not list_empty(&core.loop.completed_receives):
        channel = core.loop.completed_receives.next.channel
        list_remove(&channel.completed_receives)
        length = limit
        if core.authentication is not NULL:
            if authenticate(core, channel):
                continue
            length = before_handshake(channel, limit)
        batch = take_batch(core, channel, length)
        if batch is NULL:
            continue
        channel.mute_state = mute_state_after_mute(channel.mute_state)
        mute_event(core, channel, REQUEST_RECEIVED)
        if last is NULL:
            first = batch
        else:
            last.next = batch
        last = batch
    if first is NULL or request_queue_put(core.queue, &first):
        return
    while first is not NULL:            # the queue is closed: close their connections
        batch = first
        first = batch.next
        channel = <Channel *>batch.channel
        while batch is not NULL:
            frame = batch
            batch = frame.batch_next
            complete(core, channel, frame)
        loop_close(&core.loop, channel, CLOSE_LOCAL)
