"""Native Produce handler (API key 0, versions 3 to 13)."""
from kbroker._core.requests.request cimport Request
from kbroker.requests._native_types cimport Handler, Outcome

cdef Outcome handle_produce(Handler *handler, Request *request) noexcept nogil
