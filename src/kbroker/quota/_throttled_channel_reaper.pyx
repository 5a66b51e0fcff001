"""Throttled channels on the timing wheel: one entry each, ended in the millisecond they are due.

Source: ``ThrottledChannel``, ``ClientQuotaManager.ThrottledChannelReaper``; one wheel and one thread serve all types.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.requests.request cimport (
    ACTION_END_THROTTLE, ACTION_START_THROTTLE, Request, Responder, request_free, request_new,
)
from kbroker._core.metrics.sensor_core cimport sensor_record
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker._core.timer.timing_wheel cimport (
    TimerEntry, timer_add, timer_cancel, timer_close, timer_collect, timer_take_due,
)
from kbroker.quota._client_sensors cimport epoch_ms_of, quotas_release, quotas_retain

cdef enum:
    ENDED_AT_ONCE = 32          # maximum number of network threads that get their ended throttles in one list each


cdef struct ThrottledChannel:
    TimerEntry entry            # first: the wheel uses only this
    ThrottledChannel *next      # ClientQuotas.throttled_lock
    ThrottledChannel *prev
    ClientQuotas *quotas        # counted
    QuotaManager *manager
    Request *ending             # owned


cdef struct Ends:               # of one network thread
    Responder *responder
    Request *first
    Request *last


cdef Request *control_message(const Request *about, int action) noexcept nogil:
    cdef Request *message = request_new(NULL, 0)
    if message != NULL:
        message.action = action
        message.responder = about.responder
        message.channel = about.channel
        message.channel_number = about.channel_number
    return message


cdef void never_fires(TimerEntry *entry) noexcept nogil:
    pass


cdef void throttle_channel(ClientQuotas *quotas, QuotaManager *manager, ClientSensors *sensors, Request *request,
                           int64_t throttle_ms, int64_t now_ms) noexcept nogil:
    cdef ThrottledChannel *channel
    cdef Request *starting
    if throttle_ms <= 0:
        return
    if sensors != NULL:
        sensor_record(sensors.throttle_time, <double>throttle_ms, now_ms, False, NULL)
    channel = <ThrottledChannel *>calloc(1, sizeof(ThrottledChannel))
    starting = control_message(request, ACTION_START_THROTTLE)
    if channel != NULL:
        channel.ending = control_message(request, ACTION_END_THROTTLE)
    if channel == NULL or starting == NULL or channel.ending == NULL:
        if channel != NULL:
            request_free(channel.ending)
        free(channel)
        request_free(starting)
        return
    starting.response_ready_ns = clock_now_ns(quotas.clock) + throttle_ms * 1000000
    starting.sequence = manager.kind + 1
    channel.entry.fire = never_fires
    channel.manager = manager
    mutex_lock(&quotas.throttled_lock)
    if atomic_load(&quotas.is_closed):
        mutex_unlock(&quotas.throttled_lock)
        request_free(channel.ending)
        free(channel)
        request_free(starting)
        return
    channel.quotas = quotas_retain(quotas)
    channel.next = <ThrottledChannel *>quotas.throttled
    if channel.next != NULL:
        channel.next.prev = channel
    quotas.throttled = channel
    # Under the lock, so that a close either does not find the channel, or finds it with its start already sent before
    # its end.
    starting.responder.respond(starting.responder, starting)
    timer_add(quotas.timer, &channel.entry, throttle_ms)
    mutex_unlock(&quotas.throttled_lock)
    sensor_record(manager.delay_queue, 1.0, now_ms, False, NULL)


cdef Request *end_of(ThrottledChannel *channel, int64_t now_ms) noexcept nogil:
    """Return the message that ends a throttle; the channel's entry is freed."""
    cdef ClientQuotas *quotas = channel.quotas
    cdef Request *ending = channel.ending
    mutex_lock(&quotas.throttled_lock)
    if channel.prev != NULL:
        channel.prev.next = channel.next
    else:
        quotas.throttled = channel.next
    if channel.next != NULL:
        channel.next.prev = channel.prev
    mutex_unlock(&quotas.throttled_lock)
    sensor_record(channel.manager.delay_queue, -1.0, now_ms, False, NULL)
    free(channel)
    ending.next = NULL
    quotas_release(quotas)              # never the last count, since the caller holds one
    return ending


cdef bint throttled_advance(ClientQuotas *quotas, int64_t timeout_ms) noexcept nogil:
    cdef Ends ends[ENDED_AT_ONCE]
    cdef int32_t count = 0, i
    cdef TimerEntry *entry
    cdef Request *ending
    cdef int64_t now_ms
    if not timer_collect(quotas.timer, timeout_ms):
        return False
    now_ms = epoch_ms_of(quotas.clock, clock_now_ns(quotas.clock))
    while True:
        entry = timer_take_due(quotas.timer)
        if entry == NULL:
            break
        ending = end_of(<ThrottledChannel *>entry, now_ms)
        i = 0
        while i < count and ends[i].responder != ending.responder:
            i += 1
        if i == ENDED_AT_ONCE:
            ending.responder.respond(ending.responder, ending)
            continue
        if i == count:
            count += 1
            ends[i].responder = ending.responder
            ends[i].first = ending
        else:
            ends[i].last.next = ending
        ends[i].last = ending
    for i in range(count):
        ends[i].responder.respond(ends[i].responder, ends[i].first)
    return True


cdef void throttled_close(ClientQuotas *quotas) noexcept nogil:
    cdef ThrottledChannel *channel
    cdef Request *ending
    cdef int64_t now_ms = epoch_ms_of(quotas.clock, clock_now_ns(quotas.clock))
    mutex_lock(&quotas.throttled_lock)
    atomic_store(&quotas.is_closed, 1)
    mutex_unlock(&quotas.throttled_lock)
    timer_close(quotas.timer)
    while True:
        mutex_lock(&quotas.throttled_lock)
        channel = <ThrottledChannel *>quotas.throttled
        mutex_unlock(&quotas.throttled_lock)
        if channel == NULL:
            return
        timer_cancel(quotas.timer, &channel.entry)
        ending = end_of(channel, now_ms)
        ending.responder.respond(ending.responder, ending)
