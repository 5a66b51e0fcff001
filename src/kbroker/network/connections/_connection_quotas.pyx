"""Python's handle of the limits of connections; the rules are in _quota_core."""
cimport cython
import os
import socket

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport Clock, borrow_clock, clock_epoch_ms
from kbroker._core.metrics.sensor_core cimport sensor_release, sensor_retain
from kbroker._core.sync cimport atomic_load, cond_broadcast, mutex_lock, mutex_unlock
from kbroker.network.connections._quota_core cimport (
    ADDRESS_BYTES, NO_LIMIT, AddressEntry, Gauge, ListenerQuota, QuotaCore, add_listener, address_max_rate,
    address_max_shadow_rate, addresses_after, addresses_drop_if_empty, addresses_find, addresses_take, apply_rates,
    find_listener, forget_own_limits, gauge_measure, gauge_set_limit, listener_max_rate, note_total, quotas_init,
    quotas_release, sweep_addresses,
)

UNLIMITED = NO_LIMIT


def canonical_address(host):
    """Return an address as sockets show it (``127.0.0.1``, ``::1``); a host name is resolved to its first address.

    Raises: ValueError for text that is neither an address nor a host name that resolves.
    """
    import ipaddress

    text = str(host)
    try:
        address = ipaddress.ip_address(text.strip("[]"))
        return str(getattr(address, "ipv4_mapped", None) or address)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(text, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ValueError(f"{text} is neither an IP address nor a host name that resolves") from None
    return str(found[0][4][0])


cdef bytes address_bytes(object address):
    name = str(address).encode()
    if len(name) >= ADDRESS_BYTES:
        raise ValueError(f"an address is too long: {name[:ADDRESS_BYTES]!r}")
    if not name or b"\0" in name:
        raise ValueError(f"no address: {address!r}")
    return name


cdef int64_t limit_of(object value, int64_t least=0) except? -1:
    if not isinstance(value, int):
        raise TypeError(f"a limit of connections must be an integer, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"a limit of connections must be >= {least}, got {value}")
    return min(value, INT64_MAX)


cdef int64_t limit_or_none(object value, int64_t least=0) except? -2:
    return -1 if value is None else limit_of(value, least)


@cython.final
cdef class ConnectionQuotas:
    """Limits of the connections of one server, and of the rate of new ones (KIP-612).

    A connection above a count or a rate of the server or of its listener waits in its acceptor. A connection above the
    count of its address is closed; one above the rate of its address is held unserved, then closed. UNLIMITED
    means no limit.

    Args:
        max_connections: at once, >= 0.
        max_per_address: at once from one address, >= 0.
        overrides: own limits by address (as text).
        max_rate: new connections per second, >= 0; it also limits listeners without a rate.
        samples, window_seconds: the window of the rates; window_seconds is also the maximum wait for a rate.
        inter_broker_listener: if there are others, the limits of the server do not apply to this listener, and its
            new connections do not use up the rate.
        clock: None is the system's.
    Raises: ValueError, TypeError for invalid limits, or an address that is too long.
    Threads: any.
    Source: ``SocketServer.ConnectionQuotas``.
    """

    def __cinit__(self, max_connections=UNLIMITED, max_per_address=UNLIMITED, overrides=None, *, max_rate=UNLIMITED,
                  samples=11, window_seconds=1, inter_broker_listener=None, clock=None):
        cdef Clock *native_clock = borrow_clock(clock)
        cdef int32_t sample_count = <int32_t>integer(samples, "samples", 1, 100000)
        cdef int64_t window_ms = integer(window_seconds, "window_seconds", 1, 1 << 30) * 1000
        cdef uint64_t seed = int.from_bytes(os.urandom(8), "little")
        cdef bytes name
        cdef QuotaCore *core = <QuotaCore *>calloc(1, sizeof(QuotaCore))
        if core is NULL:
            raise MemoryError
        self.core = core
        if not quotas_init(core, native_clock, sample_count, window_ms, seed):
            raise MemoryError
        if inter_broker_listener is not None:
            name = str(inter_broker_listener).encode()
            core.inter_broker = <char *>calloc(1, len(name) + 1)
            if core.inter_broker is NULL:
                raise MemoryError
            memcpy(core.inter_broker, <const char *>name, len(name))
        self.update(max_connections, max_per_address, overrides, max_rate)

    def __dealloc__(self):
        with nogil:
            quotas_release(self.core)

    # -------------------------------------------------------- limits

    def update(self, max_connections, max_per_address, overrides=None, max_rate=None):
        """Change the limits; existing connections stay, except those above `max_connections`.

        A higher rate does not shorten a wait that has begun. ``max_rate`` None keeps the rate.
        """
        cdef QuotaCore *core = self.core
        cdef AddressEntry *entry
        cdef int64_t most = limit_of(max_connections)
        cdef int64_t each = limit_of(max_per_address)
        cdef int64_t rate = limit_or_none(max_rate)
        cdef int64_t own
        cdef const char *text
        cdef bint done = True
        given = [(address_bytes(name), limit_of(limit))
                 for name, limit in (overrides or {}).items()]
        with nogil:
            mutex_lock(&core.lock)
            core.max_connections = most
            core.max_per_address = each
            if rate >= 0:
                core.max_rate = rate
                done = apply_rates(core)
            forget_own_limits(core)
            note_total(core, 0)
            cond_broadcast(&core.slot_free)
            mutex_unlock(&core.lock)
        for name, limit in given:
            text = name
            own = limit
            with nogil:
                mutex_lock(&core.lock)
                entry = addresses_take(&core.addresses, text)
                if entry is not NULL:
                    entry.max_count = own
                mutex_unlock(&core.lock)
            done = done and entry is not NULL
        if not done:
            raise MemoryError

    def update_listener(self, str name not None, max_connections=None, max_rate=None):
        """Add a listener, or change its limits; None is the server's.

        Raises: ValueError for a limit below 1, TypeError.
        """
        cdef QuotaCore *core = self.core
        cdef ListenerQuota *listener
        cdef int64_t most = limit_or_none(max_connections, 1)
        cdef int64_t rate = limit_or_none(max_rate, 1)
        cdef bytes encoded = name.encode()
        cdef const char *text = encoded
        cdef size_t size = len(encoded)
        cdef bint done = False
        with nogil:
            mutex_lock(&core.lock)
            listener = find_listener(core, text)
            if listener is NULL:
                listener = add_listener(core, text, size)
            if listener is not NULL:
                listener.own_max_connections = most
                listener.own_max_rate = rate
                done = gauge_set_limit(&listener.rate, <double>listener_max_rate(core, listener))
                cond_broadcast(&core.slot_free)
            mutex_unlock(&core.lock)
        if not done:
            raise MemoryError

    def update_ip_rate(self, ip, rate, *, bint shadow=False):
        """Limit the new connections per second from one address; existing sensors keep their history.

        Args: ip: an address or a host name; None: every address without a rate. rate: >= 0, or None for the default
        again (for ``ip`` None: no limit). shadow: sets the rate of the shadow quota, which judges connections and
        refuses none; an address has it in addition to its enforced rate.
        Raises: ValueError for text that is not an address, TypeError.
        """
        cdef QuotaCore *core = self.core
        cdef AddressEntry *entry
        cdef int64_t limit = limit_or_none(rate)
        cdef bytes encoded
        cdef const char *text
        cdef bint done = True
        if ip is None:
            with nogil:
                mutex_lock(&core.lock)
                (&core.max_address_shadow_rate if shadow else &core.max_address_rate)[0] = (
                    NO_LIMIT if limit < 0 else limit)
                done = apply_rates(core)
                mutex_unlock(&core.lock)
        else:
            encoded = address_bytes(canonical_address(ip))
            text = encoded
            with nogil:
                mutex_lock(&core.lock)
                entry = addresses_take(&core.addresses, text)
                done = entry is not NULL
                if done:
                    done = set_address_rate(core, entry, limit, shadow)
                    addresses_drop_if_empty(&core.addresses, entry)
                mutex_unlock(&core.lock)
        if not done:
            raise MemoryError

    # -------------------------------------------------------- connections

    cdef ListenerQuota *demand(self, str name) except NULL:
        cdef QuotaCore *core = self.core
        cdef ListenerQuota *listener
        cdef bytes encoded = name.encode()
        cdef const char *text = encoded
        with nogil:
            mutex_lock(&core.lock)
            listener = find_listener(core, text)
            mutex_unlock(&core.lock)
        if listener is NULL:
            raise KeyError(name)
        return listener

    # -------------------------------------------------------- facts

    def count(self, str address=None):
        """Number of connections, in total or from one address."""
        cdef QuotaCore *core = self.core
        cdef AddressEntry *entry
        cdef int64_t total
        cdef bytes encoded = b"" if address is None else address_bytes(address)
        cdef const char *text = encoded
        cdef bint of_all = address is None
        with nogil:
            mutex_lock(&core.lock)
            total = core.total
            if not of_all:
                entry = addresses_find(&core.addresses, text)
                total = 0 if entry is NULL else entry.count
            mutex_unlock(&core.lock)
        return total

    def listener_count(self, str listener not None):
        """Number of connections of a listener."""
        cdef ListenerQuota *found = self.demand(listener)
        cdef int64_t counted
        with nogil:
            mutex_lock(&self.core.lock)
            counted = found.count
            mutex_unlock(&self.core.lock)
        return counted

    def waiting(self, str listener not None):
        """Number of connections of a listener that wait in its acceptor, for a free slot or for the rate."""
        cdef ListenerQuota *found = self.demand(listener)
        cdef int64_t counted
        with nogil:
            mutex_lock(&self.core.lock)
            counted = found.waiting
            mutex_unlock(&self.core.lock)
        return counted

    def rate(self, str listener=None):
        """New connections per second (``broker-connection-accept-rate``; of a listener ``connection-accept-rate``)."""
        cdef Gauge *gauge = &self.core.rate if listener is None else &self.demand(listener).rate
        return measured(self.core, gauge)

    def throttle_time(self, str listener not None):
        """Average delay of a listener's throttled connections in ms (``connection-accept-throttle-time``), or NaN."""
        return measured(self.core, &self.demand(listener).throttle_ms)

    def ip_throttle_time(self, str listener not None):
        """Average delay of connections refused for their address's rate in ms, or NaN.

        The metric ``ip-connection-accept-throttle-time``.
        """
        return measured(self.core, &self.demand(listener).address_throttle_ms)

    def ip_rates(self):
        """New connections per second of each address that has a limit and connected within the last hour."""
        cdef QuotaCore *core = self.core
        cdef AddressEntry *entry
        cdef AddressEntry *copies
        cdef int64_t found = 0
        cdef int64_t i
        with nogil:
            mutex_lock(&core.lock)
            sweep_addresses(core)
            copies = <AddressEntry *>malloc(<size_t>(core.addresses.entries.count + 1) * sizeof(AddressEntry))
            if copies is not NULL:
                entry = addresses_after(&core.addresses, NULL)
                while entry is not NULL:
                    if entry.rate.sensor is not NULL:
                        copies[found] = entry[0]
                        sensor_retain(entry.rate.sensor)
                        found += 1
                    entry = addresses_after(&core.addresses, entry)
            mutex_unlock(&core.lock)
        if copies is NULL:
            raise MemoryError
        rates = {}
        for i in range(found):
            rates[copies[i].address.decode()] = measured(core, &copies[i].rate)
            sensor_release(copies[i].rate.sensor)
        free(copies)
        return rates

    @property
    def listeners(self):
        """Names of the listeners, the latest first."""
        cdef ListenerQuota *listener
        cdef list names = []
        with nogil:     # listeners are only ever added at the front
            mutex_lock(&self.core.lock)
            listener = self.core.listeners
            mutex_unlock(&self.core.lock)
        while listener is not NULL:
            names.append(listener.name.decode())
            listener = listener.next
        return names

    @property
    def refused(self):
        """Number of connections closed because of their address's limit."""
        return atomic_load(&self.core.refused)

    @property
    def throttled(self):
        """Number of connections not served because of their address's rate."""
        return atomic_load(&self.core.throttled)


cdef bint set_address_rate(QuotaCore *core, AddressEntry *entry, int64_t limit, bint shadow) noexcept nogil:
    """Set a rate of an address, enforced or shadow; false: out of memory."""
    if shadow:
        entry.max_shadow_rate = limit
        return entry.shadow_rate.sensor is NULL or gauge_set_limit(
            &entry.shadow_rate, <double>address_max_shadow_rate(core, entry))
    entry.max_rate = limit
    return entry.rate.sensor is NULL or gauge_set_limit(&entry.rate, <double>address_max_rate(core, entry))


cdef double measured(QuotaCore *core, Gauge *gauge) noexcept:
    cdef double value
    with nogil:
        value = gauge_measure(gauge, clock_epoch_ms(core.clock))
    return value
