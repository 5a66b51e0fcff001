"""Flushes of appended data to disk, for the requests that wait for them; many producers share one fsync.

Lock: ``Flusher.lock``, a leaf; never held across a flush, and no partition lock is taken under it.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.sync cimport AtomicI64, Cond, Mutex
from kbroker.log._partition cimport Partition

cdef enum:
    FLUSHER_SLOTS = 1024

cdef struct FlushItem           # a partition that is queued, being flushed, or both

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


cdef class FlusherPool:
    cdef:
        Flusher *flusher        # counted
        list threads
        set attached            # partitions whose hook points here; each holds a count on the flusher
        int64_t pid
