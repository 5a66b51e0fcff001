"""Failures counted by partition. See _failures.pxd."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport strcmp, strdup, strlen, strncmp
from kbroker._core.sync cimport AtomicI64, Mutex, atomic_load, atomic_store, mutex_init, mutex_lock, mutex_unlock
from kbroker.log._partition cimport Partition

import os

cdef enum:
    SLOTS = 256  # partitions with a failure since the last call; failures of others are counted for one of these

cdef struct FailureCount:
    char *path                  # owned: the partition's folder; NULL: free
    Failed kind
    int32_t error
    int64_t count

cdef Mutex failures_lock
cdef FailureCount failures[SLOTS]
cdef AtomicI64 failures_used    # number of slots in use, from the first on

mutex_init(&failures_lock)
atomic_store(&failures_used, 0)

KINDS = ("append", "read", "sync")     # indexed by Failed


cdef void count_failure(Partition *partition, Failed kind, int32_t error) noexcept nogil:
    cdef FailureCount *slot
    cdef int64_t i, used
    if partition.directory is NULL:
        return
    mutex_lock(&failures_lock)
    used = atomic_load(&failures_used)
    for i in range(used):
        slot = &failures[i]
        if slot.kind == kind and slot.error == error and strcmp(slot.path, partition.directory.path) == 0:
            slot.count += 1
            mutex_unlock(&failures_lock)
            return
    slot = &failures[used if used < SLOTS else SLOTS - 1]
    if used < SLOTS:
        slot.path = strdup(partition.directory.path)
        if slot.path is not NULL:
            slot.kind = kind
            slot.error = error
            slot.count = 1
            atomic_store(&failures_used, used + 1)
    else:
        slot.count += 1
    mutex_unlock(&failures_lock)


def take_failures(str folder not None):
    cdef FailureCount taken[SLOTS]
    cdef bytes prefix = os.fsencode(folder).rstrip(b"/") + b"/"
    cdef const char *start = prefix
    cdef size_t start_bytes = strlen(start)
    cdef int64_t i, kept = 0, count = 0, used
    if atomic_load(&failures_used) == 0:
        return []
    with nogil:
        mutex_lock(&failures_lock)
        used = atomic_load(&failures_used)
        for i in range(used):
            if strncmp(failures[i].path, start, start_bytes) == 0:
                taken[count] = failures[i]
                count += 1
            else:
                failures[kept] = failures[i]
                kept += 1
        atomic_store(&failures_used, kept)
        mutex_unlock(&failures_lock)
    found = []
    for i in range(count):
        name = os.path.basename(os.fsdecode(taken[i].path))
        found.append((name, KINDS[<int>taken[i].kind], taken[i].error, taken[i].count))
        free(taken[i].path)
    return found
