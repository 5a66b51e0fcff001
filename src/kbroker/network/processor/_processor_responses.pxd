"""Responses: from any thread into the processor's inbox, and from there in order to the channels."""
from kbroker._core.network.loop_types cimport Channel, EventLoop
from kbroker._core.requests.request cimport Request, Responder
from kbroker.network.processor._processor_core cimport ProcessorCore

# Any thread. Pushes a list, newest on top, and wakes the loop if it sleeps; the caller may not use the requests
# afterwards.
cdef void respond(Responder *responder, Request *first) noexcept nogil
cdef bint is_closed(Request *request) noexcept nogil      # whether its connection is closed
# The loop's thread, from here on.
cdef void on_sent(EventLoop *loop, Channel *channel, Request *request) noexcept nogil
cdef void process_new_responses(ProcessorCore *core) noexcept nogil
# Writes the responses that are ready (first without polling), then finishes the batches that are complete.
cdef void process_touched(ProcessorCore *core) noexcept nogil
# Accepts a response of this channel: sends it if it is next in order, else keeps it until it is.
cdef void take_response(ProcessorCore *core, Request *request) noexcept nogil
cdef void accept_response(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil     # in its turn
cdef void keep_early(Channel *channel, Request *request) noexcept nogil
# The last call of the thread: its caller completes each later response, which holds one reference of the core.
cdef void close_inbox(ProcessorCore *core) noexcept nogil
