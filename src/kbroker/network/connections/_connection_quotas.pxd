"""Python's handle of the limits of connections; the rules are in _quota_core."""
from libc.stdint cimport int64_t
from kbroker.network.connections._quota_core cimport ListenerQuota, QuotaCore, QuotaVerdict

cdef class ConnectionQuotas:
    cdef QuotaCore *core        # owned count
    cdef ListenerQuota *demand(self, str name) except NULL      # KeyError; borrowed from core
    cdef int raise_verdict(self, QuotaVerdict verdict, object address, int64_t end_ms) except -1
