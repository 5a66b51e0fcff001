"""The body of a native handler thread."""
from kbroker.server._lane_types cimport Lane

# Takes runs from the lane's request queue until that is closed and empty, or until surplus_handlers says so.
cdef void handler_loop(Lane *lane) noexcept nogil
