"""The acceptor of one listener, which distributes its connections to processors without the GIL.

Source: ``SocketServer.Acceptor``.
"""
cimport cython
import threading

from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t
from libc.stdlib cimport calloc, free, malloc

from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport (
    Clock, Waker, borrow_clock, clock_add_waker, clock_epoch_ms, clock_now_ns, clock_real_wait_ns, clock_release,
    clock_remove_waker, clock_retain,
)
from kbroker._core.containers.heap cimport Heap, HeapEntry, heap_add, heap_clear, heap_remove, heap_top
from kbroker._core.network.poller cimport KB_READ, Poller, kb_event, poller_from
from kbroker._core.sync cimport (
    AtomicI64, Mutex, atomic_add_fetch, atomic_load, atomic_load_relaxed, atomic_store, mutex_destroy, mutex_init,
    mutex_lock, mutex_unlock,
)
from kbroker.network.connections._quota_core cimport (
    ADDRESS_BYTES, QUOTA_ADMITTED, QUOTA_THROTTLED, AddressEntry, Admission, ListenerQuota, QuotaCore, QuotaVerdict,
    quotas_enter, quotas_leave, quotas_release, quotas_retain, quotas_wake,
)
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.network.processor._processor cimport Processor
from kbroker.network.processor._processor_core cimport ProcessorCore, core_release, processor_offer, processor_wake

cdef extern from "network/socket_io.h" nogil:
    enum:
        KB_NO_DESCRIPTORS
        KB_AGAIN
    int kb_prepare_socket(int fd)
    int kb_accept(int listener)
    int kb_descriptors_for_sockets()
    int kb_lowest_free_descriptor(int any_open)
    void kb_tune_socket(int fd, int send_buffer_bytes)
    void kb_close_socket(int fd)
    void kb_address(int fd, int peer, char *host, int *port)
    void kb_block_signals()

cdef enum:
    SELECT_NS = 500000000
    BACK_OFF_NS = 100000000     # without descriptors the backlog stays readable; this pause avoids a busy loop
    OFFER_WAIT_NS = 50000000    # maximum delay of a stop while every processor is full
    ACCEPTS_PER_PASS = 64


cdef struct ThrottledSocket:    # accepted and not served: closed when its delay ends
    HeapEntry entry             # first; the key is the end in milliseconds since 1970
    int fd

cdef struct AcceptorCore:
    int listener
    int send_buffer_bytes
    Mutex deal_lock             # taken before an offer_lock; guards the next three
    int processor_count
    int turn
    ProcessorCore **processors  # each counted
    Poller *poller
    Clock *clock
    Waker waker
    QuotaCore *quotas           # counted; NULL: no limit
    ListenerQuota *listener_quota   # borrowed from quotas
    # Sockets of addresses that connect too fast, the earliest end first. (Kafka's queue has the latest first, so that
    # an early socket waits for a late one; clients notice no difference.)
    Heap throttled
    bint is_short               # descriptors are scarce: check for a free one before each accept
    AtomicI64 stopping
    AtomicI64 accepted
    AtomicI64 out_of_descriptors
    AtomicI64 blocked_ns
    AtomicI64 throttled_count


# ---- sockets of addresses that connect too fast

cdef bint throttle_socket(Heap *throttled, int fd, int64_t end_ms) noexcept nogil:
    """Keep a socket until ``end_ms``; false: out of memory."""
    cdef ThrottledSocket *kept = <ThrottledSocket *>malloc(sizeof(ThrottledSocket))
    if kept is NULL or not heap_add(throttled, &kept.entry, end_ms):
        free(kept)
        return False
    kept.fd = fd
    return True


cdef void close_throttled(Heap *throttled, int64_t now_ms) noexcept nogil:
    """Close the sockets whose end is before ``now_ms``."""
    cdef HeapEntry *first = heap_top(throttled)
    while first is not NULL and first.key < now_ms:
        heap_remove(throttled, first)
        kb_close_socket((<ThrottledSocket *>first).fd)
        free(first)
        first = heap_top(throttled)


# ---- accepting

cdef void wake_for_clock(void *arg) noexcept nogil:
    cdef AcceptorCore *core = <AcceptorCore *>arg
    core.poller.wake(core.poller)


cdef bint admit(AcceptorCore *core, int fd, AddressEntry **entry) noexcept nogil:
    """Apply the limits of connections, waiting as Kafka's acceptor does; return whether the connection is to be served.

    A connection that is not served is closed, or kept until its throttle ends.
    """
    cdef char host[ADDRESS_BYTES]
    cdef int port
    cdef Admission admission
    cdef QuotaVerdict verdict
    entry[0] = NULL
    if core.quotas is NULL:
        return True
    kb_address(fd, 1, host, &port)
    verdict = quotas_enter(core.quotas, core.listener_quota, host, &core.stopping, &admission)
    if admission.blocked_ns > 0:
        atomic_add_fetch(&core.blocked_ns, admission.blocked_ns)
    if verdict == QUOTA_ADMITTED:
        entry[0] = admission.entry
        return True
    if verdict == QUOTA_THROTTLED and throttle_socket(&core.throttled, fd, admission.end_ms):
        atomic_store(&core.throttled_count, core.throttled.count)
        return False
    quotas_leave(core.quotas, core.listener_quota, admission.entry)
    kb_close_socket(fd)
    return False


cdef void close_due(AcceptorCore *core, bint all_of_them) noexcept nogil:
    if core.throttled.count > 0:
        close_throttled(&core.throttled, INT64_MAX if all_of_them else clock_epoch_ms(core.clock))
        atomic_store(&core.throttled_count, core.throttled.count)


cdef int64_t select_ns(AcceptorCore *core) noexcept nogil:
    """Return the maximum wait for connections: half a second, or less if a throttled socket is due earlier."""
    cdef int64_t due_ns
    if core.throttled.count == 0:
        return SELECT_NS
    due_ns = clock_real_wait_ns(core.clock, clock_now_ns(core.clock) + (
        heap_top(&core.throttled).key + 1 - clock_epoch_ms(core.clock)) * 1000000)
    return due_ns if 0 <= due_ns < SELECT_NS else SELECT_NS


cdef ProcessorCore *offer_in_turn(AcceptorCore *core, int fd, AddressEntry *admission, bint *taken) noexcept nogil:
    """Offer the connection to the processors in round-robin order, skipping full ones.

    Returns: the processor tried last, with another reference; it owns the connection if ``taken``.
    """
    cdef ProcessorCore *processor = NULL
    cdef int tried = 0
    taken[0] = False
    mutex_lock(&core.deal_lock)
    while tried < core.processor_count and not taken[0]:
        processor = core.processors[core.turn]
        core.turn = (core.turn + 1) % core.processor_count
        tried += 1
        taken[0] = processor_offer(processor, fd, admission, 0)
    atomic_add_fetch(&processor.refs, 1)
    mutex_unlock(&core.deal_lock)
    return processor


cdef bint assign(AcceptorCore *core, int fd, AddressEntry *admission) noexcept nogil:
    """Pass the connection to a processor; while all are full, wait for the last tried and retry. False: stopped."""
    cdef ProcessorCore *processor
    cdef bint taken
    cdef int64_t started = -1
    while True:
        processor = offer_in_turn(core, fd, admission, &taken)
        if not taken and not atomic_load(&core.stopping):
            if started < 0:
                started = clock_now_ns(core.clock)
            taken = processor_offer(processor, fd, admission, OFFER_WAIT_NS)
        if taken:
            processor_wake(processor)
        core_release(processor)
        if taken or atomic_load(&core.stopping):
            break
    if started >= 0 and taken:
        atomic_add_fetch(&core.blocked_ns, clock_now_ns(core.clock) - started)
    return taken


cdef bint has_descriptor(AcceptorCore *core) noexcept nogil:
    """Return whether one more socket leaves free the descriptors that are reserved for the files of the logs."""
    if core.is_short:
        core.is_short = kb_lowest_free_descriptor(core.listener) >= kb_descriptors_for_sockets()
    return not core.is_short


cdef int accept_one(AcceptorCore *core) noexcept nogil:
    cdef int fd
    if not has_descriptor(core):
        return KB_NO_DESCRIPTORS
    fd = kb_accept(core.listener)
    if fd == KB_NO_DESCRIPTORS or fd + 1 >= kb_descriptors_for_sockets():   # the kernel returns the lowest free number
        core.is_short = True
    return fd


cdef void run_acceptor(AcceptorCore *core) noexcept nogil:
    cdef kb_event events[4]
    cdef int fd, interest, left, ready
    cdef AddressEntry *admission = NULL
    interest = 0
    while not atomic_load(&core.stopping):
        if interest == 0 and core.poller.set(core.poller, core.listener, core, 0, KB_READ) == 0:
            interest = KB_READ
        ready = core.poller.wait(core.poller, events, 4, select_ns(core))
        close_due(core, False)
        if ready <= 0 or atomic_load(&core.stopping):
            continue
        left = ACCEPTS_PER_PASS
        while left > 0:
            left -= 1
            fd = accept_one(core)
            if fd == KB_AGAIN:
                break
            if fd == KB_NO_DESCRIPTORS:
                atomic_add_fetch(&core.out_of_descriptors, 1)
                close_due(core, True)       # other connections need the descriptors more
                core.poller.set(core.poller, core.listener, core, interest, 0)
                interest = 0
                core.poller.wait(core.poller, events, 4, BACK_OFF_NS)
                break
            if fd < 0:                  # that connection failed before it was accepted; try the next
                continue
            kb_tune_socket(fd, core.send_buffer_bytes)
            atomic_add_fetch(&core.accepted, 1)
            if admit(core, fd, &admission) and not assign(core, fd, admission):
                quotas_leave(core.quotas, core.listener_quota, admission)
                kb_close_socket(fd)
            if atomic_load(&core.stopping):
                break
    if interest != 0:
        core.poller.set(core.poller, core.listener, core, interest, 0)
    close_due(core, True)


@cython.final
cdef class Acceptor:
    """Acceptor of one listening descriptor, which stays the caller's. Start a daemon thread on ``run``.

    Args:
        listener: descriptor of a bound, listening socket.
        processors: receive the connections in turn; at least one.
        send_buffer_bytes: SO_SNDBUF of accepted sockets; -1: the system's default.
        quotas: limits of connections, which contain the processors' listener; the processors must use the same object.
        clock: measures how long the acceptor is blocked.
        backend: as for a Processor.
    Threads: ``run`` on its own, the rest on any.
    """
    cdef AcceptorCore core
    cdef list processors
    cdef bint started

    def __cinit__(
            self, listener, list processors not None, *, send_buffer_bytes=-1, ConnectionQuotas quotas=None, clock=None,
            backend="auto"):
        cdef int fd = <int>integer(listener, "a descriptor", 0, INT32_MAX)
        cdef int64_t send_buffer = integer(send_buffer_bytes, "send_buffer_bytes", -1, INT32_MAX)
        mutex_init(&self.core.deal_lock)
        self.deal_to(processors)
        if kb_prepare_socket(fd) < 0:
            raise ValueError(f"listener must be an open socket, got descriptor {listener}")
        self.core.listener = fd
        self.core.send_buffer_bytes = <int>send_buffer
        self.core.clock = clock_retain(borrow_clock(clock))
        if quotas is not None:
            self.core.listener_quota = quotas.demand(self.processors[0].listener_name)
            self.core.quotas = quotas_retain(quotas.core)
        self.core.poller = poller_from(backend)
        self.core.waker.wake = wake_for_clock
        self.core.waker.arg = &self.core
        clock_add_waker(self.core.clock, &self.core.waker)

    def __dealloc__(self):
        cdef int i
        with nogil:
            for i in range(self.core.processor_count):
                core_release(self.core.processors[i])
            free(self.core.processors)
            mutex_destroy(&self.core.deal_lock)
            quotas_release(self.core.quotas)
            close_throttled(&self.core.throttled, INT64_MAX)
            heap_clear(&self.core.throttled)
            if self.core.clock is not NULL:
                clock_remove_waker(self.core.clock, &self.core.waker)
            if self.core.poller is not NULL:
                self.core.poller.destroy(self.core.poller)
            if self.core.clock is not NULL:
                clock_release(self.core.clock)

    def deal_to(self, list processors not None):
        """Distribute new connections among these processors of the listener from now on; at least one.

        Raises: ValueError, TypeError.
        """
        cdef Processor processor
        cdef ProcessorCore **cores
        cdef ProcessorCore **before
        cdef int i, count, before_count
        if not processors:
            raise ValueError("an acceptor needs a processor")
        for item in processors:
            if not isinstance(item, Processor):
                raise TypeError(f"processors must be Processor, got {type(item).__name__}")
        cores = <ProcessorCore **>calloc(len(processors), sizeof(void *))
        if cores is NULL:
            raise MemoryError
        count = 0
        for processor in processors:
            cores[count] = processor.core
            atomic_add_fetch(&processor.core.refs, 1)
            count += 1
        with nogil:
            mutex_lock(&self.core.deal_lock)
            before = self.core.processors
            before_count = self.core.processor_count
            self.core.processors = cores
            self.core.processor_count = count
            self.core.turn %= count
            mutex_unlock(&self.core.deal_lock)
            for i in range(before_count):
                core_release(before[i])
            free(before)
        self.processors = list(processors)

    def run(self):
        """Accept until ``stop``. Raises: RuntimeError when called a second time, or on the main thread."""
        if self.started:
            raise RuntimeError("an acceptor runs once")
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("an acceptor needs its own thread, not the main one: it blocks every signal")
        self.started = True
        with nogil:
            kb_block_signals()
            run_acceptor(&self.core)

    def stop(self):
        """Stop accepting and end ``run``."""
        with nogil:
            atomic_store(&self.core.stopping, 1)
            self.core.poller.wake(self.core.poller)
            quotas_wake(self.core.quotas)

    @property
    def accepted(self):
        """Number of connections accepted so far."""
        return atomic_load_relaxed(&self.core.accepted)

    @property
    def out_of_descriptors(self):
        """Number of times when no descriptor was free for a connection, apart from those reserved for files."""
        return atomic_load_relaxed(&self.core.out_of_descriptors)

    @property
    def blocked_ns(self):
        """Nanoseconds spent waiting: every processor had 20 new connections queued, or a limit was reached."""
        return atomic_load_relaxed(&self.core.blocked_ns)

    @property
    def held(self):
        """Number of throttled sockets: not served, closed soon, because their addresses connect too fast."""
        return atomic_load_relaxed(&self.core.throttled_count)
