"""The body of a native handler thread."""
from kbroker.requests._native_types cimport NativeApisCore

# Execute request batches from the native handlers' queue until it is closed and empty, or until this thread is one of
# handlers_to_stop.
cdef void handler_loop(NativeApisCore *native_apis) noexcept nogil
