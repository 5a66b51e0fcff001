"""The body of a native handler thread."""
from kbroker.requests._native_types cimport NativeApisCore

# Takes runs from the native handlers' request queue until that is closed and empty, or until handlers_to_stop says so.
cdef void handler_loop(NativeApisCore *native_apis) noexcept nogil
