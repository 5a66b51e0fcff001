"""Clients whose throughput and latency `kbroker perf` measures: librdkafka, where it is installed, and kbroker's own.

Each has the same three operations: send records and report each acknowledgement, read records, and read from the end of
a topic on.
"""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker._core.clock import BaseClock
from kbroker.client.admin import EARLIEST, LATEST
from kbroker.client.cluster import to_error
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.common.errors import Errors, KafkaError, UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

LIBRDKAFKA, OWN = "librdkafka", "kbroker"
LINGER_BYTES = 16384  # batch size of the own client, as batch.size in Kafka
POLL_RECORDS = 500  # maximum number of records of a poll, as max.poll.records in Kafka
#: Called with the seconds from a send to its acknowledgement.
OnAcknowledged = Callable[[float], None]


def has_librdkafka() -> bool:
    """Return whether confluent-kafka is installed."""
    return importlib.util.find_spec("confluent_kafka") is not None


def librdkafka_config(bootstrap: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration of librdkafka for the properties of Kafka's tools. Raises: ValueError."""
    from kbroker.client.security import ClientSecurity

    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "error_cb": lambda error: None, "log_level": 0}
    security = ClientSecurity(properties)
    config["security.protocol"] = security.protocol
    if security.sasl is not None:
        if security.sasl.is_token:
            raise ValueError("librdkafka cannot log in with a delegation token: give --client kbroker")
        config["sasl.mechanisms"] = security.sasl.mechanism
        config["sasl.username"], config["sasl.password"] = security.sasl.user, security.sasl.password
    names = {
        "ssl.truststore.location": ("ssl.ca.location",),
        "ssl.truststore.certificates": ("ssl.ca.pem",),
        "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),
        "ssl.keystore.key": ("ssl.key.pem",),
        "ssl.keystore.certificate.chain": ("ssl.certificate.pem",),
        "ssl.key.password": ("ssl.key.password",),
    }
    for name, value in properties.items():
        for their_name in names.get(name, (name,) if name.startswith("ssl.ca.") else ()):
            config[their_name] = value
    if properties.get("ssl.endpoint.identification.algorithm", "https") == "":
        config["ssl.endpoint.identification.algorithm"] = "none"
    return config


def impossible_properties(properties: Mapping[str, str]) -> list[str]:
    """Return a sentence for each property of librdkafka that makes a measurement impossible."""
    found = []
    if "transactional.id" in properties:
        found.append("transactional.id: the records of a measurement are in no transaction")
    if is_empty_group(properties.get("group.id")):
        found.append("group.id: expected the name of a group, got an empty one")
    if properties.get("enable.partition.eof", "false").lower() == "true":
        found.append("enable.partition.eof: the end of a partition is not counted as a record")
    return found


def is_empty_group(name: str | None) -> bool:
    """Return whether librdkafka, which removes spaces, has no group by a given name: it ends the process then."""
    return name is not None and not name.strip()


class LibrdkafkaProducer:
    """Producer of confluent-kafka. Args: ``config`` of librdkafka. Raises: UserError if it refuses the config."""

    def __init__(self, config: Mapping[str, Any], topic: str, on_acknowledged: OnAcknowledged) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka import Producer as TheirProducer

        self._refusal = KafkaException
        self._on_acknowledged = on_acknowledged
        self._topic = topic
        self._failure: KafkaError | None = None
        self._producer = _client(TheirProducer, {"queue.buffering.max.messages": 100_000, **config})

    def send(self, value: bytes) -> None:
        """Add a record, waiting while the queue is full. Raises: KafkaError, possibly for an earlier record."""
        while True:
            try:
                self._producer.produce(self._topic, value, on_delivery=self._on_delivery)
                break
            except BufferError:
                self._producer.poll(0.1)
            except self._refusal as refusal:
                raise _refused_record(refusal.args[0], len(value)) from None
        self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait for all acknowledgements. Raises: KafkaError."""
        self._producer.flush()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            self._on_acknowledged(message.latency())
        elif self._failure is None:
            self._failure = _failure(error)


class OwnProducer:
    """kbroker's producer, which sends a batch and waits for it."""

    def __init__(self, producer: Producer, topic: str, on_acknowledged: OnAcknowledged, clock: BaseClock) -> None:
        self._producer = producer
        self._clock = clock
        self._topic = topic
        self._on_acknowledged = on_acknowledged
        self._sent_at_ns: list[int] = []
        self._bytes = 0

    def send(self, value: bytes) -> None:
        """Add a record; flush when a batch is full."""
        self._sent_at_ns.append(self._clock.now_ns())
        self._producer.send(self._topic, value)
        self._bytes += len(value)
        if self._bytes >= LINGER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the batch and wait for its acknowledgement."""
        self._producer.flush()
        now_ns = self._clock.now_ns()
        for begun_ns in self._sent_at_ns:
            self._on_acknowledged((now_ns - begun_ns) / 1e9)
        self._sent_at_ns.clear()
        self._bytes = 0


class LibrdkafkaConsumer:
    """Consumer of confluent-kafka: in a group from the beginning or the end, or without one from the end.

    ``join_s``: total time until partitions were assigned, over all rebalances.
    Args: ``config`` of librdkafka; ``partitions``: read them from their end, without a group.
    Raises: UserError if librdkafka refuses the config.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        clock: BaseClock,
        *,
        from_latest: bool = False,
        group: str | None = None,
        partitions: int = 0,
    ) -> None:
        from confluent_kafka import Consumer as TheirConsumer
        from confluent_kafka import TopicPartition

        self.join_s = 0.0
        self._clock, self._began_ns = clock, clock.now_ns()
        settings = {
            "group.id": f"perf-consumer-{uuid.uuid4().hex[:8]}" if group is None else group,
            "auto.offset.reset": "latest" if from_latest else "earliest",
            "check.crcs": False,
        }
        self._consumer = _client(TheirConsumer, {**settings, **config})
        if partitions:
            places = [TopicPartition(topic, number) for number in range(partitions)]
            ends = [self._consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
            self._consumer.assign([TopicPartition(topic, n, end) for n, end in enumerate(ends)])
        else:
            self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def poll(self, timeout_s: float) -> list[bytes]:
        """Return the bytes of the next records, key and value together; none at the time-out. Raises: KafkaError."""
        first = self._consumer.poll(timeout_s)  # `consume` would wait for the full number of records
        if first is None:
            return []
        found = []
        for message in (first, *self._consumer.consume(POLL_RECORDS, 0)):
            error = message.error()
            if error is not None:
                raise _failure(error)
            found.append(_record_bytes(message.key(), message.value()))
        return found

    def close(self) -> None:
        """Leave the group and close."""
        self._consumer.close()

    def _on_assign(self, consumer: Any, partitions: Any) -> None:
        self.join_s += (self._clock.now_ns() - self._began_ns) / 1e9

    def _on_revoke(self, consumer: Any, partitions: Any) -> None:
        self._began_ns = self._clock.now_ns()


class OwnConsumer:
    """kbroker's consumer of all partitions, without a group."""

    join_s = 0.0

    def __init__(self, cluster: Cluster, topic: str, clock: BaseClock, *, from_latest: bool = False) -> None:
        self._clock = clock
        count = len(cluster.topic(topic).partitions)
        position = LATEST if from_latest else EARLIEST
        self._consumer = Consumer(cluster, {(topic, number): position for number in range(count)})

    def poll(self, timeout_s: float) -> list[bytes]:
        """Return the bytes of the records of the next response that has any; none at the time-out."""
        end_ns = self._clock.now_ns() + timeout_s * 1e9
        while not (found := self._consumer.poll()) and self._clock.now_ns() < end_ns:
            pass
        return [_record_bytes(record.key, record.value) for record in found]

    def close(self) -> None:
        """Do nothing: the cluster is the caller's."""


PerfProducer = LibrdkafkaProducer | OwnProducer
PerfConsumer = LibrdkafkaConsumer | OwnConsumer


def _record_bytes(key: bytes | None, value: bytes | None) -> bytes:
    """Return key and value together: the bytes that Kafka's tool counts."""
    return (key or b"") + (value or b"")


def _client(kind: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:
    """Return a client of confluent-kafka. Raises: UserError if librdkafka refuses the config."""
    from confluent_kafka import KafkaException

    try:
        return kind(config)
    except KafkaException as refusal:
        raise UserError(f"librdkafka: {refusal.args[0].str()}") from None
    except TypeError as refusal:  # a property of confluent-kafka with a type other than text
        raise UserError(f"confluent-kafka: {refusal}") from None


def _refused_record(error: Any, size_bytes: int) -> KafkaError:
    """Return the error for a record that librdkafka does not send."""
    failure = _failure(error)
    if failure.error is not Errors.MESSAGE_TOO_LARGE:
        return failure
    text = f"a record of {size_bytes} bytes exceeds message.max.bytes of librdkafka, which --client-property sets"
    return KafkaError(failure.error, text)


def _failure(error: Any) -> KafkaError:
    """Return kbroker's exception for an error of librdkafka."""
    code = error.code()
    if code > 0:
        return KafkaError(to_error(code), error.str())
    return KafkaError(Errors.UNKNOWN_SERVER_ERROR, f"librdkafka: {error.str()}")  # a code of librdkafka
