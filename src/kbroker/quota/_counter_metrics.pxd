"""The counters of clients in the metrics registry."""
from libc.stdint cimport int64_t
from kbroker.quota._client_sensors cimport ClientQuotas, ClientSensors, QuotaManager

cdef class CounterMetrics:
    cdef ClientQuotas *quotas   # counted
    cdef object _clock
    cdef object _lock           # counters are registered one at a time
    cdef list _limited          # MetricConfig of each kind's counters, without a limit
    cdef readonly object registry
    cdef object register(self, QuotaManager *manager, ClientSensors *sensors)
    cdef list unpublish(self, QuotaManager *manager, ClientSensors *gone)
    cdef object find(self, QuotaManager *manager, ClientSensors *sensors)
    cdef list expire(self, int64_t now_ms)

# ``limited``: a MetricConfig for each kind's counters, which get their own limit.
cdef CounterMetrics new_counter_metrics(ClientQuotas *quotas, object clock, object registry, list limited)
