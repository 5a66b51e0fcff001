"""Native ListOffsets handler (API key 2, versions 1 to 11)."""
from kbroker._core.requests.request cimport Request
from kbroker.requests._native_types cimport Handler, Outcome

# Declines requests with an unknown or duplicate topic or partition, which api02_list_offsets.py serves.
cdef Outcome handle_list_offsets(Handler *handler, Request *request) noexcept nogil
