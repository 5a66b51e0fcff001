"""The phases of a network thread, in Kafka's order, without the GIL.

Answers go out in the order in which their frames were handed over. A channel is muted from the hand-over of a run until
all its answers are in the kernel; only then are more frames cut or read.
Source: ``SocketServer.Processor``.
"""
cimport cython
import threading

from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kbroker._core.arguments cimport integer, ms_to_ns
from kbroker._core.channel cimport (
    CLOSE_LOCAL, CLOSE_SESSION, CLOSE_STATE, Channel, Link, channel_free, is_linked, list_append, list_append_once,
    list_empty, list_init, list_remove,
)
from kbroker._core.channel_lifecycle cimport loop_close, loop_register
from kbroker._core.channel_reader cimport loop_unmute
from kbroker._core.channel_writer cimport loop_queue_answer, loop_write
from kbroker._core.clock cimport borrow_clock, clock_now_ns, clock_real_wait_ns
from kbroker._core.event_loop cimport (
    EventLoop, count, loop_destroy, loop_handshake, loop_init, loop_lowest_priority, loop_poll, loop_wake,
)
from kbroker._core.framing cimport Framing, frames_clear, frames_put_back, frames_take, framing_from
from kbroker._core.memory_pool cimport MemoryPool, pool_is_low
from kbroker._core.mute cimport (
    MUTED_AND_RESPONSE_PENDING, MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, REQUEST_RECEIVED, RESPONSE_SENT,
    THROTTLE_ENDED, THROTTLE_STARTED, mute_muted, mute_next,
)
from kbroker._core.poller cimport Poller, poller_from
from kbroker._core.request cimport (
    ACTION_CLOSE, ACTION_END_THROTTLE, ACTION_NO_OP, ACTION_RETURN, ACTION_SEND, ACTION_START_THROTTLE, Request,
    Responder, request_charge_network, request_clear_answer, request_free, session_new, session_release, session_retain,
)
from kbroker._core.request_queue cimport (
    Queue, request_queue_nearly_full, request_queue_put, request_queue_release, request_queue_retain,
)
from kbroker._core.sync cimport (
    atomic_add, atomic_cas, atomic_load, atomic_load_relaxed, atomic_load_seq, atomic_store, atomic_swap,
    cond_broadcast, cond_destroy, cond_init, cond_wait_ns, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.network._address_table cimport AddressEntry
from kbroker.network._authentication cimport (
    AUTHENTICATION_CLOSES, AUTHENTICATION_COMPLETE, AUTHENTICATION_FAILED, AuthenticationOutcome,
    authentication_begin_again, authentication_end, authentication_open, authentication_step, is_sasl_handshake,
)
from kbroker.network._connection_quotas cimport ConnectionQuotas
from kbroker.network._quota_core cimport ListenerQuota, quotas_exceeded, quotas_leave, quotas_release, quotas_retain
from kbroker.network._recorder cimport RequestRecorder
from kbroker.network._request_metrics cimport RequestMetrics, metrics_record, metrics_release, metrics_retain
from kbroker.network._tls cimport TlsServer, tls_open

cdef extern from "socket_io.h" nogil:
    void kb_block_signals()
    void kb_close_socket(int fd)

cdef enum:
    INBOX_DEAD = 1              # no pointer has this value
    FLUSH_POLLS = 20            # at the end unsent answers get this many polls of FLUSH_NS
    FLUSH_NS = 50000000


# ---- from any thread

cdef void respond(Responder *responder, Request *first) noexcept nogil:
    """Push a list, newest on top, and wake the loop if it sleeps. The request is gone for the caller afterwards."""
    cdef ProcessorCore *core = <ProcessorCore *>responder.owner
    cdef Request *reversed = NULL
    cdef Request *last = NULL
    cdef Request *following
    cdef int64_t head, number = 0
    atomic_add(&core.refs, 1)           # what we push may be the last request that keeps the core alive
    while first is not NULL:
        following = first.next
        if first.divert is NULL or first.action == ACTION_RETURN or not first.divert(first):
            if first.action == ACTION_START_THROTTLE:
                atomic_add(&core.refs, 1)   # until its END_THROTTLE
            if last is NULL:
                last = first
            first.next = reversed
            reversed = first
            number += 1
        first = following
    atomic_add(&core.inbox_size, number)    # before they can be taken: never below 0
    while reversed is not NULL:
        head = atomic_load(&core.inbox)
        if head == INBOX_DEAD:
            atomic_add(&core.inbox_size, -number)
            drop_late(core, reversed, last)
            break
        last.next = <Request *>head
        if atomic_cas(&core.inbox, head, <int64_t>reversed):
            loop_wake(&core.loop)
            break
    core_release(core)


cdef bint is_gone(Request *request) noexcept nogil:
    """The channel lives as long as its requests are out."""
    return atomic_load(&(<Channel *>request.channel).is_gone) != 0


cdef void drop_late(ProcessorCore *core, Request *request, Request *last) noexcept nogil:
    """The thread has ended: complete here what nobody can send any more."""
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


cdef bint processor_offer(ProcessorCore *core, int fd, AddressEntry *admission, int64_t wait_ns) noexcept nogil:
    cdef bint room
    cdef int slot
    mutex_lock(&core.offer_lock)
    if core.offered_count == NEW_CONNECTIONS and wait_ns > 0:
        cond_wait_ns(&core.offer_room, &core.offer_lock, wait_ns)
    room = core.offered_count < NEW_CONNECTIONS
    if room:
        slot = (core.offered_first + core.offered_count) % NEW_CONNECTIONS
        core.offered[slot] = fd
        core.admissions[slot] = admission
        core.offered_count += 1
    mutex_unlock(&core.offer_lock)
    return room


cdef void processor_wake(ProcessorCore *core) noexcept nogil:
    loop_wake(&core.loop)


cdef void core_release(ProcessorCore *core) noexcept nogil:
    cdef Channel *channel
    if core is NULL or atomic_add(&core.refs, -1) != 0:
        return
    while not list_empty(&core.zombies):
        channel = core.zombies.next.channel
        list_remove(&channel.by_activity)
        channel_free(channel)
    loop_destroy(&core.loop)
    request_queue_release(core.queue)
    session_release(core.session)
    quotas_release(core.quotas)
    metrics_release(core.metrics)
    if core.recorder is not NULL:
        core.recorder.release(core.recorder)
    cond_destroy(&core.offer_room)
    mutex_destroy(&core.offer_lock)
    free(core.listener_name)
    free(core)


# ---- the loop's thread

cdef bint has_mail(EventLoop *loop) noexcept nogil:
    cdef ProcessorCore *core = <ProcessorCore *>loop
    cdef bint waiting
    if atomic_load_seq(&core.inbox) != 0 or atomic_load(&core.stage) == STAGE_END:
        return True
    if atomic_load(&core.stage) == STAGE_DRAIN:
        return loop.reading
    mutex_lock(&core.offer_lock)
    waiting = core.offered_count > 0
    mutex_unlock(&core.offer_lock)
    return waiting


cdef void complete_request(ProcessorCore *core, Request *request, bint is_late) noexcept nogil:
    if request.response_sent_ns == 0:
        request.response_sent_ns = clock_now_ns(core.loop.clock)
    if request.on_complete is not NULL:
        request.on_complete(request, request.on_complete_arg)
    if core.recorder is not NULL:
        request_charge_network(request)     # what it cost its client's quota belongs into the record
        core.recorder.record(core.recorder, request, is_late)
    request_free(request)


cdef void complete(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil:
    """The end of a request that was handed over: sent, needless, or its channel gone."""
    if request.dequeue_ns != 0:         # else an authenticator's: its time counts for the first request of the client
        request.network_ns = channel.network_ns
        channel.network_ns = 0
    channel.outstanding -= 1
    core.outstanding -= 1
    if core.metrics is not NULL:
        if request.response_sent_ns == 0:
            request.response_sent_ns = clock_now_ns(core.loop.clock)
        metrics_record(core.metrics, request)
    complete_request(core, request, False)


cdef void on_sent(EventLoop *loop, Channel *channel, Request *request) noexcept nogil:
    complete(<ProcessorCore *>loop, channel, request)
    if channel.close_reason == 0:
        list_append_once(&loop.touched, &channel.touched)


cdef void free_if_done(Channel *channel) noexcept nogil:
    """A closed channel goes when nobody can name it any more."""
    if (channel.close_reason != 0 and channel.outstanding == 0 and channel.throttles == 0
            and not is_linked(&channel.gone)):
        list_remove(&channel.by_activity)
        channel_free(channel)


cdef void mute_event(ProcessorCore *core, Channel *channel, int event) noexcept nogil:
    cdef int state = mute_next(channel.mute_state, event)
    if state < 0:
        count(&core.mutes_illegal, 1)
        loop_close(&core.loop, channel, CLOSE_STATE)
    else:
        channel.mute_state = state


cdef void configure_new_connections(ProcessorCore *core) noexcept nogil:
    cdef int taken[NEW_CONNECTIONS]
    cdef AddressEntry *admissions[NEW_CONNECTIONS]
    cdef int i, n
    cdef Channel *channel
    mutex_lock(&core.offer_lock)
    n = core.offered_count
    for i in range(n):
        taken[i] = core.offered[(core.offered_first + i) % NEW_CONNECTIONS]
        admissions[i] = core.admissions[(core.offered_first + i) % NEW_CONNECTIONS]
    core.offered_count = 0
    core.offered_first = 0
    mutex_unlock(&core.offer_lock)
    if n == 0:
        return
    cond_broadcast(&core.offer_room)
    for i in range(n):
        channel = loop_register(&core.loop, taken[i])
        if channel is NULL:
            quotas_leave(core.quotas, core.listener_quota, admissions[i])
            continue
        channel.owner = admissions[i]
        channel.session = session_retain(core.session)
        channel.facts.listener_name = core.listener_name
        channel.facts.index = core.next_index
        core.next_index = 0 if core.next_index == INT32_MAX else core.next_index + 1
        if core.tls is not NULL:
            if tls_open(channel, core.tls):
                loop_handshake(&core.loop, channel)
            else:
                loop_close(&core.loop, channel, CLOSE_LOCAL)
        if core.authentication is not NULL:
            authentication_open(channel, core.max_receive_bytes)


cdef void accept_answer(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil:
    """It is this answer's turn on its channel."""
    channel.send_sequence += 1
    if request.action == ACTION_RETURN and (request.payload is not NULL or request.size_bytes == 0):
        channel.outstanding -= 1
        core.outstanding -= 1
        count(&core.loop.counters.requests, -1)     # it will be counted when it is handed over again
        request_clear_answer(request)
        request.action = ACTION_SEND
        request.next = NULL
        if channel.returned_last is NULL:
            channel.returned_first = request
        else:
            channel.returned_last.next = request
        channel.returned_last = request
        channel.returned_count += 1
    elif request.action == ACTION_SEND and not channel.close_when_sent:
        loop_queue_answer(channel, request)
    else:
        if request.action != ACTION_NO_OP and not channel.close_when_sent:     # close, and whatever we do not know
            channel.close_when_sent = True
            frames_clear(&channel.reader)
            list_remove(&channel.filling)
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


cdef void take_answer(ProcessorCore *core, Request *request) noexcept nogil:
    cdef Channel *channel = <Channel *>request.channel
    if channel.close_reason != 0:
        complete(core, channel, request)
        free_if_done(channel)
        return
    if request.sequence != channel.send_sequence:
        keep_early(channel, request)
        return
    accept_answer(core, channel, request)
    while channel.early is not NULL and channel.early.sequence == channel.send_sequence:
        request = channel.early
        channel.early = request.next
        accept_answer(core, channel, request)
    list_append_once(&core.loop.touched, &channel.touched)


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
    atomic_add(&core.inbox_size, -number)
    now = clock_now_ns(core.loop.clock)
    while oldest is not NULL:
        following = oldest.next
        oldest.next = NULL
        oldest.response_dequeue_ns = now
        if oldest.action == ACTION_START_THROTTLE or oldest.action == ACTION_END_THROTTLE:
            take_control(core, oldest)
        else:
            take_answer(core, oldest)
        oldest = following


cdef void finish_run(ProcessorCore *core, Channel *channel) noexcept nogil:
    """All frames of the run came back and their answers are in the kernel: the channel may read on."""
    if channel.close_reason != 0 or channel.outstanding != 0 or channel.send_first is not NULL:
        return
    if (channel.mute_state != MUTED_AND_RESPONSE_PENDING
            and channel.mute_state != MUTED_AND_THROTTLED_AND_RESPONSE_PENDING):
        return
    if channel.returned_first is not NULL:
        frames_put_back(&channel.reader, channel.returned_first, channel.returned_last, channel.returned_count)
        channel.returned_first = NULL
        channel.returned_last = NULL
        channel.returned_count = 0
    mute_event(core, channel, RESPONSE_SENT)
    if channel.close_reason == 0:
        loop_unmute(&core.loop, channel)


cdef void process_touched(ProcessorCore *core) noexcept nogil:
    """Write what is ready (first without asking the poller), then see whether runs are over."""
    cdef Channel *channel
    cdef int64_t started, ended
    if list_empty(&core.loop.touched):
        return
    started = clock_now_ns(core.loop.clock)
    while not list_empty(&core.loop.touched):
        channel = core.loop.touched.next.channel
        if channel.send_first is not NULL and not channel.wants_write or channel.close_when_sent:
            loop_write(&core.loop, channel)
        finish_run(core, channel)
        list_remove(&channel.touched)
        ended = clock_now_ns(core.loop.clock)
        channel.network_ns += ended - started
        started = ended


cdef Request *take_run(ProcessorCore *core, Channel *channel, int32_t limit) noexcept nogil:
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
        frame.run_next = NULL
        if last is NULL:
            head = frame
        else:
            last.run_next = frame
        last = frame
        n += 1
    channel.outstanding += n
    core.outstanding += n
    count(&core.loop.counters.requests, n)
    return head


cdef int32_t before_handshake(Channel *channel, int32_t limit) noexcept nogil:
    """How many frames, one at least, go together: one that may begin a re-authentication comes first of its run."""
    cdef Request *frame = channel.reader.staged_first
    cdef int32_t n = 0
    if channel.session_expires_ns == 0:
        return limit
    while n < limit and frame is not NULL and (n == 0 or not is_sasl_handshake(frame)):
        frame = frame.next
        n += 1
    return n


cdef bint authenticate(ProcessorCore *core, Channel *channel) noexcept nogil:
    """Whether the first frame was the authenticator's (or came after its session's end), not the handlers'."""
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
    frame = take_run(core, channel, 1)
    channel.mute_state = mute_muted(channel.mute_state)
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
        take_answer(core, frame)
    else:
        keep_early(channel, frame)      # its turn has come, but not its time
        channel.close_due_ns = now + core.refusal_delay_ns
        list_append(&core.refused, &channel.refused)
    return True


cdef void refuse_due(ProcessorCore *core) noexcept nogil:
    """Answer and close the channels whose failed authentication was kept back for long enough."""
    cdef Channel *channel
    cdef Request *frame
    while not list_empty(&core.refused):
        channel = core.refused.next.channel
        if core.loop.now_ns < channel.close_due_ns:
            return
        list_remove(&channel.refused)
        frame = channel.early
        channel.early = frame.next
        accept_answer(core, channel, frame)
        channel.close_when_sent = True
        frames_clear(&channel.reader)
        list_remove(&channel.filling)
        list_append_once(&core.loop.touched, &channel.touched)


cdef int64_t poll_ns(ProcessorCore *core) noexcept nogil:
    """How long to wait for events: until the next refusal is due at most."""
    cdef int64_t until
    if list_empty(&core.refused):
        return POLL_NS
    until = clock_real_wait_ns(core.loop.clock, core.refused.next.channel.close_due_ns)
    return until if 0 <= until < POLL_NS else POLL_NS


cdef void process_completed_receives(ProcessorCore *core) noexcept nogil:
    """Hand over one run per channel, all of them under one lock of the queue; waits while that is full."""
    cdef Request *first = NULL
    cdef Request *last = NULL
    cdef Request *run
    cdef Request *frame
    cdef Channel *channel
    cdef int32_t limit = core.run_length
    cdef int32_t length
    if list_empty(&core.loop.ready):
        return
    if core.loop.exact or pool_is_low(core.loop.pool):
        limit = 1
    while not list_empty(&core.loop.ready):
        channel = core.loop.ready.next.channel
        list_remove(&channel.ready)
        length = limit
        if core.authentication is not NULL:
            if authenticate(core, channel):
                continue
            length = before_handshake(channel, limit)
        run = take_run(core, channel, length)
        if run is NULL:
            continue
        channel.mute_state = mute_muted(channel.mute_state)
        mute_event(core, channel, REQUEST_RECEIVED)
        if last is NULL:
            first = run
        else:
            last.next = run
        last = run
    if first is NULL or request_queue_put(core.queue, &first):
        return
    while first is not NULL:            # the queue is closed: so are these connections
        run = first
        first = run.next
        channel = <Channel *>run.channel
        while run is not NULL:
            frame = run
            run = frame.run_next
            complete(core, channel, frame)
        loop_close(&core.loop, channel, CLOSE_LOCAL)


cdef void process_disconnected(ProcessorCore *core) noexcept nogil:
    cdef Channel *channel
    while not list_empty(&core.loop.gone):
        channel = core.loop.gone.next.channel
        list_remove(&channel.gone)
        quotas_leave(core.quotas, core.listener_quota, <AddressEntry *>channel.owner)
        channel.owner = NULL
        authentication_end(channel)
        list_append(&core.zombies, &channel.by_activity)
        free_if_done(channel)


cdef void close_excess_connections(ProcessorCore *core) noexcept nogil:
    cdef Channel *channel
    if core.loop.open_channels > core.max_connections or quotas_exceeded(core.quotas, core.listener_quota):
        channel = loop_lowest_priority(&core.loop)
        if channel is not NULL:
            loop_close(&core.loop, channel, CLOSE_LOCAL)


cdef void one_pass(ProcessorCore *core, int64_t timeout_ns) noexcept nogil:
    configure_new_connections(core)
    process_new_responses(core)
    process_touched(core)
    core.loop.exact = core.run_length == 1 or request_queue_nearly_full(core.queue)
    loop_poll(&core.loop, timeout_ns)
    process_completed_receives(core)
    if not list_empty(&core.refused):
        refuse_due(core)
    process_touched(core)
    process_disconnected(core)
    close_excess_connections(core)


cdef bint has_unsent(ProcessorCore *core) noexcept nogil:
    cdef Link *link = core.loop.by_activity.next
    while link != &core.loop.by_activity:
        if link.channel.send_first is not NULL:
            return True
        link = link.next
    return False


cdef void run_loop(ProcessorCore *core) noexcept nogil:
    cdef int64_t stage
    cdef int polls = 0
    while True:
        stage = atomic_load(&core.stage)
        if stage != STAGE_RUN:
            core.loop.reading = False
        if stage == STAGE_END:
            break
        one_pass(core, poll_ns(core))
    process_new_responses(core)
    process_touched(core)
    while polls < FLUSH_POLLS and has_unsent(core):
        loop_poll(&core.loop, FLUSH_NS)
        process_new_responses(core)
        process_touched(core)
        polls += 1
    end_loop(core)


cdef void end_loop(ProcessorCore *core) noexcept nogil:
    """Close everything. Requests still out come back to ``drop_late``, each holding one count of the core."""
    cdef Request *request
    cdef Request *following
    cdef int i
    while not list_empty(&core.loop.by_activity):
        loop_close(&core.loop, core.loop.by_activity.next.channel, CLOSE_LOCAL)
    process_disconnected(core)
    mutex_lock(&core.offer_lock)
    for i in range(core.offered_count):
        kb_close_socket(core.offered[(core.offered_first + i) % NEW_CONNECTIONS])
        quotas_leave(core.quotas, core.listener_quota, core.admissions[(core.offered_first + i) % NEW_CONNECTIONS])
    core.offered_count = 0
    mutex_unlock(&core.offer_lock)
    atomic_add(&core.refs, core.outstanding)
    request = <Request *>atomic_swap(&core.inbox, INBOX_DEAD)
    while request is not NULL:
        following = request.next
        drop_one(core, request)
        request = following


@cython.final
cdef class Processor:
    """One network thread: start a daemon thread on ``run``; it ends after ``finish_stop``.

    Args:
        listener_name: shown by ``InboundRequest.listener_name``.
        processor_id: third part of a connection id.
        queue: takes the frames that were read.
        pool: charged with each frame; None: unlimited.
        clock: None: the system's.
        framing, max_size_bytes, delimiter: see ``_core.framing.Framer``.
        idle_ms: a connection without traffic for longer is closed; negative: never.
        frame_timeout_ms: a frame begun must be complete by then; 0: never mind.
        run_length: frames of one connection handed over together, 1 (Kafka's exact behaviour) to 1024.
        principal: identity of every connection of the listener.
        listener_id: given to handlers with each request.
        max_connections: of this processor; excess closes the least recently active connection, one per pass.
        quotas: told of each end of a connection that its acceptor counted; excess of its limit closes likewise.
        tls: what the TLS connections of the listener share, a TlsServer; None: plaintext.
        authentication: asked for an authenticator of each connection (``authentication.Authentication``); None:
            every client is ``principal``.
        metrics: records where the time of each request went; no other processor may have the same. None: nobody does.
        recorder: takes down each finished request; no other processor may have the same. None: nobody does.
        send_files: False copies file regions through memory, as transports without sendfile must.
        backend: "auto", "epoll", "kqueue" or a selectors-like object of this processor's own.
    Raises: TypeError, ValueError for wrong arguments, OSError without descriptors.
    Threads: ``run`` on its own thread, the rest on any.
    Source: ``SocketServer.Processor``.
    """

    def __cinit__(
            self, str listener_name not None, processor_id, Queue queue not None, *, MemoryPool pool=None,
            clock=None, framing="length-prefix", max_size_bytes=None, delimiter=None, idle_ms=600000,
            frame_timeout_ms=30000, run_length=16, str principal not None="User:ANONYMOUS", listener_id=0,
            max_connections=INT32_MAX, ConnectionQuotas quotas=None, TlsServer tls=None, authentication=None,
            RequestMetrics metrics=None, RequestRecorder recorder=None, bint send_files=True, backend="auto"):
        cdef ProcessorCore *core
        cdef Poller *poller
        cdef Framing parsed
        cdef bytes name = listener_name.encode()
        cdef bytes who = principal.encode()
        cdef ListenerQuota *listener_quota = NULL
        cdef MemoryPool budget = MemoryPool.unlimited() if pool is None else pool
        cdef int64_t number = integer(processor_id, "processor_id", 0, INT32_MAX)
        cdef int64_t listener_number = integer(listener_id, "listener_id", 0, INT32_MAX)
        cdef int64_t run = integer(run_length, "run_length", 1, 1024)
        cdef int64_t idle = integer(idle_ms, "idle_ms", INT64_MIN, INT64_MAX)
        cdef int64_t frame_timeout = integer(frame_timeout_ms, "frame_timeout_ms", 0, INT64_MAX)
        cdef int64_t connections = integer(max_connections, "max_connections", 1, INT64_MAX)
        cdef int64_t max_receive = 0, refusal_delay = 0
        if authentication is not None:
            if not callable(getattr(authentication, "begin", None)):
                raise TypeError(f"authentication must be an Authentication, not {type(authentication).__name__}")
            max_receive = integer(authentication.max_receive_bytes, "max_receive_bytes", 1, INT32_MAX)
            refusal_delay = integer(authentication.failure_delay_ms, "failure_delay_ms", 0, INT32_MAX)
            if framing != "length-prefix":
                raise ValueError(f"authentication needs length-prefix framing, got {framing!r}")
        framing_from(&parsed, framing, max_size_bytes, delimiter)
        borrow_clock(clock)
        if quotas is not None:
            listener_quota = quotas.demand(listener_name)
        core = <ProcessorCore *>calloc(1, sizeof(ProcessorCore))
        if core is NULL:
            raise MemoryError
        core.listener_name = <char *>calloc(1, len(name) + 1)
        core.session = session_new(who)
        poller = NULL
        if core.listener_name is not NULL and core.session is not NULL:
            try:
                poller = poller_from(backend)
            except BaseException:
                free_unborn(core)
                raise
        if poller is NULL or not loop_init(&core.loop, poller, borrow_clock(clock), budget.pool, &parsed):
            if poller is not NULL:
                with nogil:
                    poller.destroy(poller)
            free_unborn(core)
            raise MemoryError
        memcpy(core.listener_name, <const char *>name, len(name))
        atomic_store(&core.refs, 1)
        mutex_init(&core.offer_lock)
        cond_init(&core.offer_room)
        list_init(&core.zombies)
        list_init(&core.refused)
        core.queue = request_queue_retain(queue.queue)
        core.responder.respond = respond
        core.responder.is_gone = is_gone
        core.responder.owner = core
        core.responder.processor_id = <int32_t>number
        core.responder.listener_id = <int32_t>listener_number
        core.run_length = <int32_t>run
        core.max_connections = connections
        if quotas is not None:
            core.quotas = quotas_retain(quotas.core)
            core.listener_quota = listener_quota
        if metrics is not None:
            core.metrics = metrics_retain(metrics.table)
        if recorder is not None and recorder.recorder is not NULL:
            recorder.recorder.retain(recorder.recorder)
            core.recorder = recorder.recorder
        core.loop.frame_limit = <int32_t>run
        core.loop.idle_ns = ms_to_ns(idle) if idle >= 0 else -1
        core.loop.frame_timeout_ns = ms_to_ns(frame_timeout)
        core.loop.next_idle_check_ns = core.loop.now_ns + core.loop.idle_ns
        core.loop.copy_files = not send_files
        core.loop.has_mail = has_mail
        core.loop.sent = on_sent
        core.max_receive_bytes = max_receive
        core.refusal_delay_ns = ms_to_ns(refusal_delay)
        core.tls = <void *>tls if tls is not None else NULL
        core.authentication = <void *>authentication if authentication is not None else NULL
        self.tls = tls
        self.authentication = authentication
        self.core = core
        self.listener_name = listener_name
        self.processor_id = <int>number

    def __dealloc__(self):
        cdef ProcessorCore *core = self.core
        cdef bint never_ran = not self.started
        if core is NULL:
            return
        with nogil:
            if never_ran:
                end_loop(core)
            core_release(core)

    def run(self):
        """Serve until ``finish_stop``. Blocks every signal on this thread, which must not be the main one.

        Raises: RuntimeError when it ran before, or on the main thread.
        """
        cdef ProcessorCore *core = self.core
        if self.started:
            raise RuntimeError("a processor runs once")
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("a processor runs on a thread of its own: it blocks every signal")
        self.started = True
        with nogil:
            kb_block_signals()
            run_loop(core)

    def begin_stop(self):
        """Read nothing more; answers to what was read still go out."""
        with nogil:
            if atomic_load(&self.core.stage) == STAGE_RUN:
                atomic_store(&self.core.stage, STAGE_DRAIN)
            loop_wake(&self.core.loop)

    def finish_stop(self):
        """Send what has been answered (at most a second), close every connection, end ``run``."""
        with nogil:
            atomic_store(&self.core.stage, STAGE_END)
            loop_wake(&self.core.loop)

    def offer(self, fd):
        """Give an accepted socket's descriptor; False when 20 wait already (it stays the caller's).

        Raises: TypeError, ValueError for what can be no descriptor; one that is no socket is closed by the thread.
        """
        cdef bint taken
        cdef int64_t given = integer(fd, "a descriptor", 0, INT32_MAX)
        with nogil:
            taken = processor_offer(self.core, <int>given, NULL, 0)
            if taken:
                loop_wake(&self.core.loop)
        return taken

    def counters(self):
        """What happened so far, by name (bytes, counts and nanoseconds since the start)."""
        cdef ProcessorCore *core = self.core
        return {
            "connections_created": atomic_load_relaxed(&core.loop.counters.connections_created),
            "connections_closed": atomic_load_relaxed(&core.loop.counters.connections_closed),
            "connections_expired": atomic_load_relaxed(&core.loop.counters.connections_expired),
            "frames_expired": atomic_load_relaxed(&core.loop.counters.frames_expired),
            "invalid_frames": atomic_load_relaxed(&core.loop.counters.invalid_frames),
            "bytes_received": atomic_load_relaxed(&core.loop.counters.bytes_received),
            "bytes_sent": atomic_load_relaxed(&core.loop.counters.bytes_sent),
            "requests": atomic_load_relaxed(&core.loop.counters.requests),
            "responses": atomic_load_relaxed(&core.loop.counters.responses),
            "responses_queued": atomic_load_relaxed(&core.inbox_size),
            "polls": atomic_load_relaxed(&core.loop.counters.polls),
            "wait_ns": atomic_load_relaxed(&core.loop.counters.wait_ns),
            "work_ns": atomic_load_relaxed(&core.loop.counters.work_ns),
            "memory_mutes": atomic_load_relaxed(&core.loop.counters.memory_mutes),
            "poll_failures": atomic_load_relaxed(&core.loop.counters.poll_failures),
            "illegal_states": atomic_load_relaxed(&core.mutes_illegal),
            "authenticated": atomic_load_relaxed(&core.authenticated),
            "authentications_failed": atomic_load_relaxed(&core.authentications_failed),
            "sessions_expired": atomic_load_relaxed(&core.sessions_expired),
        }


cdef void free_unborn(ProcessorCore *core) noexcept:
    session_release(core.session)
    free(core.listener_name)
    free(core)
