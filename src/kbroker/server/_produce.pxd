"""Native Produce handler (API key 0, versions 3 to 13)."""
from kbroker._core.request cimport Request
from kbroker.server._lane_types cimport Handler, Outcome

cdef Outcome handle_produce(Handler *handler, Request *request) noexcept nogil
