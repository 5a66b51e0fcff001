"""Channels that stay muted until their throttle time is over (KIP-219).

Threads: any thread that owns a request throttles its channel; one thread runs ``throttled_advance``.
"""
from libc.stdint cimport int64_t
from kbroker._core.requests.request cimport Request
from kbroker.quota._client_sensors cimport ClientQuotas, ClientSensors, QuotaManager

# Mutes the request's channel for throttle_ms from now. Call it before the request is answered, and once:
# StartThrottling is in the network thread's hands when this returns. Nothing happens without memory, or after
# throttled_close.
cdef void throttle_channel(ClientQuotas *quotas, QuotaManager *manager, ClientSensors *sensors, Request *request,
                           int64_t throttle_ms, int64_t now_ms) noexcept nogil
# Ends what is due; waits for it up to timeout_ms. False: nothing was.
cdef bint throttled_advance(ClientQuotas *quotas, int64_t timeout_ms) noexcept nogil
# Ends all throttles at once, and there will be no more. The thread of throttled_advance has ended.
cdef void throttled_close(ClientQuotas *quotas) noexcept nogil
# A message about the channel of a request, to be given to its responder; NULL: memory is out.
cdef Request *control_message(const Request *about, int action) noexcept nogil
