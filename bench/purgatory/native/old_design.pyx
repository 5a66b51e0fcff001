"""Purgatory before the timing wheel, for comparison only: kbroker neither packages nor imports it.

A request is in a heap ordered by timeout and in a watch list of each key. A completion marks the request, which stays
in the heap and the lists until the reaper reaches it. When the lists have more entries than the purge interval, pending
and completed together, the reaper scans the heap and all lists.

Locks: the operation's -> a list's; the operation's -> the heap's.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from kbroker._core.clock cimport Clock
from kbroker._core.sync cimport (
    AtomicI64, Mutex, atomic_add_fetch, atomic_cas, atomic_load, atomic_load_seq, atomic_store, mutex_destroy,
    mutex_init, mutex_lock, mutex_lock_spinning, mutex_unlock, prefetch,
)
from purgatory_study.deadline_queue cimport (
    DeadlineQueue, deadline_queue_add, deadline_queue_close, deadline_queue_destroy, deadline_queue_init,
    deadline_queue_poll, deadline_queue_purge, deadline_queue_take_any,
)
from purgatory_study.driver cimport StudyDesign
from purgatory_study.study_request cimport (
    Design, StudyRequest, request_completed, request_expired, request_free, request_is_due,
)

cdef enum:
    NS_PER_MS = 1000000

cdef struct Entry:
    Entry *next
    OldOperation *op            # counted

cdef struct OldOperation:
    AtomicI64 refs              # held by generator, completion queue, heap and each list
    AtomicI64 completed
    AtomicI64 *pending          # of the purgatory
    AtomicI64 counted           # 1 if counted in `pending`
    StudyRequest *request
    Mutex lock
    Entry entries[1]            # one per key

cdef struct EntryList:
    Mutex lock
    Entry *first
    Entry *last

cdef struct OldPurgatory:
    DeadlineQueue timer         # of counted OldOperation
    AtomicI64 watched           # entries of all lists
    AtomicI64 pending
    int64_t purge_interval
    int64_t key_space
    EntryList *lists            # by key


cdef inline StudyRequest *request_of(OldOperation *op) noexcept nogil:
    return op.request


cdef inline OldOperation *operation_of(StudyRequest *request) noexcept nogil:
    return <OldOperation *>request.head


cdef void release_operation(void *item) noexcept nogil:
    cdef OldOperation *op = <OldOperation *>item
    if atomic_add_fetch(&op.refs, -1) == 0:
        mutex_destroy(&op.lock)
        request_free(request_of(op), op)


cdef bint is_completed(void *item) noexcept nogil:
    return atomic_load_seq(&(<OldOperation *>item).completed) != 0


cdef bint win(OldOperation *op) noexcept nogil:
    if not atomic_cas(&op.completed, 0, 1):
        return False
    if atomic_cas(&op.counted, 1, 2):       # by design, the heap is not searched for the operation
        atomic_add_fetch(op.pending, -1)
    request_completed(request_of(op))
    return True


cdef bint try_complete(OldOperation *op) noexcept nogil:
    return request_is_due(request_of(op)) and win(op)


cdef void watch(OldPurgatory *purgatory, OldOperation *op, int32_t index, int64_t key) noexcept nogil:
    cdef EntryList *entries = &purgatory.lists[key]
    cdef Entry *entry = &op.entries[index]
    entry.op = op
    entry.next = NULL
    mutex_lock_spinning(&entries.lock)
    if entries.last is NULL:
        entries.first = entry
    else:
        entries.last.next = entry
    entries.last = entry
    mutex_unlock(&entries.lock)


cdef bint enqueue(Design *design, StudyRequest *request, int64_t *keys, int32_t count) noexcept nogil:
    """Perform the steps of the new design in the same order: test, watch, test again, start the timeout."""
    cdef OldPurgatory *purgatory = <OldPurgatory *>design.state
    cdef OldOperation *op = operation_of(request)
    cdef int32_t i
    cdef bint done
    mutex_lock(&op.lock)
    done = try_complete(op)
    if not done:
        atomic_add_fetch(&op.refs, count)
        for i in range(count):
            watch(purgatory, op, i, keys[i])
        atomic_add_fetch(&purgatory.watched, count)
        done = try_complete(op)
    mutex_unlock(&op.lock)
    if done or is_completed(op):
        return done
    atomic_add_fetch(&op.refs, 1)
    atomic_add_fetch(&purgatory.pending, 1)
    atomic_store(&op.counted, 1)
    if not deadline_queue_add(
            &purgatory.timer, (request.made_ns + NS_PER_MS - 1) // NS_PER_MS + request.run.timeout_ms, op):
        release_operation(op)
    if is_completed(op) and atomic_cas(&op.counted, 1, 2):
        atomic_add_fetch(&purgatory.pending, -1)
    return False


cdef void purge_list(OldPurgatory *purgatory, EntryList *entries, bint everything) noexcept nogil:
    cdef Entry **link
    cdef Entry *here
    cdef Entry *last = NULL
    cdef int64_t dropped = 0
    mutex_lock_spinning(&entries.lock)
    link = &entries.first
    while link[0] is not NULL:
        here = link[0]
        if everything or is_completed(here.op):
            link[0] = here.next
            release_operation(here.op)
            dropped += 1
        else:
            last = here
            link = &here.next
    entries.last = last
    mutex_unlock(&entries.lock)
    atomic_add_fetch(&purgatory.watched, -dropped)


cdef bint turn(Design *design, int64_t timeout_ms) noexcept nogil:
    cdef OldPurgatory *purgatory = <OldPurgatory *>design.state
    cdef bint polled = False
    cdef int64_t i
    cdef OldOperation *op = <OldOperation *>deadline_queue_poll(&purgatory.timer, timeout_ms)
    while op is not NULL:
        polled = True
        prefetch(purgatory.timer.next_item)
        if win(op):
            request_expired(request_of(op))
        release_operation(op)
        op = <OldOperation *>deadline_queue_poll(&purgatory.timer, 0)
    if atomic_load(&purgatory.watched) > purgatory.purge_interval:
        deadline_queue_purge(&purgatory.timer, is_completed, release_operation)
        for i in range(purgatory.key_space):
            purge_list(purgatory, &purgatory.lists[i], False)
    return polled


cdef void prepare(Design *design, StudyRequest *request) noexcept nogil:
    cdef OldOperation *op = operation_of(request)
    atomic_store(&op.refs, 1)
    op.request = request
    op.pending = &(<OldPurgatory *>design.state).pending
    mutex_init(&op.lock)


cdef void retain(StudyRequest *request) noexcept nogil:
    atomic_add_fetch(&operation_of(request).refs, 1)


cdef void release(StudyRequest *request) noexcept nogil:
    release_operation(operation_of(request))


cdef bint force_complete(StudyRequest *request) noexcept nogil:
    return win(operation_of(request))


cdef int64_t pending(Design *design) noexcept nogil:
    return atomic_load(&(<OldPurgatory *>design.state).pending)


cdef void stop(Design *design) noexcept nogil:
    deadline_queue_close(&(<OldPurgatory *>design.state).timer)


cdef void free_design(Design *design) noexcept nogil:
    cdef OldPurgatory *purgatory = <OldPurgatory *>design.state
    cdef void *op = deadline_queue_take_any(&purgatory.timer)
    cdef int64_t i
    while op is not NULL:
        release_operation(op)
        op = deadline_queue_take_any(&purgatory.timer)
    for i in range(purgatory.key_space):
        purge_list(purgatory, &purgatory.lists[i], True)
        mutex_destroy(&purgatory.lists[i].lock)
    free(purgatory.lists)
    deadline_queue_destroy(&purgatory.timer)
    free(purgatory)


cdef bint old_design_init(
        Design *design, Clock *clock, int64_t keys, int64_t key_space, int64_t purge_interval) noexcept nogil:
    cdef OldPurgatory *purgatory = <OldPurgatory *>calloc(1, sizeof(OldPurgatory))
    cdef int64_t i
    if purgatory is NULL:
        return False
    purgatory.lists = <EntryList *>calloc(key_space, sizeof(EntryList))
    if purgatory.lists is NULL:
        free(purgatory)
        return False
    for i in range(key_space):
        mutex_init(&purgatory.lists[i].lock)
    deadline_queue_init(&purgatory.timer, clock)
    purgatory.key_space = key_space
    purgatory.purge_interval = purge_interval
    design.head_bytes = sizeof(OldOperation) + (keys - 1) * sizeof(Entry)
    design.keys = keys
    design.state = purgatory
    design.prepare = prepare
    design.retain = retain
    design.release = release
    design.enqueue = enqueue
    design.force_complete = force_complete
    design.turn = turn
    design.pending = pending
    design.stop = stop
    design.free = free_design
    return True


cdef class OldDesign(StudyDesign):
    """Old design for StudyRun of purgatory_study.driver."""

    cdef bint set_up(
            self, Design *design, Clock *clock, int64_t keys, int64_t key_space, int64_t purge_interval) noexcept nogil:
        return old_design_init(design, clock, keys, key_space, purge_interval)
