"""A Produce that waits until its records are on disk, at most its ``timeout_ms`` (Kafka's DelayedProduce)."""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.requests.request cimport Request
from kbroker._core.timer.purgatory_core cimport Operation
from kbroker._core.codec.wire cimport Writer
from kbroker.log._partition cimport Partition
from kbroker.requests._native_types cimport Handler, Outcome

cdef struct Waiting:            # a partition whose append waits for the disk
    Partition *partition        # counted
    int64_t flush_offset
    int64_t error_at            # position of its error code in the response
    int64_t base_offset_at

# Pass request, response and ``waiting`` to an operation: they then belong to the thread that completes it. When memory
# is exhausted the connection is closed.
cdef Outcome delay_produce(Handler *handler, Request *request, int32_t timeout_ms, Writer *w, Waiting *waiting,
                           int32_t count) noexcept nogil
# Return the network thread of a delayed produce's request, and the number of its channel there.
cdef void delayed_produce_source(Operation *op, int32_t *processor_id, int64_t *channel_number) noexcept nogil
cdef void free_waiting(Waiting *waiting, int32_t count) noexcept nogil
# Write throttle_time_ms into an encoded Produce response, if it is above 0.
cdef void store_throttle_time(Request *request, char *response, int64_t size_bytes, int32_t throttle_ms) noexcept nogil
