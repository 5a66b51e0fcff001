"""Native ApiVersions handler (API key 18)."""
from kbroker._core.requests.request cimport Request
from kbroker.requests._native_types cimport Handler, Outcome

cdef Outcome handle_api_versions(Handler *handler, Request *request) noexcept nogil
