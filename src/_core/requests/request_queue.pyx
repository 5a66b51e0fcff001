"""The bounded queue of request batches, and its Python view; see the contract in the .pxd."""
cimport cython

from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t
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
    HELPED_BATCHES = 32         # waiting batches from which on a helper needs a handler beside it
    HELD_UP_NS = 200000
    LONG_AGO_NS = -1000000000
    WOKEN_AT_ONCE = 16


cdef void wake_takers(void *arg) noexcept nogil:
    """Wake takers to check their deadlines again after a virtual clock has moved."""
    cdef RequestQueue *queue = <RequestQueue *>arg
    cdef Sleeper *sleeper
    mutex_lock(&queue.lock)
    sleeper = queue.sleeping
    while sleeper is not NULL:
        cond_signal(&sleeper.woken)
        sleeper = sleeper.below
    mutex_unlock(&queue.lock)


cdef void wake_sleepers(RequestQueue *queue, int64_t wanted) noexcept nogil:
    """Wake up to ``wanted`` sleepers, the last one first, and release the lock that the caller holds.

    The signals come after the release: a sleeper woken before it would wait again, for the lock.
    """
    cdef Sleeper *woken[WOKEN_AT_ONCE]
    cdef int i, n = 0
    while wanted > 0 and queue.sleeping is not NULL:
        woken[n] = queue.sleeping
        queue.sleeping = queue.sleeping.below
        woken[n].is_woken = True
        queue.sleepers -= 1
        queue.signalled += 1
        queue.wakeups += 1
        n += 1
        wanted -= 1
        if n == WOKEN_AT_ONCE:
            mutex_unlock(&queue.lock)
            for i in range(n):
                cond_signal(&woken[i].woken)
            n = 0
            mutex_lock(&queue.lock)
    mutex_unlock(&queue.lock)
    for i in range(n):
        cond_signal(&woken[i].woken)


cdef bint sleep_until(RequestQueue *queue, int64_t deadline) noexcept nogil:
    """Wait, under the lock, until the caller is woken or the deadline has passed; return whether it was woken."""
    cdef Sleeper *sleeper = queue.free_sleepers
    cdef Sleeper **link = &queue.sleeping
    cdef bint in_time = True
    if sleeper is not NULL:
        queue.free_sleepers = sleeper.below
    else:
        sleeper = <Sleeper *>calloc(1, sizeof(Sleeper))
        if sleeper is NULL:
            return False            # the caller returns without a batch and calls again
        cond_init(&sleeper.woken)
    sleeper.is_woken = False
    sleeper.below = queue.sleeping
    queue.sleeping = sleeper
    queue.sleepers += 1
    while in_time and not sleeper.is_woken:
        if deadline == INT64_MAX:
            cond_wait(&sleeper.woken, &queue.lock)
        else:
            in_time = clock_wait_until(queue.clock, &sleeper.woken, &queue.lock, deadline)
    if sleeper.is_woken:
        queue.signalled -= 1
    else:
        while link[0] is not sleeper:
            link = &link[0].below
        link[0] = sleeper.below
        queue.sleepers -= 1
    sleeper.below = queue.free_sleepers
    queue.free_sleepers = sleeper
    return sleeper.is_woken


cdef RequestQueue *request_queue_new(Clock *clock, int64_t capacity) noexcept nogil:
    cdef RequestQueue *queue = <RequestQueue *>calloc(1, sizeof(RequestQueue))
    if queue is NULL:
        return NULL
    atomic_store(&queue.refs, 1)
    mutex_init(&queue.lock)
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
    cdef Sleeper *sleeper
    if queue is NULL or atomic_add_fetch(&queue.refs, -1) != 0:
        return
    if queue.clock.is_virtual:
        clock_remove_waker(queue.clock, &queue.waker)
    while queue.head is not NULL:           # no handler takes these any more: close their connections
        batch = queue.head
        queue.head = batch.next
        reject_batch(batch)
    while queue.free_sleepers is not NULL:
        sleeper = queue.free_sleepers
        queue.free_sleepers = sleeper.below
        cond_destroy(&sleeper.woken)
        free(sleeper)
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


cdef int64_t wakes_due(RequestQueue *queue, int64_t batches, bint helps) noexcept nogil:
    """Return the number of sleepers to wake for ``batches`` new batches. The caller holds the lock.

    A taker that is awake takes its next batch for a tenth of the cost of waking a second one. So up to awake_target
    takers, helpers among them, are woken freely. One more is woken only if those that are awake have a backlog, or, for
    a caller that does not help now, if none has returned for 0.2 ms (a disk or the GIL delays them).
    """
    cdef int64_t awake = queue.busy + queue.signalled
    cdef int64_t wake = batches
    cdef int64_t backlog = BACKLOG_BATCHES * (awake - queue.helpers) + HELPED_BATCHES * queue.helpers
    if queue.awake_target > 0:
        wake = queue.awake_target - awake
        if wake > batches:
            wake = batches
        if wake <= 0:
            wake = 0
            if batches > 0 and (queue.waiting_batches > backlog or (
                    not helps and clock_now_ns(queue.clock) - queue.last_take_ns > HELD_UP_NS)):
                wake = 1
    return wake


cdef bint request_queue_put(RequestQueue *queue, Request **first, bint helps) noexcept nogil:
    cdef Request *batch
    cdef int64_t frames, started, batches = 0
    cdef bint done = True
    mutex_lock(&queue.lock)
    while first[0] is not NULL:
        batch = first[0]
        frames = batch_length(batch)
        # A batch longer than the whole queue still enters an empty one.
        while not queue.closed and queue.count > 0 and queue.count + frames > queue.capacity:
            wake_sleepers(queue, queue.sleepers)    # a waiting taker must see the batches put before
            mutex_lock(&queue.lock)
            if queue.closed or queue.count == 0 or queue.count + frames <= queue.capacity:
                continue
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
    if helps:
        queue.busy += 1
        queue.helpers += 1
    wake_sleepers(queue, wakes_due(queue, batches, helps))
    return done


cdef Request *take_first(RequestQueue *queue) noexcept nogil:
    """Remove the first batch, under the lock."""
    cdef Request *batch = queue.head
    queue.head = batch.next
    if queue.head is NULL:
        queue.tail = NULL
    batch.next = NULL
    queue.waiting_batches -= 1
    queue.takes += 1
    queue.count -= batch_length(batch)
    atomic_store(&queue.depth, queue.count)
    if queue.blocked_putters > 0:
        cond_broadcast(&queue.not_full)
    return batch


cdef Request *request_queue_take(RequestQueue *queue, int64_t timeout_ns) noexcept nogil:
    """Take a batch, also after the close of the queue; NULL at the time-out, or when the queue is closed and empty.

    A negative time-out waits until the queue is closed.
    """
    cdef Request *batch = NULL
    cdef int64_t started = 0, deadline = INT64_MAX
    cdef bint in_time = True
    mutex_lock(&queue.lock)
    if queue.busy > queue.helpers:
        queue.busy -= 1
    if queue.head is NULL and not queue.closed and timeout_ns != 0:
        started = clock_now_ns(queue.clock)
        if timeout_ns > 0 and timeout_ns < INT64_MAX - started:
            deadline = started + timeout_ns
        queue.last_take_ns = LONG_AGO_NS        # those still busy may be delayed for any time
        while queue.head is NULL and not queue.closed and in_time:
            in_time = sleep_until(queue, deadline)
        atomic_add_fetch(&queue.idle_ns, clock_now_ns(queue.clock) - started)
    if queue.head is not NULL:
        batch = take_first(queue)
        queue.busy += 1
        if queue.awake_target > 0:
            queue.last_take_ns = clock_now_ns(queue.clock)
    mutex_unlock(&queue.lock)
    return batch


cdef Request *request_queue_help(RequestQueue *queue, Executor *executor, bint goes_on) noexcept nogil:
    cdef Request *batch = NULL
    mutex_lock(&queue.lock)
    if goes_on and not queue.closed and queue.head is not NULL and (
            not queue.head.is_for_takers and executor.ends_soon(executor, queue.head)):
        batch = take_first(queue)
        mutex_unlock(&queue.lock)
        return batch
    queue.busy -= 1
    queue.helpers -= 1
    queue.finishing += 1
    wake_sleepers(queue, wakes_due(queue, queue.waiting_batches, False) if queue.waiting_batches > 0 else 0)
    return NULL


cdef void request_queue_put_back(RequestQueue *queue, Request *batch) noexcept nogil:
    mutex_lock(&queue.lock)
    batch.next = queue.head
    queue.head = batch
    if queue.tail is NULL:
        queue.tail = batch
    queue.waiting_batches += 1
    queue.takes -= 1
    queue.count += batch_length(batch)
    atomic_store(&queue.depth, queue.count)
    mutex_unlock(&queue.lock)


cdef void request_queue_end_help(RequestQueue *queue) noexcept nogil:
    mutex_lock(&queue.lock)
    queue.finishing -= 1
    mutex_unlock(&queue.lock)


cdef bint request_queue_unstick(RequestQueue *queue) noexcept nogil:
    cdef bint is_stuck
    if atomic_load(&queue.depth) == 0:
        return False
    mutex_lock(&queue.lock)
    is_stuck = queue.takes == queue.looked_takes
    queue.looked_takes = queue.takes
    wake_sleepers(queue, queue.waiting_batches if is_stuck else 0)
    return True


cdef void request_queue_close(RequestQueue *queue) noexcept nogil:
    mutex_lock(&queue.lock)
    queue.closed = True
    cond_broadcast(&queue.not_full)
    wake_sleepers(queue, queue.sleepers)


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


cdef int64_t number_under(RequestQueue *queue, int32_t *number) noexcept:
    cdef int64_t n
    with nogil:
        mutex_lock(&queue.lock)
        n = number[0]
        mutex_unlock(&queue.lock)
    return n


@cython.final
cdef class Queue:
    """Bounded queue of requests between network threads and handlers (Kafka's ``RequestChannel.requestQueue``).

    Args:
        capacity: frames that may wait, >= 1 (``queued.max.requests``); a network thread that meets a full queue waits.
        clock: times the waits; None is the process's system clock.
        awake_target: 0 wakes a sleeping taker for each batch. A number keeps that many takers awake and wakes more only
            for a backlog: for takers that finish in microseconds.
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
        """Wake all waiting threads. No more batches are accepted; queued ones can still be taken."""
        with nogil:
            request_queue_close(self.queue)

    def refuse_all(self):
        """Take all queued batches and close their connections (the end of an ordered stop)."""
        with nogil:
            request_queue_refuse_all(self.queue)

    def __len__(self):
        return atomic_load(&self.queue.depth)

    @property
    def capacity(self):
        """Maximum number of waiting frames."""
        return self.queue.capacity

    @property
    def sleepers(self):
        """Number of threads that wait for a request now, without those that were woken."""
        return number_under(self.queue, &self.queue.sleepers)

    @property
    def helpers(self):
        """Number of network threads that execute requests of the queue now."""
        return number_under(self.queue, &self.queue.helpers) + number_under(self.queue, &self.queue.finishing)

    @property
    def wakeups(self):
        """Number of times that a sleeping taker was woken for a request."""
        return guarded_value(&self.queue.lock, &self.queue.wakeups)

    @property
    def closed(self):
        """True after ``close``."""
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
        """Nanoseconds that all takers together have waited, less those that helping network threads have executed."""
        return atomic_load(&self.queue.idle_ns)

    @property
    def put_blocked_ns(self):
        """Nanoseconds that network threads have waited because the queue was full."""
        return guarded_value(&self.queue.lock, &self.queue.put_blocked_ns)


cdef class RequestExecutor:
    """Executor of request batches on one network thread; compiled classes of a server extend it."""

    def __init__(self):
        raise TypeError("an executor is made by the server whose requests it executes")
