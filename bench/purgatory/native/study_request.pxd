"""Common parts of the designs: simulated requests, their events, and the functions of a design.

A request is one piece of memory: the state of the design, StudyRequest, and the payload. Pieces are reused, because a
JVM allocates by moving a pointer, and the study does not measure malloc.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.clock cimport Clock
from kbroker._core.sync cimport AtomicI64

cdef struct Piece:              # free memory of a request
    Piece *next

cdef struct RunState:
    Clock *clock                # borrowed
    int64_t timeout_ms
    int64_t payload_bytes
    AtomicI64 stop              # the run is over or given up
    int32_t *expiry_late_us
    int64_t room                # of expiry_late_us
    char apart[64]              # separates fields that threads write from fields that all threads read
    AtomicI64 left              # requests neither completed nor expired
    AtomicI64 returned          # list of Pieces, pushed by any thread, taken as a whole by the generator
    char apart_too[64]
    int64_t expired             # these two belong to the expiring thread
    int64_t expired_though_due
    char apart_again[64]
    Piece *free_pieces          # these belong to the generator
    void **slabs                # all allocated memory
    int64_t slab_count

cdef struct StudyRequest:
    RunState *run
    void *head                  # state of the design
    int64_t completes_at_ms
    int64_t made_ns

cdef struct Design:
    int64_t head_bytes          # size of the design's state in a request
    int64_t keys                # maximum keys of a request
    void *state
    void (*prepare)(Design *design, StudyRequest *request) noexcept nogil      # sets the generator's reference
    void (*retain)(StudyRequest *request) noexcept nogil
    void (*release)(StudyRequest *request) noexcept nogil
    bint (*enqueue)(Design *design, StudyRequest *request, int64_t *keys, int32_t count) noexcept nogil
    bint (*force_complete)(StudyRequest *request) noexcept nogil
    bint (*turn)(Design *design, int64_t timeout_ms) noexcept nogil            # one turn of the reaper
    int64_t (*pending)(Design *design) noexcept nogil                          # operations in the timer
    void (*stop)(Design *design) noexcept nogil                                # ends a waiting turn
    void (*free)(Design *design) noexcept nogil                                # called after the end of all threads

cdef StudyRequest *request_new(RunState *run, Design *design, int32_t latency_ms) noexcept nogil  # NULL: out of memory
cdef bint request_is_due(StudyRequest *request) noexcept nogil
cdef void request_completed(StudyRequest *request) noexcept nogil              # called by the completing thread
cdef void request_expired(StudyRequest *request) noexcept nogil                # called on the expiring thread
cdef void request_free(StudyRequest *request, void *head) noexcept nogil
cdef void prefetch_lines(void *piece, int64_t size) noexcept nogil             # accepts any address
cdef int64_t requests_held(RunState *run) noexcept nogil                       # for use after the threads' end
cdef void requests_destroy(RunState *run) noexcept nogil
