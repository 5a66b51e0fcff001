"""Python's handle of a request, whose struct the layers above borrow until it is completed; suppressed responses.

A request whose response is suppressed is executed; its response is then kept or its connection closed.
"""
from libc.stdint cimport int64_t

from kbroker._core.clock cimport Clock
from kbroker._core.requests.request cimport Request
from kbroker._core.requests.request_queue cimport Queue
from kbroker._core.sync cimport AtomicI64, Mutex

# ---------------------------------------------- suppressed responses

cdef struct LostCore:
    AtomicI64 refs              # the handle, and each request whose response will be diverted here
    Mutex lock                  # leaf; guards the rest
    bint keeps
    Request *kept               # owned list by ``next``
    int64_t kept_count
    int64_t lost_count

cdef class SuppressedResponses:
    cdef LostCore *core         # counted

# ---------------------------------------------------- requests

cdef class ResponseGatherer:
    """Responses of one thread's requests, sent together."""
    cdef:
        unsigned long thread
        Request *first          # owned list by ``next``
        Request *last
        int64_t first_ready_ns  # of the first response
        int64_t total_bytes     # of all responses added since its owner set it to 0
    cdef void add(self, Request *request) noexcept
    cdef void send(self) noexcept

cdef class InboundRequest:
    cdef:
        Request *request        # owned until completed
        Clock *clock            # the queue's, kept alive by ``queue``
        Queue queue
        object held             # owner of the payload's memory, once a view was made
        int header_bytes
        readonly int api_key
        readonly int api_version
        readonly int correlation_id
        readonly object client_id       # str, or None
        readonly str principal
        readonly bint is_token_authenticated    # a delegation token proved the principal
        readonly str listener_name
        readonly str local_host
        readonly int local_port
        readonly str remote_host
        readonly int remote_port
        readonly int processor_id
        int connection_index
        readonly int size_bytes
        bint examined
        ResponseGatherer gatherer       # receives the response if its thread completes the request; None: it is sent
        bint is_muted           # its connection is muted beyond the response
        bint lets_next_run      # completed: the next frame of its batch may be executed
    cdef bint is_open_kafka(self) noexcept
    cdef int check_open(self) except -1
    cdef int check_kafka(self) except -1
    cdef int finish(self, int action) except -1

# Return whether the session of a request's client has ended (KIP-368). Only for a frame that was handed over: its
# channel is muted meanwhile, so the network thread does not authenticate it again.
cdef bint session_has_ended(const Request *request, int64_t now_ns) noexcept nogil
# Return the handle of a request, which the queue's taker owned.
cdef InboundRequest wrap(Queue queue, Request *request)
