"""The partitions of a Fetch, found and read within its limits, and its response.

Records are file regions (small ones are copied); the quotas judge the response before it is sent.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.requests._native_types cimport Handler
from kbroker.quota._quota_enforcement cimport ClientCache

# Finds each partition (a count on it is the state's) and the errors that need no reading; a partition named
# twice counts once. False: memory is out.
cdef bint resolve_partitions(Handler *handler, FetchState *state) noexcept nogil
# For one that has waited: refuses the parts that the client may no longer read, if a rule has changed since.
cdef void ask_again(FetchState *state) noexcept nogil
# Reads every part within the limits; returns the bytes found. Release with drop_reads. ``readable``: parts that could
# be waited for.
cdef int64_t read_partitions(FetchState *state, bint *any_error, int32_t *readable) noexcept nogil
cdef void drop_reads(FetchState *state) noexcept nogil
cdef bint is_satisfied(FetchState *state) noexcept nogil    # whether a read would bring enough now, or an error
# Gives back the counts on partitions and on the session, and all memory but the struct's.
cdef void release_partitions(FetchState *state) noexcept nogil

# Encodes the response of the state into its request; its parts, if any, have been read.
cdef void build_response(FetchState *state) noexcept nogil
# The same after read_partitions, or for a refused session: selects the parts of an incremental response and has the
# quotas judge it (``clients``: the calling handler's cache, NULL: none).
cdef void respond_to_fetch(FetchState *state, ClientCache *clients) noexcept nogil
