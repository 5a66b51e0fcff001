"""Python's view of the client quotas; the native lane borrows their struct."""
from libc.stdint cimport int64_t
from kbroker._core.metric_config cimport MetricConfig
from kbroker.server.quota._counters cimport ClientQuotas, ClientSensors, QuotaManager

cdef class ClientQuotaManager

cdef class ClientQuotaManagers:
    cdef object __weakref__
    cdef ClientQuotas *quotas   # owned count
    cdef object _clock
    cdef object _own            # sensors without a client, which the native side uses
    cdef object _telling        # lock: counters become known to the registry one at a time
    cdef readonly object registry
    cdef readonly ClientQuotaManager produce
    cdef readonly ClientQuotaManager fetch
    cdef readonly ClientQuotaManager request
    cdef readonly ClientQuotaManager controller_mutation
    cdef ClientQuotaManager make(self, int kind, MetricConfig config)
    cdef object tell(self, int kind, ClientSensors *sensors)
    cdef list untell(self, int kind, ClientSensors *gone)

cdef class ClientQuotaManager:
    cdef ClientQuotas *quotas   # owned count
    cdef QuotaManager *manager  # of quotas
    cdef object owner           # weak: the managers
    cdef object queue           # metric of the delay queue
    cdef object limited_config  # MetricConfig of counters without a limit
    cdef readonly str name
    cdef QuotaManager *demand(self) except NULL
    cdef ClientSensors *find(self, user, client_id, int64_t now_ms) except NULL
    cdef object record(self, user, client_id, double value, time_ms)
