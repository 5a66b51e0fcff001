"""Native Produce handler (API key 0, versions 3 to 13), and its wait for the disk (Kafka's DelayedProduce)."""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.requests.request cimport Request
from kbroker._core.timer.purgatory_core cimport Operation
from kbroker.apis.api00_produce._produce_request cimport ProduceRequest
from kbroker.log._append cimport AppendPart
from kbroker.log._partition cimport AppendResult, Partition
from kbroker.requests._native_types cimport Handler, NativeApisCore, Outcome

cdef Outcome handle_produce(Handler *handler, Request *request) noexcept nogil
# Return the network thread of a delayed produce's request, and the number of its channel there.
cdef void delayed_produce_source(Operation *op, int32_t *processor_id, int64_t *channel_number) noexcept nogil

# --------------------------------------------------- requests that are appended together, see handlers/_produce_run

# Parse a request with one partition, without a transaction. NULL: the request has another form, or is malformed, and
# is executed alone. Call free_produce in either case.
cdef Partition *parse_gathered(Handler *handler, Request *request, ProduceRequest *parsed) noexcept nogil
# Set part for partition_append_run. False: the request is refused with part.result.
cdef bint begin_gathered(Handler *handler, Request *request, ProduceRequest *parsed, AppendPart *part) noexcept nogil
# Complete the request with the result of its append. ``partition``: NULL if the request was refused before.
cdef Outcome finish_gathered(Handler *handler, Request *request, ProduceRequest *parsed, Partition *partition,
                             const AppendResult *result) noexcept nogil
# Note the duration of an append: after a slow one, the next appends are left to the handlers for a while.
cdef void note_slow_append(NativeApisCore *native_apis, int64_t from_ns, int64_t to_ns) noexcept nogil
