"""Received frames: to the authenticator, or in batches to the request queue."""
from libc.stdint cimport int64_t
from kbroker.network.processor._processor_core cimport ProcessorCore

# Hands over one request batch per channel, all under one lock of the queue; waits while the queue is full.
cdef void process_completed_receives(ProcessorCore *core) noexcept nogil
# Responds to the channels whose failed authentication was delayed for long enough, and closes them.
cdef void refuse_due(ProcessorCore *core) noexcept nogil
cdef int64_t until_refusal_ns(ProcessorCore *core) noexcept nogil   # maximum wait for events
