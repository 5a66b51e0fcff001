"""Accepts the connections of one listener and deals them to its processors, without the GIL.

Source: ``SocketServer.Acceptor``.
"""
cimport cython
import threading

from libc.stdint cimport INT32_MAX, int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport Clock, borrow_clock, clock_now_ns, clock_release, clock_retain
from kbroker._core.poller cimport KB_READ, Poller, kb_event, poller_from
from kbroker._core.sync cimport AtomicI64, atomic_add, atomic_load, atomic_load_relaxed, atomic_store
from kbroker.network._connection_quotas cimport (
    ADDRESS_BYTES, QUOTA_ADMITTED, QUOTA_FULL, AddressCount, ConnectionQuotas, QuotaCore, QuotaVerdict, quotas_enter,
    quotas_leave, quotas_release, quotas_retain,
)
from kbroker.network._processor cimport Processor, ProcessorCore, core_release, processor_offer, processor_wake

cdef extern from "socket_io.h" nogil:
    enum:
        KB_NO_DESCRIPTORS
        KB_AGAIN
    int kb_prepare_socket(int fd)
    int kb_accept(int listener)
    void kb_tune_socket(int fd, int send_buffer_bytes)
    void kb_close_socket(int fd)
    void kb_address(int fd, int peer, char *host, int *port)
    void kb_block_signals()

cdef enum:
    SELECT_NS = 500000000
    BACK_OFF_NS = 100000000     # without descriptors the backlog stays readable: do not spin on it
    OFFER_WAIT_NS = 50000000    # a stop is noticed that often while every processor is full
    ACCEPTS_PER_PASS = 64


cdef struct AcceptorCore:
    int listener
    int send_buffer_bytes
    int processor_count
    int turn
    ProcessorCore **processors  # counted each
    Poller *poller
    Clock *clock
    QuotaCore *quotas           # counted; NULL: no limit
    AtomicI64 stopping
    AtomicI64 accepted
    AtomicI64 out_of_descriptors
    AtomicI64 blocked_ns


cdef bint admit(AcceptorCore *core, int fd, AddressCount **admission) noexcept nogil:
    """Whether the connection may be served; waits while there are too many in all, as Kafka's acceptor does."""
    cdef char host[ADDRESS_BYTES]
    cdef int port
    cdef int64_t started
    cdef QuotaVerdict verdict
    admission[0] = NULL
    if core.quotas is NULL:
        return True
    kb_address(fd, 1, host, &port)
    verdict = quotas_enter(core.quotas, host, 0, admission)
    if verdict == QUOTA_FULL:
        started = clock_now_ns(core.clock)
        while verdict == QUOTA_FULL and not atomic_load(&core.stopping):
            verdict = quotas_enter(core.quotas, host, OFFER_WAIT_NS, admission)
        atomic_add(&core.blocked_ns, clock_now_ns(core.clock) - started)
    return verdict == QUOTA_ADMITTED


cdef bint assign(AcceptorCore *core, int fd, AddressCount *admission) noexcept nogil:
    """Round robin; past full processors; at last wait for the last one tried."""
    cdef int tried = 0
    cdef int64_t started
    cdef ProcessorCore *processor = NULL
    while tried < core.processor_count:
        processor = core.processors[core.turn]
        core.turn = (core.turn + 1) % core.processor_count
        tried += 1
        if processor_offer(processor, fd, admission, 0):
            processor_wake(processor)
            return True
    started = clock_now_ns(core.clock)
    while not atomic_load(&core.stopping):
        if processor_offer(processor, fd, admission, OFFER_WAIT_NS):
            processor_wake(processor)
            atomic_add(&core.blocked_ns, clock_now_ns(core.clock) - started)
            return True
    return False


cdef void run_acceptor(AcceptorCore *core) noexcept nogil:
    cdef kb_event events[4]
    cdef int fd, interest, left
    cdef AddressCount *admission = NULL
    interest = 0
    while not atomic_load(&core.stopping):
        if interest == 0 and core.poller.set(core.poller, core.listener, core, 0, KB_READ) == 0:
            interest = KB_READ
        if core.poller.wait(core.poller, events, 4, SELECT_NS) <= 0 or atomic_load(&core.stopping):
            continue
        left = ACCEPTS_PER_PASS
        while left > 0:
            left -= 1
            fd = kb_accept(core.listener)
            if fd == KB_AGAIN:
                break
            if fd == KB_NO_DESCRIPTORS:
                atomic_add(&core.out_of_descriptors, 1)
                core.poller.set(core.poller, core.listener, core, interest, 0)
                interest = 0
                core.poller.wait(core.poller, events, 4, BACK_OFF_NS)
                break
            if fd < 0:                  # that connection failed before we took it; look at the next
                continue
            kb_tune_socket(fd, core.send_buffer_bytes)
            atomic_add(&core.accepted, 1)
            if not admit(core, fd, &admission):
                kb_close_socket(fd)
            elif not assign(core, fd, admission):
                quotas_leave(core.quotas, admission)
                kb_close_socket(fd)
    if interest != 0:
        core.poller.set(core.poller, core.listener, core, interest, 0)


@cython.final
cdef class Acceptor:
    """Accepts on one listening descriptor (which stays the caller's): start a daemon thread on ``run``.

    Args:
        listener: descriptor of a bound, listening socket.
        processors: share the connections in turn; at least one.
        send_buffer_bytes: SO_SNDBUF of accepted sockets; -1: the system's default.
        quotas: limits of connections; the processors must have the same.
        clock: times how long the acceptor is blocked.
        backend: as for a Processor.
    Threads: ``run`` on its own, the rest on any.
    """
    cdef AcceptorCore core
    cdef list processors
    cdef bint started

    def __cinit__(
            self, listener, list processors not None, *, send_buffer_bytes=-1, ConnectionQuotas quotas=None, clock=None,
            backend="auto"):
        cdef Processor processor
        cdef int fd = <int>integer(listener, "a descriptor", 0, INT32_MAX)
        cdef int64_t send_buffer = integer(send_buffer_bytes, "send_buffer_bytes", -1, INT32_MAX)
        if not processors:
            raise ValueError("an acceptor needs a processor")
        for item in processors:
            if not isinstance(item, Processor):
                raise TypeError(f"processors must be Processor, got {type(item).__name__}")
        if kb_prepare_socket(fd) < 0:
            raise ValueError(f"listener must be an open socket, got descriptor {listener}")
        self.processors = list(processors)
        self.core.processors = <ProcessorCore **>calloc(len(processors), sizeof(void *))
        if self.core.processors is NULL:
            raise MemoryError
        for processor in self.processors:
            self.core.processors[self.core.processor_count] = processor.core
            atomic_add(&processor.core.refs, 1)
            self.core.processor_count += 1
        self.core.listener = fd
        self.core.send_buffer_bytes = <int>send_buffer
        self.core.clock = clock_retain(borrow_clock(clock))
        if quotas is not None:
            self.core.quotas = quotas_retain(quotas.core)
        self.core.poller = poller_from(backend)

    def __dealloc__(self):
        cdef int i
        with nogil:
            for i in range(self.core.processor_count):
                core_release(self.core.processors[i])
            free(self.core.processors)
            quotas_release(self.core.quotas)
            if self.core.poller is not NULL:
                self.core.poller.destroy(self.core.poller)
            if self.core.clock is not NULL:
                clock_release(self.core.clock)

    def run(self):
        """Accept until ``stop``. Raises: RuntimeError when it ran before, or on the main thread."""
        if self.started:
            raise RuntimeError("an acceptor runs once")
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("an acceptor runs on a thread of its own: it blocks every signal")
        self.started = True
        with nogil:
            kb_block_signals()
            run_acceptor(&self.core)

    def stop(self):
        """Accept nothing more and end ``run``."""
        with nogil:
            atomic_store(&self.core.stopping, 1)
            self.core.poller.wake(self.core.poller)

    @property
    def accepted(self):
        """Connections accepted so far."""
        return atomic_load_relaxed(&self.core.accepted)

    @property
    def out_of_descriptors(self):
        """How often the system had no descriptor for a connection."""
        return atomic_load_relaxed(&self.core.out_of_descriptors)

    @property
    def blocked_ns(self):
        """Nanoseconds spent waiting: every processor had 20 new connections to look at, or there were too many in all.
        """
        return atomic_load_relaxed(&self.core.blocked_ns)
