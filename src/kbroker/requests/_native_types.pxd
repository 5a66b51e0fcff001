"""Types shared by the native handlers: their context, the table of APIs. Structs only.

Threads: ``NativeApisCore`` is read by all handlers; ``topics`` and ``generation`` change under ``topics_lock``, the
bodies of ApiVersions under ``bodies_lock``; ``intercepted`` may change at any time; everything else is set before the
first handler runs. ``Handler`` belongs to one thread.
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from kbroker._core.clock cimport Clock
from kbroker._core.timer.key_signal cimport KeySignalCore
from kbroker._core.timer.purgatory cimport Purgatory
from kbroker._core.requests.request cimport Request
from kbroker._core.requests.request_queue cimport RequestQueue
from kbroker._core.codec.wire cimport Writer, write_raw, write_uvarint
from kbroker._core.sync cimport AtomicI64, Cond, Mutex, mutex_lock, mutex_unlock
from kbroker._core.timer.timing_wheel cimport Timer
from kbroker.log._partition cimport Partition
from kbroker.network.connections._refused_requests cimport RefusedTable
from kbroker.security.authorizer._acl_table cimport AclTable, DecisionCache
from kbroker.replica._topics cimport TopicTable
from kbroker.quota._quota_enforcement cimport ClientCache
from kbroker.quota._client_sensors cimport ClientQuotas

cdef enum:
    API_SLOTS = 128
    API_WORDS = 2               # 64 API keys each
    MAX_VERSIONS = 32
    MAX_LISTENERS = 16          # with addresses of the nodes for their clients
    MAX_REQUEST_PARTITIONS = 100000     # and topics, of one Produce or Fetch; a request with more is malformed
    DEFERRED_SLOTS = 32

cdef enum:                      # API keys with native handlers
    PRODUCE = 0
    FETCH = 1
    API_VERSIONS = 18

cdef enum Outcome:
    OUTCOME_RESPONDED = 0        # the request carries its response (or NO_OP, or CLOSE)
    OUTCOME_DELAYED = 1          # another owner completes the request
    OUTCOME_DECLINED = 2        # for the Python handlers
    OUTCOME_LEFT = 3            # for a handler thread: the caller is a network thread, and the request takes the GIL

ctypedef Outcome (*native_handler)(Handler *handler, Request *request) noexcept nogil

cdef struct Api:
    bint is_enabled
    int16_t min_version
    int16_t max_version
    int16_t first_flexible      # 32767: no version
    native_handler handle       # NULL: Python

cdef struct Body:               # a response body that is the same for all clients
    char *data
    int64_t size_bytes
    int64_t throttle_at         # position of throttle_time_ms; -1: no such field

cdef struct Peers:              # the native handlers of the nodes in one process, which share their partitions
    AtomicI64 refs
    Mutex lock                  # a leaf
    Cond visit_ended            # the last visit to a leaving node has ended
    NativeApisCore *first

cdef struct NativeApisCore:
    Clock *clock
    ClientQuotas *quotas        # counted; NULL: no quotas
    RefusedTable *refused       # counted; NULL: not counted
    AclTable *acls              # counted; NULL: everything is allowed
    RequestQueue *requests
    RequestQueue *python_requests
    int32_t node_id
    bint selects_by_rack        # consumers are directed to followers on their racks (KIP-392)
    int64_t fetch_max_bytes     # fetch.max.bytes of the broker
    uint64_t hash_seed          # secret: seed of tables that requests fill
    Api apis[API_SLOTS]
    AtomicI64 intercepted[API_WORDS]    # bit per API key: Python intercepts its requests first
    Mutex bodies_lock           # a leaf; guards the next five
    Body racks                  # id, length and text of each node's rack, in the machine's byte order
    Body nodes[MAX_LISTENERS]   # tagged section of a response with the nodes' addresses, by listener (KIP-951)
    Body versions[MAX_VERSIONS]         # ApiVersions by version
    Body invalid_versions[MAX_VERSIONS]  # error 42
    Body unsupported_versions           # error 35, version 0
    Mutex topics_lock
    TopicTable *topics
    AtomicI64 generation
    Timer *fetch_timer
    Timer *produce_timer
    Purgatory *fetch_purgatory
    Purgatory *produce_purgatory
    KeySignalCore *appends      # counted: of partitions, by address and 0, for share fetches; NULL: none
    Peers *peers                # counted; NULL: no other node is in this process
    NativeApisCore *next_peer   # Peers.lock, like the next two
    int32_t visits              # threads of other nodes that check its fetches
    bint is_leaving
    void *sessions              # SessionCache of _fetch_session
    Mutex delayed_lock
    void *delayed                # FetchState list, for shutdown
    AtomicI64 verifies_transactions     # transaction.partition.verification.enable
    AtomicI64 refuses_produce   # a failure stops the broker: a Produce closes its connection
    AtomicI64 is_closed
    AtomicI64 handlers_to_stop  # number of handler threads that are to end (num.io.threads was lowered)
    AtomicI64 slow_appends_until_ns     # until then an append may block: only handlers execute it
    AtomicI64 handled           # requests completed natively
    AtomicI64 declined

cdef inline void write_nodes(Writer *w, NativeApisCore *native_apis, const Request *request) noexcept nogil:
    """Write the tagged section of a response about other leaders: the addresses of the nodes (KIP-951)."""
    cdef int32_t listener = request.responder.listener_id
    mutex_lock(&native_apis.bodies_lock)
    if 0 <= listener < MAX_LISTENERS and native_apis.nodes[listener].data != NULL:
        write_raw(w, native_apis.nodes[listener].data, native_apis.nodes[listener].size_bytes)
    else:
        write_uvarint(w, 0)
    mutex_unlock(&native_apis.bodies_lock)

cdef struct Handler:
    NativeApisCore *native_apis
    bint is_network_thread      # which helps the handlers
    TopicTable *topics          # cached, counted
    int64_t generation
    Partition *deferred[DEFERRED_SLOTS]    # counted: watched for delayed fetches, checked after the responses are sent
    int32_t deferred_count
    ClientCache *clients        # owned; NULL: quota counters are looked up for each request
    DecisionCache *decisions    # owned; NULL: the authorizer decides each request
    void *run                   # ProduceRun of handlers/_produce_run, owned; NULL: none was needed yet
