"""Simulated requests of the study, and their memory."""
from libc.stdint cimport int32_t, int64_t, intptr_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset
from kbroker._core.clock cimport clock_now_ms, clock_now_ns
from kbroker._core.sync cimport atomic_add_fetch, atomic_cas, atomic_load, atomic_swap, prefetch

cdef enum:
    NS_PER_MS = 1000000
    LINE = 64                   # bytes of a cache line
    SLAB = 256                  # requests per slab


cdef void prefetch_lines(void *piece, int64_t size) noexcept nogil:
    cdef int64_t at = 0
    while at < size:
        prefetch(<char *>piece + at)
        at += LINE


cdef inline int64_t piece_bytes(RunState *run, Design *design) noexcept nogil:
    cdef int64_t size = design.head_bytes + <int64_t>sizeof(StudyRequest) + run.payload_bytes
    return (size + LINE - 1) // LINE * LINE


cdef bint add_slab(RunState *run, int64_t size) noexcept nogil:
    cdef void *slab
    cdef void *slabs
    cdef char *first
    cdef Piece *piece
    cdef int64_t i
    if run.slab_count % SLAB == 0:
        slabs = realloc(run.slabs, (run.slab_count + SLAB) * sizeof(void *))
        if slabs is NULL:
            return False
        run.slabs = <void **>slabs
    slab = malloc(SLAB * size + LINE - 1)
    if slab is NULL:
        return False
    first = <char *>((<uintptr_t>slab + LINE - 1) // LINE * LINE)
    run.slabs[run.slab_count] = slab
    run.slab_count += 1
    for i in range(SLAB - 1, -1, -1):
        piece = <Piece *>(first + i * size)
        piece.next = run.free_pieces
        run.free_pieces = piece
    return True


cdef StudyRequest *request_new(RunState *run, Design *design, int32_t latency_ms) noexcept nogil:
    cdef int64_t size = piece_bytes(run, design)
    cdef StudyRequest *request
    cdef Piece *piece
    if run.free_pieces is NULL:
        run.free_pieces = <Piece *><intptr_t>atomic_swap(&run.returned, 0)
        if run.free_pieces is NULL and not add_slab(run, size):
            return NULL
    piece = run.free_pieces
    run.free_pieces = piece.next
    prefetch_lines(run.free_pieces, size)       # for the next request
    memset(piece, 0, size)
    request = <StudyRequest *>(<char *>piece + design.head_bytes)
    request.run = run
    request.head = piece
    request.made_ns = clock_now_ns(run.clock)
    request.completes_at_ms = request.made_ns // NS_PER_MS + latency_ms
    design.prepare(design, request)
    return request


cdef bint request_is_due(StudyRequest *request) noexcept nogil:
    return clock_now_ms(request.run.clock) >= request.completes_at_ms


cdef void request_completed(StudyRequest *request) noexcept nogil:
    atomic_add_fetch(&request.run.left, -1)


cdef void request_expired(StudyRequest *request) noexcept nogil:
    cdef RunState *run = request.run
    cdef int64_t late_ns = clock_now_ns(run.clock) - request.made_ns - run.timeout_ms * NS_PER_MS
    if run.expired < run.room:
        run.expiry_late_us[run.expired] = <int32_t>(late_ns // 1000)
    run.expired += 1
    if request.completes_at_ms - request.made_ns // NS_PER_MS < run.timeout_ms:
        run.expired_though_due += 1


cdef void request_free(StudyRequest *request, void *head) noexcept nogil:
    cdef RunState *run = request.run
    cdef Piece *piece = <Piece *>head
    cdef int64_t first
    while True:
        first = atomic_load(&run.returned)
        piece.next = <Piece *><intptr_t>first
        if atomic_cas(&run.returned, first, <int64_t><intptr_t>piece):
            return


cdef int64_t requests_held(RunState *run) noexcept nogil:
    cdef int64_t held = run.slab_count * SLAB
    cdef Piece *piece = run.free_pieces
    while piece is not NULL:
        held -= 1
        piece = piece.next
    piece = <Piece *><intptr_t>atomic_load(&run.returned)
    while piece is not NULL:
        held -= 1
        piece = piece.next
    return held


cdef void requests_destroy(RunState *run) noexcept nogil:
    cdef int64_t i
    for i in range(run.slab_count):
        free(run.slabs[i])
    free(run.slabs)
    run.slabs = NULL
    run.slab_count = 0
