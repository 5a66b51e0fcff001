"""The Fetch response: records as file regions (small ones copied), judged by the quotas before it leaves."""
from kbroker.server.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.server.quota._client_sensors cimport ClientCache

# Writes the response into the request as it stands in the state; the parts have been read (or there are none).
cdef void build_response(FetchState *state) noexcept nogil
# The same after read_partitions, or for a refused session: decides what an incremental answer tells, and has the
# quotas judge it (``clients``: the calling handler's cache, NULL: none).
cdef void respond_to_fetch(FetchState *state, ClientCache *clients) noexcept nogil
