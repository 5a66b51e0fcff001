"""Connections of one network thread: offered by acceptors, made channels of its loop, counted out at their end."""
from libc.stdint cimport int64_t
from kbroker.network.connections._address_table cimport AddressEntry
from kbroker.network.processor._processor_core cimport ProcessorCore

# Any thread. Gives a descriptor and what it is counted by; false: full, both stay the caller's.
cdef bint processor_offer(ProcessorCore *core, int fd, AddressEntry *admission, int64_t wait_ns) noexcept nogil
cdef void processor_wake(ProcessorCore *core) noexcept nogil
cdef bint has_offers(ProcessorCore *core) noexcept nogil
# The loop's thread, from here on.
cdef void configure_new_connections(ProcessorCore *core) noexcept nogil
cdef void process_disconnected(ProcessorCore *core) noexcept nogil
cdef void close_excess_connections(ProcessorCore *core) noexcept nogil
cdef void close_offered(ProcessorCore *core) noexcept nogil     # at the end: nobody makes channels of them any more
