"""The Fetch request off the wire (versions 4 to 18)."""
from kbroker.server.apis.api01_fetch._fetch_types cimport FetchState

# Fills the state's limits, session and parts, which point into the request's payload. False: malformed, over the
# native_apis's max_request_partitions, or memory is out; what was taken so far is the state's.
cdef bint parse_fetch(FetchState *state) noexcept nogil
