"""Python's view of the quotas of one type."""
from libc.stdint cimport int64_t
from kbroker.quota._counter_metrics cimport CounterMetrics
from kbroker.quota._client_sensors cimport ClientQuotas, ClientSensors, QuotaManager

cdef class ClientQuotaManager:
    cdef ClientQuotas *quotas   # counted
    cdef QuotaManager *manager  # one of quotas
    cdef CounterMetrics metrics
    cdef object queue           # metric of the delay queue; None for shadow quotas
    cdef readonly str name
    cdef QuotaManager *demand(self) except NULL
    cdef ClientSensors *find(self, user, client_id, int64_t now_ms) except NULL
    cdef object record(self, user, client_id, double value, time_ms)

cdef ClientQuotaManager new_manager(ClientQuotas *quotas, QuotaManager *manager, CounterMetrics metrics, object queue)
