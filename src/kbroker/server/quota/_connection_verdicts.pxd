"""Verdicts on new connections, from the connection limits into the verdict ring and the request log."""
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.server.quota._counters cimport ClientQuotas
from kbroker.server.quota._quota_events cimport VerdictEvent

# What is told of one beside the ring; counted by itself.
cdef struct VerdictListener:
    void (*verdict)(VerdictListener *self, const VerdictEvent *verdict, const char *address) noexcept nogil
    void (*release)(VerdictListener *self) noexcept nogil

# Takes a count of quotas; the listener's count (NULL: none) is taken over.
cdef bint observe_verdicts(ConnectionQuotas connections, ClientQuotas *quotas, VerdictListener *listener) except False
