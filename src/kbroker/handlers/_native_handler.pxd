"""The body of a native handler thread, and its executor for a network thread that helps."""
from kbroker._core.requests.request_queue cimport Executor
from kbroker.requests._native_types cimport Handler, NativeApisCore

cdef struct HandlerExecutor:    # belongs to one network thread
    Executor executor           # first: its functions cast its address
    Handler handler

# Execute request batches from the native handlers' queue until it is closed and empty, or until this thread is one of
# handlers_to_stop.
cdef void handler_loop(NativeApisCore *native_apis) noexcept nogil

cdef HandlerExecutor *executor_new(NativeApisCore *native_apis) noexcept nogil       # NULL: out of memory
cdef void executor_free(HandlerExecutor *executor) noexcept nogil
