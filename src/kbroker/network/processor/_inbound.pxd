"""Python's handle of a request. The layers above borrow its struct until the request is completed."""
from kbroker._core.clock cimport Clock
from kbroker._core.requests.request cimport Request
from kbroker._core.requests.request_queue cimport Queue

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
        readonly str connection_id
        readonly str local_host
        readonly int local_port
        readonly str remote_host
        readonly int remote_port
        readonly int processor_id
        readonly int size_bytes
        bint examined
    cdef bint is_open_kafka(self) noexcept
    cdef int check_open(self) except -1
    cdef int check_kafka(self) except -1
    cdef int finish(self, int action) except -1
