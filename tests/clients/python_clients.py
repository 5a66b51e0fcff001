"""Clients of the shared scenario in Python."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """Record that is sent or was read."""

    value: bytes
    timestamp_ms: int = 0
    offset: int = -1


class Client:
    """Steps of the shared scenario; the reference client performs a step that the client lacks."""

    name = ""
    codecs: Sequence[str] = ALL_CODECS
    can_administrate = True
    can_choose_partition = True
    can_set_timestamps = True
    can_consume = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create(self, topic: str, partitions: int) -> None:
        raise NotImplementedError

    def delete(self, topic: str) -> None:
        raise NotImplementedError

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        """Send records, wait for their acknowledgements, and return their offsets if the client reports them."""
        raise NotImplementedError

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        """Read by assignment, from the beginning or from the first record not older than `from_ms`."""
        raise NotImplementedError


class Confluent(Client):
    """confluent-kafka, on librdkafka, which is also the reference client."""

    name = "confluent-kafka"

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewTopic

        admin = self._admin()
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)

    def delete(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(20)

    def topics(self) -> set[str]:
        return set(self._admin().list_topics(timeout=20).topics)

    def committed(self, group: str, topic: str, partitions: int) -> list[int]:
        """Return the committed offsets of a group, by a consumer that does not join the group."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
        try:
            places = [TopicPartition(topic, p) for p in range(partitions)]
            return [place.offset for place in consumer.committed(places, timeout=20)]
        finally:
            consumer.close()

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 20,
                "log_level": 0,
            }
        )
        offsets: list[int] = []
        failures: list[str] = []

        def report(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                failures.append(str(error))

        for record in records:
            producer.produce(
                topic, record.value, partition=partition, timestamp=record.timestamp_ms, on_delivery=report
            )
        assert producer.flush(30) == 0
        assert failures == []
        return sorted(offsets)

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                "log_level": 0,
            }
        )
        try:
            start = TopicPartition(topic, partition, OFFSET_BEGINNING)
            if from_ms is not None:
                [start] = consumer.offsets_for_times([TopicPartition(topic, partition, from_ms)], timeout=20)
            consumer.assign([start])
            found: list[Record] = []
            for _ in range(60):
                for message in consumer.consume(count - len(found), 0.5):
                    assert message.error() is None, message.error()
                    found.append(Record(message.value(), message.timestamp()[1], message.offset()))  # type: ignore[arg-type]
                if len(found) >= count:
                    return found
            raise AssertionError(f"read {len(found)} of {count} records")
        finally:
            consumer.close()


class KafkaPython(Client):
    """kafka-python 3, in pure Python, idempotent by default."""

    name = "kafka-python"

    def _admin(self) -> Any:
        from kafka import KafkaAdminClient

        return contextlib.closing(KafkaAdminClient(bootstrap_servers=self.bootstrap))

    def create(self, topic: str, partitions: int) -> None:
        from kafka.admin import NewTopic

        with self._admin() as admin:
            admin.create_topics([NewTopic(topic, partitions, 1)])

    def delete(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic])

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        from kafka import KafkaProducer

        producer = KafkaProducer(**producer_options(self.bootstrap, codec, idempotent))
        with contextlib.closing(producer):
            sent = [
                producer.send(topic, r.value, partition=partition, timestamp_ms=r.timestamp_ms or None) for r in records
            ]
            return [future.get(30).offset for future in sent]

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None, enable_auto_commit=False)
        with contextlib.closing(consumer):
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            if from_ms is None:
                consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, consumer.offsets_for_times({place: from_ms})[place].offset)
            found: list[Record] = []
            for _ in range(60):
                for messages in consumer.poll(500).values():
                    found += [Record(m.value, m.timestamp, m.offset) for m in messages]
                if len(found) >= count:
                    return found[:count]
            raise AssertionError(f"read {len(found)} of {count} records")


def producer_options(bootstrap: str, codec: str, idempotent: bool) -> dict[str, Any]:
    """Return options that kafka-python and aiokafka have in common."""
    compression = None if codec == "none" else codec
    return {
        "bootstrap_servers": bootstrap, "compression_type": compression, "enable_idempotence": idempotent,
        "linger_ms": 20,
    }  # fmt: skip


class AioKafka(Client):
    """aiokafka, on asyncio, with old versions of APIs."""

    name = "aiokafka"

    def _with(self, make: Callable[[], Any], act: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            thing = make()
            await thing.start()
            try:
                return await asyncio.wait_for(act(thing), 60)
            finally:
                await (thing.close() if hasattr(thing, "close") else thing.stop())

        return asyncio.run(run())

    def _admin(self) -> Any:
        from aiokafka.admin import AIOKafkaAdminClient

        return AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)

    def create(self, topic: str, partitions: int) -> None:
        from aiokafka.admin import NewTopic

        async def act(admin: Any) -> None:
            await admin.create_topics([NewTopic(topic, partitions, 1)])

        self._with(self._admin, act)

    def delete(self, topic: str) -> None:
        async def act(admin: Any) -> None:
            await admin.delete_topics([topic])

        self._with(self._admin, act)

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        from aiokafka import AIOKafkaProducer

        def make() -> Any:
            return AIOKafkaProducer(**producer_options(self.bootstrap, codec, idempotent))

        async def act(producer: Any) -> list[int]:
            sent = [
                await producer.send(topic, r.value, partition=partition, timestamp_ms=r.timestamp_ms or None)
                for r in records
            ]
            return [(await future).offset for future in sent]

        return self._with(make, act)

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        def make() -> Any:
            return AIOKafkaConsumer(bootstrap_servers=self.bootstrap, enable_auto_commit=False)

        async def act(consumer: Any) -> list[Record]:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            if from_ms is None:
                await consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, (await consumer.offsets_for_times({place: from_ms}))[place].offset)
            found: list[Record] = []
            while len(found) < count:
                message = await consumer.getone()
                found.append(Record(message.value, message.timestamp, message.offset))
            return found

        return self._with(make, act)
