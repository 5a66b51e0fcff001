"""Watch over network threads that execute requests: a request that takes long must not hold up other connections.

The watch checks them every 10 ms while they help, and sleeps when none has helped for a second. A network thread that
takes 20 ms for one batch is stuck: its loop is passed to a stand-in. If batches wait between two checks and none is
taken, more takers are woken. Locks: ``Watch.lock``, before the queue's.
"""
cimport cython

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.clock cimport borrow_clock, clock_now_ns, clock_release, clock_retain, clock_wait_until
from kbroker._core.requests.request_queue cimport request_queue_unstick
from kbroker._core.sync cimport (
    atomic_cas, atomic_load_relaxed, atomic_load_seq, atomic_store, atomic_store_seq, cond_broadcast, cond_destroy,
    cond_init, cond_wait, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.thread_setup cimport kb_block_signals
from kbroker.network.processor._processor cimport Processor
from kbroker.network.processor._processor_core cimport ROLE_PASSED_ON, ProcessorCore, Watch

cdef enum:
    LOOK_EVERY_NS = 10000000
    STUCK_NS = 20000000
    LOOKS_AT_REST = 100         # checks without any help before the watch sleeps


cdef ProcessorCore *find_stuck(Watch *watch, bint *any_help) noexcept nogil:
    """Return a network thread that is stuck, and pass its loop to a stand-in; NULL: none is. Under the lock."""
    cdef ProcessorCore *core = watch.first
    cdef int64_t role, now = clock_now_ns(watch.clock)
    any_help[0] = core is not NULL and request_queue_unstick(core.queue)      # the server has one queue
    while core is not NULL:
        role = atomic_load_seq(&core.role)
        if role != core.watched_role:
            core.watched_role = role
            core.watched_since_ns = now
            any_help[0] = True
        elif role > 0:
            any_help[0] = True
            if now - core.watched_since_ns >= STUCK_NS and atomic_cas(&core.role, role, ROLE_PASSED_ON):
                return core
        core = core.watch_next
    return NULL


cdef ProcessorCore *wait_for_stuck(Watch *watch) noexcept nogil:
    """Return the next network thread that is stuck; NULL: the watch is closed."""
    cdef ProcessorCore *found = NULL
    cdef bint any_help
    cdef int looks = 0
    mutex_lock(&watch.lock)
    while not watch.closed:
        found = find_stuck(watch, &any_help)
        if found is not NULL:
            break
        looks = 0 if any_help else looks + 1
        if looks <= LOOKS_AT_REST:
            clock_wait_until(watch.clock, &watch.changed, &watch.lock, clock_now_ns(watch.clock) + LOOK_EVERY_NS)
            continue
        atomic_store_seq(&watch.is_asleep, 1)
        found = find_stuck(watch, &any_help)        # help may have begun before is_asleep was set
        if found is not NULL:
            break
        while not any_help and atomic_load_relaxed(&watch.is_asleep) != 0 and not watch.closed:
            cond_wait(&watch.changed, &watch.lock)
        atomic_store(&watch.is_asleep, 0)
        looks = 0
    mutex_unlock(&watch.lock)
    return found


@cython.final
cdef class NetworkWatch:
    """Watch over network threads that execute requests for the handlers: a stuck one must not hold up its connections.

    Args: clock: measures the real time for which a request takes; None: the system's.
    Threads: ``wait`` on one thread, the rest on any.
    """
    cdef Watch *watch           # owned
    cdef dict processors        # by the address of their core

    def __cinit__(self, clock=None):
        self.watch = <Watch *>calloc(1, sizeof(Watch))
        if self.watch is NULL:
            raise MemoryError
        self.watch.clock = clock_retain(borrow_clock(clock))
        mutex_init(&self.watch.lock)
        cond_init(&self.watch.changed)
        self.processors = {}

    def __dealloc__(self):
        if self.watch is not NULL:
            with nogil:
                clock_release(self.watch.clock)
                cond_destroy(&self.watch.changed)
                mutex_destroy(&self.watch.lock)
            free(self.watch)

    def add(self, Processor processor not None):
        """Watch a processor, which is not running yet."""
        cdef ProcessorCore *core = processor.core
        cdef Watch *watch = self.watch
        self.processors[<size_t>core] = processor
        with nogil:
            mutex_lock(&watch.lock)
            core.watch = watch
            core.watch_next = watch.first
            watch.first = core
            mutex_unlock(&watch.lock)

    def remove(self, Processor processor not None):
        """End the watch over a processor, which has ended."""
        cdef ProcessorCore *core = processor.core
        cdef ProcessorCore **link
        cdef Watch *watch = self.watch
        with nogil:
            mutex_lock(&watch.lock)
            link = &watch.first
            while link[0] is not NULL and link[0] is not core:
                link = &link[0].watch_next
            if link[0] is not NULL:
                link[0] = core.watch_next
                core.watch = NULL
            mutex_unlock(&watch.lock)
        self.processors.pop(<size_t>core, None)

    def wait(self):
        """Return the next processor that is stuck in a request, for ``Processor.stand_in``; None after ``close``.

        Meanwhile handlers are woken for requests that wait in the queue beside stuck threads.
        """
        cdef Watch *watch = self.watch
        cdef ProcessorCore *core
        cdef Processor processor = None
        while processor is None:
            with nogil:
                kb_block_signals()
                core = wait_for_stuck(watch)
            if core is NULL:
                break
            processor = self.processors.get(<size_t>core)       # None: it has ended and was removed meanwhile
        return processor

    def close(self):
        """End ``wait``. Idempotent."""
        cdef Watch *watch = self.watch
        with nogil:
            mutex_lock(&watch.lock)
            watch.closed = True
            cond_broadcast(&watch.changed)
            mutex_unlock(&watch.lock)
