"""Byte budget of the network threads (Kafka's SimpleMemoryPool), and its Python view."""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free, malloc

from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport Clock, borrow_clock, clock_epoch_ms, clock_now_ns, clock_release, clock_retain
from kbroker._core.guarded cimport guarded_value
from kbroker._core.metrics.sensor cimport borrow_sensor
from kbroker._core.metrics.sensor_core cimport SensorCore, sensor_record, sensor_release, sensor_retain
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_load, atomic_store, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)


cdef Pool *pool_new(Clock *clock, int64_t size_bytes, int64_t max_single_bytes, bint strict) noexcept nogil:
    cdef Pool *pool = <Pool *>calloc(1, sizeof(Pool))
    if pool is NULL:
        return NULL
    mutex_init(&pool.lock)
    atomic_store(&pool.refs, 1)
    pool.clock = clock_retain(clock)
    pool.size_bytes = size_bytes
    pool.available = size_bytes
    pool.max_single_bytes = max_single_bytes
    pool.strict = strict
    pool.depleted_since_ns = -1
    return pool


cdef Pool *pool_retain(Pool *pool) noexcept nogil:
    atomic_add_fetch(&pool.refs, 1)
    return pool


cdef void pool_decref(Pool *pool) noexcept nogil:
    if pool is NULL or atomic_add_fetch(&pool.refs, -1) != 0:
        return
    mutex_destroy(&pool.lock)
    sensor_release(<SensorCore *>pool.depletion)
    clock_release(pool.clock)
    free(pool)


cdef inline int64_t end_depletion(Pool *pool) noexcept nogil:
    """Close the depletion that the first refusal opened; return its length, or -1. The caller holds the lock."""
    cdef int64_t depleted_ns
    if pool.depleted_since_ns < 0:
        return -1
    depleted_ns = clock_now_ns(pool.clock) - pool.depleted_since_ns
    pool.depleted_total_ns += depleted_ns
    pool.depletion_count += 1
    pool.depleted_since_ns = -1
    return depleted_ns


cdef inline void record_depletion(Pool *pool, int64_t depleted_ns) noexcept nogil:
    """Record a depletion; the caller does not hold the lock."""
    if depleted_ns >= 0 and pool.depletion is not NULL:
        sensor_record(
            <SensorCore *>pool.depletion, <double>depleted_ns / 1e6, clock_epoch_ms(pool.clock), False, NULL)


cdef bint pool_try_allocate(Pool *pool, int64_t size_bytes) noexcept nogil:
    cdef bint taken
    cdef int64_t depleted_ns = -1
    if pool.size_bytes < 0:
        return True
    mutex_lock(&pool.lock)
    taken = pool.available >= (size_bytes if pool.strict else 1)
    if taken:
        pool.available -= size_bytes
        depleted_ns = end_depletion(pool)
    elif pool.depleted_since_ns < 0:
        pool.depleted_since_ns = clock_now_ns(pool.clock)
    mutex_unlock(&pool.lock)
    record_depletion(pool, depleted_ns)
    return taken


cdef inline void wake_first(Pool *pool) noexcept nogil:
    """Wake the first waiter if bytes are free; the caller holds the lock."""
    cdef PoolWaiter *first = <PoolWaiter *>atomic_load(&pool.first_waiter)
    if first is not NULL and pool.available > 0:
        first.wake(first.arg)


cdef void pool_enqueue_waiter(Pool *pool, PoolWaiter *waiter) noexcept nogil:
    if waiter.is_queued:
        return
    mutex_lock(&pool.lock)
    waiter.is_queued = True
    waiter.next = NULL
    waiter.prev = pool.last_waiter
    if waiter.prev is NULL:
        atomic_store(&pool.first_waiter, <int64_t>waiter)
    else:
        waiter.prev.next = waiter
    pool.last_waiter = waiter
    wake_first(pool)            # bytes freed since the refusal woke no loop
    mutex_unlock(&pool.lock)


cdef void pool_dequeue_waiter(Pool *pool, PoolWaiter *waiter) noexcept nogil:
    if not waiter.is_queued:
        return
    mutex_lock(&pool.lock)
    waiter.is_queued = False
    if waiter.next is NULL:
        pool.last_waiter = waiter.prev
    else:
        waiter.next.prev = waiter.prev
    if waiter.prev is NULL:
        atomic_store(&pool.first_waiter, <int64_t>waiter.next)
        wake_first(pool)
    else:
        waiter.prev.next = waiter.next
    mutex_unlock(&pool.lock)


cdef bint pool_is_next(Pool *pool, PoolWaiter *waiter) noexcept nogil:
    cdef int64_t first
    if pool.size_bytes < 0:
        return True
    first = atomic_load(&pool.first_waiter)
    return first == 0 or first == <int64_t>waiter


cdef void pool_free(Pool *pool, int64_t size_bytes) noexcept nogil:
    cdef int64_t depleted_ns
    if pool.size_bytes < 0:
        return
    mutex_lock(&pool.lock)
    pool.available += size_bytes
    depleted_ns = end_depletion(pool)
    wake_first(pool)
    mutex_unlock(&pool.lock)
    record_depletion(pool, depleted_ns)


cdef int64_t pool_available(Pool *pool) noexcept nogil:
    cdef int64_t available
    if pool.size_bytes < 0:
        return INT64_MAX
    mutex_lock(&pool.lock)
    available = pool.available
    mutex_unlock(&pool.lock)
    return available


cdef bint pool_is_out_of_memory(Pool *pool) noexcept nogil:
    return pool_available(pool) <= 0


cdef bint pool_is_low(Pool *pool) noexcept nogil:
    return pool.size_bytes >= 0 and pool_available(pool) < pool.size_bytes // 10


@cython.final
cdef class MemoryPool:
    """A byte budget that lends buffers while any of it is left.

    Not strict (the default, as in Kafka's production pool): a request succeeds while at least one byte is left, so
    ``available_bytes`` may go below zero by less than ``max_single_bytes``. Strict: a request succeeds only if as many
    bytes as it needs are left.

    Args:
        size_bytes: the whole budget, >= 1. ``MemoryPool.unlimited()`` makes one without a budget.
        max_single_bytes: the largest single buffer, 1 to size_bytes; None means size_bytes.
        strict: see above.
        clock: measures depletions; None is the process's system clock.
        depletion: a Sensor that records the length of each depletion in milliseconds (Kafka's MemoryPoolUtilization).
    Raises: ValueError for sizes outside these ranges, TypeError for other types.
    Threads: any.
    Source: KIP-72, ``SimpleMemoryPool``, ``GarbageCollectedMemoryPool`` (double release).
    """

    def __cinit__(self, size_bytes, max_single_bytes=None, *, bint strict=False, clock=None, depletion=None):
        cdef int64_t size = integer(size_bytes, "size_bytes", 1, INT64_MAX)
        cdef int64_t single = size
        if max_single_bytes is not None:
            single = integer(max_single_bytes, "max_single_bytes", 1, size)
        self.pool = pool_new(borrow_clock(clock), size, single, strict)
        if self.pool is NULL:
            raise MemoryError
        if depletion is not None:
            self.pool.depletion = <void *>sensor_retain(borrow_sensor(depletion))

    def __dealloc__(self):
        pool_decref(self.pool)

    @staticmethod
    def unlimited(clock=None):
        """Create a pool without a limit, which counts nothing (``MemoryPool.NONE``)."""
        cdef MemoryPool self = MemoryPool.__new__(MemoryPool, 1, clock=clock)
        self.pool.size_bytes = -1
        self.pool.max_single_bytes = INT64_MAX
        return self

    def try_allocate(self, size):
        """Lend a buffer of exactly ``size`` bytes (contents undefined), or return None while the pool is depleted.

        The borrower must call ``release``; a buffer that is garbage collected first returns its bytes too.
        Raises: ValueError unless 1 <= size <= max_single_bytes; TypeError; MemoryError.
        """
        cdef PooledBuffer lent
        cdef bint taken
        cdef int64_t wanted = integer(size, "size", 1, self.pool.max_single_bytes)
        with nogil:
            taken = pool_try_allocate(self.pool, wanted)
        if not taken:
            return None
        lent = PooledBuffer.__new__(PooledBuffer)
        lent.data = <char *>malloc(wanted)
        if lent.data is NULL:
            with nogil:
                pool_free(self.pool, wanted)
            raise MemoryError
        lent.size = wanted
        lent.pool = pool_retain(self.pool)
        return lent

    @property
    def size_bytes(self):
        """The whole budget; -1 when unlimited."""
        return self.pool.size_bytes

    @property
    def max_single_bytes(self):
        """The largest single buffer."""
        return self.pool.max_single_bytes

    @property
    def available_bytes(self):
        """Bytes left: may be below zero when not strict; 2**63 - 1 when unlimited."""
        cdef int64_t n
        with nogil:
            n = pool_available(self.pool)
        return n

    @property
    def is_out_of_memory(self):
        """True when nothing is left."""
        cdef bint out
        with nogil:
            out = pool_is_out_of_memory(self.pool)
        return out

    @property
    def is_low(self):
        """True when a limited pool has less than a tenth of its size left."""
        cdef bint low
        with nogil:
            low = pool_is_low(self.pool)
        return low

    @property
    def depleted_ns(self):
        """Nanoseconds of all depletions that ended: from a refusal to the next success or release."""
        return guarded_value(&self.pool.lock, &self.pool.depleted_total_ns)

    @property
    def depletion_count(self):
        """Number of depletions that have ended."""
        return guarded_value(&self.pool.lock, &self.pool.depletion_count)


@cython.final
@cython.no_gc                       # no cycle: it holds a counted C struct only
cdef class PooledBuffer:
    """Writable memory lent by a pool; read and write it through ``memoryview``. Made by ``MemoryPool.try_allocate``."""

    cdef:
        Pool *pool                  # counted until release
        char *data                  # owned
        Py_ssize_t size
        Py_ssize_t exports

    def __init__(self):
        raise TypeError("a PooledBuffer comes from MemoryPool.try_allocate")

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.data is NULL:
            raise ValueError("the buffer was released")
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    def release(self):
        """Return the bytes to the pool.

        Raises: ValueError when it was released before; BufferError while a memoryview of it is alive.
        """
        if self.data is NULL:
            raise ValueError("the buffer was released")
        if self.exports:
            raise BufferError(f"{self.exports} view(s) of the buffer are alive")
        self.give_back()

    cdef void give_back(self) noexcept:
        cdef Pool *pool = self.pool
        cdef Py_ssize_t size = self.size
        free(self.data)
        self.data = NULL
        self.pool = NULL
        with nogil:
            pool_free(pool, size)
            pool_decref(pool)

    def __dealloc__(self):
        if self.data is not NULL:
            self.give_back()
