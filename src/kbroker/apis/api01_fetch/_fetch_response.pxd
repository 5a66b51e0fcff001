"""The partitions of a Fetch, read within its limits, and its response.

Records are file regions (small ones are copied); the quotas judge the response before it is sent.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.quota._quota_enforcement cimport ClientCache

# Read every part within the limits; return the bytes found. Release with drop_reads. ``readable``: parts that can be
# waited for.
cdef int64_t read_partitions(FetchState *state, bint *any_error, int32_t *readable) noexcept nogil
cdef void drop_reads(FetchState *state) noexcept nogil
cdef bint is_satisfied(FetchState *state) noexcept nogil    # whether a read would now return enough, or an error
# Release the references to partitions and to the session, and all memory except the struct's.
cdef void release_partitions(FetchState *state) noexcept nogil

# Encode the response of the state into its request; its parts, if any, have been read.
cdef void build_response(FetchState *state) noexcept nogil
# Respond after read_partitions, or to a refused session: select the parts of an incremental response and let the
# quotas judge it (``clients``: the calling handler's cache, NULL: none).
cdef void respond_to_fetch(FetchState *state, ClientCache *clients) noexcept nogil
