"""A Fetch that waits in the purgatory for more data, at most its ``max_wait_ms`` (Kafka's DelayedFetch)."""
from kbroker.log._partition cimport Partition
from kbroker.server._fetch_types cimport FetchState
from kbroker.server._lane_types cimport Handler, Lane

# Watches every partition. True: the request belongs to the operation. False: no memory to wait, answer now.
cdef bint park_fetch(Handler *handler, FetchState *state) noexcept nogil
cdef void free_state(FetchState *state) noexcept nogil
cdef void complete_parked(Lane *lane) noexcept nogil    # at shutdown: answers every waiting fetch
cdef void complete_gone(Lane *lane) noexcept nogil      # answers the waiting fetches of closed connections
# Remembers that fetches waiting on the partition may be satisfied (Kafka's DelayedActionQueue), and looks at them when
# the answers of the run are away, holding no lock.
cdef void defer_check(Handler *handler, Partition *partition) noexcept nogil
cdef void run_deferred(Handler *handler) noexcept nogil
