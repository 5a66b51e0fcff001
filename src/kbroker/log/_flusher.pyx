"""The flusher of a log folder: a thread that fsyncs the folder's partitions whose appends wait for the disk.

A partition is queued at most once. An append during its flush queues it again, so that every wait is covered by an
fsync that began after the data was written, and all appends during one fsync share the next. An fsync that hangs
delays the partitions of its folder only. A partition that is moved gets the flusher of its new folder (``attach``, then
``mark``, which covers the records that the former flusher has not flushed).
Lock: ``FlushQueue.lock``, a leaf; never held across a flush, and no partition lock is taken under it.
"""
cimport cython
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from kbroker._core.sync cimport (
    AtomicI64, Cond, Mutex, atomic_add_fetch, atomic_load, atomic_store, atomic_swap, cond_destroy, cond_init,
    cond_signal, cond_wait, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.log._partition cimport (
    Partition, call_hook, partition_flush, partition_log_end_offset, partition_release, partition_retain,
    partition_set_dirty_hook,
)
from kbroker.log._partition_log cimport PartitionLog

from functools import partial
import os

from kbroker.common.threads import have_ended, new_thread

cdef enum:
    QUEUE_SLOTS = 1024

cdef struct FlushItem:              # a partition in the queue
    FlushItem *chain                # next item of its slot
    FlushItem *next                 # next item in the queue
    Partition *partition            # counted

cdef struct FlushQueue:
    AtomicI64 refs              # one each for the Python handle, the thread, and every partition whose hook points here
    Mutex lock
    Cond work
    FlushItem *head             # in order of arrival
    FlushItem *tail
    FlushItem *slots[QUEUE_SLOTS]       # all items, by partition
    bint closed
    AtomicI64 flushes
    AtomicI64 failures


cdef FlushQueue *queue_new() noexcept nogil:
    cdef FlushQueue *queue = <FlushQueue *>calloc(1, sizeof(FlushQueue))
    if queue == NULL:
        return NULL
    atomic_store(&queue.refs, 1)
    mutex_init(&queue.lock)
    cond_init(&queue.work)
    return queue


cdef FlushQueue *queue_retain(FlushQueue *queue) noexcept nogil:
    atomic_add_fetch(&queue.refs, 1)
    return queue


cdef void queue_release(FlushQueue *queue) noexcept nogil:
    cdef FlushItem *item
    if queue == NULL or atomic_add_fetch(&queue.refs, -1) > 0:
        return
    while queue.head != NULL:       # items remain only if no thread ever ran
        item = queue.head
        queue.head = item.next
        partition_release(item.partition)
        free(item)
    cond_destroy(&queue.work)
    mutex_destroy(&queue.lock)
    free(queue)


cdef inline FlushItem **slot_of(FlushQueue *queue, Partition *partition) noexcept nogil:
    cdef uint64_t address = <uint64_t><uintptr_t>partition
    return &queue.slots[((address * <uint64_t>0x9E3779B97F4A7C15) >> 32) & (QUEUE_SLOTS - 1)]


cdef bint queue_mark(FlushQueue *queue, Partition *partition) noexcept nogil:
    """Queue a flush of all records that the partition has now, for a request that waits for the disk.

    Returns: False if the flusher is closed or out of memory; the caller then flushes the partition itself.
    """
    cdef FlushItem **slot = slot_of(queue, partition)
    cdef FlushItem *item
    cdef bint taken = True
    mutex_lock(&queue.lock)
    item = slot[0]
    while item != NULL and item.partition != partition:
        item = item.chain
    if queue.closed:
        taken = False
    elif item == NULL:
        item = <FlushItem *>calloc(1, sizeof(FlushItem))
        if item == NULL:
            taken = False
        else:
            item.partition = partition_retain(partition)
            item.chain = slot[0]
            slot[0] = item
            if queue.head == NULL:
                queue.head = item
                cond_signal(&queue.work)
            else:
                queue.tail.next = item
            queue.tail = item
    mutex_unlock(&queue.lock)
    return taken


cdef FlushItem *take_first(FlushQueue *queue) noexcept nogil:
    """Remove the first item from the queue and its slot, or return NULL; under the lock."""
    cdef FlushItem *item = queue.head
    cdef FlushItem **link
    if item == NULL:
        return NULL
    queue.head = item.next
    link = slot_of(queue, item.partition)
    while link[0] != item:
        link = &link[0].chain
    link[0] = item.chain
    return item


cdef bint has_other_flusher(FlushQueue *queue, Partition *partition) noexcept nogil:
    cdef void *owner
    mutex_lock(&partition.view_lock)
    owner = partition.on_dirty_arg
    mutex_unlock(&partition.view_lock)
    return owner != NULL and owner != queue


cdef void flush_partition(FlushQueue *queue, Partition *partition) noexcept nogil:
    cdef int64_t end = partition_log_end_offset(partition)      # read first: another flusher may handle later records
    if has_other_flusher(queue, partition):
        return
    atomic_add_fetch(&queue.flushes, 1)
    # After a failure the partition refuses appends and its waiting requests complete; nothing is retried here.
    if partition_flush(partition, end) != 0:
        atomic_add_fetch(&queue.failures, 1)


cdef void queue_run(FlushQueue *queue) noexcept nogil:
    """Flush queued partitions until the queue is closed and empty: the body of the thread."""
    cdef FlushItem *item
    mutex_lock(&queue.lock)
    while True:
        while queue.head == NULL and not queue.closed:
            cond_wait(&queue.work, &queue.lock)
        item = take_first(queue)
        if item == NULL:
            break
        mutex_unlock(&queue.lock)
        flush_partition(queue, item.partition)
        partition_release(item.partition)   # maybe the last reference, whose release closes files
        free(item)
        mutex_lock(&queue.lock)
    mutex_unlock(&queue.lock)


cdef void queue_close(FlushQueue *queue) noexcept nogil:
    mutex_lock(&queue.lock)
    queue.closed = True
    cond_signal(&queue.work)
    mutex_unlock(&queue.lock)


cdef void on_dirty(void *arg, Partition *partition) noexcept nogil:
    if not queue_mark(<FlushQueue *>arg, partition):
        partition_flush(partition, partition_log_end_offset(partition))


@cython.final
@cython.no_gc
cdef class Flusher:
    """Flusher of a log folder. Threads: any; waits release the GIL."""
    cdef:
        FlushQueue *queue       # counted
        object thread           # None before the start
        set attached            # the attached partitions; each holds a reference to the queue
        int64_t pid

    def __cinit__(self):
        self.attached = set()
        self.pid = os.getpid()
        self.queue = queue_new()
        if self.queue == NULL:
            raise MemoryError

    def __dealloc__(self):
        # In a child made by fork a thread of the parent may hold the lock forever, so the memory is not freed.
        if self.queue != NULL and os.getpid() == self.pid:
            queue_close(self.queue)
            queue_release(self.queue)

    def start(self, str name not None):
        """Start the thread. Raises: RuntimeError if the system cannot create one."""
        self.thread = new_thread(name, partial(_run, _Lease.of(self)))
        self.thread.start()

    def attach(self, PartitionLog log not None):
        """Flush this partition whenever an append waits for the disk, in place of its former flusher.

        Raises: ValueError for a closed partition.
        """
        if log.partition == NULL:
            raise ValueError("the partition is closed")
        if log not in self.attached:
            self.attached.add(log)
            queue_retain(self.queue)
        partition_set_dirty_hook(log.partition, on_dirty, self.queue)

    def detach(self, PartitionLog log not None):
        """Stop flushing this partition. Call it when no thread appends to it, or after it got another flusher."""
        if log in self.attached:
            self.attached.remove(log)
            if log.partition != NULL and not has_other_flusher(self.queue, log.partition):
                partition_set_dirty_hook(log.partition, NULL, NULL)
            queue_release(self.queue)

    def refuse_appends(self, PartitionLog log not None):
        """Refuse every append with KAFKA_STORAGE_ERROR until the partition is opened again; reads continue.

        Requests that wait for the disk get that error now: the flusher may be in an fsync of another partition.
        """
        if log.partition != NULL and atomic_swap(&log.partition.is_failed, 1) == 0:
            with nogil:
                call_hook(log.partition, False)

    def mark(self, PartitionLog log not None):
        """Queue a flush of all records appended so far; False if the flusher is closed, or out of memory.

        Raises: ValueError for a closed partition.
        """
        cdef bint taken
        cdef Partition *partition = log.partition
        if partition == NULL:
            raise ValueError("the partition is closed")
        with nogil:
            taken = queue_mark(self.queue, partition)
        return taken

    @property
    def flushes(self):
        return atomic_load(&self.queue.flushes)

    @property
    def failures(self):
        return atomic_load(&self.queue.failures)

    def close(self, timeout_s=10.0):
        """Flush the queued partitions, then end the thread. Returns: False if it did not end in time."""
        with nogil:
            queue_close(self.queue)
        return self.thread is None or have_ended([self.thread], timeout_s)


@cython.final
@cython.no_gc
cdef class _Lease:
    """The thread's reference to the queue, which may outlive the Flusher."""
    cdef FlushQueue *queue

    @staticmethod
    cdef _Lease of(Flusher flusher):
        cdef _Lease lease = _Lease.__new__(_Lease)
        lease.queue = queue_retain(flusher.queue)
        return lease

    def __dealloc__(self):
        queue_release(self.queue)


def _run(_Lease lease not None):
    cdef FlushQueue *queue = lease.queue
    with nogil:
        queue_run(queue)
