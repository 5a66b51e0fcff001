"""Native Fetch handler (API key 1, versions 4 to 18), and its wait for more data (Kafka's DelayedFetch)."""
from kbroker._core.requests.request cimport Request
from kbroker._core.timer.purgatory cimport Key
from kbroker.log._partition cimport Partition
from kbroker.requests._native_types cimport Handler, NativeApisCore, Outcome

cdef Outcome handle_fetch(Handler *handler, Request *request) noexcept nogil
cdef void complete_delayed(NativeApisCore *native_apis) noexcept nogil    # at shutdown: completes every delayed fetch
# Complete the delayed fetches of closed connections.
cdef void complete_disconnected(NativeApisCore *native_apis) noexcept nogil
# Remember that delayed fetches of the partition may be complete (Kafka's DelayedActionQueue), and check them after the
# responses of the batch have been sent, holding no lock.
cdef void defer_check(Handler *handler, Partition *partition) noexcept nogil
# Complete the delayed fetches of a partition that have enough, on each node of this process. Holds no lock.
cdef void check_fetches(NativeApisCore *native_apis, Key *key) noexcept nogil
cdef void run_deferred(Handler *handler) noexcept nogil
