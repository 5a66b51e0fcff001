"""Snapshot of a network thread and its connections, made by the thread itself (``_core.network.event_loop``)."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcmp, strcmp

from kbroker._core.arguments cimport integer
from kbroker._core.network.event_loop cimport (
    LABEL_BYTES, MUTED_EXPLICITLY, MUTED_IN_FLIGHT, MUTED_MEMORY, MUTED_REASONS, MUTED_REFUSAL, MUTED_THROTTLED,
    MUTED_UNSENT, PRINCIPAL_BYTES, SNAPSHOT_BUSY, SNAPSHOT_DONE, SNAPSHOT_ENDED, ChannelCopy, LoopSnapshot,
    channel_facts, loop_snapshot_ask, loop_snapshot_new, loop_snapshot_release,
)
from kbroker._core.network.event_loop import MUTE_REASONS
from kbroker._core.sync cimport atomic_load_relaxed
from kbroker.network.processor._processor cimport Processor
from kbroker.network.processor._processor_core cimport ProcessorCore
from kbroker.network._request_metrics cimport RequestSamples, samples_as_dict

from kbroker.common.request_log import QUOTA_TYPES

cdef enum:
    MOST_COPIED = 20000         # connections of one thread
    NEW_MEANWHILE = 256         # capacity for connections that open between the count and the copy
    MOST_SHOWN = 10000
    MOST_CLIENTS = 10000

cdef struct Shown:              # a connection with its rank in the list
    int64_t urgency
    int64_t weight
    ChannelCopy *copy


cdef void rank(Shown *shown, ChannelCopy *copy, int64_t now_ns) noexcept nogil:
    shown.copy = copy
    shown.weight = copy.charged_bytes
    if copy.why_muted & MUTED_THROTTLED:
        shown.urgency = 6
        shown.weight = copy.throttled_until_ns
    elif copy.why_muted & MUTED_MEMORY:
        shown.urgency = 5
        shown.weight = now_ns - copy.last_active_ns
    elif copy.why_muted & MUTED_UNSENT:
        shown.urgency = 4
        shown.weight = copy.unsent_bytes
    elif copy.why_muted & (MUTED_REFUSAL | MUTED_EXPLICITLY):
        shown.urgency = 3
    elif copy.why_muted & MUTED_IN_FLIGHT:
        shown.urgency = 2
        shown.weight = now_ns - copy.handed_over_ns
    else:
        shown.urgency = 1 if copy.wanted_bytes > 0 else 0


cdef int by_rank(const void *left, const void *right) noexcept nogil:
    cdef const Shown *a = <const Shown *>left
    cdef const Shown *b = <const Shown *>right
    if a.urgency != b.urgency:
        return -1 if a.urgency > b.urgency else 1
    if a.weight != b.weight:
        return -1 if a.weight > b.weight else 1
    return -1 if a.copy.number < b.copy.number else 1


cdef dict connection_facts(ChannelCopy *copy, ProcessorCore *core, int64_t now_ns):
    cdef dict facts = channel_facts(copy, now_ns)
    kind = None
    if copy.why_muted & MUTED_THROTTLED and 0 <= copy.throttle_kind - 1 < len(QUOTA_TYPES):
        kind = QUOTA_TYPES[copy.throttle_kind - 1]
    return {
        "connection": connection_id(copy, core),
        "client_id": client_id(copy),
        "principal": copy.principal.decode("utf-8", "replace"),
        **facts,
        "throttled_by": kind,
        "number": copy.number,
    }


cdef str client_id(ChannelCopy *copy):
    return copy.label[:copy.label_bytes].decode("utf-8", "replace")


cdef str connection_id(ChannelCopy *copy, ProcessorCore *core):
    local = copy.local_host.decode("utf-8", "replace")
    remote = copy.remote_host.decode("utf-8", "replace")
    return f"{local}:{copy.local_port}-{remote}:{copy.remote_port}-{core.responder.processor_id}-{copy.index}"


cdef dict clients_of(LoopSnapshot *snapshot, int64_t now_ns):
    """Return the use of each client by (principal, client id), summed over its connections.

    The sums: [connections, throttled, maximum remaining throttle time in ms, in flight, requests, bytes received, bytes
    sent, bytes of the pool, muted for memory].
    """
    cdef ChannelCopy *copy
    cdef dict clients = {}
    cdef list sums
    cdef int64_t i, left_ms
    for i in range(snapshot.count):
        copy = &snapshot.channels[i]
        key = (<bytes>copy.principal, <bytes>copy.label[:copy.label_bytes])
        found = clients.get(key)
        if found is None:
            if len(clients) == MOST_CLIENTS:
                key = (b"", b"")        # all other clients together
                found = clients.get(key)
            if found is None:
                found = clients[key] = [0, 0, 0, 0, 0, 0, 0, 0, 0]
        sums = <list>found
        left_ms = (copy.throttled_until_ns - now_ns + 999999) // 1000000 if copy.throttled_until_ns > now_ns else 0
        sums[0] += 1
        sums[1] += 1 if copy.why_muted & MUTED_THROTTLED else 0
        sums[2] = max(<object>sums[2], left_ms)
        sums[3] += copy.outstanding
        sums[4] += copy.requests
        sums[5] += copy.bytes_received
        sums[6] += copy.bytes_sent
        sums[7] += copy.charged_bytes
        sums[8] += 1 if copy.why_muted & MUTED_MEMORY else 0
    return {
        (who.decode("utf-8", "replace"), label.decode("utf-8", "replace")): sums
        for (who, label), sums in clients.items()}


cdef dict named_connections(LoopSnapshot *snapshot, ProcessorCore *core, object numbers):
    cdef ChannelCopy *copy
    cdef int64_t i
    cdef dict named = {}
    if not numbers:
        return named
    for i in range(snapshot.count):
        copy = &snapshot.channels[i]
        if copy.number in numbers:
            named[copy.number] = (connection_id(copy, core), client_id(copy))
    return named


cdef dict as_dict(LoopSnapshot *snapshot, ProcessorCore *core, int64_t limit, set numbers):
    cdef int64_t now_ns = snapshot.done_ns
    cdef int64_t i, n = snapshot.count
    cdef int32_t bit
    cdef int64_t muted[MUTED_REASONS]
    cdef int64_t pool_bytes = 0
    cdef dict requests = samples_as_dict(<RequestSamples *>snapshot.extra, now_ns)
    cdef Shown *shown = <Shown *>malloc(<size_t>(n if n > 0 else 1) * sizeof(Shown))
    if shown is NULL:
        raise MemoryError
    with nogil:
        for bit in range(MUTED_REASONS):
            muted[bit] = 0
        for i in range(n):
            rank(&shown[i], &snapshot.channels[i], now_ns)
            pool_bytes += snapshot.channels[i].charged_bytes
            for bit in range(MUTED_REASONS):
                muted[bit] += snapshot.channels[i].why_muted >> bit & 1
        qsort(shown, <size_t>n, sizeof(Shown), by_rank)
    try:
        for sample in requests["latest"] + requests["slowest"]:
            numbers.add(sample["channel_number"])
        return {
            "open": snapshot.open_channels,
            "copied": n,
            "took_ms": round((snapshot.done_ns - snapshot.begun_ns) / 1e6, 3),
            "muted": {MUTE_REASONS[bit]: muted[bit] for bit in range(MUTED_REASONS)},
            "memory_pool_bytes": pool_bytes,
            "connections": ranked_facts(shown, min(n, limit), core, now_ns),
            "clients": clients_of(snapshot, now_ns),
            "requests": requests,
            "named": named_connections(snapshot, core, numbers),
        }
    finally:
        free(shown)


def snapshot(Processor processor not None, limit=100, *, timeout_ms=1000, numbers=()):
    """Return a snapshot of the network thread's connections; ``answer`` is the state of the thread's response.

    Args: ``limit``: number of connections shown, muted ones first. ``timeout_ms``: maximum wait for the thread, in real
    time. ``numbers``: channel numbers whose names are requested.
    Returns: ``processor``, ``listener``, ``answer``: "ok", "busy" (another snapshot is in progress), "late" (the thread
    is blocked, as by a full request queue), "ended". With "ok" also: ``open`` connections, the number of them
    ``copied``, ``muted`` by reason, ``memory_pool_bytes``; ``connections``: (urgency, weight, facts), the most urgent
    first; ``clients``: sums of their connections by (principal, client id); ``requests``: ``latest``, ``slowest``;
    ``named``: (connection id, client id) by number, of those and of ``numbers``.
    Threads: any but the processor's.
    """
    cdef ProcessorCore *core = processor.core
    cdef int64_t most = integer(limit, "limit", 0, MOST_SHOWN)
    cdef int state = 0
    cdef LoopSnapshot *taken = take(core, timeout_ms, &state)
    try:
        found = {"processor": processor.processor_id, "listener": processor.listener_name, "answer": answer_of(state)}
        if state == SNAPSHOT_DONE:
            found.update(as_dict(taken, core, most, set(numbers)))
        return found
    finally:
        with nogil:
            loop_snapshot_release(taken)


def client_connections(
    Processor processor not None, limit=100, *, principal="", client_id="", address=None, index=None, timeout_ms=1000,
):
    """Return the connections of one client from a snapshot of the network thread, without objects for the others.

    Args: ``principal``, ``client_id``: the client; a snapshot keeps their first 127 and 64 bytes. ``address``: its
    address; None for any. ``index``: the last number of a connection id, in place of the three. ``limit``,
    ``timeout_ms``: as for ``snapshot``.
    Returns: ``answer`` as for ``snapshot``. With "ok" also ``is_complete``: whether all connections were copied;
    ``count`` of the client's connections; ``connections``: (urgency, weight, facts), the most urgent first;
    ``client_ids`` of all connections of the principal.
    Threads: any but the processor's.
    """
    cdef ProcessorCore *core = processor.core
    cdef int64_t most = integer(limit, "limit", 0, MOST_SHOWN)
    cdef int64_t only = -1 if index is None else integer(index, "index", 0, 0x7fffffff)
    cdef bytes who = principal.encode("utf-8", "surrogateescape")[:PRINCIPAL_BYTES - 1]
    cdef bytes label = client_id.encode("utf-8", "surrogateescape")[:LABEL_BYTES]
    cdef bytes host = b"" if address is None else address.encode()
    cdef const char *who_text = who
    cdef const char *label_text = label
    cdef const char *host_text = host
    cdef int64_t label_bytes = len(label)
    cdef bint is_any_host = address is None
    cdef int64_t i, n = 0
    cdef int state = 0
    cdef LoopSnapshot *taken = take(core, timeout_ms, &state)
    cdef Shown *shown = NULL
    cdef ChannelCopy *copy
    cdef set client_ids = set()
    try:
        if state != SNAPSHOT_DONE:
            return {"answer": answer_of(state)}
        shown = <Shown *>malloc(<size_t>(taken.count + 1) * sizeof(Shown))
        if shown is NULL:
            raise MemoryError
        with nogil:
            for i in range(taken.count):
                copy = &taken.channels[i]
                if copy.index == only or only < 0 and strcmp(copy.principal, who_text) == 0 and (
                        copy.label_bytes == label_bytes and memcmp(copy.label, label_text, <size_t>label_bytes) == 0
                        and (is_any_host or strcmp(copy.remote_host, host_text) == 0)):
                    rank(&shown[n], copy, taken.done_ns)
                    n += 1
            qsort(shown, <size_t>n, sizeof(Shown), by_rank)
        for i in range(taken.count):
            if strcmp(taken.channels[i].principal, who_text) == 0:
                client_ids.add(<bytes>taken.channels[i].label[:taken.channels[i].label_bytes])
        return {
            "answer": "ok",
            "is_complete": taken.count >= taken.open_channels,
            "count": n,
            "connections": ranked_facts(shown, min(n, most), core, taken.done_ns),
            "client_ids": {name.decode("utf-8", "replace") for name in client_ids},
        }
    finally:
        free(shown)
        with nogil:
            loop_snapshot_release(taken)


cdef LoopSnapshot *take(ProcessorCore *core, object timeout_ms, int *state) except NULL:
    """Return a snapshot, which the caller releases, and its state."""
    cdef int64_t wait_ns = integer(timeout_ms, "timeout_ms", 1, 3600000) * 1000000
    cdef int64_t capacity = NEW_MEANWHILE + atomic_load_relaxed(&core.loop.counters.connections_created) - (
        atomic_load_relaxed(&core.loop.counters.connections_closed))
    cdef LoopSnapshot *taken
    with nogil:
        taken = loop_snapshot_new(min(max(capacity, NEW_MEANWHILE), MOST_COPIED), sizeof(RequestSamples))
        state[0] = loop_snapshot_ask(&core.loop, taken, wait_ns) if taken is not NULL else SNAPSHOT_BUSY
    if taken is NULL:
        raise MemoryError
    return taken


cdef str answer_of(int state):
    if state == SNAPSHOT_DONE:
        return "ok"
    return "busy" if state == SNAPSHOT_BUSY else "ended" if state == SNAPSHOT_ENDED else "late"


cdef list ranked_facts(Shown *shown, int64_t count, ProcessorCore *core, int64_t now_ns):
    cdef int64_t i
    return [
        (shown[i].urgency, shown[i].weight, connection_facts(shown[i].copy, core, now_ns))
        for i in range(count)]
