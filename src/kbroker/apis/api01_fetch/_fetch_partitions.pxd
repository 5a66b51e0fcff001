"""The partitions of a Fetch: look-ups before their logs are read."""
from kbroker.apis.api01_fetch._fetch_types cimport FetchPart, FetchState
from kbroker.requests._native_types cimport Handler

# Find each partition (the state holds a reference) and the errors that need no read; of duplicates the last counts.
# False: out of memory.
cdef bint resolve_partitions(Handler *handler, FetchState *state) noexcept nogil
# Check again after a wait: refuse the parts that the client may no longer read, if a rule has changed since.
cdef void ask_again(FetchState *state) noexcept nogil
cdef bint same_topic(const FetchPart *a, const FetchPart *b) noexcept nogil
