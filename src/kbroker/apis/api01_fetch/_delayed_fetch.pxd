"""A Fetch that waits in the purgatory for more data, at most its ``max_wait_ms`` (Kafka's DelayedFetch)."""
from kbroker.log._partition cimport Partition
from kbroker.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.requests._native_types cimport Handler, NativeApisCore

# Watch every partition. True: the request belongs to the operation. False: no memory to wait, respond now.
cdef bint delay_fetch(Handler *handler, FetchState *state) noexcept nogil
cdef void free_state(FetchState *state) noexcept nogil
cdef void complete_delayed(NativeApisCore *native_apis) noexcept nogil    # at shutdown: completes every delayed fetch
# Complete the delayed fetches of closed connections.
cdef void complete_disconnected(NativeApisCore *native_apis) noexcept nogil
# Remember that delayed fetches of the partition may be complete (Kafka's DelayedActionQueue), and check them after the
# responses of the batch were sent, holding no lock.
cdef void defer_check(Handler *handler, Partition *partition) noexcept nogil
cdef void run_deferred(Handler *handler) noexcept nogil
