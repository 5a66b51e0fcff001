"""Arguments of each probe: a running server, and short forms of a client's actions."""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.loads.contenders import Contender, Secured
from bench.loads.peers import Server
from kbroker.client.cluster import Cluster
from tests.support import wire
from tests.support.broker import wait_for

ANSWER_S = 25.0  # for one request of an administrator, and for a flush

Config = Mapping[str, Any]


class Lacking(Exception):
    """Exception for a missing ability of the server; the text has the symptom."""


@dataclass(frozen=True)
class Probe:
    """Check of an ability, from the point of view of a client's user.

    Args:
        name: row of the table.
        run: performs the check. The result is the cell, "yes" for None; an exception is a "no".
        seconds: time limit.
        figure: whether the cell is a measured number, which differs between runs.
        short: whether the row is in the README too.
    """

    name: str
    run: Callable[["Place"], str | None]
    seconds: float = 60.0
    figure: bool = False
    short: bool = True


@dataclass
class Place:
    """Contender and its server; `security` has librdkafka's security settings."""

    contender: Contender
    server: Server
    security: Config = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    def secured(self, secured: Secured, security: Config) -> "Place":
        """Return the same contender behind a listener with TLS or SASL."""
        return Place(self.contender, secured.server, security)

    def topic(self, note: str) -> str:
        """Return a new topic name."""
        return f"{note}-{time.time_ns():x}"

    def config(self, more: Config | None = None) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **self.security, **(more or {})}

    @functools.cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self.config())

    def cluster(self, client_id: str = "probe") -> Cluster:
        """Return this project's client, for requests that the other clients cannot send."""
        return Cluster(self.bootstrap, client_id=client_id, request_timeout_s=ANSWER_S, retry_timeout_s=5)

    def create(self, note: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic and wait until it has a leader; return its name."""
        name = self.topic(note)
        admin = self.admin
        admin.create_topics([NewTopic(name, partitions, 1, config=dict(configs or {}))])[name].result(ANSWER_S)
        if not self.security:
            wait_for("the topic has its leader", lambda: wire.is_ready(self.bootstrap, name, partitions - 1), 20)
        return name

    def send(self, topic: str, values: list[bytes], config: Config | None = None, **where: Any) -> list[int]:
        """Produce and wait for each acknowledgement; return the offsets, or raise the error of a refused record."""
        producer = Producer(self.config({"message.timeout.ms": int(ANSWER_S * 1000), **(config or {})}))
        offsets: list[int] = []
        failures: list[KafkaError] = []

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                offsets.append(int(message.offset() or 0))

        for value in values:
            producer.produce(topic, value, on_delivery=report, **{"partition": 0, **where})
        left = producer.flush(ANSWER_S + 5)
        if failures:
            raise KafkaException(failures[0])
        if left:
            raise Lacking(f"{left} of {len(values)} records were not acknowledged")
        return offsets

    def read(self, topic: str, config: Config | None = None, partition: int = 0, seconds: float = 20) -> list[Message]:
        """Return all records of a partition."""
        consumer = Consumer(
            self.config(
                {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True, **(config or {})}
            )
        )
        found: list[Message] = []
        try:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                for message in consumer.consume(500, 0.2):
                    error = message.error()
                    if error is None:
                        found.append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return found
                    else:
                        raise KafkaException(error)
            raise Lacking(f"the end was not reached in {seconds:g} s, {len(found)} records came")
        finally:
            consumer.close()

    def values(self, topic: str, config: Config | None = None, partition: int = 0) -> list[bytes]:
        return [message.value() or b"" for message in self.read(topic, config, partition)]

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Return the first offset, and the end offset."""
        consumer = Consumer(self.config({"group.id": "reader"}))
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
            return low, high
        finally:
            consumer.close()


def expect(condition: object, what: str) -> None:
    """Raise Lacking with the actual behaviour unless a condition holds."""
    if not condition:
        raise Lacking(what)
