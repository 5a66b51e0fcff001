"""Connections to a cluster: bootstrap, version negotiation, metadata cache, routing, retries.

The modules above (`admin`, `producer`, `consumer`) send through `Cluster.request`, which opens and keeps one
connection per broker.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import UUID

import kbroker
from kbroker.client.connection import (
    API_VERSIONS,
    WITHOUT_LOGIN,
    Address,
    Body,
    BrokerConnectionError,
    Clock,
    Connection,
    OpenStream,
    format_address,
    open_plaintext,
    parse_bootstrap,
)
from kbroker.common.errors import Errors, KafkaError
from kbroker.protocol import codec

METADATA, BROKER_REGISTRATION = 3, 62  # the latter is served by controllers only
FIRST_API_VERSIONS = 4  # first version that the Java 4.3 client tries; v5 only adds the cluster id
UNKNOWN_TOPIC_PATIENCE_S = 1.0  # a topic just created may not be known to every broker yet
LEAST_COORDINATOR_S = 5.0  # of one exchange, also where failures are not retried
#: Body of every ApiVersions request: a broker counts a connection by its latest client information. Ignored before v3.
CLIENT_SOFTWARE: Body = {"ClientSoftwareName": "kbroker", "ClientSoftwareVersion": kbroker.__version__}
UNSUPPORTED_VERSION_BYTES = b"\x00\x23"  # error 35, at the offset of the error code in every version
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.05, 1.0

C = TypeVar("C", bound="Closing")
T = TypeVar("T")
P = ParamSpec("P")
_BY_CODE = {int(error): error for error in Errors}
Authenticate = Callable[[Connection], None]
BodyFor = Body | Callable[[int], Body]


@dataclass(frozen=True, slots=True)
class Node:
    """A broker as listed by Metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        """Host and port of its listener."""
        return self.host, self.port


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition: `leader` and `leader_epoch` are -1 without a leader; `error` concerns this partition alone."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error: Errors = Errors.NONE


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic, its partitions in ascending order; `topic_id` is None from brokers before Metadata v10."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]
    error: Errors = Errors.NONE


def to_error(code: int) -> Errors:
    """Return the enum member of an error code; UNKNOWN_SERVER_ERROR for an unknown code, as in other clients."""
    return _BY_CODE.get(code, Errors.UNKNOWN_SERVER_ERROR)


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise KafkaError unless `code` is 0.

    Args:
        code: error code of a response.
        what: names the thing that failed, for example "topic 'orders'".
        message: the broker's own text, if it sent one.
    """
    failure = failure_of(code, what, message)
    if failure is not None:
        raise failure


def failure_of(code: int, what: str, message: str | None = None) -> KafkaError | None:
    """Return the error that `check` raises; None if `code` is 0."""
    if not code:
        return None
    error = to_error(code)
    return KafkaError(error, f"{what}: {message or error.message}")


class Closing(ABC):
    """Base class of clients that are closed at the end of a ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Close the client. Idempotent."""

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class Cluster(Closing):
    """One Kafka cluster: its metadata, and a connection to each of its brokers.

    Args:
        bootstrap: `host:port[,host:port...]`.
        client_id: sent with every request; the broker's quotas and logs identify the client by it.
        connect_timeout_s: seconds for one connection.
        request_timeout_s: seconds for one exchange.
        retry_timeout_s: seconds for which retriable failures are tried again.
        open_stream: makes a connected socket (TLS: a wrapped one).
        authenticate: run on each new connection after version negotiation, and again to renew a session (SASL).
        clock: monotonic seconds.
        sleep: waits between attempts.

    Raises: BrokerConnectionError if no bootstrap server responds; KafkaError if one refuses version negotiation or
    authentication; ValueError for a malformed list.

    Threads: one at a time; open one Cluster per thread.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "kbroker",
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 30.0,
        retry_timeout_s: float = 30.0,
        open_stream: OpenStream = open_plaintext,
        authenticate: Authenticate | None = None,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client_id = client_id
        self.request_timeout_s = request_timeout_s
        self.retry_timeout_s = retry_timeout_s
        self.nodes: dict[int, Node] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.clock = clock
        self.sleep = sleep
        self._bootstrap = parse_bootstrap(bootstrap)
        self._connect_timeout_s = connect_timeout_s
        self._open_stream = open_stream
        self._authenticate = authenticate
        self._connections: dict[Address, Connection] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._last_addresses: list[Address] = []  # addresses of the nodes of the latest metadata
        self._any_connection()

    @property
    def coordinator_timeout_s(self) -> float:
        """Seconds for one exchange with a coordinator, which a retry may find on another node."""
        return min(self.request_timeout_s, max(LEAST_COORDINATOR_S, self.retry_timeout_s))

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # ---- connections and versions

    def _connect(self, address: Address) -> Connection:
        """Return a usable connection to `address`: the kept one, or a new one with negotiated versions, which is kept.

        Raises: BrokerConnectionError, KafkaError.
        """
        kept = self._connections.get(address)
        if kept is not None and self._is_usable(kept):
            return kept
        connection = Connection(
            address,
            client_id=self.client_id,
            connect_timeout_s=self._connect_timeout_s,
            request_timeout_s=self.request_timeout_s,
            open_stream=self._open_stream,
            clock=self.clock,
        )
        try:
            negotiate(connection, self.request_timeout_s)
            if self._authenticate is not None:
                self._authenticate(connection)
            else:
                connection.closed_hint = WITHOUT_LOGIN
        except BaseException:
            connection.close()
            raise
        self._connections[address] = connection
        return connection

    def _is_usable(self, connection: Connection) -> bool:
        """Return whether a kept connection can be used; renew its session shortly before it expires (KIP-368)."""
        if connection.is_stale():
            return False
        if self._authenticate is not None and connection.needs_renewal():
            try:
                self._authenticate(connection)
            except BrokerConnectionError:
                return False
            except KafkaError:
                connection.close()  # the attempt to open a new connection reports the reason
                return False
        return True

    def _any_connection(self) -> Connection:
        """Return a connection to any broker: an open one, else to a known node, a bootstrap server, a former node.

        Raises: BrokerConnectionError if none can be reached; KafkaError.
        """
        for connection in list(self._connections.values()):
            if self._is_usable(connection):
                return connection
        failures: list[BrokerConnectionError] = []
        known = [node.address for node in self.nodes.values()]
        for address in dict.fromkeys([*known, *self._bootstrap, *self._last_addresses]):
            try:
                return self._connect(address)
            except BrokerConnectionError as failure:
                failures.append(failure)
        first, *others = failures
        if not others:
            raise first
        raise BrokerConnectionError(first.address, "; ".join([first.message, *map(str, others)]))

    def connection_to(self, node_id: int | None) -> Connection:
        """Return a usable connection to a broker, to any broker if None; for pipelined requests.

        Raises: BrokerConnectionError; KafkaError LEADER_NOT_AVAILABLE for an unknown node.
        """
        if node_id is None:
            return self._any_connection()
        if node_id not in self.nodes:
            self.fetch_metadata([])
        node = self.nodes.get(node_id)
        if node is None:
            raise KafkaError(Errors.LEADER_NOT_AVAILABLE, f"expected a node of the cluster, got unknown node {node_id}")
        return self._connect(node.address)

    def request(
        self,
        api_key: int,
        body: BodyFor,
        *,
        node_id: int | None = None,
        max_version: int | None = None,
        timeout_s: float | None = None,
        expect_response: bool = True,
    ) -> Body:
        """Send one request in the highest version that both sides support, without retries.

        Args:
            api_key: key of the API.
            body: fields by Kafka's names, or a function that returns them for a version.
            node_id: the broker; any when None.
            max_version: never use a higher version.
            timeout_s: seconds for the exchange.
            expect_response: False for Produce with acks=0.

        Raises: as `connection_to`, `Connection.request`; KafkaError UNSUPPORTED_VERSION if no version is shared.
        """
        connection = self.connection_to(node_id)
        version = shared_version(connection, api_key, max_version)
        fields = body(version) if callable(body) else body
        limit_s = self.request_timeout_s if timeout_s is None else timeout_s
        throttled_s = connection.throttled_until_s - self.clock()
        if throttled_s > 0:  # the broker does not read until then
            self.sleep(throttled_s)
        return connection.request(api_key, version, fields, timeout_s=limit_s, expect_response=expect_response)

    def ask(self, api_key: int, body: BodyFor, what: str, **settings: Any) -> Body:
        """Send one request, as `request`, and return its response, which reports no error for the whole request.

        Args: ``what``: names the thing that failed, as for `check`; ``settings`` of `request`.
        Raises: as `request`; KafkaError with the broker's code and text.
        """
        response = self.request(api_key, body, **settings)
        check(response.get("ErrorCode", 0), what, response.get("ErrorMessage"))
        return response

    def supports(self, api_key: int, node_id: int | None = None) -> bool:
        """Return whether broker and codec share a version of an API. Raises: BrokerConnectionError."""
        try:
            shared_version(self.connection_to(node_id), api_key)
        except KafkaError:
            return False
        return True

    # ---- metadata

    def fetch_metadata(
        self, topics: Iterable[str] | None, *, allow_auto_topic_creation: bool = False
    ) -> list[TopicMetadata]:
        """Request metadata from any broker once; cache nodes, controller and topics, and return the topics.

        Args:
            topics: names, or None for all; an empty list requests only the brokers.
            allow_auto_topic_creation: let the broker create missing topics.
        """
        wanted = None if topics is None else [{"Name": name} for name in topics]

        def body(version: int) -> Body:
            fields: Body = {"Topics": wanted}
            if version == 0 and not wanted:  # v0: empty means all, and there is no null
                fields["Topics"] = []
            if version >= 4:
                fields["AllowAutoTopicCreation"] = allow_auto_topic_creation
            return fields

        response = self.ask(METADATA, body, "metadata")
        self.nodes = {b["NodeId"]: Node(b["NodeId"], b["Host"], b["Port"], b.get("Rack")) for b in response["Brokers"]}
        self._last_addresses = [node.address for node in self.nodes.values()]
        self.controller_id = response.get("ControllerId", -1)
        self.cluster_id = response.get("ClusterId")
        found = [_topic_metadata(topic) for topic in response["Topics"]]
        if topics is None:
            self._topics.clear()
        for topic in found:
            if topic.error is Errors.NONE:
                self._topics[topic.name] = topic
            else:
                self._topics.pop(topic.name, None)
        return found

    def topic(self, name: str, *, allow_auto_topic_creation: bool = False) -> TopicMetadata:
        """Return the metadata of a topic, from the cache if possible; wait a moment for a topic that was just created.

        Raises: KafkaError after UNKNOWN_TOPIC_PATIENCE_S, such as UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION.
        """
        cached = self._topics.get(name)
        if cached is not None:
            return cached

        def attempt() -> TopicMetadata:
            (found,) = self.fetch_metadata([name], allow_auto_topic_creation=allow_auto_topic_creation)
            check(found.error, f"topic {name!r}")
            return found

        patience_s = (
            self.retry_timeout_s if allow_auto_topic_creation else min(UNKNOWN_TOPIC_PATIENCE_S, self.retry_timeout_s)
        )
        return self.retry(attempt, timeout_s=patience_s)

    def forget(self, name: str | None = None) -> None:
        """Drop the cached metadata of a topic, after a response that proves it stale; of all topics if None."""
        if name is None:
            self._topics.clear()
        else:
            self._topics.pop(name, None)

    def leader(self, topic: str, partition: int, *, allow_auto_topic_creation: bool = False) -> int:
        """Return the node id of the partition's leader.

        Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION for a partition out of range, LEADER_NOT_AVAILABLE without a
            leader (the cached entry is then dropped, so that a retry requests it again).
        """
        known = self.topic(topic, allow_auto_topic_creation=allow_auto_topic_creation).partitions
        index = bisect_left(known, partition, key=lambda one: one.partition)
        if index == len(known) or (found := known[index]).partition != partition:
            self.forget(topic)
            raise KafkaError(
                Errors.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r}: expected a partition from 0 to {len(known) - 1}, got {partition}",
            )
        if found.leader < 0:
            self.forget(topic)
            raise KafkaError(Errors.LEADER_NOT_AVAILABLE, f"partition {topic}-{partition} has no leader")
        return found.leader

    def check_node(self, node_id: int) -> None:
        """Check that a broker that a user names exists.

        Raises: KafkaError BROKER_NOT_AVAILABLE if it is not in fresh metadata either; a retry would not help.
        """
        if node_id not in self.nodes:
            self.retry(lambda: self.fetch_metadata([]))
        if node_id not in self.nodes:
            there = ", ".join(map(str, sorted(self.nodes)))
            raise KafkaError(
                Errors.BROKER_NOT_AVAILABLE, f"expected one of the cluster's brokers ({there}), got {node_id}"
            )

    def controller(self) -> int | None:
        """Return the node id of the controller; None (any broker) if the cluster reports none."""
        if not self.nodes:
            self.fetch_metadata([])
        return self.controller_id if self.controller_id in self.nodes else None

    # ---- retries

    def retry(self, attempt: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Run `attempt` until it succeeds, fails permanently, or times out; drop cached topics between attempts.

        Args:
            attempt: may raise KafkaError (repeated if the error is retriable) or BrokerConnectionError (repeated).
            timeout_s: `retry_timeout_s` when None.

        Raises: the last failure of `attempt`.
        """
        deadline = self.clock() + (self.retry_timeout_s if timeout_s is None else timeout_s)
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                return attempt()
            except KafkaError as failure:
                if not failure.error.retriable or self.clock() + backoff_s > deadline:
                    raise
                if failure.error is Errors.NOT_CONTROLLER:
                    self.nodes.clear()
            except BrokerConnectionError:
                if self.clock() + backoff_s > deadline:
                    raise
                self.nodes.clear()
            self._topics.clear()
            self.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)


class _OfCluster(Protocol):
    @property
    def cluster(self) -> Cluster: ...


Owner = TypeVar("Owner", bound=_OfCluster)


def retried(function: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], T]:
    """Decorate a function to run within `Cluster.retry` of the cluster of its first argument."""

    @functools.wraps(function)
    def run(of: Owner, /, *args: P.args, **named: P.kwargs) -> T:
        return of.cluster.retry(lambda: function(of, *args, **named))

    return run


def negotiate(connection: Connection, timeout_s: float) -> None:
    """Fill `connection.versions`. Raises: KafkaError, BrokerConnectionError.

    A broker that does not support the requested version of ApiVersions responds with error 35 in the format of version
    0, and with its own range. The request is then repeated in the broker's highest version (0 if it reports none).
    Source: KIP-35, KIP-511.
    """
    version = FIRST_API_VERSIONS
    while True:
        frame = connection.exchange(API_VERSIONS, version, CLIENT_SOFTWARE, timeout_s=timeout_s)
        assert frame is not None
        if version == 0 or bytes(frame[4:6]) != UNSUPPORTED_VERSION_BYTES:
            break
        refused = connection.decode(API_VERSIONS, 0, frame)
        offered = next((k["MaxVersion"] for k in refused["ApiKeys"] if k["ApiKey"] == API_VERSIONS), 0)
        version = max(0, min(offered, version - 1))
    response = connection.decode(API_VERSIONS, version, frame)
    check(response["ErrorCode"], f"{format_address(connection.address)}: ApiVersions")
    connection.versions = {k["ApiKey"]: (k["MinVersion"], k["MaxVersion"]) for k in response["ApiKeys"]}


def shared_version(connection: Connection, api_key: int, max_version: int | None = None) -> int:
    """Return the highest version of an API that both sides support. Raises: KafkaError UNSUPPORTED_VERSION."""
    low, high = codec.api(api_key).request_versions
    their_low, their_high = connection.versions.get(api_key, (0, -1))
    version = min(high, their_high, high if max_version is None else max_version)
    if version < max(low, their_low):
        offered = f"versions {their_low}-{their_high}" if their_high >= 0 else "no version"
        name, who = codec.api(api_key).name, format_address(connection.address)
        message = f"{who} supports {offered} of {name}, this client versions {low}-{high}"
        if METADATA not in connection.versions and BROKER_REGISTRATION in connection.versions:
            message = f"{who} is the listener of a controller, without {name}: give the address of a broker"
        raise KafkaError(Errors.UNSUPPORTED_VERSION, message)
    return version


def _topic_metadata(topic: Body) -> TopicMetadata:
    partitions = [
        PartitionMetadata(
            p["PartitionIndex"],
            p["LeaderId"],
            p.get("LeaderEpoch", -1),
            tuple(p["ReplicaNodes"]),
            tuple(p["IsrNodes"]),
            tuple(p.get("OfflineReplicas") or ()),
            to_error(p["ErrorCode"]),
        )
        for p in topic["Partitions"]
    ]
    topic_id = topic.get("TopicId")
    return TopicMetadata(
        topic["Name"] or "",
        to_uuid(topic_id),
        topic.get("IsInternal", False),
        tuple(sorted(partitions, key=lambda p: p.partition)),
        to_error(topic["ErrorCode"]),
    )


def to_uuid(value: UUID | bytes | None) -> UUID | None:
    """Return the topic id of a decoded field; None for the zero id."""
    if value is None:
        return None
    found = value if isinstance(value, UUID) else UUID(bytes=bytes(value))
    return found if found.int else None
