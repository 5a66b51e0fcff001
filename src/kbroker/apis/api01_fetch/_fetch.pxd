"""Native Fetch handler (API key 1, versions 4 to 18)."""
from kbroker._core.requests.request cimport Request
from kbroker.requests._native_types cimport Handler, Outcome

cdef Outcome handle_fetch(Handler *handler, Request *request) noexcept nogil
