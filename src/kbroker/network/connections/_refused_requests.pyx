"""Requests whose connection is closed without a response: see the .pxd."""
cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strncpy

from kbroker._core.network.loop_types cimport Channel, ChannelMetadata
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_load_relaxed, atomic_store, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.network._kafka_request cimport is_kafka_request, kafka_request

from kbroker.network.connections.refusal import Refusal


cdef str text(const char *chars):
    return chars.decode("utf-8", "replace")


cdef const char *refusal_reason(int reason) noexcept nogil:
    if reason == REFUSED_UNKNOWN_API:
        return b"unknown-api"
    if reason == REFUSED_UNSUPPORTED_VERSION:
        return b"unsupported-version"
    if reason == REFUSED_MALFORMED_HEADER:
        return b"malformed-header"
    if reason == REFUSED_MALFORMED_BODY:
        return b"malformed-body"
    if reason == REFUSED_INVALID_RECEIVE:
        return b"invalid-receive"
    return b"failed-produce"


REASONS = tuple([text(refusal_reason(number)) for number in range(REFUSAL_REASONS)])


cdef RefusedTable *refused_retain(RefusedTable *table) noexcept nogil:
    if table is not NULL:
        atomic_add_fetch(&table.refs, 1)
    return table


cdef void refused_release(RefusedTable *table) noexcept nogil:
    if table is NULL or atomic_add_fetch(&table.refs, -1) != 0:
        return
    mutex_destroy(&table.lock)
    free(table)


cdef RefusalEntry *next_refusal(RefusedTable *table, int reason) noexcept nogil:
    """Return the next free entry, under the lock; NULL, counted as left out, when KEPT_REFUSALS are kept."""
    cdef RefusalEntry *refusal
    if table.kept == KEPT_REFUSALS:
        table.left_out += 1
        return NULL
    refusal = &table.refusals[table.kept]
    table.kept += 1
    memset(refusal, 0, sizeof(RefusalEntry))
    refusal.reason = reason
    refusal.api_key = -1
    refusal.api_version = -1
    return refusal


cdef void fill_connection(RefusalEntry *refusal, const ChannelMetadata *metadata) noexcept nogil:
    refusal.local_port = metadata.local_port
    refusal.remote_port = metadata.remote_port
    refusal.index = metadata.index
    memcpy(refusal.local_host, metadata.local_host, sizeof(refusal.local_host))
    memcpy(refusal.remote_host, metadata.remote_host, sizeof(refusal.remote_host))
    if metadata.listener_name is not NULL:
        strncpy(refusal.listener_name, metadata.listener_name, LISTENER_BYTES - 1)


cdef void refused_request(RefusedTable *table, int reason, Request *request) noexcept nogil:
    cdef RefusalEntry *refusal
    if table is NULL or not is_kafka_request(request):
        return
    atomic_add_fetch(&table.counts[reason], 1)
    mutex_lock(&table.lock)
    refusal = next_refusal(table, reason)
    if refusal is not NULL:
        refusal.size_bytes = <int>request.size_bytes
        if request.size_bytes >= 2:
            refusal.api_key = kafka_request(request).api_key
        if request.size_bytes >= 4:
            refusal.api_version = kafka_request(request).api_version
        refusal.correlation_id = kafka_request(request).correlation_id
        if kafka_request(request).error_kinds > 0:
            refusal.error_code = kafka_request(request).errors[0].code
        if request.responder is not NULL:
            refusal.processor_id = request.responder.processor_id
        if request.channel is not NULL:
            fill_connection(refusal, &(<Channel *>request.channel).metadata)
    mutex_unlock(&table.lock)


cdef void refused_receive(RefusedTable *table, const void *channel, int processor_id) noexcept nogil:
    cdef RefusalEntry *refusal
    cdef const Channel *closed = <const Channel *>channel
    if table is NULL:
        return
    atomic_add_fetch(&table.counts[<int>REFUSED_INVALID_RECEIVE], 1)
    mutex_lock(&table.lock)
    refusal = next_refusal(table, REFUSED_INVALID_RECEIVE)
    if refusal is not NULL:
        refusal.size_bytes = closed.invalid_size_bytes
        refusal.processor_id = processor_id
        fill_connection(refusal, &closed.metadata)
    mutex_unlock(&table.lock)


@cython.final
cdef class RefusedRequests:
    """Counts of refused requests by reason, with the first few since the last ``take``.

    Threads: any.
    """

    def __cinit__(self):
        self.table = <RefusedTable *>calloc(1, sizeof(RefusedTable))
        if self.table is NULL:
            raise MemoryError
        atomic_store(&self.table.refs, 1)
        mutex_init(&self.table.lock)

    def __dealloc__(self):
        refused_release(self.table)

    def take(self):
        """Return the kept refusals and the number of further ones since the last call, and clear both."""
        cdef RefusalEntry kept[KEPT_REFUSALS]
        cdef int64_t left_out
        cdef int n, i
        with nogil:
            mutex_lock(&self.table.lock)
            n = self.table.kept
            memcpy(kept, self.table.refusals, <size_t>n * sizeof(RefusalEntry))
            left_out = self.table.left_out
            self.table.kept = 0
            self.table.left_out = 0
            mutex_unlock(&self.table.lock)
        taken = []
        for i in range(n):
            taken.append(Refusal(
                REASONS[kept[i].reason],
                kept[i].api_key,
                kept[i].api_version,
                kept[i].correlation_id,
                kept[i].error_code,
                kept[i].size_bytes,
                f"{text(kept[i].local_host)}:{kept[i].local_port}-"
                f"{text(kept[i].remote_host)}:{kept[i].remote_port}-"
                f"{kept[i].processor_id}-{kept[i].index}",
                text(kept[i].listener_name),
                text(kept[i].remote_host),
            ))
        return taken, left_out

    def counts(self):
        """Return the number of refused requests since the start, by reason."""
        cdef int i
        counts = {}
        for i in range(REFUSAL_REASONS):
            counts[REASONS[i]] = atomic_load_relaxed(&self.table.counts[i])
        return counts
