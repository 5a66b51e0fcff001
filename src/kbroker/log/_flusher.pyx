"""The flusher: threads that fsync partitions with appends waiting for the disk, each partition by one thread at a time.

A partition is queued at most once. An append during its flush queues it again, so that every wait is covered by an
fsync that began after the data was written, and all appends during one fsync share the next.
Lock: ``Flusher.lock``, a leaf; never held across a flush, and no partition lock is taken under it.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from kbroker._core.sync cimport (
    AtomicI64, Cond, Mutex, atomic_add_fetch, atomic_load, atomic_store, cond_broadcast, cond_destroy, cond_init,
    cond_signal, cond_wait, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.log._partition cimport (
    Partition, partition_flush, partition_log_end_offset, partition_release, partition_retain, partition_set_dirty_hook,
)
from kbroker.log._partition_log cimport PartitionLog

import os
import threading

cdef enum:
    FLUSHER_SLOTS = 1024

cdef struct FlushItem:              # a partition that is queued, being flushed, or both
    FlushItem *chain                # next item of its slot
    FlushItem *next                 # next item in the queue
    Partition *partition            # counted
    bint running                    # a thread flushes it
    bint again                      # marked again while running

cdef struct Flusher:
    AtomicI64 refs              # one for the Python handle, and for every partition whose hook points here
    Mutex lock
    Cond work
    FlushItem *head             # queued, in order of arrival
    FlushItem *tail
    FlushItem *slots[FLUSHER_SLOTS]     # all items, by partition
    int64_t queued
    int32_t sleepers
    bint closed
    AtomicI64 flushes
    AtomicI64 failures


cdef Flusher *flusher_new() noexcept nogil:
    cdef Flusher *flusher = <Flusher *>calloc(1, sizeof(Flusher))
    if flusher == NULL:
        return NULL
    atomic_store(&flusher.refs, 1)
    mutex_init(&flusher.lock)
    cond_init(&flusher.work)
    return flusher


cdef Flusher *flusher_retain(Flusher *flusher) noexcept nogil:
    atomic_add_fetch(&flusher.refs, 1)
    return flusher


cdef void flusher_release(Flusher *flusher) noexcept nogil:
    cdef FlushItem *item
    cdef int32_t i
    if flusher == NULL or atomic_add_fetch(&flusher.refs, -1) > 0:
        return
    for i in range(FLUSHER_SLOTS):
        while flusher.slots[i] != NULL:     # remain only if no thread ever ran
            item = flusher.slots[i]
            flusher.slots[i] = item.chain
            partition_release(item.partition)
            free(item)
    cond_destroy(&flusher.work)
    mutex_destroy(&flusher.lock)
    free(flusher)


cdef inline FlushItem **slot_of(Flusher *flusher, Partition *partition) noexcept nogil:
    cdef uint64_t address = <uint64_t><uintptr_t>partition
    return &flusher.slots[((address * <uint64_t>0x9E3779B97F4A7C15) >> 32) & (FLUSHER_SLOTS - 1)]


cdef void enqueue(Flusher *flusher, FlushItem *item) noexcept nogil:
    """Append an item to the queue; under the lock."""
    item.next = NULL
    if flusher.tail != NULL:
        flusher.tail.next = item
    else:
        flusher.head = item
    flusher.tail = item
    flusher.queued += 1
    if flusher.sleepers > 0:
        cond_signal(&flusher.work)


cdef bint flusher_mark(Flusher *flusher, Partition *partition) noexcept nogil:
    """Queue the partition for one more flush, up to its current end, for a request that waits for its data.

    Returns: False if the flusher is closed or out of memory; the caller then flushes by itself.
    """
    cdef FlushItem **slot = slot_of(flusher, partition)
    cdef FlushItem *item
    cdef bint taken = True
    mutex_lock(&flusher.lock)
    item = slot[0]
    while item != NULL and item.partition != partition:
        item = item.chain
    if flusher.closed:
        taken = False
    elif item != NULL:
        if item.running:
            item.again = True
    else:
        item = <FlushItem *>calloc(1, sizeof(FlushItem))
        if item == NULL:
            taken = False
        else:
            item.partition = partition_retain(partition)
            item.chain = slot[0]
            slot[0] = item
            enqueue(flusher, item)
    mutex_unlock(&flusher.lock)
    return taken


cdef void forget(Flusher *flusher, FlushItem *item) noexcept nogil:
    """Remove an item from its slot; under the lock."""
    cdef FlushItem **link = slot_of(flusher, item.partition)
    while link[0] != item:
        link = &link[0].chain
    link[0] = item.chain


cdef void flusher_run(Flusher *flusher) noexcept nogil:
    """Flush queued partitions, as the body of a thread, until the flusher is closed and its queue is empty."""
    cdef FlushItem *item
    mutex_lock(&flusher.lock)
    while True:
        while flusher.head == NULL and not flusher.closed:
            flusher.sleepers += 1
            cond_wait(&flusher.work, &flusher.lock)
            flusher.sleepers -= 1
        item = flusher.head
        if item == NULL:
            break
        flusher.head = item.next
        if flusher.head == NULL:
            flusher.tail = NULL
        flusher.queued -= 1
        item.running = True
        mutex_unlock(&flusher.lock)
        atomic_add_fetch(&flusher.flushes, 1)
        # A failure takes the partition offline and responds to the requests that wait; nothing is retried here.
        if partition_flush(item.partition, partition_log_end_offset(item.partition)) != 0:
            atomic_add_fetch(&flusher.failures, 1)
        mutex_lock(&flusher.lock)
        item.running = False
        if item.again:
            item.again = False
            enqueue(flusher, item)
        else:
            forget(flusher, item)
            mutex_unlock(&flusher.lock)
            partition_release(item.partition)   # may be the last count, which closes files
            free(item)
            mutex_lock(&flusher.lock)
    mutex_unlock(&flusher.lock)


cdef void flusher_close(Flusher *flusher) noexcept nogil:
    mutex_lock(&flusher.lock)
    flusher.closed = True
    cond_broadcast(&flusher.work)
    mutex_unlock(&flusher.lock)


cdef void on_dirty(void *arg, Partition *partition) noexcept nogil:
    if not flusher_mark(<Flusher *>arg, partition):
        partition_flush(partition, partition_log_end_offset(partition))


@cython.final
@cython.no_gc
cdef class FlusherPool:
    """Flusher threads of a broker.

    Args: ``threads``: number of partitions that may be flushed at the same time, 1 to 64.
    Threads: any; waits release the GIL.
    """
    cdef:
        Flusher *flusher        # counted
        list threads
        set attached            # partitions whose hook points here; each holds a count on the flusher
        int64_t pid

    def __cinit__(self, threads=1):
        if not isinstance(threads, int):
            raise TypeError(f"threads must be an int, got {type(threads).__name__}")
        if not 1 <= threads <= 64:
            raise ValueError(f"threads must be in [1, 64], got {threads}")
        self.threads = []
        self.attached = set()
        self.pid = os.getpid()
        self.flusher = flusher_new()
        if self.flusher == NULL:
            raise MemoryError
        for i in range(threads):
            self.threads.append(threading.Thread(target=_run, args=(_Lease.of(self),), name=f"log-flusher-{i}",
                                                 daemon=True))

    def __dealloc__(self):
        # In a child made by fork a thread of the parent may hold the lock forever, so the memory is not freed.
        if self.flusher != NULL and os.getpid() == self.pid:
            flusher_close(self.flusher)
            flusher_release(self.flusher)

    def start(self):
        for thread in self.threads:
            thread.start()

    def attach(self, PartitionLog log not None):
        """Flush this partition whenever an append waits for the disk."""
        if log.partition == NULL:
            raise ValueError("the partition is closed")
        if log not in self.attached:
            self.attached.add(log)
            flusher_retain(self.flusher)
            partition_set_dirty_hook(log.partition, on_dirty, self.flusher)

    def detach(self, PartitionLog log not None):
        """Stop flushing this partition. Call it when no thread appends to it any more."""
        if log in self.attached:
            self.attached.remove(log)
            if log.partition != NULL:
                partition_set_dirty_hook(log.partition, NULL, NULL)
            flusher_release(self.flusher)

    def refuse_appends(self, PartitionLog log not None):
        """Refuse every append with KAFKA_STORAGE_ERROR until the partition is opened again; reads continue."""
        if log.partition != NULL:
            atomic_store(&log.partition.is_failed, 1)

    def mark(self, PartitionLog log not None):
        """Queue a flush of all records appended so far. Returns: False once closed."""
        cdef bint taken
        cdef Partition *partition = log.partition
        if partition == NULL:
            raise ValueError("the partition is closed")
        with nogil:
            taken = flusher_mark(self.flusher, partition)
        return taken

    @property
    def flushes(self):
        return atomic_load(&self.flusher.flushes)

    @property
    def failures(self):
        return atomic_load(&self.flusher.failures)

    def close(self, timeout_s=10.0):
        """Flush the queued partitions, then end the threads. Returns: False if they did not end in time."""
        with nogil:
            flusher_close(self.flusher)
        for thread in self.threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self.threads)


@cython.final
@cython.no_gc
cdef class _Lease:
    """Count of a thread, which may outlive the pool's handle."""
    cdef Flusher *flusher

    @staticmethod
    cdef _Lease of(FlusherPool pool):
        cdef _Lease lease = _Lease.__new__(_Lease)
        lease.flusher = flusher_retain(pool.flusher)
        return lease

    def __dealloc__(self):
        flusher_release(self.flusher)


def _run(_Lease lease not None):
    cdef Flusher *flusher = lease.flusher
    with nogil:
        flusher_run(flusher)
