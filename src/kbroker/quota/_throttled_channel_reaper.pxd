"""Channels that stay muted until their throttle time has passed (KIP-219).

Threads: any thread that owns a request throttles its channel; one thread runs ``throttled_advance``.
"""
from libc.stdint cimport int64_t
from kbroker._core.requests.request cimport Request
from kbroker.quota._client_sensors cimport ClientQuotas, ClientSensors, QuotaManager

# Mute the request's channel for throttle_ms from now. Call it once, before the response: StartThrottling has been
# handed to the network thread when this returns. Nothing happens when memory is exhausted or after throttled_close.
cdef void throttle_channel(ClientQuotas *quotas, QuotaManager *manager, ClientSensors *sensors, Request *request,
                           int64_t throttle_ms, int64_t now_ms) noexcept nogil
# End the throttles that are due; wait for one up to timeout_ms. False: none was due.
cdef bint throttled_advance(ClientQuotas *quotas, int64_t timeout_ms) noexcept nogil
# End all throttles and prevent others. The thread of throttled_advance must have ended.
cdef void throttled_close(ClientQuotas *quotas) noexcept nogil
# Return a message about the channel of a request, to be passed to its responder; NULL: out of memory.
cdef Request *control_message(const Request *about, int action) noexcept nogil
