"""Frames on their way in: to the authenticator, or in runs to the request queue."""
from libc.stdint cimport int64_t
from kbroker.network.processor._processor_core cimport ProcessorCore

# Hands over one batch per channel, all of them under one lock of the queue; waits while that is full.
cdef void process_completed_receives(ProcessorCore *core) noexcept nogil
# Answers and closes the channels whose failed authentication was kept back for long enough.
cdef void refuse_due(ProcessorCore *core) noexcept nogil
cdef int64_t until_refusal_ns(ProcessorCore *core) noexcept nogil   # how long to wait for events at most
