"""The event loop as an object to drive by hand (Kafka's Selector), for embedding and for tests on a virtual clock."""
cimport cython
import socket

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kbroker._core.arguments cimport integer, ms_to_ns
from kbroker._core.network.channel cimport (
    channel_free, loop_close, loop_mute, loop_queue_response, loop_register, loop_resume, loop_unmute, loop_want_write,
)
from kbroker._core.network.loop_types cimport (
    CLOSE_EXPIRED, CLOSE_FAILED_SEND, CLOSE_FRAME_TIMEOUT, CLOSE_LOCAL, Channel, EventLoop, list_empty, list_remove,
)
from kbroker._core.clock cimport borrow_clock, clock_now_ns
from kbroker._core.network.event_loop cimport (
    ChannelCopy, channel_copy, channel_facts, loop_destroy, loop_init, loop_lowest_priority, loop_poll, loop_wake,
)
from kbroker._core.codec.framing cimport Framing, frames_take, framing_from
from kbroker._core.requests.memory_pool cimport MemoryPool
from kbroker._core.network.event_loop import STATES
from kbroker._core.network.mute cimport NOT_MUTED, mute_next, mute_state_after_mute, mute_state_after_unmute
from kbroker._core.network.poller cimport Poller, poller_from
from kbroker._core.requests.request cimport Request, request_free, request_leave_account, request_new, request_reserve
from kbroker._core.sync cimport atomic_load_relaxed

cdef struct SelectorCore:
    EventLoop loop                  # first
    Request *sent_first             # owned: responses that were sent in this poll
    Request *sent_last

EVENTS = ("REQUEST_RECEIVED", "RESPONSE_SENT", "THROTTLE_STARTED", "THROTTLE_ENDED")


class IllegalStateError(RuntimeError):
    """An operation that the current state of a channel does not allow (Java's IllegalStateException)."""


cdef void on_sent(EventLoop *loop, Channel *channel, Request *request) noexcept nogil:
    cdef SelectorCore *core = <SelectorCore *>loop
    if channel.close_reason != 0:
        request_free(request)
        return
    request.channel = channel
    request.next = NULL
    if core.sent_last is NULL:
        core.sent_first = request
    else:
        core.sent_last.next = request
    core.sent_last = request


cdef str state_name(int reason):
    if reason == CLOSE_EXPIRED:
        return "EXPIRED"
    if reason == CLOSE_FAILED_SEND:
        return "FAILED_SEND"
    if reason == CLOSE_FRAME_TIMEOUT:
        return "FRAME_TIMEOUT"
    return "LOCAL_CLOSE" if reason == CLOSE_LOCAL else "READY"


@cython.final
@cython.no_gc
cdef class Receive:
    """A complete frame. ``release``, or the end of the object, returns its memory to the pool."""
    cdef Request *request
    cdef Py_ssize_t exports
    cdef readonly str id

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.request is NULL:
            raise ValueError("the receive was released")
        PyBuffer_FillInfo(view, self, self.request.payload, self.request.size_bytes, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    @property
    def payload(self):
        """The frame, read-only; ValueError once released."""
        return memoryview(self)

    def release(self):
        """Return the memory to the pool. Raises: ValueError the second time, BufferError while a view is alive."""
        cdef Request *request = self.request
        if request is NULL:
            raise ValueError("the receive was released")
        if self.exports:
            raise BufferError(f"{self.exports} view(s) of the payload are alive")
        self.request = NULL
        with nogil:
            request_free(request)

    def __dealloc__(self):
        request_free(self.request)


@cython.final
cdef class Endpoint:
    """State of one connection of the selector."""
    cdef Channel *channel
    cdef str id
    cdef bint silent                # closed by its owner: not reported


@cython.final
cdef class Selector:
    """Loop that polls connections, cuts their bytes into frames and sends responses: one frame per connection and poll.

    Args:
        framing, max_receive_size, delimiter: see ``_core.codec.framing.Framer``.
        pool: charged with each receive until its release; None: unlimited.
        idle_ms: time without traffic after which a connection is closed, one per poll; negative: never.
        frame_timeout_ms: time limit for receiving a whole frame; 0: none.
        clock: clock of both times; waits are real time. None: the system's.
        shuffle_seed: seed of the order of reading when the pool is low, >= 1.
        read_ahead: read many frames at once instead of exactly one.
        backend: "auto", "epoll", "kqueue" or a selectors-like object (then owned by this object).
    Raises: TypeError, ValueError for wrong arguments; OSError without descriptors.
    Threads: one; ``wakeup`` from any.
    Source: ``org.apache.kafka.common.network.Selector``.
    """
    cdef SelectorCore *core
    cdef dict endpoints
    cdef list failed
    cdef bint busy
    cdef readonly list completed_receives   # Receive
    cdef readonly list completed_sends      # ids
    cdef readonly dict disconnected         # id: READY, EXPIRED, FAILED_SEND, FRAME_TIMEOUT

    def __cinit__(
            self, *, framing="length-prefix", max_receive_size=None, delimiter=None, MemoryPool pool=None,
            idle_ms=-1, frame_timeout_ms=0, clock=None, shuffle_seed=1, bint read_ahead=False, backend="auto"):
        cdef Framing parsed
        cdef Poller *poller
        cdef MemoryPool budget = MemoryPool.unlimited() if pool is None else pool
        cdef int64_t idle = integer(idle_ms, "idle_ms", INT64_MIN, INT64_MAX)
        cdef int64_t frame_timeout = integer(frame_timeout_ms, "frame_timeout_ms", 0, INT64_MAX)
        cdef int64_t seed = integer(shuffle_seed, "shuffle_seed", 1, INT64_MAX)
        framing_from(&parsed, framing, max_receive_size, delimiter)
        borrow_clock(clock)
        self.endpoints = {}
        self.failed = []
        self.clear()
        poller = poller_from(backend)
        self.core = <SelectorCore *>calloc(1, sizeof(SelectorCore))
        if self.core is NULL or not loop_init(&self.core.loop, poller, borrow_clock(clock), budget.pool, &parsed):
            free(self.core)
            self.core = NULL
            with nogil:
                poller.destroy(poller)
            raise MemoryError
        self.core.loop.exact = not read_ahead
        self.core.loop.frame_limit = 16 if read_ahead else 1
        self.core.loop.idle_ns = ms_to_ns(idle) if idle >= 0 else -1
        self.core.loop.next_idle_check_ns = self.core.loop.now_ns + self.core.loop.idle_ns
        self.core.loop.frame_timeout_ns = ms_to_ns(frame_timeout)
        self.core.loop.shuffle_state = seed
        self.core.loop.sent = on_sent

    def __dealloc__(self):
        if self.core is not NULL:
            self.destroy()

    cdef void destroy(self) noexcept:
        cdef SelectorCore *core = self.core
        cdef Channel *channel
        self.core = NULL
        with nogil:
            while not list_empty(&core.loop.lru):
                loop_close(&core.loop, core.loop.lru.next.channel, CLOSE_LOCAL)
            while not list_empty(&core.loop.disconnected):
                channel = core.loop.disconnected.next.channel
                list_remove(&channel.disconnected)
                channel_free(channel)
            loop_destroy(&core.loop)
            free(core)

    cdef int check_open(self) except -1:
        if self.core is NULL:
            raise ValueError("the selector is closed")
        if self.busy:
            raise IllegalStateError("another thread is inside poll")
        return 0

    cdef Endpoint endpoint(self, str connection_id):
        self.check_open()
        found = self.endpoints.get(connection_id)
        if found is None:
            raise IllegalStateError(f"no connection {connection_id!r}")
        return found

    cdef int clear(self) except -1:
        self.completed_receives = []
        self.completed_sends = []
        self.disconnected = {}
        return 0

    def register(self, sock, str connection_id not None):
        """Take over a connected socket (it is detached) or descriptor.

        Raises: IllegalStateError when the id is in use, OSError when the descriptor cannot be used (it is closed then),
        TypeError, ValueError for another object.
        """
        cdef Endpoint endpoint
        cdef Channel *channel
        cdef int fd
        self.check_open()
        if connection_id in self.endpoints:
            raise IllegalStateError(f"there is a connection {connection_id!r} already")
        if isinstance(sock, int):
            fd = <int>integer(sock, "a descriptor", 0, INT32_MAX)
        elif isinstance(sock, socket.socket):
            fd = sock.detach()
        else:
            raise TypeError(f"sock must be a socket or a descriptor, not {type(sock).__name__}")
        with nogil:
            channel = loop_register(&self.core.loop, fd)
        if channel is NULL:
            raise OSError(f"cannot register descriptor {fd}")
        endpoint = Endpoint.__new__(Endpoint)
        endpoint.channel = channel
        endpoint.id = connection_id
        channel.owner = <void *>endpoint        # alive while in the dict
        self.endpoints[connection_id] = endpoint

    def poll(self, timeout_ms=0):
        """Wait up to ``timeout_ms`` for events, handle them, and replace the three results.

        Raises: ValueError when closed or for a negative time, TypeError, IllegalStateError inside another poll.
        """
        cdef Endpoint endpoint
        cdef SelectorCore *core = self.core
        cdef int64_t timeout_ns = ms_to_ns(integer(timeout_ms, "timeout_ms", 0, INT64_MAX))
        self.check_open()
        self.clear()
        self.busy = True
        try:
            for endpoint in self.failed:
                loop_close(&core.loop, endpoint.channel, CLOSE_FAILED_SEND)
            self.failed = []
            if not list_empty(&core.loop.disconnected):
                timeout_ns = 0
            with nogil:
                loop_poll(&core.loop, timeout_ns)
            self.collect()
        finally:
            self.busy = False

    cdef int collect(self) except -1:
        cdef SelectorCore *core = self.core
        cdef Request *request
        cdef Receive receive
        cdef Endpoint endpoint
        cdef Channel *channel
        cdef list ready = []
        while not list_empty(&core.loop.completed_receives):
            channel = core.loop.completed_receives.next.channel
            list_remove(&channel.completed_receives)
            ready.append(<Endpoint>channel.owner)
        for endpoint in ready:
            receive = Receive.__new__(Receive)
            receive.request = frames_take(&endpoint.channel.reader)
            request_leave_account(receive.request)      # it may outlive its channel
            receive.id = endpoint.id
            self.completed_receives.append(receive)
            loop_resume(&core.loop, endpoint.channel)
        while core.sent_first is not NULL:
            request = core.sent_first
            core.sent_first = request.next
            self.completed_sends.append((<Endpoint>(<Channel *>request.channel).owner).id)
            request_free(request)
        core.sent_last = NULL
        while not list_empty(&core.loop.disconnected):
            channel = core.loop.disconnected.next.channel
            list_remove(&channel.disconnected)
            endpoint = <Endpoint>channel.owner
            if self.endpoints.get(endpoint.id) is endpoint:
                del self.endpoints[endpoint.id]
            if not endpoint.silent:
                self.disconnected[endpoint.id] = state_name(channel.close_reason)
            channel_free(channel)
        return 0

    def send(self, str connection_id not None, const unsigned char[::1] data not None):
        """Queue one response for the next polls; after the peer's end of stream the connection is closed instead.

        Raises: IllegalStateError for an unknown id, or while a response is being sent (then the connection is
        closed).
        """
        cdef Endpoint endpoint = self.endpoint(connection_id)
        cdef Channel *channel = endpoint.channel
        cdef Request *request
        cdef char *into
        if channel.close_reason != 0:
            raise IllegalStateError(f"no connection {connection_id!r}")
        if channel.send_first is not NULL:
            self.failed.append(endpoint)
            raise IllegalStateError(f"a response to {connection_id!r} is being sent")
        if channel.end_of_stream:
            self.failed.append(endpoint)
            return
        request = request_new(NULL, 0)
        if request is NULL:
            raise MemoryError
        if data.shape[0] > 0:
            into = request_reserve(request, data.shape[0])
            if into is NULL:
                request_free(request)
                raise MemoryError
            memcpy(into, &data[0], data.shape[0])
        loop_queue_response(channel, request)
        loop_want_write(&self.core.loop, channel)

    def mute(self, str connection_id not None):
        """Stop reading a connection until ``unmute``. Raises: IllegalStateError for an unknown id."""
        cdef Endpoint endpoint = self.endpoint(connection_id)
        endpoint.channel.explicit_mute = True
        loop_mute(endpoint.channel)
        list_remove(&endpoint.channel.completed_receives)

    def unmute(self, str connection_id not None):
        """Read a connection again. Raises: IllegalStateError for an unknown id."""
        cdef Endpoint endpoint = self.endpoint(connection_id)
        if loop_unmute(&self.core.loop, endpoint.channel):
            endpoint.channel.explicit_mute = False

    def mute_state(self, str connection_id not None):
        """Return one of ``STATES``. Raises: IllegalStateError for an unknown id."""
        return STATES[self.endpoint(connection_id).channel.mute_state]

    def close(self, str connection_id=None):
        """Close one connection without reporting it, or (None) all. No effect on a closed connection."""
        cdef Endpoint endpoint
        if connection_id is None:
            if self.core is not NULL:
                self.check_open()
                self.endpoints.clear()
                self.destroy()
            return
        self.check_open()
        endpoint = self.endpoints.get(connection_id)
        if endpoint is not None:
            endpoint.silent = True
            loop_close(&self.core.loop, endpoint.channel, CLOSE_LOCAL)

    def wakeup(self):
        """End a poll that waits. Threads: any."""
        if self.core is not NULL:
            loop_wake(&self.core.loop)

    def is_open(self, str connection_id not None):
        """Return whether the id is registered and not closing."""
        cdef Endpoint endpoint = self.endpoints.get(connection_id)
        return (endpoint is not None and self.core is not NULL and endpoint.channel.close_reason == 0
                and not endpoint.channel.end_of_stream)

    @property
    def is_out_of_memory(self):
        """True from a refusal by the pool until the poll that finds memory again."""
        self.check_open()
        return self.core.loop.out_of_memory

    def lowest_priority_channel(self):
        """Return the id of the connection to close first, or None: a closing one, else the least recently active."""
        cdef Channel *channel
        self.check_open()
        channel = loop_lowest_priority(&self.core.loop)
        return None if channel is NULL else (<Endpoint>channel.owner).id

    def snapshot(self):
        """Return the state of each connection between two polls: {id: facts}.

        Facts: ``muted``: reasons why it is not read, of ``event_loop.MUTE_REASONS``; ``mute_state``; ``stage``;
        ``address``, ``port``; bytes received, sent, unsent, and of the pool, for frames being read or waiting; the
        frame being read (``frame_bytes``, ``frame_arrived_bytes``); ``open_ms``, ``idle_ms``.

        Raises: ValueError when closed, IllegalStateError inside a poll.
        """
        cdef ChannelCopy copy
        cdef Endpoint endpoint
        cdef int64_t now_ns
        self.check_open()
        now_ns = clock_now_ns(self.core.loop.clock)
        found = {}
        for endpoint in self.endpoints.values():
            if endpoint.channel.close_reason == 0:
                channel_copy(&self.core.loop, endpoint.channel, &copy)
                found[endpoint.id] = channel_facts(&copy, now_ns)
        return found

    def counters(self):
        """Return the counters by Kafka's metric names."""
        cdef EventLoop *loop
        self.check_open()
        loop = &self.core.loop
        return {
            "connection-count": loop.open_channels,
            "connection-creation-total": atomic_load_relaxed(&loop.counters.connections_created),
            "connection-close-total": atomic_load_relaxed(&loop.counters.connections_closed),
            "expired-connections-killed-count": atomic_load_relaxed(&loop.counters.connections_expired),
            "incoming-byte-total": atomic_load_relaxed(&loop.counters.bytes_received),
            "outgoing-byte-total": atomic_load_relaxed(&loop.counters.bytes_sent),
            "response-total": atomic_load_relaxed(&loop.counters.responses),
            "select-total": atomic_load_relaxed(&loop.counters.polls),
        }


@cython.final
cdef class MuteTable:
    """One channel's mute state.

    Threads: one; it has no lock.
    Source: KIP-219, ``KafkaChannel.ChannelMuteState``.
    """
    cdef int current

    @property
    def state(self):
        """One of ``STATES``; NOT_MUTED at first."""
        return STATES[self.current]

    def mute(self):
        """Stop reading; acts only on a channel that is NOT_MUTED."""
        self.current = mute_state_after_mute(self.current)

    def maybe_unmute(self):
        """Read again if nothing else forbids it; return whether the channel is NOT_MUTED now."""
        self.current = mute_state_after_unmute(self.current)
        return self.current == NOT_MUTED

    def handle(self, str event not None):
        """Apply one of ``EVENTS``.

        Raises: TypeError, ValueError for an unknown event, IllegalStateError where the table has no such move.
        """
        cdef int following
        if event not in EVENTS:
            raise ValueError(f"event must be one of {', '.join(EVENTS)}, got {event!r}")
        following = mute_next(self.current, EVENTS.index(event))
        if following < 0:
            raise IllegalStateError(f"{event} is not allowed in state {self.state}")
        self.current = following
