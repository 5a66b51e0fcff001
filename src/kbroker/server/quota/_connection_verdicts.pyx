# cython: freethreading_compatible=True
"""Told under the lock of the connection limits; takes only leaves: the ring's lock, and the listener's."""
from libc.stdint cimport int8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.network.connections._quota_core cimport ConnectionVerdict, VerdictObserver
from kbroker.server.quota._counters cimport ClientQuotas, quotas_release, quotas_retain
from kbroker.server.quota._quota_events cimport EVENT_VERDICT, QUOTA_CONNECTION_RATE, VerdictEvent
from kbroker.server.quota._verdict cimport publish_connection


cdef struct Told:
    VerdictObserver observer    # first: the network layer knows only this
    ClientQuotas *quotas        # counted
    VerdictListener *listener   # one count, or NULL


cdef void tell(VerdictObserver *observer, const ConnectionVerdict *given) noexcept nogil:
    cdef Told *told = <Told *>observer
    cdef VerdictEvent verdict
    memset(&verdict, 0, sizeof(verdict))
    verdict.note.kind = EVENT_VERDICT
    verdict.note.quota_type = QUOTA_CONNECTION_RATE
    verdict.note.flag = <int8_t>given.is_refused
    verdict.note.time_ms = given.time_ms
    verdict.note.value = given.observed
    verdict.limit = given.limit
    verdict.window_ms = given.window_ms
    verdict.asked_ms = given.asked_ms
    verdict.served_ms = given.served_ms
    publish_connection(&told.quotas.verdicts, &verdict, given.address)
    if told.listener != NULL:
        told.listener.verdict(told.listener, &verdict, given.address)


cdef void forget(VerdictObserver *observer) noexcept nogil:
    cdef Told *told = <Told *>observer
    quotas_release(told.quotas)
    if told.listener != NULL:
        told.listener.release(told.listener)
    free(told)


cdef bint observe_verdicts(ConnectionQuotas connections, ClientQuotas *quotas, VerdictListener *listener) except False:
    cdef Told *told = <Told *>calloc(1, sizeof(Told))
    cdef VerdictObserver *before
    if told == NULL:
        raise MemoryError
    told.observer.verdict = tell
    told.observer.release = forget
    told.quotas = quotas_retain(quotas)
    told.listener = listener
    with nogil:
        mutex_lock(&connections.core.lock)
        before = connections.core.observer
        connections.core.observer = &told.observer
        mutex_unlock(&connections.core.lock)
        if before != NULL:
            before.release(before)
    return True
