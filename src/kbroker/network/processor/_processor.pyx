"""A network thread: its phases in Kafka's order, without the GIL, and its Python handle.

Source: ``SocketServer.Processor``.
"""
cimport cython
import os
import threading

from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kbroker._core.arguments cimport integer, ms_to_ns
from kbroker._core.network.channel cimport loop_close
from kbroker._core.network.loop_types cimport CLOSE_LOCAL, EventLoop, Link, list_empty, list_init
from kbroker._core.clock cimport borrow_clock, clock_now_ns
from kbroker._core.network.event_loop cimport loop_init, loop_poll, loop_wake
from kbroker._core.network.loop_snapshot cimport loop_snapshots_close
from kbroker._core.codec.framing cimport Framing, framing_from
from kbroker._core.requests.memory_pool cimport MemoryPool
from kbroker._core.network.poller cimport Poller, poller_from
from kbroker._core.requests.request cimport session_new, session_release
from kbroker._core.requests.request_queue cimport Queue, request_queue_nearly_full, request_queue_retain
from kbroker._core.sync cimport (
    atomic_load, atomic_load_relaxed, atomic_load_seq, atomic_store, cond_init, mutex_init,
)
from kbroker._core.thread_setup cimport kb_block_signals
from kbroker.network.connections._client_information cimport software_counts, software_init
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.network.processor._processor_core cimport (
    STAGE_DRAIN, STAGE_END, STAGE_RETIRE, STAGE_RUN, ProcessorCore, close_excess_connections, close_offered,
    configure_new_connections, core_release, has_offers, process_disconnected, processor_offer,
)
from kbroker.network.processor._processor_receives cimport process_completed_receives, refuse_due, until_refusal_ns
from kbroker.network.processor._processor_responses cimport (
    close_inbox, is_closed, on_sent, process_new_responses, process_touched, respond,
)
from kbroker.network.connections._quota_core cimport ListenerQuota, quotas_retain
from kbroker.network._kafka_request cimport kafka_context_type
from kbroker.network.processor._request_samples cimport RequestSamples, copy_samples
from kbroker.network._request_metrics cimport RequestMetrics, RequestRecorder, metrics_retain
from kbroker.network.connections._refused_requests cimport RefusedRequests, refused_retain
from kbroker.network.options import SocketServerOptions
from kbroker.network.transport._tls cimport TlsServer
from kbroker.network.transport.authentication import ListenerSecurity

cdef enum:
    FLUSH_POLLS = 20            # polls of FLUSH_NS at shutdown, to flush pending responses
    FLUSH_NS = 50000000
    RETIRE_NS = 1000000000      # later responses are dropped with their connections, as Kafka drops all of them


cdef bint has_mail(EventLoop *loop) noexcept nogil:
    cdef ProcessorCore *core = <ProcessorCore *>loop
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
        refused: counts requests whose connection is closed instead of a response. None: not counted.
    Raises: TypeError, ValueError for wrong arguments, OSError without descriptors.
    Threads: ``run`` on its own thread, the rest on any.
    Source: ``SocketServer.Processor``.
    """

    def __cinit__(
            self, str listener_name not None, processor_id, Queue queue not None, options=None, *,
            MemoryPool pool=None, clock=None, listener_id=0, ConnectionQuotas quotas=None, security=None,
            RequestMetrics metrics=None, RequestRecorder recorder=None, RefusedRequests refused=None):
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
        memcpy(core.listener_name, <const char *>name, len(name))
        atomic_store(&core.refs, 1)
        mutex_init(&core.offer_lock)
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
        core.loop.frame_limit = <int32_t>batch
        core.loop.idle_ns = ms_to_ns(idle) if idle >= 0 else -1
        core.loop.frame_timeout_ns = ms_to_ns(frame_timeout)
        core.loop.next_idle_check_ns = core.loop.now_ns + core.loop.idle_ns
        core.loop.copy_files = not options.send_files
        core.loop.has_mail = has_mail
        core.loop.sent = on_sent
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
        """Return the counters since the start by name: bytes, counts and nanoseconds."""
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
    free(core.samples)
    free(core.listener_name)
    free(core)
