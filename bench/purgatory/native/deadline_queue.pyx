"""Blocking queue ordered by deadline."""
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from kbroker._core.clock cimport Clock, clock_now_ns, clock_wait_until
from kbroker._core.sync cimport (
    cond_destroy, cond_init, cond_signal, mutex_destroy, mutex_init, mutex_lock_spinning, mutex_unlock,
)

cdef enum:
    NS_PER_MS = 1000000
    FIRST_ROOM = 1024
    LINE = 64                   # bytes of a cache line


cdef void deadline_queue_init(DeadlineQueue *queue, Clock *clock) noexcept nogil:
    mutex_init(&queue.lock)
    cond_init(&queue.earlier)
    queue.clock = clock
    queue.memory = queue.next_item = NULL
    queue.heap = NULL
    queue.count = queue.room = 0
    queue.waiting = queue.closed = False


cdef void deadline_queue_destroy(DeadlineQueue *queue) noexcept nogil:
    free(queue.memory)
    cond_destroy(&queue.earlier)
    mutex_destroy(&queue.lock)


cdef inline void sift_down(DeadlineQueue *queue, int64_t i, DeadlineItem item) noexcept nogil:
    cdef int64_t child, k, last
    while True:
        child = 4 * i + 1
        if child >= queue.count:
            break
        last = min(child + 4, queue.count)
        for k in range(child + 1, last):
            if queue.heap[k].at_ms < queue.heap[child].at_ms:
                child = k
        if item.at_ms <= queue.heap[child].at_ms:
            break
        queue.heap[i] = queue.heap[child]
        i = child
    queue.heap[i] = item


cdef bint grow(DeadlineQueue *queue) noexcept nogil:
    cdef int64_t room = queue.room * 2 if queue.room else FIRST_ROOM
    cdef void *memory = malloc(room * sizeof(DeadlineItem) + 2 * LINE)
    cdef DeadlineItem *heap
    if memory is NULL:
        return False
    # item 1, and so each group of children, begins a cache line
    heap = <DeadlineItem *>((<uintptr_t>memory + 2 * LINE - 1) // LINE * LINE) - 1
    if queue.count:
        memcpy(heap, queue.heap, queue.count * sizeof(DeadlineItem))
    free(queue.memory)
    queue.memory = memory
    queue.heap = heap
    queue.room = room
    return True


cdef bint deadline_queue_add(DeadlineQueue *queue, int64_t at_ms, void *item) noexcept nogil:
    cdef int64_t i, parent
    cdef bint is_first, waiting
    mutex_lock_spinning(&queue.lock)
    if queue.count == queue.room and not grow(queue):
        mutex_unlock(&queue.lock)
        return False
    i = queue.count
    queue.count += 1
    while i > 0:
        parent = (i - 1) // 4
        if queue.heap[parent].at_ms <= at_ms:
            break
        queue.heap[i] = queue.heap[parent]
        i = parent
    queue.heap[i].at_ms = at_ms
    queue.heap[i].item = item
    is_first = i == 0
    waiting = queue.waiting
    mutex_unlock(&queue.lock)
    if is_first and waiting:
        cond_signal(&queue.earlier)
    return True


cdef void *pop_first(DeadlineQueue *queue) noexcept nogil:
    cdef void *item = queue.heap[0].item
    queue.count -= 1
    if queue.count > 0:
        sift_down(queue, 0, queue.heap[queue.count])
    return item


cdef void *deadline_queue_poll(DeadlineQueue *queue, int64_t timeout_ms) noexcept nogil:
    cdef int64_t give_up_ns = 0, now_ns, wake_ns
    cdef void *item = NULL
    mutex_lock_spinning(&queue.lock)
    while not queue.closed:
        now_ns = clock_now_ns(queue.clock)
        if queue.count > 0 and queue.heap[0].at_ms * NS_PER_MS <= now_ns:
            item = pop_first(queue)
            queue.next_item = queue.heap[0].item if queue.count > 0 else NULL
            break
        if give_up_ns == 0:
            give_up_ns = now_ns + timeout_ms * NS_PER_MS
        if now_ns >= give_up_ns:
            break
        wake_ns = give_up_ns
        if queue.count > 0:
            wake_ns = min(wake_ns, queue.heap[0].at_ms * NS_PER_MS)
        queue.waiting = True
        clock_wait_until(queue.clock, &queue.earlier, &queue.lock, wake_ns)
        queue.waiting = False
    mutex_unlock(&queue.lock)
    return item


cdef void *deadline_queue_take_any(DeadlineQueue *queue) noexcept nogil:
    cdef void *item = NULL
    mutex_lock_spinning(&queue.lock)
    if queue.count > 0:
        item = pop_first(queue)
    mutex_unlock(&queue.lock)
    return item


cdef int64_t deadline_queue_purge(
        DeadlineQueue *queue, bint (*is_closed)(void *item) noexcept nogil, void (*drop)(void *item) noexcept nogil
) noexcept nogil:
    cdef int64_t i, kept = 0, dropped
    mutex_lock_spinning(&queue.lock)
    for i in range(queue.count):
        if is_closed(queue.heap[i].item):
            drop(queue.heap[i].item)
        else:
            queue.heap[kept] = queue.heap[i]
            kept += 1
    dropped = queue.count - kept
    queue.count = kept
    if dropped > 0:
        for i in range((kept + 2) // 4, -1, -1):
            if i < kept:
                sift_down(queue, i, queue.heap[i])
    mutex_unlock(&queue.lock)
    return dropped


cdef void deadline_queue_close(DeadlineQueue *queue) noexcept nogil:
    mutex_lock_spinning(&queue.lock)
    queue.closed = True
    mutex_unlock(&queue.lock)
    cond_signal(&queue.earlier)
