"""Tables of the metrics of a broker: requests, threads, memory, connections, purgatories, logs, transactions."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kbroker.common.errors import Errors
from kbroker.metrics.exposition import Exposition
from kbroker.metrics.families import Buckets
from kbroker.metrics.share import Share
from kbroker.network._request_metrics import BOUNDS_MS, FETCH_CONSUMER, FETCH_FOLLOWER, TIMES
from kbroker.observe import authorizer_metrics, group_metrics, quota_metrics, share_metrics, telemetry_metrics
from kbroker.observe.broker_parts import BrokerParts
from kbroker.observe.memory_pool import SOCKETS
from kbroker.observe.metric_table import Row, Series, families, registered

if TYPE_CHECKING:
    from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
    from kbroker.coordinator.transaction_service import TransactionService
    from kbroker.network._request_metrics import _Figures

M = TypeVar("M")
REQUESTS, OWN_REQUESTS = "kafka.network:RequestMetrics", "kbroker:requests"
SERVER, CHANNEL, NETWORK = "kafka.network:SocketServer", "kafka.network:RequestChannel", "kbroker:network"
PURGATORY = "kafka.server:DelayedOperationPurgatory"
LOG, REPLICAS, OWN_LOGS = "kafka.log:Log", "kafka.server:ReplicaManager", "kbroker:logs"
VERIFICATION, LOADS = "kafka.server:AddPartitionsToTxnManager", "transaction-coordinator-metrics"
MARKERS, OWN_TRANSACTIONS = (
    "kafka.coordinator.transaction:TransactionMarkerChannelManager",
    "kbroker:transactions",
)
REQUEST_LOG = "kbroker:request-log"


def register_broker_metrics(exposition: Exposition, parts: BrokerParts) -> None:
    """Add the families of all parts of the broker to the exposition."""
    for found in (
        families(authorizer_metrics.ROWS, parts.ctx),
        families(telemetry_metrics.ROWS, parts.ctx),
        families(group_metrics.ROWS, parts.ctx.groups),
        families(share_metrics.ROWS, parts.ctx),
        quota_metrics.families(parts.ctx.quotas),
        families(_REQUESTS, RequestFigures(parts)),
        families(_THREADS, ThreadShares(parts)),
        families((*_QUEUES, *_CONNECTIONS, *LOGS, *TRANSACTIONS, *_REQUEST_LOG), parts),
    ):
        for family in found:
            exposition.add(family)
    if parts.ctx.member is not None:
        from kbroker.observe import member_metrics

        for family in families(member_metrics.ROWS, parts.ctx.member):
            exposition.add(family)
    exposition.add_source(partial(telemetry_metrics.client_families, parts.ctx))


# ---------------------------------------------------------------- requests


class RequestFigures:
    """Request metrics of all network threads together.

    The families of one scrape share a snapshot: the first family that is read a second time takes a new snapshot.
    """

    def __init__(self, parts: BrokerParts) -> None:
        self._server = parts.server
        self._lock = threading.Lock()
        self._tables: list[dict[int, _Figures]] = []
        self._seen_by: set[str] = set()
        self._names = {**parts.api_names, FETCH_CONSUMER: "FetchConsumer", FETCH_FOLLOWER: "FetchFollower"}

    def _all(self, family: str) -> Iterable[tuple[str, _Figures]]:
        with self._lock:
            if not self._seen_by or family in self._seen_by:
                self._tables = [table.snapshot() for table in self._server.request_metrics]
                self._seen_by.clear()
            self._seen_by.add(family)
            tables = self._tables
        for table in tables:
            for slot, figures in table.items():
                yield self._names.get(slot, str(slot)), figures

    def times(self, kind: str) -> Series:
        """Return the histogram of each API for one kind of time."""
        found: dict[str, tuple[list[int], float]] = {}
        for name, figures in self._all(kind):
            spent, counts = figures["times"][kind]
            if kind == "MessageConversionsTimeMs" and not any(counts):
                continue
            before, total = found.get(name, ([0] * len(counts), 0.0))
            found[name] = ([a + b for a, b in zip(before, counts, strict=True)], total + spent)
        return [((name,), Buckets(counts, spent)) for name, (counts, spent) in sorted(found.items())]

    def sums(self, family: str, split: Callable[[_Figures], Iterable[tuple[tuple[str, ...], float]]]) -> Series:
        """Return the sums over all threads, by API and by the labels that ``split`` returns."""
        found: dict[tuple[str, ...], float] = {}
        for name, figures in self._all(family):
            for labels, value in split(figures):
                key = (name, *labels)
                found[key] = found.get(key, 0) + value
        return sorted(found.items())

    def totals(self, key: Literal["request_bytes", "response_bytes", "network_ns"]) -> Series:
        """Return the sum of one figure over all threads, by API."""
        return self.sums(key, lambda figures: [((), figures[key])])

    def by_version(self) -> Series:
        """Return the number of requests by API and version."""
        return self.sums("versions", lambda figures: [((str(v),), n) for v, n in figures["versions"].items()])

    def errors(self) -> Series:
        """Return the counts of error codes in the responses, by API and error."""
        return self.sums("errors", lambda figures: [((_error_name(code),), n) for code, n in figures["errors"].items()])


def _error_name(code: int | None) -> str:
    return Errors.of(-1 if code is None else code).name


_TIME_HELP = {
    "RequestQueueTimeMs": "waiting for a handler",
    "LocalTimeMs": "in a handler, until the response is complete or delayed",
    "RemoteTimeMs": "waiting in purgatory",
    "ThrottleTimeMs": "throttle time of quotas; not part of TotalTimeMs",
    "ResponseQueueTimeMs": "the response waiting for its network thread",
    "ResponseSendTimeMs": "sending the response",
    "MessageConversionsTimeMs": "recompression of batches to the topic's codec, within LocalTimeMs; other requests "
    "are not counted",
    "TotalTimeMs": "from the last byte of the request to the last byte of the response",
}
_API = ("request",)
_REQUESTS: tuple[Row[RequestFigures], ...] = (
    *(Row(REQUESTS, kind, f"milliseconds: {_TIME_HELP[kind]}", partial(RequestFigures.times, kind=kind), _API,
          "histogram", BOUNDS_MS) for kind in TIMES),
    Row(REQUESTS, "RequestsPerSec", "requests", RequestFigures.by_version, ("request", "version"), "counter"),
    Row(REQUESTS, "ErrorsPerSec", "error codes in responses, and NONE", RequestFigures.errors, ("request", "error"),
        "counter"),
    Row(REQUESTS, "RequestBytes", "bytes of requests without header",
        lambda figures: figures.totals("request_bytes"), _API, "counter"),
    Row(OWN_REQUESTS, "response-bytes", "bytes of responses", lambda figures: figures.totals("response_bytes"), _API,
        "counter"),
    Row(OWN_REQUESTS, "network-time-ns", "nanoseconds of network threads, which the request quota charges",
        lambda figures: figures.totals("network_ns"), _API, "counter"),
)  # fmt: skip


# ---------------------------------------------------------------- threads


class ThreadShares:
    """Shares of the last minute that threads waited; network threads may start and end while the broker runs."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._shares: dict[int, Share] = {}
        self._lock = threading.Lock()
        self._known()
        clock = parts.ctx.clock
        self.handlers = Share(lambda: parts.requests.idle_ns, lambda: len(parts.handlers.threads), clock)
        self._acceptors = [
            (bound.name, Share(partial(self._blocked_ns, number), lambda: 1, clock))
            for number, bound in enumerate(parts.server.listeners)
        ]

    def _blocked_ns(self, listener_id: int) -> int:
        acceptors = self._parts.server.acceptors
        return acceptors[listener_id].blocked_ns if acceptors else 0

    def _known(self) -> dict[int, Share]:
        numbers = [processor.processor_id for processor in self._parts.server.processors]
        with self._lock:
            self._shares = {number: self._shares.get(number) or self._share(number) for number in numbers}
            return self._shares

    def _share(self, number: int) -> Share:
        def waited_ns() -> int:
            found = [p for p in self._parts.server.processors if p.processor_id == number]
            return found[0].counters()["wait_ns"] if found else 0

        return Share(waited_ns, lambda: 1, self._parts.ctx.clock)

    def processors(self) -> Series:
        """Return the idle share of each network thread."""
        return [((str(number),), share.measure()) for number, share in self._known().items()]

    def average(self) -> float:
        """Return the average idle share of the network threads; 0 after their end."""
        shares = [share.measure() for share in self._known().values()]
        return sum(shares) / max(1, len(shares))

    def wakeups(self) -> int:
        """Return the number of times that a native request handler was woken."""
        return self._parts.requests.wakeups

    def acceptors(self) -> Series:
        """Return the blocked share of each acceptor."""
        return [((name,), share.measure()) for name, share in self._acceptors]


_THREADS: tuple[Row[ThreadShares], ...] = (
    Row(SERVER, "NetworkProcessorAvgIdlePercent", "share of the last minute for which network threads waited, 0 to 1",
        ThreadShares.average),
    Row("kafka.network:Processor", "IdlePercent",
        "share of the last minute for which each network thread waited, 0 to 1", ThreadShares.processors,
        ("networkProcessor",)),
    Row("kafka.server:KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent",
        "share of the last minute for which native request handlers waited, less the time in which network threads "
        "executed requests, 0 to 1",
        lambda shares: shares.handlers.measure()),
    Row("kafka.server:KafkaRequestHandlerPool", "RequestHandlerWakeups",
        "times that a native request handler was woken for a request", lambda shares: shares.wakeups(),
        kind="counter"),
    Row("kafka.network:Acceptor", "AcceptorBlockedPercent",
        "share of the last minute for which the acceptor waited for a limit or a network thread, 0 to 1",
        ThreadShares.acceptors, ("listener",)),
)  # fmt: skip


# ---------------------------------------------------------------- queues, memory and purgatories


def _response_queues(parts: BrokerParts) -> Series:
    sizes = [((str(p.processor_id),), p.counters()["responses_queued"]) for p in parts.server.processors]
    return [(("",), sum(size for _, size in sizes)), *sizes]


def _delayed(produces: float, fetches: float) -> Series:
    return [(("Fetch",), fetches), (("Produce",), produces)]


_QUEUES: tuple[Row[BrokerParts], ...] = (
    Row(CHANNEL, "RequestQueueSize", "requests that wait for a handler", lambda parts: len(parts.requests)),
    Row(CHANNEL, "ResponseQueueSize", "responses that wait for their network thread; without a number: all of them",
        _response_queues, ("processor",)),
    Row(OWN_REQUESTS, "python-queue-size", "requests that wait for a handler written in Python",
        lambda parts: len(parts.python_requests)),
    Row(SERVER, "MemoryPoolAvailable", "bytes left of queued.max.request.bytes; below 0 by less than one request",
        lambda parts: 2**63 - 1 if parts.pool is None else parts.pool.available_bytes),
    Row(SERVER, "MemoryPoolUsed", "bytes of requests held in memory",
        lambda parts: 0 if parts.pool is None else parts.pool.size_bytes - parts.pool.available_bytes),
    Row(SOCKETS, "MemoryPoolAvgDepletedPercent", "share of time without memory, 0 to 1", registered),
    Row(SOCKETS, "MemoryPoolDepletedTimeTotal", "milliseconds without memory", registered, kind="counter"),
    Row(PURGATORY, "NumDelayedOperations", "requests that wait",
        lambda parts: _delayed(parts.native_apis.waiting_produces, parts.native_apis.waiting_fetches),
        ("delayedOperation",)),
    Row(PURGATORY, "PurgatorySize", "entries in the lists by partition",
        lambda parts: _delayed(parts.native_apis.watched_produces, parts.native_apis.watched_fetches),
        ("delayedOperation",)),
    Row("kafka.server:FetchSessionCache", "NumIncrementalFetchSessions", "open fetch sessions",
        lambda parts: parts.native_apis.fetch_sessions),
)  # fmt: skip


# ---------------------------------------------------------------- connections

#: Counters of each network thread: Kafka's name, name in Processor.counters, meaning.
_PROCESSOR_COUNTERS = (
    ("connection-creation-total", "connections_created", "accepted connections"),
    ("connection-close-total", "connections_closed", "closed connections"),
    ("incoming-byte-total", "bytes_received", "bytes received"),
    ("outgoing-byte-total", "bytes_sent", "bytes sent"),
    (
        "successful-authentication-total",
        "authenticated",
        "logins and TLS handshakes that succeeded; with SASL over TLS a connection counts once",
    ),
    (
        "successful-authentication-no-reauth-total",
        "authenticated_once",
        "successes of clients that cannot renew a login: TLS without SASL, SaslAuthenticate before version 1",
    ),
    ("failed-authentication-total", "authentications_failed", "logins and TLS handshakes that failed"),
    ("successful-reauthentication-total", "reauthenticated", "renewed logins of open connections"),
    ("failed-reauthentication-total", "reauthentications_failed", "renewals of logins that failed"),
    ("expired-connections-killed-count", "sessions_expired", "connections closed after their authentication expired"),
    ("request-total", "requests", "requests handed over"),
    ("response-total", "responses", "responses sent"),
    ("select-total", "polls", "polls for ready sockets"),
    ("io-waittime-total", "wait_ns", "nanoseconds of waiting for sockets"),
    ("iotime-total", "work_ns", "nanoseconds of all other work"),
)
#: The same for counters that Kafka does not have.
_OWN_PROCESSOR_COUNTERS = (
    ("idle-connections-closed-total", "connections_expired", "connections closed because they were idle"),
    ("late-frames-total", "frames_expired", "connections closed because a request did not arrive completely in time"),
    ("invalid-frames-total", "invalid_frames", "connections closed for an invalid request size"),
    ("memory-mutes-total", "memory_mutes", "times that a connection had to wait for memory"),
)
_LISTENER, _PROCESSOR = ("listener",), ("listener", "networkProcessor")


def _count(parts: BrokerParts, key: str) -> Series:
    return [((p.listener_name, str(p.processor_id)), p.counters()[key]) for p in parts.server.processors]


def _open_connections(parts: BrokerParts) -> Series:
    for p in parts.server.processors:
        counters = p.counters()
        yield (
            (p.listener_name, str(p.processor_id)),
            counters["connections_created"] - counters["connections_closed"],
        )


def _client_software(parts: BrokerParts) -> Series:
    for p in parts.server.processors:
        for software, number in p.client_software().items():
            yield (*software, p.listener_name, str(p.processor_id)), number


def _accept_rates(parts: BrokerParts) -> Series:
    quotas = parts.server.connection_quotas
    yield from (((name, ""), quotas.rate(name)) for name in quotas.listeners)
    yield from ((("", address), rate) for address, rate in quotas.ip_rates().items())


def _throttle_times(parts: BrokerParts, method: Literal["throttle_time", "ip_throttle_time"]) -> Series:
    quotas = parts.server.connection_quotas
    return [((name,), getattr(quotas, method)(name)) for name in quotas.listeners]


def _descriptor_shortages(parts: BrokerParts) -> Series:
    pairs = zip(parts.server.listeners, parts.server.acceptors, strict=False)  # there are no acceptors during the stop
    return [((bound.name,), acceptor.out_of_descriptors) for bound, acceptor in pairs]


_CONNECTIONS: tuple[Row[BrokerParts], ...] = (
    *(Row(group, name, text, partial(_count, key=key), _PROCESSOR, "counter")
      for group, counters in ((SOCKETS, _PROCESSOR_COUNTERS), (NETWORK, _OWN_PROCESSOR_COUNTERS))
      for name, key, text in counters),
    Row(SOCKETS, "connection-count", "open connections", _open_connections, _PROCESSOR),
    Row(SOCKETS, "connections", "open connections by client information; unknown until the client has sent it",
        _client_software, ("clientSoftwareName", "clientSoftwareVersion", *_PROCESSOR)),
    Row(NETWORK, "refused-requests-total",
        "connections closed without a response: the request had an unknown API or version, or was malformed",
        lambda parts: [((reason,), number) for reason, number in parts.server.refused_requests.counts().items()],
        ("reason",), "counter"),
    Row(SERVER, "ExpiredConnectionsKilledCount", "connections closed after their authentication expired",
        lambda parts: sum(p.counters()["sessions_expired"] for p in parts.server.processors)),
    Row(SOCKETS, "broker-connection-accept-rate", "new connections per second",
        lambda parts: parts.server.connection_quotas.rate()),
    Row(SOCKETS, "connection-accept-rate",
        "new connections per second of a listener, and of an address that has a limit", _accept_rates,
        ("listener", "ip")),
    Row(SOCKETS, "connection-accept-throttle-time", "average delay of new connections because of a rate limit",
        partial(_throttle_times, method="throttle_time"), _LISTENER, combine="max"),
    Row(SOCKETS, "ip-connection-accept-throttle-time",
        "average delay of connections refused because of their address's rate limit",
        partial(_throttle_times, method="ip_throttle_time"), _LISTENER, combine="max"),
    Row(NETWORK, "connections-refused", "connections closed because of their address's connection limit",
        lambda parts: parts.server.connection_quotas.refused, kind="counter"),
    Row(NETWORK, "connections-throttled", "connections closed because of their address's connection rate",
        lambda parts: parts.server.connection_quotas.throttled, kind="counter"),
    Row(NETWORK, "connections-held", "accepted sockets that are not served and will be closed",
        lambda parts: sum(acceptor.held for acceptor in parts.server.acceptors)),
    Row(NETWORK, "descriptor-shortages-total",
        "times that the acceptor delayed new connections by 0.1 s because the limit of open files was near",
        _descriptor_shortages, _LISTENER, "counter"),
)  # fmt: skip


# ---------------------------------------------------------------- logs


def _open_logs(parts: BrokerParts) -> Iterable[tuple[str, int, Any]]:
    for view in parts.ctx.topics.all():
        for number, log in enumerate(view.partitions):
            if log is not None:
                yield view.name, number, log


def _hosted(parts: BrokerParts) -> list[Any]:
    """Return the logs of the partitions with a replica on this node, None for each that is not open."""
    return [log for view in parts.ctx.topics.all() for log in view.hosted(parts.ctx.node_id)]


def _of_logs(parts: BrokerParts, attribute: str) -> Series:
    return [((topic, str(number)), getattr(log, attribute)) for topic, number, log in _open_logs(parts)]


def _sum_of_logs(parts: BrokerParts, measure: Callable[[Any], float]) -> float:
    return sum(measure(log) for _, _, log in _open_logs(parts))


_PARTITION = ("topic", "partition")
LOGS: tuple[Row[BrokerParts], ...] = (
    Row(LOG, "Size", "bytes on disk", partial(_of_logs, attribute="size_bytes"), _PARTITION),
    Row(LOG, "LogStartOffset", "first offset", partial(_of_logs, attribute="log_start_offset"), _PARTITION,
        combine="max"),
    Row(LOG, "LogEndOffset", "next offset", partial(_of_logs, attribute="log_end_offset"), _PARTITION, combine="max"),
    Row(REPLICAS, "PartitionCount", "partitions", lambda parts: len(_hosted(parts))),
    Row(REPLICAS, "OfflineReplicaCount", "partitions whose log could not be opened",
        lambda parts: sum(log is None for log in _hosted(parts))),
    Row(REPLICAS, "ProducerIdCount", "producer ids with state, summed over all partitions",
        lambda parts: _sum_of_logs(parts, lambda log: log.producer_count)),
    Row(REPLICAS, "PartitionsWithLateTransactionsCount",
        "partitions with a transaction open for longer than transaction.max.timeout.ms and five minutes",
        lambda parts: parts.logs.tasks.late_transactions()),
    Row("kafka.log:LogManager", "OfflineLogDirectoryCount", "log folders that can no longer be written",
        lambda parts: len(parts.logs.offline_dirs)),
    Row(OWN_LOGS, "damaged-partitions", "partitions that refuse appends until kbroker log verify --repair",
        lambda parts: _sum_of_logs(parts, lambda log: log.damage_offset is not None)),
    Row(OWN_LOGS, "lost-offsets", "offsets of a checkpoint that were missing at this start",
        lambda parts: parts.logs.lost_offsets),
    Row(OWN_LOGS, "failed-partitions", "partitions that refuse appends until a restart",
        lambda parts: _sum_of_logs(parts, lambda log: log.is_failed)),
    Row(OWN_LOGS, "failures-total", "appends, reads and syncs of partitions that failed",
        lambda parts: [((kind,), count) for kind, count in parts.logs.tasks.failed_io.totals.items()],
        ("operation",), "counter"),
    Row(OWN_LOGS, "size-bytes", "bytes of all logs", lambda parts: _sum_of_logs(parts, lambda log: log.size_bytes)),
    Row("kafka.controller:KafkaController", "GlobalTopicCount", "topics", lambda parts: len(parts.ctx.topics.all())),
)  # fmt: skip


# ---------------------------------------------------------------- transactions


def _of_service(measure: Callable[[TransactionService], M], before: M) -> Callable[[BrokerParts], M]:
    """Return a reader of the transaction service; the reader returns ``before`` until the service has started."""

    def read(parts: BrokerParts) -> M:
        service = parts.ctx.transaction_service.started
        return before if service is None else measure(service)

    return read


def _of_coordinator(
    measure: Callable[[TransactionCoordinator], float], before: float = 0
) -> Callable[[BrokerParts], float]:
    return _of_service(lambda service: measure(service.coordinator), before)


_NO_TIMES = Buckets([0] * (len(BOUNDS_MS) + 1), 0.0)
TRANSACTIONS: tuple[Row[BrokerParts], ...] = (
    Row(VERIFICATION, "VerificationFailureRate",
        "partitions of a Produce or TxnOffsetCommit that the transaction coordinator did not verify",
        _of_service(lambda one: one.partitions.verification_failures, 0), kind="counter"),
    Row(VERIFICATION, "VerificationTimeMs",
        "milliseconds until the transaction coordinator has verified a Produce or TxnOffsetCommit",
        _of_service(lambda one: one.partitions.verification_time_ms.buckets(), _NO_TIMES), kind="histogram",
        bounds=BOUNDS_MS),
    Row(LOADS, "partition-load-time-max",
        "maximum load time of recently loaded partitions of __transaction_state, in milliseconds",
        _of_coordinator(lambda one: one.runtime.load_times.max_ms, math.nan)),
    Row(LOADS, "partition-load-time-avg",
        "average load time of recently loaded partitions of __transaction_state, in milliseconds",
        _of_coordinator(lambda one: one.runtime.load_times.average_ms, math.nan)),
    Row(MARKERS, "UnknownDestinationQueueSize",
        "markers of ended transactions that their partitions refuse at present",
        _of_coordinator(lambda one: one.queue_sizes.markers)),
    Row(MARKERS, "LogAppendRetryQueueSize", "transactions whose end could not be written to the log yet",
        _of_coordinator(lambda one: one.queue_sizes.completions)),
    Row(OWN_TRANSACTIONS, "transactional-ids", "transactional ids with state",
        _of_coordinator(lambda one: one.counts()[0])),
    Row(OWN_TRANSACTIONS, "open-transactions", "open transactions",
        _of_coordinator(lambda one: one.counts()[1])),
    Row(OWN_TRANSACTIONS, "failed-partitions",
        "partitions of __transaction_state that could not be read; their ids are not served",
        _of_coordinator(lambda one: one.runtime.counts.failed)),
)  # fmt: skip

_REQUEST_LOG: tuple[Row[BrokerParts], ...] = (
    Row(REQUEST_LOG, "records-written-total", "records written to the request log",
        lambda parts: parts.request_log.figures.written, kind="counter"),
    Row(REQUEST_LOG, "records-dropped-total",
        "dropped records: the buffer was full, or the disk refused them",
        lambda parts: parts.request_log.figures.dropped, kind="counter"),
    Row(REQUEST_LOG, "bytes-written-total", "bytes in the request log's files and topic",
        lambda parts: parts.request_log.figures.written_bytes, kind="counter"),
    Row(REQUEST_LOG, "queue-bytes", "bytes of records that wait to be written",
        lambda parts: parts.request_log.figures.queued_bytes),
)  # fmt: skip
