"""The receiver of request batches of one Python handler thread."""
from libc.stdint cimport int64_t

from kbroker._core.requests.request cimport Request
from kbroker._core.requests.request_queue cimport Queue
from kbroker.network.processor._inbound cimport InboundRequest, ResponseGatherer
from kbroker.requests._native_types cimport API_SLOTS, NativeApisCore

cdef class BatchReceiver:
    cdef:
        object owner            # keeps native_apis alive
        NativeApisCore *native_apis
        Queue queue
        ResponseGatherer gatherer
        InboundRequest current  # the latest frame; None before the first one and after the end of its batch
        Request *rest           # frames after it, owned, by batch_next
        int64_t batch_begun_ns
        int64_t begun_ns        # of the current frame
        int64_t taken_ns[API_SLOTS]     # time of the latest frames, by API; 0: none yet
    cdef void note_time(self, int64_t now) noexcept
    cdef InboundRequest next_of_batch(self, int64_t now)
    cdef InboundRequest next_batch(self, int64_t timeout_ns)
    cdef InboundRequest handle_of(self, Request *request)
    cdef void end_batch(self) noexcept

cdef BatchReceiver new_receiver(object owner, Queue queue, NativeApisCore *native_apis)
