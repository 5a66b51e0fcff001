"""Clients for tests: a connection with the broker's codec, a steady producer, and the clients of librdkafka."""

from __future__ import annotations

import select
import threading
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import confluent_kafka

from kbroker.client.admin import EARLIEST, LATEST, Admin
from kbroker.client.cluster import Cluster
from kbroker.client.consumer import Consumer, Record
from kbroker.protocol import codec
from tests.support import wire
from tests.support.broker import wait_for
from tests.support.wire import PRODUCE, Closed, Connection

if TYPE_CHECKING:
    from kbroker.testing import EmbeddedBroker

Body = dict[str, Any]

ANY = (1 << 31) - 1  # maximum bytes of a string: strings too long for a broker are sent too


class Client(Connection):
    """Connection with a client id; responses come in the order of requests."""

    def __init__(self, bootstrap: str, client_id: str | None = "client", timeout: float = 20.0) -> None:
        super().__init__(bootstrap, timeout)
        self.client_id = client_id
        self.response = b""  # the latest response as received
        self._sent = 0
        self._pending: deque[tuple[int, int, int]] = deque()

    def begin(self, api: str | int, version: int, body: Body) -> int:
        """Send a request; return its size as quotas count it, without the four bytes of its length."""
        key = codec.api_by_name(api).key if isinstance(api, str) else api
        frame = codec.encode_request_frame(key, version, self._sent, self.client_id, body, ANY)
        self.send_raw(frame)
        if key != PRODUCE or body["Acks"] != 0:
            self._pending.append((key, version, self._sent))
        self._sent += 1
        return len(frame) - 4

    def end(self) -> Body:
        """Return the next response. Raises: Closed if the broker has closed the connection."""
        self.response = self.receive()
        key, version, number = self._pending.popleft()
        correlation_id, body = codec.decode_response_frame(key, version, self.response)
        assert correlation_id == number
        return body

    def call(self, api: str | int, version: int, body: Body) -> Body:
        """Send a request and return its response."""
        self.begin(api, version, body)
        return self.end()

    @property
    def has_response(self) -> bool:
        """Return whether a part of a response can be read."""
        poll = select.poll()  # select ends at descriptor 1023
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def produce(self, topic: str, value_bytes: int, *, acks: int = 1, version: int = 7) -> int:
        """Send a Produce request with one record of this size; return the size of the request."""
        return self.begin("Produce", version, produce_body(topic, wire.batch([b"x" * value_bytes]), acks))

    def fetch(
        self, topic: str, *, version: int = 11, offset: int = 0, session: tuple[int, int] = (0, -1), **limits: int
    ) -> None:
        """Send a Fetch of partition 0. Args: ``session``: id and epoch; an incremental Fetch names no topic."""
        self.begin("Fetch", version, fetch_body(topic, offset, session, **limits))


def new_topics(*names: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Body:
    """Return a CreateTopics request for topics with one replica."""
    rows = [{"Name": key, "Value": value} for key, value in (configs or {}).items()]
    topic: Body = {"NumPartitions": partitions, "ReplicationFactor": 1, "Assignments": [], "Configs": rows}
    return {"Topics": [{"Name": name, **topic} for name in names], "timeoutMs": 30_000, "validateOnly": False}


def more_partitions(name: str, count: int) -> Body:
    """Return a CreatePartitions request after which a topic has ``count`` partitions."""
    row = {"Name": name, "Count": count, "Assignments": None}
    return {"Topics": [row], "TimeoutMs": 30_000, "ValidateOnly": False}


def set_configs(kind: int, name: str, configs: Mapping[str, str]) -> Body:
    """Return an IncrementalAlterConfigs request that sets configs of one resource."""
    rows = [{"Name": key, "ConfigOperation": 0, "Value": value} for key, value in configs.items()]
    resource = {"ResourceType": kind, "ResourceName": name, "Configs": rows}
    return {"Resources": [resource], "ValidateOnly": False}


def set_quotas(kind: str, name: str | None, quotas: Mapping[str, float]) -> Body:
    """Return an AlterClientQuotas request for one entity. Args: ``kind``: user or client-id."""
    rows = [{"Key": key, "Value": value, "Remove": False} for key, value in quotas.items()]
    entry = {"Entity": [{"EntityType": kind, "EntityName": name}], "Ops": rows}
    return {"Entries": [entry], "ValidateOnly": False}


def scram_user(name: str, iterations: int = 4096, salt: bytes = b"s" * 16, salted: bytes = b"p" * 32) -> Body:
    """Return an AlterUserScramCredentials request that gives a user a SCRAM-SHA-256 credential."""
    row = {"Name": name, "Mechanism": 1, "Iterations": iterations, "Salt": salt, "SaltedPassword": salted}
    return {"Deletions": [], "Upsertions": [row]}


def produce_body(topic: str | Body, batch: bytes | None = None, acks: int = 1, partition: int = 0) -> Body:
    """Return a Produce request with a batch or one record for a partition of a topic, a name or {"TopicId": ...}."""
    records = wire.batch([b"v"]) if batch is None else batch
    where = {"Name": topic} if isinstance(topic, str) else topic
    return {
        "Acks": acks,
        "TimeoutMs": 30_000,
        "TopicData": [{**where, "PartitionData": [{"Index": partition, "Records": records}]}],
    }


def fetch_body(
    topic: str | Body,
    offset: int = 0,
    session: tuple[int, int] = (0, -1),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
) -> Body:
    """Return a Fetch request for partition 0 of a topic, which is a name or {"TopicId": ...}.

    Within a session, the request names no topic.
    """
    partition = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": partition_max_bytes}
    where = {"Topic": topic} if isinstance(topic, str) else topic
    return {
        "ReplicaId": -1,
        "MaxWaitMs": max_wait_ms,
        "MinBytes": min_bytes,
        "MaxBytes": max_bytes,
        "SessionId": session[0],
        "SessionEpoch": session[1],
        "Topics": [{**where, "Partitions": [partition]}] if session[1] <= 0 else [],
    }


def join_body(group: str, timeout_ms: int, member_id: str = "") -> Body:
    """Return a JoinGroup request of a member with a session and a rebalance timeout."""
    timeouts = {"SessionTimeoutMs": timeout_ms, "RebalanceTimeoutMs": timeout_ms}
    protocols = {"ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": b""}]}
    return {"GroupId": group, "MemberId": member_id, **timeouts, **protocols}


def row_of(response: Body) -> Body:
    """Return the only partition of a response to Produce or Fetch."""
    (topic,) = response["Responses"]
    (row,) = topic["PartitionResponses"] if "PartitionResponses" in topic else topic["Partitions"]
    found: Body = row
    return found


@dataclass
class SteadyProducer:
    """Sole writer of partition 0 of a topic, whose records must be acknowledged at consecutive offsets.

    ``failures`` holds the first failure.
    """

    bootstrap: str
    topic: str
    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady-producer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        request = wire.produce(self.topic, 0, wire.batch([b"steady"]))
        try:
            with Connection(self.bootstrap) as connection:
                expected = wire.end_offset(self.bootstrap, self.topic)
                while not self._stop.wait(0.005):
                    response = wire.produced(connection.ask(request))
                    if response != wire.Produced(0, expected):
                        self.failures.append(f"expected offset {expected}, got {response}")
                        return
                    expected += 1
                    self.acknowledged += 1
        except (OSError, Closed, AssertionError) as error:
            self.failures.append(repr(error))

    def is_unharmed(self) -> bool:
        """Return True once ten more records are acknowledged."""
        assert self.failures == []
        goal = self.acknowledged + 10
        wait_for("the steady producer goes on", lambda: self.failures or self.acknowledged >= goal, 5, 0.005)
        return self.failures == []

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(15)


def librdkafka_producer(bootstrap: str, **settings: object) -> confluent_kafka.Producer:
    """Return a producer with short backoffs."""
    quiet = {"log_level": 0, "socket.timeout.ms": 3000, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10}
    return confluent_kafka.Producer({"bootstrap.servers": bootstrap, **quiet, **settings})


def librdkafka_consumer(bootstrap: str, group: str = "reader", **settings: Any) -> confluent_kafka.Consumer:
    """Return a consumer that begins at the earliest offset and commits on demand; settings have _ for dots."""
    odd = ("log_level", "throttle_cb", "error_cb")  # settings whose names have underscores
    given = {name if name in odd else name.replace("_", "."): value for name, value in settings.items()}
    known = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    return confluent_kafka.Consumer({**known, "enable.auto.commit": False, **given})


def names() -> tuple[str, str]:
    """Return the names of a new topic and of a new group."""
    suffix = uuid.uuid4().hex[:8]
    return f"topic-{suffix}", f"group-{suffix}"


def fill_partitions(bootstrap: str, topic: str, count: int = 40, *, partitions: int = 4, prefix: str = "") -> None:
    """Send records with the values 0 to count - 1, spread over the partitions."""
    producer = librdkafka_producer(bootstrap)
    for number in range(count):
        producer.produce(topic, f"{prefix}{number}", partition=number % partitions)
    assert producer.flush(30) == 0


def send_values(
    producer: confluent_kafka.Producer, *values: bytes, topic: str = "t"
) -> list[confluent_kafka.KafkaError | None]:
    """Send values to partition 0 and return the error of each, or None if it was acknowledged."""
    ends: list[confluent_kafka.KafkaError | None] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: ends.append(error))
    assert producer.flush(20) == 0
    return ends


def values_of(broker: EmbeddedBroker, topic: str = "t") -> list[bytes | None]:
    """Return the values in the log of a topic."""
    return [record.value for record in broker.records(topic)]


def drain(cluster: Cluster, topic: str, partitions: int, **settings: Any) -> list[Record]:
    """Return the records that a topic has now. Args: ``settings`` of the consumer."""
    ends = Admin(cluster).list_offsets({(topic, number): LATEST for number in range(partitions)})
    consumer = Consumer(cluster, dict.fromkeys(ends, EARLIEST), **settings)
    found: list[Record] = []
    while any(consumer.positions[place] < end.offset for place, end in ends.items()):
        found += consumer.poll()
    return found
