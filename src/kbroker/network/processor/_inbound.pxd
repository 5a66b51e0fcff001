"""A request in the hands of Python; the layers above borrow its struct until it is answered."""
from kbroker._core.clock cimport Clock
from kbroker._core.requests.request cimport Request
from kbroker._core.requests.request_queue cimport Queue

cdef class InboundRequest:
    cdef:
        Request *request        # owned until answered
        Clock *clock            # the queue's, kept alive by ``queue``
        Queue queue
        object held             # owner of the payload's memory once asked for
        int header_bytes
        readonly int api_key
        readonly int api_version
        readonly int correlation_id
        readonly object client_id       # str, or None
        readonly str principal
        readonly bint is_token_authenticated    # the principal was proved by a delegation token
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
