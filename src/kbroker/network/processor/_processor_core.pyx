"""Creation and end of a ProcessorCore, and functions that its phases share; see the contract in the .pxd."""
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.network.channel cimport channel_free, loop_close, loop_register
from kbroker._core.network.event_loop cimport loop_destroy, loop_handshake, loop_lowest_priority, loop_wake
from kbroker._core.network.loop_types cimport (
    CLOSE_LOCAL, CLOSE_STATE, Channel, count, is_linked, list_append, list_empty, list_remove,
)
from kbroker._core.network.loop_snapshot cimport LABEL_BYTES
from kbroker._core.network.mute cimport mute_next
from kbroker._core.requests.request cimport Request, request_free, session_release, session_retain
from kbroker._core.requests.request_queue cimport request_queue_release
from kbroker._core.sync cimport (
    atomic_add_fetch, cond_broadcast, cond_destroy, cond_wait_ns, mutex_destroy, mutex_lock, mutex_unlock,
)
from kbroker.network._kafka_request cimport KafkaRequest, is_kafka_request, kafka_charge_network, kafka_request
from kbroker.network._request_metrics cimport metrics_record, metrics_release
from kbroker.network.connections._quota_core cimport AddressEntry, quotas_exceeded, quotas_leave, quotas_release
from kbroker.network.connections._client_information cimport (
    software_destroy, software_enter, software_leave, software_settle,
)
from kbroker.network.connections._refused_requests cimport refused_receive, refused_release
from kbroker.network.processor._request_samples cimport is_sampled, keep_sample
from kbroker.network.transport._authentication cimport authentication_end, authentication_open
from kbroker.network.transport._tls cimport tls_open

cdef extern from "network/socket_io.h" nogil:
    void kb_close_socket(int fd)


cdef enum:
    LABEL_EVERY = 63            # a power of two less one: number of requests after which a channel's label is refreshed


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
    refused_release(core.refused)
    if core.recorder is not NULL:
        core.recorder.release(core.recorder)
    cond_destroy(&core.offer_capacity)
    mutex_destroy(&core.offer_lock)
    free(core.samples)
    free(core.listener_name)
    free(core)


cdef void complete_request(ProcessorCore *core, Request *request, bint is_late) noexcept nogil:
    if request.response_sent_ns == 0:
        request.response_sent_ns = clock_now_ns(core.loop.clock)
    if request.on_complete is not NULL:
        request.on_complete(request, request.on_complete_arg)
    if core.recorder is not NULL:
        kafka_charge_network(request)       # the record includes the time charged to the client's quota
        core.recorder.record(core.recorder, request, is_late)
    request_free(request)


cdef void set_label(Channel *channel, Request *request) noexcept nogil:
    """Set the channel's label, which snapshots show, to its client id."""
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int32_t n = kafka.client_id_bytes if kafka.client_id is not NULL else 0
    if n > LABEL_BYTES:
        n = LABEL_BYTES
    if channel.label is NULL:
        channel.label = <char *>malloc(LABEL_BYTES)
        if channel.label is NULL:
            return
    channel.label_bytes = n
    if n > 0:
        memcpy(channel.label, kafka.client_id, <size_t>n)


cdef inline void keep_for_snapshots(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil:
    """Keep the client id and the sample of a request for snapshots.

    A client id that changes on a connection is noticed up to LABEL_EVERY requests later.
    """
    if request.dequeue_ns == 0 or not is_kafka_request(request):
        return
    if channel.label is NULL or request.sequence & LABEL_EVERY == 0:
        set_label(channel, request)
    if is_sampled(core.samples, request):
        keep_sample(core.samples, request)


cdef void complete(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil:
    """Complete a request that was handed over: its response is sent or not needed, or its channel is closed."""
    if request.dequeue_ns != 0:         # else an authenticator's: its time counts for the first request of the client
        request.network_ns = channel.network_ns
        channel.network_ns = 0
    if is_kafka_request(request) and kafka_request(request).client_information is not NULL:
        software_settle(&core.software, channel, request)
    channel.outstanding -= 1
    core.in_flight -= 1
    if request.response_sent_ns == 0:
        request.response_sent_ns = clock_now_ns(core.loop.clock)
    if core.metrics is not NULL:
        metrics_record(core.metrics, request)
    if core.samples is not NULL:
        keep_for_snapshots(core, channel, request)
    complete_request(core, request, False)


cdef void free_if_done(Channel *channel) noexcept nogil:
    """Free a closed channel when it has no outstanding requests, throttles or pending disconnect."""
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


# ---- connections. Source: ``Processor.accept``, ``configureNewConnections``, ``processDisconnected``.

cdef bint processor_offer(ProcessorCore *core, int fd, AddressEntry *admission, int64_t wait_ns) noexcept nogil:
    cdef bint is_taken
    cdef int slot
    mutex_lock(&core.offer_lock)
    if core.offered_count == NEW_CONNECTIONS and wait_ns > 0 and not core.offers_closed:
        cond_wait_ns(&core.offer_capacity, &core.offer_lock, wait_ns)
    is_taken = core.offered_count < NEW_CONNECTIONS and not core.offers_closed
    if is_taken:
        slot = (core.offered_first + core.offered_count) % NEW_CONNECTIONS
        core.offered[slot] = fd
        core.admissions[slot] = admission
        core.offered_count += 1
    mutex_unlock(&core.offer_lock)
    return is_taken


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
        if channel.has_invalid_frame:
            refused_receive(core.refused, channel, core.responder.processor_id)
        quotas_leave(core.quotas, core.listener_quota, <AddressEntry *>channel.owner)
        channel.owner = NULL
        authentication_end(channel)
        software_leave(&core.software, channel)
        list_append(&core.zombies, &channel.lru)
        free_if_done(channel)


cdef void close_excess_connections(ProcessorCore *core) noexcept nogil:
    cdef Channel *channel
    if quotas_exceeded(core.quotas, core.listener_quota):
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
