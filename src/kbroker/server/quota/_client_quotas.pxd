"""Python's view of the client quotas; the native handlers borrows their struct."""
from kbroker._core.metrics.metric_config cimport MetricConfig
from kbroker.server.quota._client_quota_manager cimport ClientQuotaManager
from kbroker.server.quota._counter_metrics cimport CounterMetrics
from kbroker.server.quota._counters cimport ClientQuotas

cdef class ClientQuotaManagers:
    cdef ClientQuotas *quotas   # owned count
    cdef object _clock
    cdef list _own              # sensors without a client, which the native side uses
    cdef CounterMetrics _counters
    cdef readonly object registry
    cdef readonly ClientQuotaManager produce
    cdef readonly ClientQuotaManager fetch
    cdef readonly ClientQuotaManager request
    cdef readonly ClientQuotaManager controller_mutation
    cdef object own_sensor(self, str sensor_name, object metric_name, object stat)
