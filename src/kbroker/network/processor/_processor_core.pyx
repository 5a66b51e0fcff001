"""Creation and end of a ProcessorCore, its connections, and its responses; see the contract in the .pxd.

Responses are sent in the order in which their frames were handed over. A channel is muted from the hand-over of a
request batch until all its responses are in the kernel; more frames are cut or read only then.
Source: ``Processor.processNewResponses``, ``processCompletedSends``.
"""
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.codec.framing cimport frames_clear, frames_put_back
from kbroker._core.network.channel cimport (
    channel_free, loop_close, loop_queue_response, loop_register, loop_unmute, loop_write,
)
from kbroker._core.network.event_loop cimport LABEL_BYTES, loop_destroy, loop_handshake, loop_lowest_priority, loop_wake
from kbroker._core.network.loop_types cimport (
    CLOSE_LOCAL, CLOSE_STATE, Channel, EventLoop, count, is_linked, list_append, list_append_once, list_empty,
    list_remove,
)
from kbroker._core.network.mute cimport (
    MUTED_AND_RESPONSE_PENDING, MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, RESPONSE_SENT, THROTTLE_ENDED,
    THROTTLE_STARTED, mute_next,
)
from kbroker._core.requests.request cimport (
    ACTION_END_THROTTLE, ACTION_NO_OP, ACTION_RETURN, ACTION_SEND, ACTION_START_THROTTLE, Request, Responder,
    request_cache_clear, request_free, request_free_into, session_release, session_retain,
)
from kbroker._core.requests.request_queue cimport request_queue_release
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_cas, atomic_load, atomic_swap, cond_broadcast, cond_destroy, cond_wait_ns, mutex_destroy,
    mutex_lock, mutex_unlock,
)
from kbroker.network._kafka_request cimport (
    KafkaRequest, is_kafka_request, kafka_charge_network, kafka_clear_response, kafka_request,
)
from kbroker.network._request_metrics cimport is_sampled, keep_sample, metrics_record, metrics_release
from kbroker.network.connections._client_information cimport (
    software_destroy, software_enter, software_leave, software_settle,
)
from kbroker.network.connections._quota_core cimport AddressEntry, quotas_exceeded, quotas_leave, quotas_release
from kbroker._core.timer.key_signal cimport key_signal, key_signal_release
from kbroker.network.connections._refused_requests cimport refused_receive, refused_release
from kbroker.network.transport._security cimport authentication_end, authentication_open, tls_open


cdef extern from "network/socket_io.h" nogil:
    void kb_close_socket(int fd)


cdef enum:
    LABEL_EVERY = 63            # a power of two less one: number of requests after which a channel's label is refreshed


cdef void core_release(ProcessorCore *core) noexcept nogil:
    cdef Channel *channel
    cdef int i
    if core is NULL or atomic_add_fetch(&core.refs, -1) != 0:
        return
    while not list_empty(&core.zombies):
        channel = core.zombies.next.channel
        list_remove(&channel.lru)
        channel_free(channel)
    request_cache_clear(&core.freed_requests)
    loop_destroy(&core.loop)
    software_destroy(&core.software)
    request_queue_release(core.queue)
    session_release(core.session)
    quotas_release(core.quotas)
    metrics_release(core.metrics)
    refused_release(core.refused)
    for i in range(CLOSED_SIGNALS):
        key_signal_release(core.closed[i])
    if core.recorder is not NULL:
        core.recorder.release(core.recorder)
    cond_destroy(&core.role_changed)
    mutex_destroy(&core.role_lock)
    cond_destroy(&core.offer_capacity)
    mutex_destroy(&core.offer_lock)
    free(core.samples)
    free(core.listener_name)
    free(core)


cdef void complete_request(ProcessorCore *core, Request *request, bint is_late) noexcept nogil:
    """Call the hook, record the request and free it. ``is_late``: on another thread, after the loop's end."""
    if request.response_sent_ns == 0:
        request.response_sent_ns = clock_now_ns(core.loop.clock)
    if request.on_complete is not NULL:
        request.on_complete(request, request.on_complete_arg)
    if core.recorder is not NULL:
        kafka_charge_network(request)       # the record includes the time charged to the client's quota
        core.recorder.record(core.recorder, request, is_late)
    if is_late:
        request_free(request)
    else:
        request_free_into(&core.freed_requests, request)


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


cdef void on_closing(EventLoop *loop, Channel *channel) noexcept nogil:
    """Uncount a connection before its client notices the close, and connects again."""
    cdef ProcessorCore *core = <ProcessorCore *>loop
    quotas_leave(core.quotas, core.listener_quota, <AddressEntry *>channel.owner)
    channel.owner = NULL


cdef void process_disconnected(ProcessorCore *core) noexcept nogil:
    cdef Channel *channel
    cdef int i
    while not list_empty(&core.loop.disconnected):
        channel = core.loop.disconnected.next.channel
        list_remove(&channel.disconnected)
        if channel.has_invalid_frame:
            refused_receive(core.refused, channel, core.responder.processor_id)
        for i in range(CLOSED_SIGNALS):
            key_signal(core.closed[i], channel.metadata.index, core.responder.processor_id + 1)
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


# --------------------------------------------------- responses

cdef enum:
    INBOX_DEAD = 1              # no pointer has this value


# ---- from any thread

cdef void respond(Responder *responder, Request *first) noexcept nogil:
    """Push a list, newest on top, and wake the loop if it sleeps. The caller may not use the requests afterwards."""
    cdef ProcessorCore *core = <ProcessorCore *>responder.owner
    cdef Request *reversed = NULL
    cdef Request *last = NULL
    cdef Request *following
    cdef int64_t head, number = 0
    atomic_add_fetch(&core.refs, 1)           # the pushed requests may be the last that keep the core alive
    while first is not NULL:
        following = first.next
        if first.response_hook is NULL or first.action == ACTION_RETURN or not first.response_hook(first):
            if first.action == ACTION_START_THROTTLE:
                atomic_add_fetch(&core.refs, 1)   # until its END_THROTTLE
            if last is NULL:
                last = first
            first.next = reversed
            reversed = first
            number += 1
        first = following
    atomic_add_fetch(&core.inbox_size, number)    # before they can be taken: never below 0
    while reversed is not NULL:
        head = atomic_load(&core.inbox)
        if head == INBOX_DEAD:
            atomic_add_fetch(&core.inbox_size, -number)
            drop_late(core, reversed, last)
            break
        last.next = <Request *>head
        if atomic_cas(&core.inbox, head, <int64_t>reversed):
            loop_wake(&core.loop)
            break
    core_release(core)


cdef bint is_closed(Request *request) noexcept nogil:
    """Return whether the request's connection is closed. A channel lives as long as it has outstanding requests."""
    return atomic_load(&(<Channel *>request.channel).is_closed) != 0


cdef void drop_late(ProcessorCore *core, Request *request, Request *last) noexcept nogil:
    """Complete requests after the thread has ended, because their responses can no longer be sent."""
    cdef Request *following
    last.next = NULL
    while request is not NULL:
        following = request.next
        drop_one(core, request)
        request = following


cdef void drop_one(ProcessorCore *core, Request *request) noexcept nogil:
    if request.action == ACTION_START_THROTTLE:
        request_free(request)
        return
    if request.action == ACTION_END_THROTTLE:
        request_free(request)
    else:
        complete_request(core, request, True)
    core_release(core)


# ---- the loop's thread

cdef void on_sent(EventLoop *loop, Channel *channel, Request *request) noexcept nogil:
    complete(<ProcessorCore *>loop, channel, request)
    if channel.close_reason == 0:
        list_append_once(&loop.pending_writes, &channel.pending_writes)


cdef void accept_response(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil:
    """Apply the response that is next in order on its channel."""
    channel.send_sequence += 1
    if request.action == ACTION_RETURN and (request.payload is not NULL or request.size_bytes == 0):
        channel.outstanding -= 1
        core.in_flight -= 1
        count(&core.loop.counters.requests, -1)     # it will be counted when it is handed over again
        kafka_clear_response(request)
        request.action = ACTION_SEND
        request.next = NULL
        if channel.returned_last is NULL:
            channel.requeued_first = request
        else:
            channel.returned_last.next = request
        channel.returned_last = request
        channel.returned_count += 1
    elif request.action == ACTION_SEND and not channel.close_when_sent:
        loop_queue_response(channel, request)
    else:
        if request.action != ACTION_NO_OP and not channel.close_when_sent:     # close; unknown actions close as well
            channel.close_when_sent = True
            frames_clear(&channel.reader)
            list_remove(&channel.partial_reads)
        complete(core, channel, request)


cdef void keep_early(Channel *channel, Request *request) noexcept nogil:
    cdef Request **at = &channel.early
    while at[0] is not NULL and at[0].sequence < request.sequence:
        at = &at[0].next
    request.next = at[0]
    at[0] = request


cdef void take_control(ProcessorCore *core, Request *request) noexcept nogil:
    cdef Channel *channel = <Channel *>request.channel
    if request.action == ACTION_START_THROTTLE:
        channel.throttles += 1
        if channel.throttles == 1 or request.response_ready_ns > channel.throttled_until_ns:
            channel.throttled_until_ns = request.response_ready_ns
            channel.throttle_kind = <int>request.sequence
        if channel.throttles == 1 and channel.close_reason == 0:
            mute_event(core, channel, THROTTLE_STARTED)
    else:
        channel.throttles -= 1
        if channel.throttles == 0 and channel.close_reason == 0:
            mute_event(core, channel, THROTTLE_ENDED)
            if channel.close_reason == 0:
                loop_unmute(&core.loop, channel)
        core_release(core)              # counted since its START_THROTTLE; the handle keeps the core alive here
    request_free(request)
    free_if_done(channel)


cdef void take_response(ProcessorCore *core, Request *request) noexcept nogil:
    cdef Channel *channel = <Channel *>request.channel
    if channel.close_reason != 0:
        complete(core, channel, request)
        free_if_done(channel)
        return
    if request.sequence != channel.send_sequence:
        keep_early(channel, request)
        return
    accept_response(core, channel, request)
    while channel.early is not NULL and channel.early.sequence == channel.send_sequence:
        request = channel.early
        channel.early = request.next
        accept_response(core, channel, request)
    list_append_once(&core.loop.pending_writes, &channel.pending_writes)


cdef void process_new_responses(ProcessorCore *core) noexcept nogil:
    cdef Request *newest
    cdef Request *oldest = NULL
    cdef Request *following
    cdef int64_t now, number = 0
    if atomic_load(&core.inbox) == 0:
        return
    newest = <Request *>atomic_swap(&core.inbox, 0)
    while newest is not NULL:
        following = newest.next
        newest.next = oldest
        oldest = newest
        newest = following
        number += 1
    atomic_add_fetch(&core.inbox_size, -number)
    now = clock_now_ns(core.loop.clock)
    while oldest is not NULL:
        following = oldest.next
        oldest.next = NULL
        oldest.response_dequeue_ns = now
        if oldest.action == ACTION_START_THROTTLE or oldest.action == ACTION_END_THROTTLE:
            take_control(core, oldest)
        else:
            take_response(core, oldest)
        oldest = following


cdef void finish_batch(ProcessorCore *core, Channel *channel) noexcept nogil:
    """Unmute the channel: all frames of the batch returned and their responses are in the kernel."""
    if channel.close_reason != 0 or channel.outstanding != 0 or channel.send_first is not NULL:
        return
    if (channel.mute_state != MUTED_AND_RESPONSE_PENDING
            and channel.mute_state != MUTED_AND_THROTTLED_AND_RESPONSE_PENDING):
        return
    if channel.requeued_first is not NULL:
        frames_put_back(&channel.reader, channel.requeued_first, channel.returned_last, channel.returned_count)
        channel.requeued_first = NULL
        channel.returned_last = NULL
        channel.returned_count = 0
    mute_event(core, channel, RESPONSE_SENT)
    if channel.close_reason == 0:
        loop_unmute(&core.loop, channel)


cdef void process_touched(ProcessorCore *core) noexcept nogil:
    """Write the responses that are ready (first without polling), then finish the batches that are complete."""
    cdef Channel *channel
    cdef int64_t started, ended
    if list_empty(&core.loop.pending_writes):
        return
    started = clock_now_ns(core.loop.clock)
    while not list_empty(&core.loop.pending_writes):
        channel = core.loop.pending_writes.next.channel
        if channel.send_first is not NULL and not channel.wants_write or channel.close_when_sent:
            loop_write(&core.loop, channel)
        finish_batch(core, channel)
        list_remove(&channel.pending_writes)
        ended = clock_now_ns(core.loop.clock)
        channel.network_ns += ended - started
        started = ended


cdef void close_inbox(ProcessorCore *core) noexcept nogil:
    cdef Request *request
    cdef Request *following
    atomic_add_fetch(&core.refs, core.in_flight)
    request = <Request *>atomic_swap(&core.inbox, INBOX_DEAD)
    while request is not NULL:
        following = request.next
        drop_one(core, request)
        request = following
