"""The partitions of a Fetch: found, read within its limits, looked at while it waits, let go."""
from libc.stdint cimport int32_t, int64_t
from kbroker.server.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.server.native._native_types cimport Handler

# Finds each partition (a count on it is the state's) and the errors that need no reading; what is named twice counts
# once. False: memory is out.
cdef bint resolve_partitions(Handler *handler, FetchState *state) noexcept nogil
# Reads every part within the limits; returns the bytes found. Release with drop_reads. ``readable``: parts that could
# be waited for.
cdef int64_t read_partitions(FetchState *state, bint *any_error, int32_t *readable) noexcept nogil
cdef void drop_reads(FetchState *state) noexcept nogil
cdef bint has_records(FetchState *state) noexcept nogil
cdef bint is_satisfied(FetchState *state) noexcept nogil    # whether a read would bring enough now, or an error
# Gives back the counts on partitions and on the session, and all memory but the struct's.
cdef void release_partitions(FetchState *state) noexcept nogil
