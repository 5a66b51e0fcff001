"""Help of a network thread for the handlers: it executes requests itself while few wait.

A network thread that has handed its request batches over takes batches from the queue as a handler would; its loop is
idle meanwhile. When one batch takes long, because its append waits for a disk, the NetworkWatch passes the loop to a
stand-in, a thread that runs it until the network thread returns. Threads: see each function.
"""
from kbroker.network.processor._processor_core cimport ProcessorCore

cdef void help_handlers(ProcessorCore *core) noexcept nogil     # the network thread, after request_queue_put as helper
cdef bint enter_loop(ProcessorCore *core) noexcept nogil        # the stand-in; false: the network thread has the loop
cdef bint stands_in(ProcessorCore *core) noexcept nogil         # the stand-in: whether it must continue
cdef void leave_loop(ProcessorCore *core) noexcept nogil        # the stand-in, as its last call
