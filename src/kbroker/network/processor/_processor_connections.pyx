"""New and ended connections. Source: ``Processor.accept``, ``configureNewConnections``, ``processDisconnected``."""
from libc.stdint cimport INT32_MAX, int64_t

from kbroker._core.network.channel cimport loop_close, loop_register
from kbroker._core.network.loop_types cimport CLOSE_LOCAL, Channel, list_append, list_empty, list_remove
from kbroker._core.network.event_loop cimport loop_handshake, loop_lowest_priority, loop_wake
from kbroker._core.requests.request cimport session_retain
from kbroker._core.sync cimport cond_broadcast, cond_wait_ns, mutex_lock, mutex_unlock
from kbroker.network.connections._address_table cimport AddressEntry
from kbroker.network.transport._authentication cimport authentication_end, authentication_open
from kbroker.network.connections._client_information cimport software_enter, software_leave
from kbroker.network.processor._processor_core cimport NEW_CONNECTIONS, ProcessorCore, free_if_done
from kbroker.network.connections._quota_core cimport quotas_exceeded, quotas_leave
from kbroker.network.transport._tls cimport tls_open

cdef extern from "network/socket_io.h" nogil:
    void kb_close_socket(int fd)


cdef bint processor_offer(ProcessorCore *core, int fd, AddressEntry *admission, int64_t wait_ns) noexcept nogil:
    cdef bint room
    cdef int slot
    mutex_lock(&core.offer_lock)
    if core.offered_count == NEW_CONNECTIONS and wait_ns > 0 and not core.offers_closed:
        cond_wait_ns(&core.offer_capacity, &core.offer_lock, wait_ns)
    room = core.offered_count < NEW_CONNECTIONS and not core.offers_closed
    if room:
        slot = (core.offered_first + core.offered_count) % NEW_CONNECTIONS
        core.offered[slot] = fd
        core.admissions[slot] = admission
        core.offered_count += 1
    mutex_unlock(&core.offer_lock)
    return room


cdef void processor_wake(ProcessorCore *core) noexcept nogil:
    loop_wake(&core.loop)


cdef bint has_offers(ProcessorCore *core) noexcept nogil:
    cdef bint waiting
    mutex_lock(&core.offer_lock)
    waiting = core.offered_count > 0
    mutex_unlock(&core.offer_lock)
    return waiting


cdef void configure_new_connections(ProcessorCore *core) noexcept nogil:
    cdef int taken[NEW_CONNECTIONS]
    cdef AddressEntry *admissions[NEW_CONNECTIONS]
    cdef int i, n
    cdef Channel *channel
    mutex_lock(&core.offer_lock)
    n = core.offered_count
    for i in range(n):
        taken[i] = core.offered[(core.offered_first + i) % NEW_CONNECTIONS]
        admissions[i] = core.admissions[(core.offered_first + i) % NEW_CONNECTIONS]
    core.offered_count = 0
    core.offered_first = 0
    mutex_unlock(&core.offer_lock)
    if n == 0:
        return
    cond_broadcast(&core.offer_capacity)
    for i in range(n):
        channel = loop_register(&core.loop, taken[i])
        if channel is NULL:
            quotas_leave(core.quotas, core.listener_quota, admissions[i])
            continue
        channel.owner = admissions[i]
        channel.session = session_retain(core.session)
        channel.metadata.listener_name = core.listener_name
        software_enter(&core.software, channel)
        channel.metadata.index = core.next_index
        core.next_index = 0 if core.next_index == INT32_MAX else core.next_index + 1
        if core.tls is not NULL:
            if tls_open(channel, core.tls):
                loop_handshake(&core.loop, channel)
            else:
                loop_close(&core.loop, channel, CLOSE_LOCAL)
        if core.authentication is not NULL:
            authentication_open(channel, core.max_receive_bytes)


cdef void process_disconnected(ProcessorCore *core) noexcept nogil:
    cdef Channel *channel
    while not list_empty(&core.loop.disconnected):
        channel = core.loop.disconnected.next.channel
        list_remove(&channel.disconnected)
        quotas_leave(core.quotas, core.listener_quota, <AddressEntry *>channel.owner)
        channel.owner = NULL
        authentication_end(channel)
        software_leave(&core.software, channel)
        list_append(&core.zombies, &channel.lru)
        free_if_done(channel)


cdef void close_excess_connections(ProcessorCore *core) noexcept nogil:
    cdef Channel *channel
    if core.loop.open_channels > core.max_connections or quotas_exceeded(core.quotas, core.listener_quota):
        channel = loop_lowest_priority(&core.loop)
        if channel is not NULL:
            loop_close(&core.loop, channel, CLOSE_LOCAL)


cdef void close_offered(ProcessorCore *core) noexcept nogil:
    cdef int i
    mutex_lock(&core.offer_lock)
    for i in range(core.offered_count):
        kb_close_socket(core.offered[(core.offered_first + i) % NEW_CONNECTIONS])
        quotas_leave(core.quotas, core.listener_quota, core.admissions[(core.offered_first + i) % NEW_CONNECTIONS])
    core.offered_count = 0
    core.offers_closed = True
    cond_broadcast(&core.offer_capacity)
    mutex_unlock(&core.offer_lock)
