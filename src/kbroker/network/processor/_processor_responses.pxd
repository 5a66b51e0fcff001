"""Answers on their way out: from any thread into the processor's inbox, from there in order to the channels."""
from kbroker._core.network.loop_types cimport Channel, EventLoop
from kbroker._core.requests.request cimport Request, Responder
from kbroker.network.processor._processor_core cimport ProcessorCore

# Any thread. Pushes a list, newest on top, and wakes the loop if it sleeps; the caller may not use them afterwards.
cdef void respond(Responder *responder, Request *first) noexcept nogil
cdef bint is_closed(Request *request) noexcept nogil      # whether its connection is closed
# The loop's thread, from here on.
cdef void on_sent(EventLoop *loop, Channel *channel, Request *request) noexcept nogil
cdef void process_new_responses(ProcessorCore *core) noexcept nogil
# Writes what is ready (first without asking the poller), then sees whether runs are over.
cdef void process_touched(ProcessorCore *core) noexcept nogil
# A response of this channel: sent if it is its turn, else kept until it is.
cdef void take_response(ProcessorCore *core, Request *request) noexcept nogil
cdef void accept_response(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil     # it is its turn
cdef void keep_early(Channel *channel, Request *request) noexcept nogil
# The last of the thread: what is answered later is completed by who answers, each holding one count of the core.
cdef void close_inbox(ProcessorCore *core) noexcept nogil
