"""Bounded queue of batches between network threads and handlers, and its Python view."""
cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport (
    Clock, borrow_clock, clock_add_waker, clock_now_ns, clock_release, clock_remove_waker, clock_retain,
    clock_wait_until,
)
from kbroker._core.guarded cimport guarded_value
from kbroker._core.requests.request cimport ACTION_CLOSE, Request, request_free
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_load, atomic_store, cond_broadcast, cond_destroy, cond_init, cond_signal, cond_wait,
    mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)


cdef enum:
    BACKLOG_BATCHES = 4
    HELD_UP_NS = 200000


cdef void wake_takers(void *arg) noexcept nogil:
    """A virtual clock moved: takers look at their deadlines again."""
    cdef RequestQueue *queue = <RequestQueue *>arg
    mutex_lock(&queue.lock)
    cond_broadcast(&queue.not_empty)
    mutex_unlock(&queue.lock)


cdef RequestQueue *request_queue_new(Clock *clock, int64_t capacity) noexcept nogil:
    cdef RequestQueue *queue = <RequestQueue *>calloc(1, sizeof(RequestQueue))
    if queue is NULL:
        return NULL
    atomic_store(&queue.refs, 1)
    mutex_init(&queue.lock)
    cond_init(&queue.not_empty)
    cond_init(&queue.not_full)
    queue.clock = clock_retain(clock)
    queue.capacity = capacity
    queue.waker.wake = wake_takers
    queue.waker.arg = queue
    if clock.is_virtual:
        clock_add_waker(clock, &queue.waker)
    return queue


cdef RequestQueue *request_queue_retain(RequestQueue *queue) noexcept nogil:
    atomic_add_fetch(&queue.refs, 1)
    return queue


cdef void request_queue_release(RequestQueue *queue) noexcept nogil:
    cdef Request *batch
    if queue is NULL or atomic_add_fetch(&queue.refs, -1) != 0:
        return
    if queue.clock.is_virtual:
        clock_remove_waker(queue.clock, &queue.waker)
    while queue.head is not NULL:           # no handler takes these any more: their connections close
        batch = queue.head
        queue.head = batch.next
        reject_batch(batch)
    cond_destroy(&queue.not_empty)
    cond_destroy(&queue.not_full)
    mutex_destroy(&queue.lock)
    clock_release(queue.clock)
    free(queue)


cdef void reject_batch(Request *batch) noexcept nogil:
    """Respond to every frame of a batch with "close the connection"."""
    cdef Request *frame = batch
    cdef Request *following
    if batch.responder is NULL:               # made by a test or an embedder: no loop to go back to
        while frame is not NULL:
            following = frame.batch_next
            request_free(frame)
            frame = following
        return
    while frame is not NULL:                # the batch list becomes the response list
        frame.action = ACTION_CLOSE
        frame.next = frame.batch_next
        frame = frame.batch_next
    batch.responder.respond(batch.responder, batch)


cdef inline int64_t batch_length(Request *batch) noexcept nogil:
    cdef int64_t n = 0
    while batch is not NULL:
        n += 1
        batch = batch.batch_next
    return n


cdef int64_t wakes_due(RequestQueue *queue, int64_t batches) noexcept nogil:
    """Return the number of sleepers to wake for ``batches`` new batches. The caller holds the lock.

    A handler that is awake takes its next run for a tenth of what waking a second one costs, so up to awake_target
    handlers are woken freely, and one more only when there is a backlog of four batches for each that is awake, or when
    no handler has come back for 0.2 ms (they are held up, by a disk or the GIL).
    """
    cdef int64_t awake = queue.busy + queue.signalled
    cdef int64_t asleep = queue.sleepers - queue.signalled
    cdef int64_t wake = batches
    if queue.awake_target > 0:
        wake = queue.awake_target - awake
        if wake > batches:
            wake = batches
        if wake <= 0:
            wake = 0
            if batches > 0 and (queue.waiting_batches > BACKLOG_BATCHES * awake
                                or clock_now_ns(queue.clock) - queue.last_take_ns > HELD_UP_NS):
                wake = 1
    return wake if wake < asleep else asleep


cdef bint request_queue_put(RequestQueue *queue, Request **first) noexcept nogil:
    cdef Request *batch
    cdef int64_t frames, started, batches = 0, wake
    cdef bint done = True
    mutex_lock(&queue.lock)
    while first[0] is not NULL:
        batch = first[0]
        frames = batch_length(batch)
        # A batch longer than the whole queue still enters an empty one.
        while not queue.closed and queue.count > 0 and queue.count + frames > queue.capacity:
            cond_broadcast(&queue.not_empty)        # a waiting taker must see what was put so far
            batches = 0
            started = clock_now_ns(queue.clock)
            queue.blocked_putters += 1
            cond_wait(&queue.not_full, &queue.lock)
            queue.blocked_putters -= 1
            queue.put_blocked_ns += clock_now_ns(queue.clock) - started
        if queue.closed:
            done = False
            break
        first[0] = batch.next
        batch.next = NULL
        if queue.tail is NULL:
            queue.head = batch
        else:
            queue.tail.next = batch
        queue.tail = batch
        queue.count += frames
        queue.waiting_batches += 1
        batches += 1
    atomic_store(&queue.depth, queue.count)
    wake = wakes_due(queue, batches)
    queue.signalled += <int32_t>wake
    mutex_unlock(&queue.lock)
    while wake > 0:
        cond_signal(&queue.not_empty)
        wake -= 1
    return done


cdef Request *request_queue_take(RequestQueue *queue, int64_t timeout_ns) noexcept nogil:
    """A negative time-out waits until the queue is closed. What was queued before the close is still handed out."""
    cdef Request *batch
    cdef int64_t started = 0, deadline = INT64_MAX
    cdef bint timed_out = False
    mutex_lock(&queue.lock)
    if queue.busy > 0:
        queue.busy -= 1
    if queue.head is NULL and not queue.closed and timeout_ns != 0:
        started = clock_now_ns(queue.clock)
        if timeout_ns > 0 and timeout_ns < INT64_MAX - started:
            deadline = started + timeout_ns
        while queue.head is NULL and not queue.closed and not timed_out:
            queue.sleepers += 1
            if deadline == INT64_MAX:
                cond_wait(&queue.not_empty, &queue.lock)
            else:
                timed_out = not clock_wait_until(queue.clock, &queue.not_empty, &queue.lock, deadline)
            queue.sleepers -= 1
            if queue.signalled > 0:
                queue.signalled -= 1
        atomic_add_fetch(&queue.idle_ns, clock_now_ns(queue.clock) - started)
    batch = queue.head
    if batch is not NULL:
        queue.head = batch.next
        if queue.head is NULL:
            queue.tail = NULL
        batch.next = NULL
        queue.waiting_batches -= 1
        queue.busy += 1
        if queue.awake_target > 0:
            queue.last_take_ns = clock_now_ns(queue.clock)
        queue.count -= batch_length(batch)
        atomic_store(&queue.depth, queue.count)
        if queue.blocked_putters > 0:
            cond_broadcast(&queue.not_full)
    mutex_unlock(&queue.lock)
    return batch


cdef void request_queue_close(RequestQueue *queue) noexcept nogil:
    mutex_lock(&queue.lock)
    queue.closed = True
    cond_broadcast(&queue.not_empty)
    cond_broadcast(&queue.not_full)
    mutex_unlock(&queue.lock)


cdef bint request_queue_is_closed(RequestQueue *queue) noexcept nogil:
    cdef bint closed
    mutex_lock(&queue.lock)
    closed = queue.closed
    mutex_unlock(&queue.lock)
    return closed


cdef bint request_queue_nearly_full(RequestQueue *queue) noexcept nogil:
    return atomic_load(&queue.depth) * 4 > queue.capacity * 3


cdef void request_queue_refuse_all(RequestQueue *queue) noexcept nogil:
    cdef Request *batch
    while True:
        batch = request_queue_take(queue, 0)
        if batch is NULL:
            return
        reject_batch(batch)


@cython.final
cdef class Queue:
    """Bounded queue of requests between network threads and handlers (Kafka's ``RequestChannel.requestQueue``).

    Args:
        capacity: frames that may wait, >= 1 (``queued.max.requests``); a network thread that meets a full queue waits.
        clock: times the waits; None is the process's system clock.
        awake_target: 0 wakes a sleeping taker for each batch. A number keeps that many takers awake and wakes more only
            for a backlog: for takers that are done in microseconds.
    Raises: ValueError for a capacity below 1, a negative target or a number too large, TypeError for other types.
    Threads: any.
    """

    def __cinit__(self, capacity, clock=None, *, awake_target=0):
        cdef int64_t frames = integer(capacity, "capacity", 1, INT64_MAX)
        cdef int64_t target = integer(awake_target, "awake_target", 0, INT32_MAX)
        self.queue = request_queue_new(borrow_clock(clock), frames)
        if self.queue is NULL:
            raise MemoryError
        self.queue.awake_target = <int>target

    def __dealloc__(self):
        cdef RequestQueue *queue = self.queue
        with nogil:
            request_queue_release(queue)

    def close(self):
        """Wake everybody who waits; nothing more is accepted, what is queued can still be taken."""
        with nogil:
            request_queue_close(self.queue)

    def refuse_all(self):
        """Take whatever is queued and close the connections it came from (the end of an ordered stop)."""
        with nogil:
            request_queue_refuse_all(self.queue)

    def __len__(self):
        return atomic_load(&self.queue.depth)

    @property
    def capacity(self):
        """Frames that may wait."""
        return self.queue.capacity

    @property
    def sleepers(self):
        """Threads that wait for a request right now."""
        cdef int64_t n
        with nogil:
            mutex_lock(&self.queue.lock)
            n = self.queue.sleepers
            mutex_unlock(&self.queue.lock)
        return n

    @property
    def closed(self):
        """True once ``close`` was called."""
        cdef bint closed
        with nogil:
            closed = request_queue_is_closed(self.queue)
        return closed

    @property
    def is_nearly_full(self):
        """True above three quarters of the capacity: network threads then hand over single frames."""
        return request_queue_nearly_full(self.queue)

    @property
    def idle_ns(self):
        """Nanoseconds that all takers together have waited."""
        return atomic_load(&self.queue.idle_ns)

    @property
    def put_blocked_ns(self):
        """Nanoseconds that network threads have waited because it was full."""
        return guarded_value(&self.queue.lock, &self.queue.put_blocked_ns)
