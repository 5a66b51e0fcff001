"""Python's handle of the limits of connections; the rules are in _quota_core."""
from kbroker.network.connections._quota_core cimport ListenerQuota, QuotaCore

cdef class ConnectionQuotas:
    cdef QuotaCore *core        # owned count
    cdef ListenerQuota *demand(self, str name) except NULL      # KeyError; borrowed from core
