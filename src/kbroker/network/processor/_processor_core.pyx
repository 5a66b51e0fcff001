"""The life of a ProcessorCore, and what its phases share; see the contract in the .pxd."""
from libc.stdlib cimport free

from kbroker._core.network.channel cimport channel_free, loop_close
from kbroker._core.network.loop_types cimport CLOSE_STATE, Channel, count, is_linked, list_empty, list_remove
from kbroker._core.clock cimport clock_now_ns
from kbroker._core.network.event_loop cimport loop_destroy
from kbroker._core.network.mute cimport mute_next
from kbroker._core.requests.request cimport Request, request_free, session_release
from kbroker._core.requests.request_queue cimport request_queue_release
from kbroker._core.sync cimport atomic_add_fetch, cond_destroy, mutex_destroy
from kbroker.network._kafka_request cimport is_kafka_request, kafka_charge_network, kafka_request
from kbroker.network.connections._client_information cimport software_destroy, software_settle
from kbroker.network.connections._quota_core cimport quotas_release
from kbroker.network._request_metrics cimport metrics_record, metrics_release


cdef void core_release(ProcessorCore *core) noexcept nogil:
    cdef Channel *channel
    if core is NULL or atomic_add_fetch(&core.refs, -1) != 0:
        return
    while not list_empty(&core.zombies):
        channel = core.zombies.next.channel
        list_remove(&channel.lru)
        channel_free(channel)
    loop_destroy(&core.loop)
    software_destroy(&core.software)
    request_queue_release(core.queue)
    session_release(core.session)
    quotas_release(core.quotas)
    metrics_release(core.metrics)
    if core.recorder is not NULL:
        core.recorder.release(core.recorder)
    cond_destroy(&core.offer_capacity)
    mutex_destroy(&core.offer_lock)
    free(core.listener_name)
    free(core)


cdef void complete_request(ProcessorCore *core, Request *request, bint is_late) noexcept nogil:
    if request.response_sent_ns == 0:
        request.response_sent_ns = clock_now_ns(core.loop.clock)
    if request.on_complete is not NULL:
        request.on_complete(request, request.on_complete_arg)
    if core.recorder is not NULL:
        kafka_charge_network(request)       # what it cost its client's quota belongs into the record
        core.recorder.record(core.recorder, request, is_late)
    request_free(request)


cdef void complete(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil:
    """The end of a request that was handed over: sent, needless, or its channel gone."""
    if request.dequeue_ns != 0:         # else an authenticator's: its time counts for the first request of the client
        request.network_ns = channel.network_ns
        channel.network_ns = 0
    if is_kafka_request(request) and kafka_request(request).client_information is not NULL:
        software_settle(&core.software, channel, request)
    channel.outstanding -= 1
    core.in_flight -= 1
    if core.metrics is not NULL:
        if request.response_sent_ns == 0:
            request.response_sent_ns = clock_now_ns(core.loop.clock)
        metrics_record(core.metrics, request)
    complete_request(core, request, False)


cdef void free_if_done(Channel *channel) noexcept nogil:
    """A closed channel goes when nobody can name it any more."""
    if (channel.close_reason != 0 and channel.outstanding == 0 and channel.throttles == 0
            and not is_linked(&channel.disconnected)):
        list_remove(&channel.lru)
        channel_free(channel)


cdef void mute_event(ProcessorCore *core, Channel *channel, int event) noexcept nogil:
    cdef int state = mute_next(channel.mute_state, event)
    if state < 0:
        count(&core.mutes_illegal, 1)
        loop_close(&core.loop, channel, CLOSE_STATE)
    else:
        channel.mute_state = state
