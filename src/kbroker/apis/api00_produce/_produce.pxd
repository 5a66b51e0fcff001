"""Native Produce handler (API key 0, versions 3 to 13), and its wait for the disk (Kafka's DelayedProduce)."""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.requests.request cimport Request
from kbroker._core.timer.purgatory_core cimport Operation
from kbroker.requests._native_types cimport Handler, Outcome

cdef Outcome handle_produce(Handler *handler, Request *request) noexcept nogil
# Return the network thread of a delayed produce's request, and the number of its channel there.
cdef void delayed_produce_source(Operation *op, int32_t *processor_id, int64_t *channel_number) noexcept nogil
