"""The memory of this process, and the return of unused memory to the system."""
from libc.stdint cimport int64_t
from libc.stdlib cimport free

from kbroker._core.process_usage cimport kb_resident_bytes
from kbroker._core.sync cimport Mutex, mutex_init, mutex_lock, mutex_unlock
from kbroker._core.thread_setup cimport kb_name_thread

cdef extern from "allocator.h" nogil:
    void *kb_arena_token()
    bint kb_share_arena(const void *a, const void *b)
    void kb_release_free_memory(void **tokens, int count)

cdef enum:
    MOST_ARENAS = 1024              # glibc makes eight for each core

cdef Mutex arenas_lock              # guards the two below; held while memory is released, which replaces the tokens
cdef void *arenas[MOST_ARENAS]      # a token of each arena that threads have noted, until the process ends
cdef int arenas_used = 0

mutex_init(&arenas_lock)


def resident_bytes():
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    cdef int64_t found
    with nogil:
        found = kb_resident_bytes()
    return found


cdef void note_arena() noexcept nogil:
    global arenas_used
    cdef void *token = kb_arena_token()
    cdef int i
    if token is NULL:
        return
    mutex_lock(&arenas_lock)
    for i in range(arenas_used):
        if kb_share_arena(arenas[i], token):
            break
    else:
        if arenas_used < MOST_ARENAS:
            arenas[arenas_used] = token
            arenas_used += 1
            token = NULL
    mutex_unlock(&arenas_lock)
    free(token)


def note_thread(str name not None):
    """Name the calling thread, and include the memory that the allocator keeps for it in ``release_free_memory``.

    Args: name: shown by ps, top, perf and debuggers; Linux shows its first 15 bytes.
    Threads: each one as it begins. The arena outlives its thread, and a later thread uses it.
    """
    cdef bytes encoded = name.encode()
    kb_name_thread(encoded)
    with nogil:
        note_arena()


def release_free_memory():
    """Return the free pages that the allocator keeps to the operating system (glibc only; else without effect).

    Up to 4 MiB stay at the end of the arena of each thread that did not call ``note_thread``.
    Threads: any, without the GIL; threads that allocate from an arena wait while its pages are returned.
    """
    with nogil:
        mutex_lock(&arenas_lock)
        kb_release_free_memory(arenas, arenas_used)
        mutex_unlock(&arenas_lock)
