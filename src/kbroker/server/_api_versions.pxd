"""Native ApiVersions handler (API key 18)."""
from kbroker._core.request cimport Request
from kbroker.server._lane_types cimport Handler, Outcome

cdef Outcome handle_api_versions(Handler *handler, Request *request) noexcept nogil
