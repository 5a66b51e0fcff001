"""Metrics of a running broker: requests, threads, queues, memory, connections, purgatories, logs."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from kbroker.common.errors import Errors
from kbroker.metrics.exposition import Exposition
from kbroker.metrics.families import Buckets, Family, Kind
from kbroker.metrics.share import Share
from kbroker.network._request_metrics import BOUNDS_MS, FETCH_CONSUMER, FETCH_FOLLOWER, TIMES
from kbroker.network.socket_server import SocketServer
from kbroker.observe import authorizer_metrics, group_metrics, quota_metrics
from kbroker.observe.broker_parts import BrokerParts
from kbroker.observe.metrics_service import SOCKETS

if TYPE_CHECKING:
    from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
    from kbroker.network._request_metrics import _Figures

Series: TypeAlias = Iterable[tuple[tuple[str, ...], float | Buckets]]

REQUESTS = "kafka.network:RequestMetrics"

_TIME_HELP = {
    "RequestQueueTimeMs": "waiting for a handler",
    "LocalTimeMs": "in a handler, until the response is known or must wait",
    "RemoteTimeMs": "waiting in purgatory",
    "ThrottleTimeMs": "delay that quotas asked for; not part of TotalTimeMs",
    "ResponseQueueTimeMs": "the response waiting for its network thread",
    "ResponseSendTimeMs": "sending the response",
    "MessageConversionsTimeMs": "batches built anew in the topic's codec, within LocalTimeMs; requests without any are "
    "not counted",
    "TotalTimeMs": "from the last byte of the request to the last byte of the response",
}

#: Of each network thread: Kafka's name, kind, name in Processor.counters, meaning.
_OF_PROCESSORS: tuple[tuple[str, Kind, str, str], ...] = (
    ("connection-creation-total", "counter", "connections_created", "connections that came"),
    ("connection-close-total", "counter", "connections_closed", "connections that ended"),
    ("incoming-byte-total", "counter", "bytes_received", "bytes received"),
    ("outgoing-byte-total", "counter", "bytes_sent", "bytes sent"),
    ("successful-authentication-total", "counter", "authenticated", "logins that succeeded"),
    ("failed-authentication-total", "counter", "authentications_failed", "logins that failed"),
    (
        "expired-connections-killed-count",
        "counter",
        "sessions_expired",
        "connections closed for a login that is too old",
    ),
    ("request-total", "counter", "requests", "requests handed over"),
    ("response-total", "counter", "responses", "responses sent"),
    ("select-total", "counter", "polls", "times the thread asked for ready sockets"),
    ("io-waittime-total", "counter", "wait_ns", "nanoseconds of waiting for sockets"),
    ("iotime-total", "counter", "work_ns", "nanoseconds of everything else"),
)
#: The same of what Kafka does not show.
_OWN_OF_PROCESSORS: tuple[tuple[str, Kind, str, str], ...] = (
    ("idle-connections-closed-total", "counter", "connections_expired", "connections closed for being idle"),
    ("late-frames-total", "counter", "frames_expired", "connections closed because a request did not get complete"),
    ("invalid-frames-total", "counter", "invalid_frames", "connections closed for an impossible request size"),
    ("memory-mutes-total", "counter", "memory_mutes", "times a connection had to wait for memory"),
)


def register_broker_metrics(exposition: Exposition, parts: BrokerParts) -> None:
    """Add every family of the broker's parts to what is shown."""
    ctx = parts.ctx
    for family in (
        *authorizer_metrics.families(lambda: ctx.auth.authorizer),
        *quota_metrics.families(ctx.quotas),
        *group_metrics.families(ctx.groups),
    ):
        exposition.add(family)
    for add in (
        _requests,
        _threads,
        _memory,
        _connections,
        _purgatories,
        _logs,
        _transactions,
        _request_log,
    ):
        for family in add(parts):
            exposition.add(family)


def _gauge(group: str, name: str, text: str, measure: Callable[[], float]) -> Family:
    return Family(group, name, "gauge", (), text, lambda: [((), measure())])


# ---------------------------------------------------------------- requests


class RequestMetricsSnapshot:
    """Request metrics of all network threads together.

    The families of one scrape share one look: a family that asks again has the tables looked at anew.
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
        found: dict[str, tuple[list[int], float]] = {}
        for name, figures in self._all(kind):
            spent, counts = figures["times"][kind]
            if kind == "MessageConversionsTimeMs" and not any(counts):
                continue
            before, total = found.get(name, ([0] * len(counts), 0.0))
            found[name] = ([a + b for a, b in zip(before, counts, strict=True)], total + spent)
        return [((name,), Buckets(counts, spent)) for name, (counts, spent) in sorted(found.items())]

    def _sum(self, family: str, split: Callable[[_Figures], Iterable[tuple[tuple[str, ...], float]]]) -> Series:
        found: dict[tuple[str, ...], float] = {}
        for name, figures in self._all(family):
            for labels, value in split(figures):
                key = (name, *labels)
                found[key] = found.get(key, 0) + value
        return sorted(found.items())

    def by_version(self) -> Series:
        return self._sum("versions", lambda figures: [((str(v),), n) for v, n in figures["versions"].items()])

    def errors(self) -> Series:
        return self._sum("errors", lambda figures: [((_error_name(code),), n) for code, n in figures["errors"].items()])

    def request_bytes(self) -> Series:
        return self._sum("request_bytes", lambda figures: [((), figures["request_bytes"])])

    def response_bytes(self) -> Series:
        return self._sum("response_bytes", lambda figures: [((), figures["response_bytes"])])

    def network_ns(self) -> Series:
        return self._sum("network_ns", lambda figures: [((), figures["network_ns"])])


def _error_name(code: int | None) -> str:
    return Errors.of(-1 if code is None else code).name


def _requests(parts: BrokerParts) -> Iterable[Family]:
    figures = RequestMetricsSnapshot(parts)
    for kind in TIMES:
        yield Family(
            REQUESTS, kind, "histogram", ("request",), f"milliseconds: {_TIME_HELP[kind]}",
            lambda kind=kind: figures.times(kind), BOUNDS_MS,  # type: ignore[misc]
        )  # fmt: skip
    yield Family(REQUESTS, "RequestsPerSec", "counter", ("request", "version"), "requests", figures.by_version)
    yield Family(
        REQUESTS, "ErrorsPerSec", "counter", ("request", "error"), "error codes in responses, NONE too", figures.errors
    )
    yield Family(
        REQUESTS, "RequestBytes", "counter", ("request",), "bytes of requests without header", figures.request_bytes
    )
    own = "kbroker:requests"
    yield Family(own, "response-bytes", "counter", ("request",), "bytes of responses", figures.response_bytes)
    yield Family(
        own, "network-time-ns", "counter", ("request",),
        "nanoseconds of network threads, which the request quota charges", figures.network_ns,
    )  # fmt: skip


# ---------------------------------------------------------------- threads and queues


def _response_queues(server: SocketServer) -> Series:
    sizes = [((str(p.processor_id),), p.counters()["responses_queued"]) for p in server.processors]
    return [(("",), sum(size for _, size in sizes)), *sizes]


class ProcessorShares:
    """Idle share of each network thread; threads may start and end while the broker runs."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._shares: dict[int, Share] = {}
        self._lock = threading.Lock()
        self._known()

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

    def each(self) -> Series:
        return [((str(number),), share.measure()) for number, share in self._known().items()]

    def average(self) -> float:
        shares = [share.measure() for share in self._known().values()]
        return sum(shares) / len(shares)


def _threads(parts: BrokerParts) -> Iterable[Family]:
    idle = ProcessorShares(parts)
    handlers = Share(lambda: parts.requests.idle_ns, lambda: len(parts.handlers.threads), parts.ctx.clock)
    yield _gauge(
        "kafka.network:SocketServer", "NetworkProcessorAvgIdlePercent",
        "share of the last minute that network threads waited, 0 to 1", idle.average,
    )  # fmt: skip
    yield Family(
        "kafka.network:Processor", "IdlePercent", "gauge", ("networkProcessor",), "the same of each network thread",
        idle.each,
    )  # fmt: skip
    yield _gauge(
        "kafka.server:KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent",
        "share of the last minute that native request handlers waited, 0 to 1", handlers.measure,
    )  # fmt: skip
    yield _gauge(
        "kafka.network:RequestChannel", "RequestQueueSize", "requests that wait for a handler",
        lambda: len(parts.requests),
    )  # fmt: skip
    yield Family(
        "kafka.network:RequestChannel", "ResponseQueueSize", "gauge", ("processor",),
        "responses that wait for their network thread; without a number: all of them",
        lambda: _response_queues(parts.server),
    )  # fmt: skip
    yield _gauge(
        "kbroker:requests", "python-queue-size", "requests that wait for a handler written in Python",
        lambda: len(parts.python_requests),
    )  # fmt: skip
    acceptors = [
        (bound.name, Share(lambda a=a: a.blocked_ns, lambda: 1, parts.ctx.clock))  # type: ignore[misc]
        for bound, a in zip(parts.server.listeners, parts.server.acceptors, strict=True)
    ]
    yield Family(
        "kafka.network:Acceptor", "AcceptorBlockedPercent", "gauge", ("listener",),
        "share of the last minute that the acceptor waited for a limit or a network thread, 0 to 1",
        lambda: [((name,), share.measure()) for name, share in acceptors],
    )  # fmt: skip
    yield Family(
        "kbroker:network", "descriptor-shortages-total", "counter", ("listener",),
        "times the acceptor put off new connections for a tenth of a second: the limit of open files was near",
        lambda: [
            ((bound.name,), a.out_of_descriptors)
            for bound, a in zip(parts.server.listeners, parts.server.acceptors, strict=True)
        ],
    )  # fmt: skip


# ---------------------------------------------------------------- memory


def _memory(parts: BrokerParts) -> Iterable[Family]:
    pool = parts.pool

    def used() -> float:
        return 0 if pool is None else pool.size_bytes - pool.available_bytes

    def available() -> float:
        return 2**63 - 1 if pool is None else pool.available_bytes

    yield _gauge(
        "kafka.network:SocketServer", "MemoryPoolAvailable",
        "bytes left of queued.max.request.bytes; below 0 by less than one request", available,
    )  # fmt: skip
    yield _gauge("kafka.network:SocketServer", "MemoryPoolUsed", "bytes of requests held in memory", used)
    yield Family(SOCKETS, "MemoryPoolAvgDepletedPercent", "gauge", (), "share of time without memory, 0 to 1")
    yield Family(SOCKETS, "MemoryPoolDepletedTimeTotal", "counter", (), "milliseconds without memory")


# ---------------------------------------------------------------- connections


def _connections(parts: BrokerParts) -> Iterable[Family]:
    server, quotas = parts.server, parts.server.connection_quotas
    by_processor = ("listener", "networkProcessor")

    def open_connections() -> Series:
        for p in server.processors:
            counters = p.counters()
            there = counters["connections_created"] - counters["connections_closed"]
            yield (p.listener_name, str(p.processor_id)), there

    def by_software() -> Series:
        for p in server.processors:
            for software, number in p.client_software().items():
                yield (*software, p.listener_name, str(p.processor_id)), number

    def counter(key: str) -> Series:
        return [((p.listener_name, str(p.processor_id)), p.counters()[key]) for p in server.processors]

    def refused() -> Series:
        return [((reason,), number) for reason, number in server.refused_requests.counts().items()]

    def accept_rates() -> Series:
        for name in quotas.listeners:
            yield (name, ""), quotas.rate(name)
        for address, rate in quotas.ip_rates().items():
            yield ("", address), rate

    yield Family(SOCKETS, "connection-count", "gauge", by_processor, "open connections", open_connections)
    yield Family(
        SOCKETS, "connections", "gauge", ("clientSoftwareName", "clientSoftwareVersion", *by_processor),
        "open connections by what the clients say they are; unknown until they do", by_software,
    )  # fmt: skip
    yield Family(
        "kbroker:network", "refused-requests-total", "counter", ("reason",),
        "connections closed instead of a response to a request: an unknown API or version, a damaged one", refused,
    )  # fmt: skip
    for group, rows in ((SOCKETS, _OF_PROCESSORS), ("kbroker:network", _OWN_OF_PROCESSORS)):
        for name, kind, key, text in rows:
            yield Family(group, name, kind, by_processor, text, lambda key=key: counter(key))  # type: ignore[misc]
    yield _gauge(
        "kafka.network:SocketServer", "ExpiredConnectionsKilledCount", "connections closed for a login that is too old",
        lambda: sum(p.counters()["sessions_expired"] for p in server.processors),
    )  # fmt: skip
    yield _gauge(SOCKETS, "broker-connection-accept-rate", "new connections per second", quotas.rate)
    yield Family(
        SOCKETS, "connection-accept-rate", "gauge", ("listener", "ip"),
        "new connections per second of a listener, and of an address that has a limit", accept_rates,
    )  # fmt: skip
    for name, text, measure in (
        ("connection-accept-throttle-time", "average delay of new connections for a rate", quotas.throttle_time),
        (
            "ip-connection-accept-throttle-time",
            "average delay of connections refused for their address's rate",
            quotas.ip_throttle_time,
        ),
    ):
        yield Family(
            SOCKETS, name, "gauge", ("listener",), text,
            lambda measure=measure: [((one,), measure(one)) for one in quotas.listeners],  # type: ignore[misc]
            combine="max",
        )  # fmt: skip
    yield Family(
        "kbroker:network", "connections-refused", "counter", (), "connections closed for their address's count",
        lambda: [((), quotas.refused)],
    )  # fmt: skip
    yield Family(
        "kbroker:network", "connections-throttled", "counter", (), "connections closed for their address's rate",
        lambda: [((), quotas.throttled)],
    )  # fmt: skip
    yield _gauge(
        "kbroker:network", "connections-held", "accepted sockets that are not served and will be closed",
        lambda: sum(acceptor.held for acceptor in server.acceptors),
    )  # fmt: skip


# ---------------------------------------------------------------- purgatories and logs


def _purgatories(parts: BrokerParts) -> Iterable[Family]:
    native_apis, group = parts.native_apis, "kafka.server:DelayedOperationPurgatory"
    yield Family(
        group, "NumDelayedOperations", "gauge", ("delayedOperation",), "requests that wait",
        lambda: [(("Fetch",), native_apis.waiting_fetches), (("Produce",), native_apis.waiting_produces)],
    )  # fmt: skip
    yield Family(
        group, "PurgatorySize", "gauge", ("delayedOperation",), "entries in the lists by partition",
        lambda: [(("Fetch",), native_apis.watched_fetches), (("Produce",), native_apis.watched_produces)],
    )  # fmt: skip
    yield _gauge(
        "kafka.server:FetchSessionCache", "NumIncrementalFetchSessions", "open fetch sessions",
        lambda: native_apis.fetch_sessions,
    )  # fmt: skip


def _logs(parts: BrokerParts) -> Iterable[Family]:
    topics, labels = parts.ctx.topics, ("topic", "partition")

    def open_logs() -> Iterable[tuple[str, int, Any]]:
        for view in topics.all():
            for number, log in enumerate(view.partitions):
                if log is not None:
                    yield view.name, number, log

    def each(attribute: str) -> Series:
        return [((topic, str(number)), getattr(log, attribute)) for topic, number, log in open_logs()]

    for name, attribute, text in (
        ("Size", "size_bytes", "bytes on disk"),
        ("LogStartOffset", "log_start_offset", "first offset"),
        ("LogEndOffset", "log_end_offset", "next offset"),
    ):
        yield Family(
            "kafka.log:Log", name, "gauge", labels, text,
            lambda attribute=attribute: each(attribute),  # type: ignore[misc]
            combine="sum" if name == "Size" else "max",
        )  # fmt: skip
    yield _gauge(
        "kafka.server:ReplicaManager", "PartitionCount", "partitions",
        lambda: sum(len(view.partitions) for view in topics.all()),
    )  # fmt: skip
    yield _gauge(
        "kafka.server:ReplicaManager", "OfflineReplicaCount", "partitions whose log could not be opened",
        lambda: sum(log is None for view in topics.all() for log in view.partitions),
    )  # fmt: skip
    yield _gauge(
        "kafka.server:ReplicaManager", "ProducerIdCount", "producer ids that partitions remember, summed up",
        lambda: sum(log.producer_count for _, _, log in open_logs()),
    )  # fmt: skip
    yield _gauge(
        "kafka.server:ReplicaManager", "PartitionsWithLateTransactionsCount",
        "partitions with a transaction open for longer than transaction.max.timeout.ms and five minutes",
        lambda: parts.logs.tasks.late_transactions(),
    )  # fmt: skip
    yield _gauge(
        "kafka.log:LogManager", "OfflineLogDirectoryCount", "log folders that can no longer be written",
        lambda: len(parts.logs.offline_dirs),
    )  # fmt: skip
    yield _gauge(
        "kbroker:logs", "damaged-partitions", "partitions that take no appends before kbroker log verify --repair",
        lambda: sum(log.damage_offset is not None for _, _, log in open_logs()),
    )  # fmt: skip
    yield _gauge(
        "kbroker:logs", "lost-offsets", "offsets that a checkpoint knew and this start did not find",
        lambda: parts.logs.lost_offsets,
    )  # fmt: skip
    yield _gauge(
        "kbroker:logs", "failed-partitions", "partitions that take no appends before a restart",
        lambda: sum(log.is_failed for _, _, log in open_logs()),
    )  # fmt: skip
    yield Family(
        "kbroker:logs", "failures-total", "counter", ("operation",),
        "appends, reads and syncs of partitions that failed",
        lambda: [((kind,), count) for kind, count in parts.logs.tasks.failed_io.totals.items()],
    )  # fmt: skip
    yield _gauge("kafka.controller:KafkaController", "GlobalTopicCount", "topics", lambda: len(topics.all()))
    yield _gauge(
        "kbroker:logs", "size-bytes", "bytes of all logs", lambda: sum(log.size_bytes for _, _, log in open_logs()),
    )  # fmt: skip


def _transactions(parts: BrokerParts) -> Iterable[Family]:
    """Return the families of the transaction coordinator, zeros before its first use starts it."""

    def of(measure: Callable[[TransactionCoordinator], float], before: float = 0) -> Callable[[], float]:
        def value() -> float:
            service = parts.ctx.transaction_service
            return before if service is None else measure(service.coordinator)

        return value

    def failures() -> Series:
        service = parts.ctx.transaction_service
        return [((), 0 if service is None else service.partitions.verification_failures)]

    def times() -> Series:
        service = parts.ctx.transaction_service
        none = Buckets([0] * (len(BOUNDS_MS) + 1), 0.0)
        return [((), none if service is None else service.partitions.verification_time_ms.buckets())]

    verification = "kafka.server:AddPartitionsToTxnManager"
    yield Family(
        verification, "VerificationFailureRate", "counter", (),
        "partitions that the transaction coordinator refused, for a Produce or TxnOffsetCommit that asked", failures,
    )  # fmt: skip
    yield Family(
        verification, "VerificationTimeMs", "histogram", (),
        "milliseconds until the transaction coordinator answers a Produce or TxnOffsetCommit", times, BOUNDS_MS,
    )  # fmt: skip
    loads, markers = "transaction-coordinator-metrics", "kafka.coordinator.transaction:TransactionMarkerChannelManager"
    yield _gauge(
        loads, "partition-load-time-max", "longest load of a partition of __transaction_state lately, in milliseconds",
        of(lambda one: one.runtime.load_times.max_ms, math.nan),
    )  # fmt: skip
    yield _gauge(
        loads, "partition-load-time-avg", "average load of a partition of __transaction_state lately, in milliseconds",
        of(lambda one: one.runtime.load_times.average_ms, math.nan),
    )  # fmt: skip
    yield _gauge(
        markers, "UnknownDestinationQueueSize", "markers of ended transactions that their partitions do not take now",
        of(lambda one: one.queue_sizes.markers),
    )  # fmt: skip
    yield _gauge(
        markers, "LogAppendRetryQueueSize", "transactions whose end could not be logged so far",
        of(lambda one: one.queue_sizes.completions),
    )  # fmt: skip
    own = "kbroker:transactions"
    yield _gauge(own, "transactional-ids", "transactional ids that are remembered", of(lambda one: one.counts()[0]))
    yield _gauge(own, "open-transactions", "transactions that are open", of(lambda one: one.counts()[1]))
    yield _gauge(
        own, "failed-partitions", "partitions of __transaction_state that could not be read; their ids are not served",
        of(lambda one: one.runtime.counts.failed),
    )  # fmt: skip


# ---------------------------------------------------------------- the request log


def _request_log(parts: BrokerParts) -> Iterable[Family]:
    log, group = parts.request_log, "kbroker:request-log"
    for name, text, attribute in (
        ("records-written-total", "records written to the request log", "written"),
        ("records-dropped-total", "records that were not: no room in the buffer, or not taken by the disk", "dropped"),
        ("bytes-written-total", "bytes in the request log's files and topic", "written_bytes"),
    ):
        yield Family(
            group, name, "counter", (), text,
            lambda attribute=attribute: [((), getattr(log.figures, attribute))],  # type: ignore[misc]
        )  # fmt: skip
    yield _gauge(group, "queue-bytes", "bytes of records that wait to be written", lambda: log.figures.queued_bytes)
