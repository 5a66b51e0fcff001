"""Request batches in execution. A BatchProgress belongs to the thread that executes the batch."""
from libc.stdint cimport int64_t
from kbroker._core.requests.request cimport Request
from kbroker.requests._native_types cimport Api, NativeApisCore, Outcome

cdef struct BatchProgress:
    Request *rest               # frames not executed yet, by batch_next
    Request *responses          # by next
    Request *last
    Request *declined           # for the Python handlers, with the frames after it; NULL: none
    Request *left               # and the frames after it, for a handler thread; NULL: none
    Outcome outcome             # other than OUTCOME_RESPONDED: no frame of the batch is executed any more
    int64_t completed

cdef Api *parse_header(NativeApisCore *native_apis, Request *request, int *refused) noexcept nogil
cdef bint is_intercepted(NativeApisCore *native_apis, Request *request) noexcept nogil
cdef void batch_begin(BatchProgress *batch, Request *head) noexcept nogil
cdef Request *batch_next(BatchProgress *batch) noexcept nogil       # the next frame to execute; NULL: none
cdef void batch_take(BatchProgress *batch, NativeApisCore *native_apis, Request *request,
                     Outcome outcome) noexcept nogil      # processes the outcome of an executed frame
cdef void batch_end(BatchProgress *batch, NativeApisCore *native_apis) noexcept nogil     # sends the responses
