"""Admission of connections by ConnectionQuotas for tests, at once or step by step, as by acceptors."""
from libc.stdint cimport int64_t

from kbroker._core.clock cimport clock_epoch_ms
from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.network.connections cimport _quota_core
from kbroker.network.connections._quota_core cimport (
    QUOTA_NO_MEMORY, QUOTA_THROTTLED, QUOTA_TOO_MANY, AddressEntry, Admission, ListenerQuota, QuotaVerdict,
    addresses_find, admit_locked, leave_locked, quotas_enter, quotas_exceeded, record_connection, sweep_addresses,
)


class TooManyConnectionsError(Exception):
    """Too many connections from an address. The connection is counted: close it and call ``dec``."""


class ConnectionThrottledError(Exception):
    """Too many new connections of an address per second. Not counted: close the connection after ``throttle_time_ms``.

    Attributes: throttle_time_ms, end_ms (by ``clock.epoch_ms``).
    """

    def __init__(self, address, throttle_time_ms, end_ms):
        super().__init__(f"connections from {address} come too fast: wait {throttle_time_ms} ms")
        self.throttle_time_ms = throttle_time_ms
        self.end_ms = end_ms


cdef int raise_verdict(ConnectionQuotas quotas, QuotaVerdict verdict, str address, int64_t end_ms) except -1:
    if verdict == QUOTA_TOO_MANY:
        raise TooManyConnectionsError(f"too many connections from {address}")
    if verdict == QUOTA_THROTTLED:
        raise ConnectionThrottledError(address, end_ms - clock_epoch_ms(quotas.core.clock), end_ms)
    if verdict == QUOTA_NO_MEMORY:
        raise MemoryError
    return 0


def inc(ConnectionQuotas quotas not None, str listener not None, str address not None):
    """Count a connection after waiting, without the GIL, while its listener is throttled or has no slot.

    Raises: KeyError for a listener that was not added; TooManyConnectionsError, ConnectionThrottledError.
    """
    cdef ListenerQuota *found = quotas.demand(listener)
    cdef bytes encoded = address.encode()
    cdef const char *text = encoded
    cdef Admission admission
    cdef QuotaVerdict verdict
    with nogil:
        verdict = quotas_enter(quotas.core, found, text, NULL, &admission)
    raise_verdict(quotas, verdict, address, admission.end_ms)


def begin(ConnectionQuotas quotas not None, str listener not None):
    """Record a new connection, as the first step of ``inc``.

    Returns: the delay in milliseconds, after which ``admit`` is the last step when ``has_slot``.
    """
    cdef ListenerQuota *found = quotas.demand(listener)
    cdef int64_t throttle_ms
    with nogil:
        mutex_lock(&quotas.core.lock)
        sweep_addresses(quotas.core)
        throttle_ms = record_connection(quotas.core, found, clock_epoch_ms(quotas.core.clock))
        mutex_unlock(&quotas.core.lock)
    return throttle_ms


def has_slot(ConnectionQuotas quotas not None, str listener not None):
    """Return whether the counts allow one more connection of this listener."""
    cdef ListenerQuota *found = quotas.demand(listener)
    cdef bint has
    with nogil:
        mutex_lock(&quotas.core.lock)
        has = _quota_core.has_slot(quotas.core, found)
        mutex_unlock(&quotas.core.lock)
    return has


def admit(ConnectionQuotas quotas not None, str listener not None, str address not None):
    """Apply the limits of the address and count the connection, as the last step of ``inc``. Raises as ``inc``."""
    cdef ListenerQuota *found = quotas.demand(listener)
    cdef bytes encoded = address.encode()
    cdef const char *text = encoded
    cdef Admission admission
    cdef QuotaVerdict verdict
    with nogil:
        mutex_lock(&quotas.core.lock)
        verdict = admit_locked(quotas.core, found, text, &admission)
        mutex_unlock(&quotas.core.lock)
    raise_verdict(quotas, verdict, address, admission.end_ms)


def dec(ConnectionQuotas quotas not None, str listener not None, str address not None):
    """Uncount a closed connection. Raises: ValueError if the address has none; KeyError as ``inc``."""
    cdef ListenerQuota *found = quotas.demand(listener)
    cdef AddressEntry *entry
    cdef bytes encoded = address.encode()
    cdef const char *text = encoded
    cdef bint counted
    with nogil:
        mutex_lock(&quotas.core.lock)
        entry = addresses_find(&quotas.core.addresses, text)
        counted = entry is not NULL and entry.count > 0
        if counted:
            leave_locked(quotas.core, found, entry)
        mutex_unlock(&quotas.core.lock)
    if not counted:
        raise ValueError(f"there is no connection from {address}")


def is_exceeded(ConnectionQuotas quotas not None, str listener not None):
    """Return whether this listener's network threads close connections because the total exceeds its limit."""
    return bool(quotas_exceeded(quotas.core, quotas.demand(listener)))
