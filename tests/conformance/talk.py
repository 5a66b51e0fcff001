"""Conversation with a broker: the calls of which situations consist.

A situation is a function with a `Talk` and, if it has parameters, a parameter. `talk.ask` sends a request of the API
and version under test and records the response; `talk.also` records a response of another API; `talk.quietly` records
nothing. The conversation ends with the script, when the broker closes the connection, or at the time limit.
"""

import contextlib
import socket
import struct
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from kbroker.protocol.schema import apis
from tests.conformance import codec
from tests.conformance.codec import Body
from tests.conformance.names import Flat, Keep, Names
from tests.support.wire import API_VERSIONS, Closed, Connection, header

CLIENT_ID = "conformance"
CLOSED, SILENCE = {"connection": "closed"}, {"connection": "silent"}
END_TIMEOUT_S = 5.0
TOPIC_TIMEOUT_MS = 10_000
# The coordinator is not available yet, is loading, or has moved.
COORDINATOR_ERRORS = frozenset({14, 15, 16})
CONCURRENT_TRANSACTIONS = 51


class Absent(Exception):
    """Exception for an API or a version that the script requires and the broker does not offer."""


class Stuck(Exception):
    """Failure of a step that the script requires; the message names the step."""


@dataclass(frozen=True)
class Broker:
    """Broker under test and its abilities; ``sasl``: the address of its listener with the users of ``sasl.py``."""

    host: str
    port: int
    node_id: int
    ranges: dict[str, tuple[int, int]]
    sasl: str = ""

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def offers(self, api: str, version: int | None = None) -> bool:
        first, last = self.ranges.get(api, (1, 0))
        return first <= last if version is None else first <= version <= last

    def highest(self, api: str, at_most: int) -> int:
        """Return the highest offered version up to ``at_most``. Raises: Absent."""
        first, last = self.ranges.get(api, (1, 0))
        if min(last, at_most) < first:
            raise Absent(f"{api} up to {at_most}")
        return min(last, at_most)


def look_at(bootstrap: str, sasl: str = "") -> Broker:
    """Return a broker with its node id and the versions of its APIs."""
    host, _, port = bootstrap.rpartition(":")
    with Connection(bootstrap) as connection:
        response = connection.ask(header(API_VERSIONS, 0))
        _, offered = codec.response("ApiVersions", 0, response)
        _, cluster = codec.response("Metadata", 4, connection.ask(codec.request("Metadata", 4, {"Topics": []})))
    known = {api.key: api.name for api in apis().values()}
    ranges = {
        known[r["ApiKey"]]: (r["MinVersion"], r["MaxVersion"]) for r in offered["ApiKeys"] if r["ApiKey"] in known
    }
    return Broker(host, int(port), cluster["Brokers"][0]["NodeId"], ranges, sasl)


@dataclass(frozen=True)
class Topic:
    name: str
    id: uuid.UUID


@dataclass
class Step:
    """One response, or silence or the end of the connection in its place."""

    name: str
    outcome: Flat


class Talk:
    """One run of one situation.

    Args:
        prefix: of all names. api, version: under test; version None: the script chooses the versions.
    """

    def __init__(self, broker: Broker, prefix: str, api: str, version: int | None, limit_s: float) -> None:
        self.broker = broker
        self.prefix = prefix
        self.api = api
        self._version = version
        self.deadline = time.monotonic() + limit_s
        self.steps: list[Step] = []
        self.names = Names(prefix, broker.node_id, (broker.host, broker.port))
        self._connections: dict[str, Connection] = {}
        self._client_ids: dict[str, str] = {}
        self._correlation_ids = 0
        self._topics: list[str] = []
        self._at_end: list[Callable[[], Any]] = []
        # | 0x80: a batch with too small a length ends inside its times, and their last byte must not be a magic number
        self._noon_ms = (int(time.time() * 1000) - 600_000) | 0x80

    @property
    def version(self) -> int:
        assert self._version is not None, "the situation has no version"
        return self._version

    # ---- names and times

    def name(self, label: str) -> str:
        """Return a name that no other conversation has; in comparisons it is @-label."""
        return f"{self.prefix}-{label}"

    def is_own(self, field: str) -> Keep:
        """Return a predicate for `only`: elements whose field is one of this conversation's names."""
        return lambda element: str(element.get(field) or "").startswith(self.prefix)

    def at(self, later_ms: int = 0) -> int:
        """Return a time some minutes ago; in comparisons it is T+later_ms."""
        self.names.time(self._noon_ms + later_ms, f"T+{later_ms}")
        return self._noon_ms + later_ms

    def call(self, connection: str, client_id: str) -> None:
        """Set the client id of a connection that is not open yet."""
        self._client_ids[connection] = client_id

    # ---- recorded steps

    def ask(self, body: Body, note: str = "", **how: Any) -> Body:
        """Send a request of the API under test and record the response. Args: ``how``: arguments of `also`."""
        return self.also(self.api, self.version, body, note, **how)

    def also(self, api: str, version: int, body: Body, note: str = "", *, on: str = "main", **compare: Any) -> Body:
        """Send a request on a connection and record the response, {} if the connection was closed; return the response.

        Args: ``compare``: arguments of `Names.flat`.
        """
        return self.begin(api, version, body, note, on=on).end(**compare)

    def begin(self, api: str, version: int, body: Body, note: str = "", *, on: str = "main") -> "Waiting":
        """Send a request whose response is received later."""
        connection, correlation_id = self._send(api, version, body, on)
        return Waiting(self, connection, api, version, f"{api} {version} {note}".rstrip(), correlation_id)

    def expect_silence(self, body: Body, note: str = "", *, seconds: float, on: str = "main") -> None:
        """Send a request without a response; record the result of some seconds: silence, or a closed connection."""
        connection, _ = self._send(self.api, self.version, body, on)
        name = f"{self.api} {self.version} {note}".rstrip()
        self._record(name, self._came(connection, seconds) if connection else CLOSED)

    def send_bytes(
        self, frame: bytes, note: str, *, read_as: tuple[str, int] | None = None, size: int | None = None,
        seconds: float = 2.0, and_shut: bool = False, **compare: Any,
    ) -> None:  # fmt: skip
        """Send any bytes on a new connection and record the result.

        Args:
            read_as: API and version of a response; None: only the presence of a response is recorded.
            size: length prefix instead of the right one. and_shut: close the writing side afterwards.
        """
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(self._open("bytes"))
            try:
                connection.send_raw(struct.pack(">i", len(frame) if size is None else size) + frame)
                if and_shut:
                    connection.socket.shutdown(socket.SHUT_WR)
            except Closed:
                self._record(note, CLOSED)
                return
            self._record(note, self._came(connection, seconds, read_as, compare))

    def observe(self, what: str, value: Any) -> None:
        """Record a value that the script has computed."""
        self.steps.append(Step(what, {"": value}))

    def _came(
        self,
        connection: Connection,
        seconds: float,
        read_as: tuple[str, int] | None = None,
        compare: dict[str, Any] | None = None,
    ) -> Flat:
        connection.socket.settimeout(max(0.05, min(seconds, self.deadline - time.monotonic())))
        try:
            frame = connection.receive()
        except Closed:
            return CLOSED
        except TimeoutError:
            return SILENCE
        if read_as is None:
            return {"": "a response"}
        try:
            _, body = codec.response(*read_as, frame)
        except codec.Unreadable as error:
            return {"": f"unreadable: {error}"}
        return self.names.flat(read_as[0], body, **(compare or {}))

    def _record(self, name: str, outcome: Flat) -> None:
        self.steps.append(Step(name, outcome))

    # ---- steps that are not recorded

    def need(self, api: str, version: int | None = None) -> None:
        """Raise Absent if the broker does not offer an API or a version."""
        if not self.broker.offers(api, version):
            raise Absent(api if version is None else f"{api} {version}")

    def quietly(self, api: str, at_most: int, body: Body, *, on: str = "ground") -> Body:
        """Send a request in the highest offered version up to ``at_most``; return the response. Raises: Stuck."""
        version = self.broker.highest(api, at_most)
        connection, correlation_id = self._send(api, version, body, on)
        try:
            if connection is None:
                raise Closed
            found_id, response = codec.response(api, version, self._receive(connection))
        except (Closed, codec.Unreadable) as error:
            raise Stuck(f"{api} {version} to prepare: {error or 'the connection was closed'}") from None
        if found_id != correlation_id:
            raise Stuck(f"{api} {version} to prepare: correlation id {found_id} instead of {correlation_id}")
        self.names.learn_response(api, response)
        return response

    def until(self, what: str, is_so: Callable[[], Any], seconds: float = 15.0) -> Any:
        """Repeat a call until its result is true; return the result. Raises: Stuck."""
        end = min(self.deadline, time.monotonic() + seconds)
        while not (found := is_so()):
            if time.monotonic() > end:
                raise Stuck(f"not in time: {what}")
            time.sleep(0.02)
        return found

    def topic(self, label: str = "t", partitions: int = 1, **configs: str) -> Topic:
        """Create a topic that is deleted at the end of the conversation. Names of configs have _ instead of dots.

        Version 4 is used because its response has no configs: reading them would take a quarter of the time of all
        situations.
        """
        name = self.name(label)
        rows = [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()]
        wanted = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Configs": rows}
        response = self.quietly("CreateTopics", 4, {"Topics": [wanted], "timeoutMs": TOPIC_TIMEOUT_MS})
        if code := response["Topics"][0]["ErrorCode"]:
            raise Stuck(f"CreateTopics to prepare: error {code}")
        self.will_make(name)
        return self.ready(name, partitions)

    def will_make(self, *names: str) -> None:
        """Name topics that the script will create, to be deleted at the end of the conversation."""
        self._topics += names

    def described(self, name: str) -> Body:
        body = {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}
        found: Body = self.quietly("Metadata", 12, body)["Topics"][0]
        return found

    def ready(self, name: str, partitions: int = 1) -> Topic:
        """Wait until each partition has a leader and responds."""

        def is_led() -> Body | None:
            found = self.described(name)
            led = [row for row in found["Partitions"] if row["LeaderId"] >= 0 and not row["ErrorCode"]]
            return found if not found["ErrorCode"] and len(led) >= partitions else None

        def responds() -> bool:
            rows = [{"PartitionIndex": index, "Timestamp": -1} for index in range(partitions)]
            response = self.quietly("ListOffsets", 2, {"ReplicaId": -1, "Topics": [{"Name": name, "Partitions": rows}]})
            return not any(row["ErrorCode"] for row in response["Topics"][0]["Partitions"])

        found = self.until(f"topic {name}", is_led)
        self.until(f"leaders of {name}", responds)
        topic = Topic(name, found.get("TopicId", codec.ZERO_ID))
        self.names.learn_topic(topic.id, name)
        return topic

    def gone(self, name: str) -> None:
        """Wait until a topic is unknown."""
        self.until(f"the end of {name}", lambda: self.described(name)["ErrorCode"] == 3)

    def at_end(self, action: Callable[[], Any]) -> None:
        """Run an action when the conversation ends, even after a failure."""
        self._at_end.append(action)

    # ---- connections

    @property
    def connections(self) -> Collection[str]:
        """Names of the open connections."""
        return self._connections.keys()

    def open_sasl(self, name: str) -> None:
        """Open a connection to the listener with SASL, on which the script logs in. Raises: Absent."""
        if not self.broker.sasl:
            raise Absent("a listener with SASL")
        self._connections[name] = self._open(name, self.broker.sasl)

    def _open(self, name: str, address: str = "") -> Connection:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        try:
            return Connection(address or self.broker.bootstrap, timeout=left_s)
        except OSError as error:
            raise Stuck(f"no connection ({name}): {error}") from None

    def _send(self, api: str, version: int, body: Body, on: str) -> tuple[Connection | None, int]:
        self.need(api, version)
        self.names.learn_request(body)
        if on not in self._connections:
            self._connections[on] = self._open(on)
        connection = self._connections[on]
        self._correlation_ids += 1
        client_id = self._client_ids.get(on, CLIENT_ID)
        try:
            connection.send(codec.request(api, version, body, self._correlation_ids, client_id))
        except Closed:
            self.forget(connection)
            return None, self._correlation_ids
        return connection, self._correlation_ids

    def _receive(self, connection: Connection) -> bytes:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.socket.settimeout(left_s)
        try:
            return connection.receive()
        except Closed:
            self.forget(connection)
            raise

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection; a new one is opened when it is needed."""
        connection.close()
        self._connections = {name: each for name, each in self._connections.items() if each is not connection}

    def close(self) -> None:
        """Run the actions, delete the topics and close the connections within some seconds; errors are ignored."""
        self._close_all()
        self.deadline = time.monotonic() + END_TIMEOUT_S
        with contextlib.suppress(Exception):  # the result is recorded already, and remaining names are unique
            for action in reversed(self._at_end):
                action()
            if self._topics:
                self.quietly("DeleteTopics", 5, {"TopicNames": self._topics, "TimeoutMs": 5000})
        self._close_all()

    def _close_all(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections = {}


class Waiting:
    """Request whose response has not been received yet."""

    def __init__(
        self, talk: Talk, connection: Connection | None, api: str, version: int, name: str, correlation_id: int
    ) -> None:
        self._talk = talk
        self._connection = connection
        self._asked = (api, version)
        self._name = name
        self._correlation_id = correlation_id
        self._sent_s = time.monotonic()
        self.waited_s = 0.0

    def end(self, **compare: Any) -> Body:
        """Wait for the response and record it, even after a TimeoutError. Args: ``compare``: as in `Names.flat`."""
        step = Step(self._name, SILENCE)
        self._talk.steps.append(step)
        try:
            if self._connection is None:
                raise Closed
            frame = self._talk._receive(self._connection)
        except Closed:
            step.outcome = CLOSED
            return {}
        self.waited_s = time.monotonic() - self._sent_s
        try:
            found_id, body = codec.response(*self._asked, frame)
        except codec.Unreadable as error:
            step.outcome = {"": f"unreadable: {error}"}
            return {}
        if found_id != self._correlation_id:
            step.outcome = {"": f"the response to request {found_id - self._correlation_id:+d}"}
            return {}
        step.outcome = self._talk.names.flat(self._asked[0], body, **compare)
        return body
