"""A Fetch that waits in the purgatory for more data, at most its ``max_wait_ms`` (Kafka's DelayedFetch)."""
from kbroker.log._partition cimport Partition
from kbroker.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.requests._native_types cimport Handler, NativeApisCore

# Watches every partition. True: the request belongs to the operation. False: no memory to wait, answer now.
cdef bint delay_fetch(Handler *handler, FetchState *state) noexcept nogil
cdef void free_state(FetchState *state) noexcept nogil
cdef void complete_delayed(NativeApisCore *native_apis) noexcept nogil    # at shutdown: answers every waiting fetch
# answers the waiting fetches of closed connections
cdef void complete_disconnected(NativeApisCore *native_apis) noexcept nogil
# Remembers that fetches waiting on the partition may be satisfied (Kafka's DelayedActionQueue), and looks at them when
# the responses of the batch are away, holding no lock.
cdef void defer_check(Handler *handler, Partition *partition) noexcept nogil
cdef void run_deferred(Handler *handler) noexcept nogil
