"""Simulation of a network that fails after the broker has executed a request, to test retries and idempotence."""
cimport cython
from libc.stdlib cimport calloc, free

from kbroker._core.guarded cimport guarded_value
from kbroker._core.requests.request cimport ACTION_CLOSE, Request
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_store, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.network._kafka_request cimport kafka_clear_response


cdef void lost_release(void *core_pointer) noexcept nogil:
    cdef LostCore *core = <LostCore *>core_pointer
    if atomic_add_fetch(&core.refs, -1) == 0:     # nothing is kept: close() came before the handle's end
        mutex_destroy(&core.lock)
        free(core)


cdef bint lost_divert(Request *request) noexcept nogil:
    """Drop the response; keep the request, or let it continue so that its connection is closed."""
    cdef LostCore *core = <LostCore *>request.response_hook_arg
    cdef bint kept
    request.response_hook = NULL        # once only: a request that continues returns to its network thread
    if request.action == ACTION_CLOSE:
        return False
    kafka_clear_response(request)
    request.action = ACTION_CLOSE
    mutex_lock(&core.lock)
    core.lost_count += 1
    kept = core.keeps
    if kept:
        request.next = core.kept
        core.kept = request
        core.kept_count += 1
    mutex_unlock(&core.lock)
    return kept


cdef void lost_close(LostCore *core) noexcept nogil:
    cdef Request *request
    cdef Request *following
    mutex_lock(&core.lock)
    core.keeps = False
    request = core.kept
    core.kept = NULL
    core.kept_count = 0
    mutex_unlock(&core.lock)
    while request is not NULL:              # they may have different connections, so one by one
        following = request.next
        request.next = NULL
        request.responder.respond(request.responder, request)
        request = following


cdef void suppress_response(SuppressedResponses lost, Request *request) noexcept:
    if request.response_hook_arg is not NULL:
        request.release_response_hook(request.response_hook_arg)
    atomic_add_fetch(&lost.core.refs, 1)
    request.response_hook = lost_divert
    request.response_hook_arg = lost.core
    request.release_response_hook = lost_release


@cython.final
@cython.no_gc
cdef class SuppressedResponses:
    """Destination of responses that their clients must not receive; see ``InboundRequest.suppress_response``.

    Args: ``keep``: True leaves the connections open and muted until ``close``; False closes each connection instead of
    sending its response.
    Threads: any.
    """

    def __cinit__(self, keep):
        if not isinstance(keep, bool):
            raise TypeError(f"keep must be True or False, not {type(keep).__name__}")
        self.core = <LostCore *>calloc(1, sizeof(LostCore))
        if self.core is NULL:
            raise MemoryError
        atomic_store(&self.core.refs, 1)
        mutex_init(&self.core.lock)
        self.core.keeps = keep

    @property
    def kept(self):
        """Number of executed requests whose connections are kept open and muted."""
        return guarded_value(&self.core.lock, &self.core.kept_count)

    @property
    def lost(self):
        """Number of responses lost so far."""
        return guarded_value(&self.core.lock, &self.core.lost_count)

    def close(self):
        """Close the kept connections; later lost responses close their connections at once. Idempotent."""
        with nogil:
            lost_close(self.core)

    def __dealloc__(self):
        if self.core is not NULL:
            with nogil:
                lost_close(self.core)
                lost_release(self.core)
