"""Interface of the native handlers for Python: their common state, the bodies of threads, delayed operations."""
import os
import sys

from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from kbroker._core.timer.key_signal cimport KeySignal, key_signal, key_signal_release, key_signal_retain
from kbroker._core.clock cimport borrow_clock, clock_release, clock_retain, clock_now_ns
from kbroker._core.timer.purgatory cimport (
    Key, purgatory_advance, purgatory_check_and_complete, purgatory_close, purgatory_delayed, purgatory_new,
    purgatory_release, purgatory_watched,
)
from kbroker._core.requests.request_queue cimport (
    Executor, Queue, RequestExecutor, request_queue_release, request_queue_retain,
)
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_load, atomic_store, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.thread_setup cimport kb_block_signals, kb_short_slice
from kbroker._core.timer.timing_wheel cimport timer_close, timer_is_quiet, timer_new, timer_release
from kbroker._core.timer.purgatory_core cimport (
    Operation, Purgatory, PurgatorySnapshot, WaitingEntry, operation_due_ms, purgatory_snapshot_free,
    purgatory_snapshot_take,
)
from kbroker.log._partition cimport Partition, partition_end_hook, partition_set_high_watermark_hook
from kbroker.security.authorizer._acl_table cimport AclRules, acl_table_release, acl_table_retain
from kbroker.apis._api18_api_versions cimport handle_api_versions
from kbroker.apis.api01_fetch._fetch cimport check_fetches, complete_delayed, complete_disconnected, handle_fetch
from kbroker.apis.api01_fetch._fetch_session cimport (
    SessionCache, session_cache_count, session_cache_free, session_cache_new,
)
from kbroker.requests._native_types cimport (
    API_SLOTS, API_VERSIONS, API_WORDS, FETCH, MAX_LISTENERS, MAX_VERSIONS, PRODUCE, Api, Body, NativeApisCore,
)
from kbroker.requests._peers cimport peers_join, peers_leave, peers_release
from kbroker.handlers._batch_receiver cimport new_receiver
from kbroker.handlers._native_handler cimport HandlerExecutor, executor_free, executor_new, handler_loop
from kbroker.apis.api00_produce._produce cimport handle_produce, delayed_produce_source
from kbroker.replica._topics cimport (
    Topic, TopicTable, topic_by_id, topic_table_build, topic_table_release, topic_table_retain,
)
from kbroker.network.connections._refused_requests cimport RefusedRequests, refused_release, refused_retain
from kbroker.quota._client_quotas cimport ClientQuotaManagers
from kbroker.quota._client_sensors cimport quotas_release, quotas_retain
from kbroker.apis.api01_fetch._fetch_types cimport FetchState

cdef enum:
    KEYS_SHOWN = 16             # maximum of an operation


cdef dict names_of(NativeApisCore *native_apis, dict wanted):
    """Return [topic, partition] by the address of the partition, for the wanted ones that still exist."""
    cdef TopicTable *table
    cdef Topic *topic
    cdef int32_t i, k
    cdef dict names = {}
    with nogil:
        mutex_lock(&native_apis.topics_lock)
        table = topic_table_retain(native_apis.topics)
        mutex_unlock(&native_apis.topics_lock)
    for i in range(table.topic_count):
        topic = &table.topics[i]
        for k in range(topic.partition_count):
            if <int64_t>topic.partitions[k] in wanted:
                names[<int64_t>topic.partitions[k]] = [topic.name[:topic.name_bytes].decode("utf-8", "replace"), k]
    with nogil:
        topic_table_release(table)
    return names


cdef dict waiting_in(NativeApisCore *native_apis, Purgatory *purgatory, bint is_fetch, int64_t limit):
    """Return the delayed operations of a purgatory: see ``NativeApis.waiting_operations``.

    Locks: the shards', the timer's and the topics' in turn, each for microseconds.
    """
    cdef PurgatorySnapshot taken
    cdef WaitingEntry *entry
    cdef Operation *op
    cdef int64_t i, due_ms, now_ms, watched, number
    cdef int32_t processor
    cdef bint made
    cdef dict found = {}
    cdef dict facts, partitions = {}
    cdef list keys
    with nogil:
        made = purgatory_snapshot_take(&taken, purgatory, limit)
        watched = purgatory_watched(purgatory)
    if not made:
        raise MemoryError
    try:
        now_ms = clock_now_ns(native_apis.clock) // 1000000
        for i in range(taken.count):
            entry = &taken.entries[i]
            op = entry.op
            seen = found.get(<int64_t>op)
            if seen is not None:
                keys = (<dict>seen)["keys"]
                if len(keys) < KEYS_SHOWN:
                    keys.append(entry.key.high)
                    partitions[entry.key.high] = None
                continue
            with nogil:
                due_ms = operation_due_ms(purgatory, op)
            if due_ms < 0:
                continue                # completed, or about to wait
            if len(found) == limit:
                taken.is_truncated = True
                continue
            if is_fetch:
                processor, number = (<FetchState *>op).processor_id, (<FetchState *>op).channel_number
            else:
                delayed_produce_source(op, &processor, &number)
            partitions[entry.key.high] = None
            facts = found[<int64_t>op] = {
                "operation": "DelayedFetch" if is_fetch else "DelayedProduce",
                "keys": [entry.key.high],
                "key_count": entry.key_count,
                "timeout_ms": op.timeout_ms,
                "age_ms": max(0, now_ms - due_ms + op.timeout_ms),
                "time_left_ms": max(0, due_ms - now_ms),
                "processor": processor,
                "channel_number": number,
            }
            if is_fetch:
                facts["min_bytes"] = (<FetchState *>op).min_bytes
    finally:
        with nogil:
            purgatory_snapshot_free(&taken)
    names = names_of(native_apis, partitions) if partitions else {}
    for each in found.values():
        each["keys"] = [names[key] for key in each["keys"] if key in names]
    return {
        "watched": watched,
        "delayed": purgatory_delayed(purgatory),
        "is_truncated": bool(taken.is_truncated),
        "operations": list(found.values()),
    }


cdef enum:
    REAP_MS = 200


cdef void flush_moved(void *arg, Partition *partition) noexcept nogil:
    """Hook of the log, called when an event outside an append moved the flushed offset or the high watermark."""
    cdef NativeApisCore *native_apis = <NativeApisCore *>arg
    cdef Key key
    key.high = <int64_t>partition
    key.low = 0
    purgatory_check_and_complete(native_apis.produce_purgatory, &key)
    check_fetches(native_apis, &key)
    key_signal(native_apis.appends, key.high, key.low)


cdef void hook_partitions(NativeApisCore *native_apis, TopicTable *table) noexcept nogil:
    """Connect every partition's hook for a moved high watermark to these native handlers."""
    cdef int32_t i, k
    for i in range(table.topic_count):
        for k in range(table.topics[i].partition_count):
            if table.topics[i].partitions[k] != NULL:
                partition_set_high_watermark_hook(table.topics[i].partitions[k], flush_moved, native_apis)


cdef void unhook_partitions(NativeApisCore *native_apis, TopicTable *table, TopicTable *kept) noexcept nogil:
    """Disconnect the hooks of the partitions in ``table`` and not in ``kept``, unless another node has connected them.

    Deleted topics are skipped until the close: a deleted log calls its hook, for waiting fetches, and disconnects it.
    """
    cdef int32_t i, k
    cdef Topic *topic
    cdef Topic *later
    cdef Partition *partition
    for i in range(table.topic_count):
        topic = &table.topics[i]
        later = topic_by_id(kept, topic.id)
        if later == NULL and not atomic_load(&native_apis.is_closed):
            continue            # deleted
        for k in range(topic.partition_count):
            partition = topic.partitions[k]
            if partition == NULL or (
                    later != NULL and k < later.partition_count and later.partitions[k] == partition):
                continue
            partition_end_hook(partition, native_apis)


cdef void set_body(NativeApisCore *native_apis, Body *body, bytes data, object throttle_at) except *:
    cdef Body made, before
    made.size_bytes = len(data)
    made.throttle_at = -1 if throttle_at is None else throttle_at
    if throttle_at is not None and made.throttle_at > made.size_bytes - 4:
        raise ValueError(f"throttle_at must be at most {len(data) - 4} for {len(data)} bytes, got {throttle_at}")
    made.data = <char *>malloc(<size_t>(len(data) or 1))
    if made.data == NULL:
        raise MemoryError
    memcpy(made.data, <const char *>data, <size_t>len(data))
    with nogil:
        mutex_lock(&native_apis.bodies_lock)
        before = body[0]
        body[0] = made
        mutex_unlock(&native_apis.bodies_lock)
    free(before.data)


cdef class NativeApis:
    """The broker's native handlers: topic table, API table, purgatories and the bodies of threads.

    Args:
        clock: the broker's clock.
        requests: queue of batches from the network threads.
        python_requests: queue of the requests for Python handlers; never full, since a channel has one batch in flight.
        node_id: this broker's id.
        max_fetch_sessions: max.incremental.fetch.session.cache.slots.
        fetch_max_bytes: the broker's fetch.max.bytes.
        quotas: the ClientQuotaManagers that judge the served requests; None: nothing is limited.
        refused: table of requests whose connection is closed without a response; None: they are not counted.
        acls: the rules of the authorizer; None: everything is allowed.
        appends: signal of appends by ``partition_key``; None: there is none.
        peer: native handlers of another node in this process, over the same partitions; None: there is none, or others
            join later. The peer serves no request yet, or has a peer itself.
        selects_by_rack: consumers are directed to followers on their racks (KIP-392).
        fetch_purge_interval, produce_purge_interval: completed operations that start a purge.
    Threads: the ``run_*`` methods are thread bodies and release the GIL; the others may be called from any thread,
        before ``close``.
    """

    cdef NativeApisCore *native_apis
    cdef object _clock
    cdef object _queues

    def __cinit__(self, clock, Queue requests not None, Queue python_requests not None, int32_t node_id, *,
                  int32_t max_fetch_sessions=1000, int64_t fetch_max_bytes=57671680,
                  int64_t fetch_purge_interval=1000, int64_t produce_purge_interval=1000,
                  ClientQuotaManagers quotas=None, RefusedRequests refused=None, AclRules acls=None,
                  KeySignal appends=None, NativeApis peer=None, bint selects_by_rack=False):
        cdef NativeApisCore *native_apis = <NativeApisCore *>calloc(1, sizeof(NativeApisCore))
        if native_apis == NULL:
            raise MemoryError
        self.native_apis = native_apis
        mutex_init(&native_apis.topics_lock)
        mutex_init(&native_apis.bodies_lock)
        mutex_init(&native_apis.delayed_lock)
        native_apis.clock = clock_retain(borrow_clock(clock))
        self._clock = clock
        if appends is not None:
            native_apis.appends = key_signal_retain(appends.core)
        self._queues = (requests, python_requests)
        if quotas is not None:
            native_apis.quotas = quotas_retain(quotas.quotas)
        if refused is not None:
            native_apis.refused = refused_retain(refused.table)
        if acls is not None:
            native_apis.acls = acl_table_retain(acls.table)
        native_apis.requests = request_queue_retain(requests.queue)
        native_apis.python_requests = request_queue_retain(python_requests.queue)
        native_apis.node_id = node_id
        native_apis.selects_by_rack = selects_by_rack
        native_apis.hash_seed = int.from_bytes(os.urandom(8), "little")
        native_apis.fetch_max_bytes = fetch_max_bytes
        atomic_store(&native_apis.verifies_transactions, True)
        native_apis.fetch_timer = timer_new(native_apis.clock, 1, 20)
        native_apis.produce_timer = timer_new(native_apis.clock, 1, 20)
        native_apis.fetch_purgatory = purgatory_new(native_apis.fetch_timer, fetch_purge_interval, 512)
        native_apis.produce_purgatory = purgatory_new(native_apis.produce_timer, produce_purge_interval, 512)
        native_apis.sessions = <void *>session_cache_new(max_fetch_sessions, native_apis.hash_seed)
        if native_apis.fetch_purgatory == NULL or native_apis.produce_purgatory == NULL or native_apis.sessions == NULL:
            raise MemoryError
        native_apis.topics = topic_table_build((), node_id)
        if peer is not None and not peers_join(native_apis, peer.native_apis):
            raise MemoryError

    def __dealloc__(self):
        cdef NativeApisCore *native_apis = self.native_apis
        cdef int i
        if native_apis == NULL:
            return
        topic_table_release(native_apis.topics)
        with nogil:
            peers_leave(native_apis)
        peers_release(native_apis)
        key_signal_release(native_apis.appends)
        if native_apis.fetch_purgatory != NULL:
            purgatory_release(native_apis.fetch_purgatory)
        session_cache_free(<SessionCache *>native_apis.sessions)       # last: delayed fetches held sessions
        if native_apis.produce_purgatory != NULL:
            purgatory_release(native_apis.produce_purgatory)
        if native_apis.fetch_timer != NULL:
            timer_release(native_apis.fetch_timer)
        if native_apis.produce_timer != NULL:
            timer_release(native_apis.produce_timer)
        if native_apis.requests != NULL:
            request_queue_release(native_apis.requests)
        if native_apis.python_requests != NULL:
            request_queue_release(native_apis.python_requests)
        for i in range(MAX_VERSIONS):
            free(native_apis.versions[i].data)
            free(native_apis.invalid_versions[i].data)
        free(native_apis.unsupported_versions.data)
        free(native_apis.racks.data)
        for i in range(MAX_LISTENERS):
            free(native_apis.nodes[i].data)
        quotas_release(native_apis.quotas)
        refused_release(native_apis.refused)
        acl_table_release(native_apis.acls)
        if native_apis.clock != NULL:
            clock_release(native_apis.clock)
        mutex_destroy(&native_apis.topics_lock)
        mutex_destroy(&native_apis.bodies_lock)
        mutex_destroy(&native_apis.delayed_lock)
        free(native_apis)

    def set_api(self, int key, int min_version, int max_version, int first_flexible):
        """Enable an API. Produce, Fetch and ApiVersions are served natively, others by Python.

        Args:
            key: API key, 0 to 127. min_version, max_version: accepted versions; others close the connection.
            first_flexible: first version with tagged headers, 32767 for never.
        Raises: ValueError for a key or range outside its bounds. Call before the first handler runs.
        """
        cdef Api *api
        if not 0 <= key < API_SLOTS:
            raise ValueError(f"API key must be 0 to {API_SLOTS - 1}, got {key}")
        if not 0 <= min_version <= max_version < MAX_VERSIONS:
            raise ValueError(
                f"versions of API {key} must be 0 to {MAX_VERSIONS - 1}, got {min_version} to {max_version}")
        api = &self.native_apis.apis[key]
        api.min_version = <int16_t>min_version
        api.max_version = <int16_t>max_version
        api.first_flexible = <int16_t>first_flexible
        api.handle = NULL
        if key == PRODUCE:
            api.handle = handle_produce
        elif key == FETCH:
            api.handle = handle_fetch
        elif key == API_VERSIONS:
            api.handle = handle_api_versions
        api.is_enabled = True

    def set_api_versions(self, dict bodies, dict invalid, bytes unsupported not None):
        """Set the encoded ApiVersions responses (bodies without header); at any time before ``close``.

        Args:
            bodies: version to the normal body and the position of throttle_time_ms in it (None if it has none).
            invalid: the same for the bodies with error 42, from version 3 on.
            unsupported: version-0 body with error 35.
        """
        for version, (data, throttle_at) in bodies.items():
            set_body(self.native_apis, &self.native_apis.versions[self._version(version)], data, throttle_at)
        for version, (data, throttle_at) in invalid.items():
            set_body(self.native_apis, &self.native_apis.invalid_versions[self._version(version)], data, throttle_at)
        set_body(self.native_apis, &self.native_apis.unsupported_versions, unsupported, None)

    cdef int _version(self, object version) except -1:
        cdef int number = version
        if not 0 <= number < MAX_VERSIONS:
            raise ValueError(f"version must be 0 to {MAX_VERSIONS - 1}, got {number}")
        return number

    def intercept(self, keys):
        """Send the requests of these APIs to the Python handlers first; all others are served natively again.

        A receiver that sends no response returns the request with ``InboundRequest.hand_over``; it is then served.

        Args: keys: API keys, 0 to 127; empty to intercept nothing.
        Raises: ValueError for a key outside its bounds; the intercepted APIs are then unchanged.
        """
        cdef uint64_t bits[API_WORDS]
        cdef int i, key
        memset(bits, 0, sizeof(bits))
        for number in keys:
            key = number
            if not 0 <= key < API_SLOTS:
                raise ValueError(f"API key must be 0 to {API_SLOTS - 1}, got {key}")
            bits[key >> 6] |= (<uint64_t>1) << (key & 63)
        for i in range(API_WORDS):
            atomic_store(&self.native_apis.intercepted[i], <int64_t>bits[i])

    def verify_transactions(self, bint is_on):
        """Set transaction.partition.verification.enable, from the next Produce on."""
        atomic_store(&self.native_apis.verifies_transactions, is_on)

    def refuse_produce(self):
        """Close the connection of each Produce from now on: the failure that stops the broker may delete its topic."""
        atomic_store(&self.native_apis.refuses_produce, 1)

    def publish_topics(self, views):
        """Replace the topic table: handlers use the new one from their next request batch on.

        Args: views: the TopicView of each topic.
        """
        cdef TopicTable *table = topic_table_build(views, self.native_apis.node_id)
        cdef TopicTable *old
        cdef NativeApisCore *native_apis = self.native_apis
        with nogil:
            hook_partitions(native_apis, table)
            mutex_lock(&native_apis.topics_lock)
            old = native_apis.topics
            native_apis.topics = table
            atomic_add_fetch(&native_apis.generation, 1)
            mutex_unlock(&native_apis.topics_lock)
            if native_apis.peers != NULL or atomic_load(&native_apis.is_closed):
                unhook_partitions(native_apis, old, table)
            topic_table_release(old)

    def set_nodes(self, list sections not None, dict racks not None):
        """Set the addresses of the nodes for responses about other leaders (KIP-951), and their racks.

        Args: sections: by listener, the tagged section of such a response; more than 16 are left out. racks: by node.
        """
        cdef list rows = [(node_id, rack.encode()) for node_id, rack in racks.items()]
        set_body(self.native_apis, &self.native_apis.racks, b"".join(
            [node_id.to_bytes(4, sys.byteorder) + len(rack).to_bytes(4, sys.byteorder) + rack for node_id, rack in rows]
        ), None)
        for number, section in enumerate(sections[:MAX_LISTENERS]):
            set_body(self.native_apis, &self.native_apis.nodes[number], section, None)

    def run_handler(self):
        """Run one handler thread; return when the request queue is closed and empty, or by ``stop_handlers``."""
        cdef NativeApisCore *native_apis = self.native_apis
        with nogil:
            handler_loop(native_apis)

    def executor(self):
        """Return a new executor, with which a network thread helps the handlers. Threads: any."""
        cdef NativeExecutor made = NativeExecutor.__new__(NativeExecutor)
        made.apis = self
        made.executor = <Executor *>executor_new(self.native_apis)
        if made.executor == NULL:
            raise MemoryError
        return made

    def receiver(self):
        """Return a new BatchReceiver, for one Python handler thread. Threads: any."""
        return new_receiver(self, self._queues[1], self.native_apis)

    def stop_handlers(self, int count):
        """End ``count`` handler threads, each after its current request or within a third of a second.

        Raises: ValueError for a negative count.
        """
        if count < 0:
            raise ValueError(f"count must be >= 0, got {count}")
        atomic_add_fetch(&self.native_apis.handlers_to_stop, count)

    def run_fetch_reaper(self):
        """Run the thread that expires delayed fetches; return after ``close``."""
        cdef NativeApisCore *native_apis = self.native_apis
        with nogil:
            kb_block_signals()
            kb_short_slice()
            while not atomic_load(&native_apis.is_closed):
                purgatory_advance(native_apis.fetch_purgatory, REAP_MS)
                complete_disconnected(native_apis)

    def run_produce_reaper(self):
        """Run the thread that expires delayed produces; return after ``close``."""
        cdef NativeApisCore *native_apis = self.native_apis
        with nogil:
            kb_block_signals()
            kb_short_slice()
            while not atomic_load(&native_apis.is_closed):
                purgatory_advance(native_apis.produce_purgatory, REAP_MS)

    def waiting_operations(self, int limit):
        """Return delayed operations by purgatory: Fetch and Produce. Args: limit: operations of each, 1 to 100000.

        Of each: ``watched``, ``delayed``, ``is_truncated``, ``operations``. An operation: ``keys``
        ([topic, partition]), ``key_count``, ``timeout_ms``, ``age_ms``, ``time_left_ms``, and its connection by
        ``processor`` and ``channel_number``.
        Raises: ValueError for a limit outside its bounds; MemoryError.
        """
        if not 1 <= limit <= 100000:
            raise ValueError(f"limit must be 1 to 100000, got {limit}")
        return {
            "Fetch": waiting_in(self.native_apis, self.native_apis.fetch_purgatory, True, limit),
            "Produce": waiting_in(self.native_apis, self.native_apis.produce_purgatory, False, limit),
        }

    def complete_waiting(self):
        """Respond to every delayed fetch now, with the available records (shutdown)."""
        cdef NativeApisCore *native_apis = self.native_apis
        with nogil:
            complete_delayed(native_apis)

    def close(self):
        """End the reapers and release the topics. Handlers must have returned. Idempotent."""
        cdef NativeApisCore *native_apis = self.native_apis
        if atomic_load(&native_apis.is_closed):
            return
        with nogil:
            complete_delayed(native_apis)
            atomic_store(&native_apis.is_closed, 1)
            purgatory_close(native_apis.fetch_purgatory)
            purgatory_close(native_apis.produce_purgatory)
            timer_close(native_apis.fetch_timer)
            timer_close(native_apis.produce_timer)
            peers_leave(native_apis)
        self.publish_topics(())

    @property
    def is_idle(self) -> bool:
        """Return whether no delayed fetch or produce is due or being expired, so that both reapers wait."""
        cdef bint quiet
        with nogil:
            quiet = timer_is_quiet(self.native_apis.fetch_timer) and timer_is_quiet(self.native_apis.produce_timer)
        return quiet

    @property
    def handled(self) -> int:
        """Number of requests that native handlers have completed."""
        return atomic_load(&self.native_apis.handled)

    @property
    def declined(self) -> int:
        """Number of requests handed to the Python handlers."""
        return atomic_load(&self.native_apis.declined)

    @property
    def fetch_sessions(self) -> int:
        """Number of open incremental fetch sessions."""
        return session_cache_count(<SessionCache *>self.native_apis.sessions)

    @property
    def waiting_fetches(self) -> int:
        """NumDelayedOperations of the Fetch purgatory."""
        return purgatory_delayed(self.native_apis.fetch_purgatory)

    @property
    def waiting_produces(self) -> int:
        """NumDelayedOperations of the Produce purgatory."""
        return purgatory_delayed(self.native_apis.produce_purgatory)

    @property
    def watched_produces(self) -> int:
        """PurgatorySize of the Produce purgatory."""
        return purgatory_watched(self.native_apis.produce_purgatory)

    @property
    def watched_fetches(self) -> int:
        """PurgatorySize of the Fetch purgatory."""
        return purgatory_watched(self.native_apis.fetch_purgatory)


cdef class NativeExecutor(RequestExecutor):
    """Executor of natively served requests; it keeps the native handlers alive."""
    cdef NativeApis apis

    def __dealloc__(self):
        with nogil:
            executor_free(<HandlerExecutor *>self.executor)
