"""Python's handle of a network thread."""
from kbroker.network.processor._processor_core cimport ProcessorCore

cdef class Processor:
    cdef ProcessorCore *core    # counted
    cdef readonly str listener_name
    cdef readonly int processor_id
    cdef bint started
    cdef object tls
    cdef object authentication
    cdef object executor        # a RequestExecutor or None
