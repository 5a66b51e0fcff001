"""Native Fetch handler (API key 1, versions 4 to 18)."""
from kbroker._core.request cimport Request
from kbroker.server._lane_types cimport Handler, Lane, Outcome

cdef Outcome handle_fetch(Handler *handler, Request *request) noexcept nogil
cdef void complete_parked(Lane *lane) noexcept nogil    # at shutdown: answers every waiting fetch
cdef void complete_gone(Lane *lane) noexcept nogil      # answers the waiting fetches of closed connections
