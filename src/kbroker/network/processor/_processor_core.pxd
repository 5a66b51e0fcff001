"""State of one network thread (Kafka's Processor), the completion of its requests and channels, and its responses.

A ProcessorCore lives until its handle is freed and every request that it handed over has returned, even after the
thread's end. Threads: the loop's, except for the responses (``inbox``), the offered connections (``offer_lock``) and
the atomics.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.clock cimport Clock
from kbroker._core.timer.key_signal cimport KeySignalCore
from kbroker._core.network.loop_types cimport Channel, EventLoop, Link
from kbroker._core.requests.request cimport Request, RequestCache, Responder, Session
from kbroker._core.requests.request_queue cimport Executor, RequestQueue
from kbroker._core.sync cimport AtomicI64, Cond, Mutex
from kbroker.network._request_metrics cimport MetricsTable, Recorder, RequestSamples
from kbroker.network.connections._client_information cimport ClientInformationTable
from kbroker.network.connections._quota_core cimport AddressEntry, ListenerQuota, QuotaCore
from kbroker.network.connections._refused_requests cimport RefusedTable

cdef enum:
    NEW_CONNECTIONS = 20        # Processor.ConnectionQueueSize
    CLOSED_SIGNALS = 2

cdef enum ProcessorStage:
    STAGE_RUN = 0
    STAGE_DRAIN = 1             # responses only
    STAGE_END = 2
    STAGE_RETIRE = 3            # responses only; the thread ends when they are sent, a second later at most

cdef enum LoopRole:             # of a network thread; above 0: the number of the batch that it executes
    ROLE_OWN = 0                # it runs its loop
    ROLE_PASSED_ON = -1         # it is stuck in a request, and a stand-in will replace it
    ROLE_STAND_IN = -2          # the stand-in runs its loop
    ROLE_WANTED_BACK = -3       # it waits for the stand-in to leave

cdef struct Watch:              # of a NetworkWatch
    Clock *clock                # counted
    AtomicI64 is_asleep         # no network thread has helped lately
    Mutex lock                  # guards the next fields; taken before the queue's
    Cond changed
    ProcessorCore *first        # the watched threads, by watch_next
    bint closed

cdef struct ProcessorCore:
    EventLoop loop              # first: the loop's callbacks cast its address to the core
    Responder responder
    RequestCache freed_requests
    AtomicI64 refs              # the handle; after the thread's end also each outstanding request
    AtomicI64 inbox             # stack of completed Requests, newest first; INBOX_DEAD after the thread's end
    AtomicI64 inbox_size
    AtomicI64 stage
    AtomicI64 mutes_illegal     # transitions that the mute table rejected
    AtomicI64 authenticated     # first authentications of connections; the next fields count the other outcomes
    AtomicI64 authenticated_once    # first authentications that the client cannot renew
    AtomicI64 authentications_failed
    AtomicI64 reauthenticated
    AtomicI64 reauthentications_failed
    AtomicI64 sessions_expired
    RequestQueue *queue         # counted
    Session *session            # counted: identity of connections without authentication
    Mutex offer_lock            # leaf; guards the next six
    Cond offer_capacity
    int offered[NEW_CONNECTIONS]
    AddressEntry *admissions[NEW_CONNECTIONS]   # the counted address of each; NULL: not counted
    int32_t offered_first
    int32_t offered_count
    bint offers_closed          # the thread accepts no more
    int32_t request_batch_max
    int32_t next_index
    int64_t in_flight
    int64_t retire_by_ns        # deadline for outstanding responses; 0: not retiring
    QuotaCore *quotas           # counted; NULL: nothing is counted. A channel's owner is its AddressEntry
    ListenerQuota *listener_quota   # borrowed from quotas
    ClientInformationTable software      # open connections by their clients' software
    MetricsTable *metrics       # counted; written by this thread only; NULL: not kept
    Recorder *recorder          # counted; NULL: finished requests are not recorded
    RefusedTable *refused       # counted; NULL: none are noted
    KeySignalCore *closed[CLOSED_SIGNALS]   # counted: of closed connections, by index and processor id + 1; NULL: none
    Link zombies                # closed channels with requests still out
    Link failed_auth                # channels whose refusal is sent when it is due, before they close
    int64_t refusal_delay_ns
    int64_t max_receive_bytes   # of a frame during authentication
    void *tls                   # the handle's TlsServer; NULL: plaintext
    void *authentication        # the handle's Authentication; NULL: none
    RequestSamples *samples     # owned; NULL: its requests are not Kafka's
    char *listener_name         # owned
    # help for the handlers, see _helping
    Executor *executor          # of the handle's RequestExecutor; NULL: all requests are left to the handlers
    AtomicI64 role              # LoopRole, or the number of the batch
    int64_t batch_number        # the latest one
    Mutex role_lock             # leaf; held for changes from and to a stand-in
    Cond role_changed
    Watch *watch                # of the server's NetworkWatch; NULL: none
    ProcessorCore *watch_next   # guarded by the watch's lock, as the next one
    int64_t watched_role        # at the watch's previous look
    int64_t watched_since_ns    # by the watch's clock, the first look with this role

cdef void core_release(ProcessorCore *core) noexcept nogil      # any thread
# On the loop's thread, complete a request that was handed over: sent, not needed, or its channel closed.
cdef void complete(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil
# Change the channel's mute state; an event that the table does not allow closes the channel.
cdef void mute_event(ProcessorCore *core, Channel *channel, int event) noexcept nogil

# ---- connections: offered by acceptors, made channels of the loop, uncounted when they close

# Any thread. Pass a descriptor and the address that counts it; false: full, both stay the caller's.
cdef bint processor_offer(ProcessorCore *core, int fd, AddressEntry *admission, int64_t wait_ns) noexcept nogil
cdef void processor_wake(ProcessorCore *core) noexcept nogil
cdef bint has_offers(ProcessorCore *core) noexcept nogil
# The loop's thread, from here on.
cdef void configure_new_connections(ProcessorCore *core) noexcept nogil
cdef void on_closing(EventLoop *loop, Channel *channel) noexcept nogil
cdef void process_disconnected(ProcessorCore *core) noexcept nogil
cdef void close_excess_connections(ProcessorCore *core) noexcept nogil
cdef void close_offered(ProcessorCore *core) noexcept nogil     # at the end: no thread makes channels of them any more

# --------------------------------------------------- responses
# Any thread. Push a list, newest on top, and wake the loop if it sleeps; the caller may not use the requests
# afterwards.
cdef void respond(Responder *responder, Request *first) noexcept nogil
cdef bint is_closed(Request *request) noexcept nogil      # whether its connection is closed
# The loop's thread, from here on.
cdef void on_sent(EventLoop *loop, Channel *channel, Request *request) noexcept nogil
cdef void process_new_responses(ProcessorCore *core) noexcept nogil
# Write the responses that are ready (first without polling), then finish the batches that are complete.
cdef void process_touched(ProcessorCore *core) noexcept nogil
# Accept a response of this channel: send it if it is next in order, else keep it until it is.
cdef void take_response(ProcessorCore *core, Request *request) noexcept nogil
cdef void accept_response(ProcessorCore *core, Channel *channel, Request *request) noexcept nogil     # next in order
cdef void keep_early(Channel *channel, Request *request) noexcept nogil
# The last call of the thread: the caller of ``respond`` completes each later response, which holds one reference of the
# core.
cdef void close_inbox(ProcessorCore *core) noexcept nogil
