"""Python's view of the client quotas, whose struct the native handlers borrow; verdicts on new connections."""
from libc.stdint cimport int64_t

from kbroker._core.metrics.metric_config cimport MetricConfig
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.quota._client_sensors cimport ClientQuotas, ClientSensors, QuotaManager
from kbroker.quota._counter_metrics cimport CounterMetrics
from kbroker.quota._quota_events cimport VerdictListener

# --------------------------------------------- the quotas of one type

cdef class ClientQuotaManager:
    cdef ClientQuotas *quotas   # counted
    cdef QuotaManager *manager  # a manager of ``quotas``
    cdef CounterMetrics metrics
    cdef object queue           # metric of the delay queue; None for shadow quotas
    cdef readonly str name
    cdef QuotaManager *demand(self) except NULL
    cdef ClientSensors *find(self, user, client_id, int64_t now_ms) except NULL
    cdef object record(self, user, client_id, double value, time_ms)


# -------------------------------------------- the quotas of all types
# Take a reference to quotas and the listener's reference (NULL: no listener).
cdef bint observe_verdicts(ConnectionQuotas connections, ClientQuotas *quotas, VerdictListener *listener) except False

cdef class ClientQuotaManagers:
    cdef ClientQuotas *quotas   # counted
    cdef object _clock
    cdef list _own              # sensors without a client, which native code uses
    cdef CounterMetrics _counters
    cdef readonly object registry
    cdef readonly ClientQuotaManager produce
    cdef readonly ClientQuotaManager fetch
    cdef readonly ClientQuotaManager request
    cdef readonly ClientQuotaManager controller_mutation
    cdef readonly tuple enforced    # the four managers above
    cdef readonly tuple shadows     # their shadows, in the same order
    cdef object own_sensor(self, str sensor_name, object metric_name, object stat)
