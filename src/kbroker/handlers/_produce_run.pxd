"""A run of Produce requests for one partition, which one write appends. It belongs to its Handler's thread."""
from kbroker._core.requests.request cimport Request
from kbroker.requests._native_types cimport Handler

# Gather a batch; false: not all of its frames are such requests for the run's partition, or the run is full. Call
# refresh_topics before the first one: the run refers to the handler's topics.
cdef bint run_add(Handler *handler, Request *head) noexcept nogil
# Append the gathered requests and send their responses.
cdef void run_flush(Handler *handler) noexcept nogil
cdef bint run_is_empty(Handler *handler) noexcept nogil
cdef void run_free(Handler *handler) noexcept nogil     # only an empty run
