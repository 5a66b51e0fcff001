"""A network thread: its phases in Kafka's order, without the GIL, and its Python handle.

Received frames go to the handlers in request batches, or to the authenticator. Source: ``SocketServer.Processor``.
"""
cimport cython
import os
import threading

from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kbroker._core.arguments cimport integer, ms_to_ns
from kbroker._core.clock cimport borrow_clock, clock_now_ns, clock_real_wait_ns
from kbroker._core.codec.framing cimport Framing, frames_clear, frames_take, framing_from
from kbroker._core.network.channel cimport loop_close
from kbroker._core.network.event_loop cimport loop_init, loop_poll, loop_snapshots_close, loop_wake
from kbroker._core.network.loop_types cimport (
    CLOSE_LOCAL, CLOSE_SESSION, Channel, EventLoop, Link, count, list_append, list_append_once, list_empty, list_init,
    list_remove,
)
from kbroker._core.network.mute cimport REQUEST_RECEIVED, mute_state_after_mute
from kbroker._core.network.poller cimport Poller, poller_from
from kbroker._core.requests.memory_pool cimport MemoryPool, pool_is_low
from kbroker._core.requests.request cimport (
    ACTION_CLOSE, ACTION_NO_OP, ACTION_SEND, Request, session_new, session_release, session_retain,
)
from kbroker._core.requests.request_queue cimport (
    Queue, RequestExecutor, request_queue_nearly_full, request_queue_put, request_queue_retain,
)
from kbroker._core.sync cimport atomic_load, atomic_load_relaxed, atomic_load_seq, atomic_store, cond_init, mutex_init
from kbroker._core.thread_setup cimport kb_block_signals
from kbroker.network._kafka_request cimport kafka_context_type
from kbroker.network._request_metrics cimport (
    RequestMetrics, RequestRecorder, RequestSamples, copy_samples, metrics_retain,
)
from kbroker.network.connections._client_information cimport software_counts, software_init
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.network.connections._quota_core cimport ListenerQuota, quotas_retain
from kbroker._core.timer.key_signal cimport KeySignal, key_signal_retain
from kbroker.network.connections._refused_requests cimport RefusedRequests, refused_retain
from kbroker.network.options import SocketServerOptions
from kbroker.network.processor._helping cimport enter_loop, help_handlers, leave_loop, stands_in
from kbroker.network.processor._processor_core cimport (
    CLOSED_SIGNALS, ROLE_OWN, ROLE_WANTED_BACK, STAGE_DRAIN, STAGE_END, STAGE_RETIRE, STAGE_RUN, ProcessorCore,
    accept_response, close_excess_connections, close_inbox, close_offered, complete, configure_new_connections,
    core_release, has_offers, is_closed, keep_early, mute_event, on_closing, on_sent, process_disconnected,
    process_new_responses, process_touched, processor_offer, respond, take_response,
)
from kbroker.network.transport._security cimport (
    AUTHENTICATION_CLOSES, AUTHENTICATION_COMPLETE, AUTHENTICATION_COMPLETE_ONCE, AUTHENTICATION_FAILED,
    AuthenticationOutcome, TlsServer, authentication_begin_again, authentication_open, authentication_step,
    is_sasl_handshake,
)
from kbroker.network.transport.authentication import ListenerSecurity


# ------------------------------------------------ received frames

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
    """Pass the first frame to the authenticator, or close a channel whose session has ended; false: neither applies."""
    cdef int64_t now
    cdef Request *frame = channel.reader.staged_first
    cdef AuthenticationOutcome outcome
    cdef bint is_again = channel.session_expires_ns != 0
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
    if outcome == AUTHENTICATION_COMPLETE or outcome == AUTHENTICATION_COMPLETE_ONCE:
        count(&core.reauthenticated if is_again else &core.authenticated, 1)
        if outcome == AUTHENTICATION_COMPLETE_ONCE and not is_again:
            count(&core.authenticated_once, 1)
    if outcome == AUTHENTICATION_CLOSES or outcome == AUTHENTICATION_FAILED:
        count(&core.reauthentications_failed if is_again else &core.authentications_failed, 1)
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
    """Hand over one request batch per channel, all under one lock of the queue; waits while the queue is full.

    A thread that helps the handlers then executes requests of the queue, unless it has more to read.
    """
    cdef Request *first = NULL
    cdef Request *last = NULL
    cdef Request *batch
    cdef Request *frame
    cdef Channel *channel
    cdef int32_t limit = core.request_batch_max
    cdef int32_t length
    cdef bint helps = core.executor is not NULL and atomic_load_relaxed(&core.role) == ROLE_OWN
    cdef bint is_put
    if list_empty(&core.loop.completed_receives):
        if helps and atomic_load_relaxed(&core.queue.depth) == 0:
            core.executor.rest(core.executor)
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
    if first is NULL:
        return
    helps = helps and list_empty(&core.loop.pending_reads)
    is_put = request_queue_put(core.queue, &first, helps)
    if helps:
        help_handlers(core)
    if is_put:
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


# ------------------------------------------- the phases and the handle

cdef enum:
    FLUSH_POLLS = 20            # polls of FLUSH_NS at shutdown, to flush pending responses
    FLUSH_NS = 50000000
    RETIRE_NS = 1000000000      # later responses are dropped with their connections, as Kafka drops all of them


cdef bint has_mail(EventLoop *loop) noexcept nogil:
    cdef ProcessorCore *core = <ProcessorCore *>loop
    if atomic_load_seq(&core.role) == ROLE_WANTED_BACK:
        return True
    if atomic_load_seq(&core.inbox) != 0 or atomic_load(&core.stage) == STAGE_END:
        return True
    if atomic_load(&core.stage) == STAGE_DRAIN or atomic_load(&core.stage) == STAGE_RETIRE:
        return loop.reading
    return has_offers(core)


cdef void on_snapshot(EventLoop *loop, void *extra) noexcept nogil:
    cdef ProcessorCore *core = <ProcessorCore *>loop
    if core.samples is not NULL:
        copy_samples(core.samples, <RequestSamples *>extra, clock_now_ns(loop.clock))


cdef void one_pass(ProcessorCore *core, int64_t timeout_ns) noexcept nogil:
    configure_new_connections(core)
    process_new_responses(core)
    process_touched(core)
    core.loop.exact = core.request_batch_max == 1 or request_queue_nearly_full(core.queue)
    loop_poll(&core.loop, timeout_ns)
    process_completed_receives(core)
    if not list_empty(&core.failed_auth):
        refuse_due(core)
    process_touched(core)
    process_disconnected(core)
    close_excess_connections(core)


cdef bint has_unsent(ProcessorCore *core) noexcept nogil:
    cdef Link *link = core.loop.lru.next
    while link != &core.loop.lru:
        if link.channel.send_first is not NULL:
            return True
        link = link.next
    return False


cdef bint is_over(ProcessorCore *core) noexcept nogil:
    """Return whether a retiring thread has sent every response, or has used up its time."""
    cdef int64_t now = clock_now_ns(core.loop.clock)
    if core.retire_by_ns == 0:
        core.retire_by_ns = now + RETIRE_NS
    return now >= core.retire_by_ns or core.in_flight == 0 and not has_unsent(core)


cdef void run_loop(ProcessorCore *core) noexcept nogil:
    cdef int64_t stage
    cdef int polls = 0
    while True:
        stage = atomic_load(&core.stage)
        if stage != STAGE_RUN:
            core.loop.reading = False
        if stage == STAGE_END or stage == STAGE_RETIRE and is_over(core):
            break
        one_pass(core, until_refusal_ns(core))
    process_new_responses(core)
    process_touched(core)
    while polls < FLUSH_POLLS and has_unsent(core):
        loop_poll(&core.loop, FLUSH_NS)
        process_new_responses(core)
        process_touched(core)
        polls += 1
    end_loop(core)


cdef void stand_in_loop(ProcessorCore *core) noexcept nogil:
    """Run the loop of a network thread that is stuck in a request, until it returns or is to end."""
    if not enter_loop(core):
        return
    while stands_in(core):
        if atomic_load(&core.stage) != STAGE_RUN:
            core.loop.reading = False
        one_pass(core, until_refusal_ns(core))
    leave_loop(core)


cdef void end_loop(ProcessorCore *core) noexcept nogil:
    """Close everything. Outstanding requests return to their responder; each holds one reference of the core."""
    loop_snapshots_close(&core.loop)
    while not list_empty(&core.loop.lru):
        loop_close(&core.loop, core.loop.lru.next.channel, CLOSE_LOCAL)
    process_disconnected(core)
    close_offered(core)
    close_inbox(core)


@cython.final
cdef class Processor:
    """One network thread. Start a daemon thread on ``run``; it ends after ``finish_stop``.

    Args:
        listener_name: value of ``InboundRequest.listener_name``.
        processor_id: third part of a connection id.
        queue: receives the frames that were read.
        options: the server's; None: the defaults.
        pool: charged with each frame; None: unlimited.
        clock: None: the system's.
        listener_id: passed to handlers with each request.
        quotas: notified when a connection that its acceptor counted closes; each pass closes the least recently active
            connection while their limit is exceeded.
        security: TLS and SASL of the listener, a ListenerSecurity; None: neither.
        metrics: records the times of each request; not shared with another processor. None: not recorded.
        recorder: records each finished request; not shared with another processor. None: not recorded.
        refused: counts requests whose connection is closed without a response. None: not counted.
        closed: at most two signals of closed connections, by ``connection_key`` of their ids.
        executor: executes requests on this thread while few wait in the queue. None: takers of the queue execute all.
    Raises: TypeError, ValueError for wrong arguments, OSError without descriptors.
    Threads: ``run`` on its own thread, the rest on any.
    Source: ``SocketServer.Processor``.
    """

    def __cinit__(
            self, str listener_name not None, processor_id, Queue queue not None, options=None, *,
            MemoryPool pool=None, clock=None, listener_id=0, ConnectionQuotas quotas=None, security=None,
            RequestMetrics metrics=None, RequestRecorder recorder=None, RefusedRequests refused=None,
            RequestExecutor executor=None, tuple closed=()):
        if options is None:
            options = SocketServerOptions()
        if security is None:
            security = ListenerSecurity()
        if not isinstance(options, SocketServerOptions):
            raise TypeError(f"options must be SocketServerOptions, not {type(options).__name__}")
        if not isinstance(security, ListenerSecurity):
            raise TypeError(f"security must be a ListenerSecurity, not {type(security).__name__}")
        cdef ProcessorCore *core
        cdef Poller *poller
        cdef Framing parsed
        cdef bytes name = listener_name.encode()
        cdef bytes principal = (<str?>options.principal).encode()
        cdef ListenerQuota *listener_quota = NULL
        cdef MemoryPool budget = MemoryPool.unlimited() if pool is None else pool
        cdef TlsServer tls = security.tls
        cdef object authentication = security.authentication
        cdef int64_t number = integer(processor_id, "processor_id", 0, INT32_MAX)
        cdef int64_t listener_number = integer(listener_id, "listener_id", 0, INT32_MAX)
        cdef int64_t batch = integer(options.request_batch_max, "request_batch_max", 1, 1024)
        cdef int64_t idle = integer(options.idle_ms, "idle_ms", INT64_MIN, INT64_MAX)
        cdef int64_t frame_timeout = integer(options.frame_timeout_ms, "frame_timeout_ms", 0, INT64_MAX)
        cdef int64_t max_receive = 0, refusal_delay = 0
        cdef uint64_t seed = int.from_bytes(os.urandom(8), "little")
        cdef bint is_kafka = options.serves_kafka
        if len(closed) > CLOSED_SIGNALS:
            raise ValueError(f"closed must have at most {CLOSED_SIGNALS} signals, got {len(closed)}")
        if not is_kafka and (authentication is not None or metrics is not None or recorder is not None):
            raise ValueError("authentication, metrics and a recorder need requests of Kafka's protocol")
        if authentication is not None:
            if not callable(getattr(authentication, "begin", None)):
                raise TypeError(f"authentication must be an Authentication, not {type(authentication).__name__}")
            max_receive = integer(authentication.max_receive_bytes, "max_receive_bytes", 1, INT32_MAX)
            refusal_delay = integer(authentication.failure_delay_ms, "failure_delay_ms", 0, INT32_MAX)
            if options.framing != "length-prefix":
                raise ValueError(f"authentication needs length-prefix framing, got {options.framing!r}")
        framing_from(&parsed, options.framing, options.max_request_bytes, options.delimiter)
        if is_kafka:
            parsed.context_type = kafka_context_type()
        borrow_clock(clock)
        if quotas is not None:
            listener_quota = quotas.demand(listener_name)
        core = <ProcessorCore *>calloc(1, sizeof(ProcessorCore))
        if core is NULL:
            raise MemoryError
        core.listener_name = <char *>calloc(1, len(name) + 1)
        core.samples = <RequestSamples *>calloc(1, sizeof(RequestSamples)) if is_kafka else NULL
        core.session = session_new(principal)
        poller = NULL
        if core.listener_name is not NULL and core.session is not NULL and (core.samples is not NULL or not is_kafka):
            try:
                poller = poller_from(options.new_backend())
            except BaseException:
                free_unborn(core)
                raise
        if poller is NULL or not loop_init(&core.loop, poller, borrow_clock(clock), budget.pool, &parsed):
            if poller is not NULL:
                with nogil:
                    poller.destroy(poller)
            free_unborn(core)
            raise MemoryError
        core.loop.framing.cache = &core.freed_requests
        memcpy(core.listener_name, <const char *>name, len(name))
        atomic_store(&core.refs, 1)
        mutex_init(&core.offer_lock)
        mutex_init(&core.role_lock)
        cond_init(&core.role_changed)
        core.executor = executor.executor if executor is not None else NULL
        self.executor = executor
        software_init(&core.software, seed)
        cond_init(&core.offer_capacity)
        list_init(&core.zombies)
        list_init(&core.failed_auth)
        core.queue = request_queue_retain(queue.queue)
        core.responder.respond = respond
        core.responder.is_closed = is_closed
        core.responder.owner = core
        core.responder.processor_id = <int32_t>number
        core.responder.listener_id = <int32_t>listener_number
        core.request_batch_max = <int32_t>batch
        if quotas is not None:
            core.quotas = quotas_retain(quotas.core)
            core.listener_quota = listener_quota
        if metrics is not None:
            core.metrics = metrics_retain(metrics.table)
        if recorder is not None and recorder.recorder is not NULL:
            recorder.recorder.retain(recorder.recorder)
            core.recorder = recorder.recorder
        if refused is not None:
            core.refused = refused_retain(refused.table)
        for index, signal in enumerate(closed):
            core.closed[index] = key_signal_retain((<KeySignal?>signal).core)
        core.loop.frame_limit = <int32_t>batch
        core.loop.idle_ns = ms_to_ns(idle) if idle >= 0 else -1
        core.loop.frame_timeout_ns = ms_to_ns(frame_timeout)
        core.loop.next_idle_check_ns = core.loop.now_ns + core.loop.idle_ns
        core.loop.copy_files = not options.send_files
        core.loop.has_mail = has_mail
        core.loop.sent = on_sent
        core.loop.closing = on_closing
        core.loop.on_snapshot = on_snapshot
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
        """Serve until ``finish_stop``. Blocks every signal on this thread, which must not be the main thread.

        Raises: RuntimeError when called a second time, or on the main thread.
        """
        cdef ProcessorCore *core = self.core
        if self.started:
            raise RuntimeError("a processor runs once")
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("a processor needs its own thread, not the main one: it blocks every signal")
        self.started = True
        with nogil:
            kb_block_signals()
            run_loop(core)

    def stand_in(self):
        """Serve the connections until the thread of ``run`` returns from the request in which it is stuck.

        Call it once for each time that ``NetworkWatch.wait`` returns the processor, on its own thread.
        """
        with nogil:
            kb_block_signals()
            stand_in_loop(self.core)

    def begin_stop(self):
        """Stop reading; responses to the requests that were read are still sent."""
        with nogil:
            if atomic_load(&self.core.stage) == STAGE_RUN:
                atomic_store(&self.core.stage, STAGE_DRAIN)
            loop_wake(&self.core.loop)

    def retire(self):
        """Stop reading, send the responses that are ready within a second, close every connection, end ``run``."""
        with nogil:
            if atomic_load(&self.core.stage) == STAGE_RUN:
                atomic_store(&self.core.stage, STAGE_RETIRE)
            loop_wake(&self.core.loop)

    def finish_stop(self):
        """Send the responses that are ready (for at most a second), close every connection, end ``run``."""
        with nogil:
            atomic_store(&self.core.stage, STAGE_END)
            loop_wake(&self.core.loop)

    def offer(self, fd):
        """Hand over the descriptor of an accepted socket; False when 20 are queued already (the caller keeps it).

        Raises: TypeError, ValueError for an impossible descriptor. The thread closes a descriptor that is not a socket.
        """
        cdef bint taken
        cdef int64_t given = integer(fd, "a descriptor", 0, INT32_MAX)
        with nogil:
            taken = processor_offer(self.core, <int>given, NULL, 0)
            if taken:
                loop_wake(&self.core.loop)
        return taken

    def client_software(self):
        """Return the number of open connections by the name and version of their clients' software (KIP-511).

        Both are "unknown" until a client sends them.
        """
        return software_counts(&self.core.software)

    def counters(self):
        """Return the counters since the start by name: bytes, counts and nanoseconds.

        A TLS handshake counts as an authentication unless SASL follows, a refused one always.
        """
        cdef ProcessorCore *core = self.core
        cdef int64_t handshakes = 0
        if core.authentication is NULL:
            handshakes = atomic_load_relaxed(&core.loop.counters.handshakes)
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
            "authenticated": atomic_load_relaxed(&core.authenticated) + handshakes,
            "authenticated_once": atomic_load_relaxed(&core.authenticated_once) + handshakes,
            "authentications_failed": (
                atomic_load_relaxed(&core.authentications_failed)
                + atomic_load_relaxed(&core.loop.counters.handshakes_refused)),
            "reauthenticated": atomic_load_relaxed(&core.reauthenticated),
            "reauthentications_failed": atomic_load_relaxed(&core.reauthentications_failed),
            "sessions_expired": atomic_load_relaxed(&core.sessions_expired),
        }


cdef void free_unborn(ProcessorCore *core) noexcept:
    session_release(core.session)
    free(core.samples)
    free(core.listener_name)
    free(core)
