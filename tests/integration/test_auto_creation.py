"""Automatic creation of topics by a first write, by a first subscription, and by a client that watches for changes."""

import asyncio
import time
import uuid
from contextlib import closing

import pytest

from kbroker.client.connection import Body, Connection
from kbroker.protocol import codec
from tests.support.broker import BrokerProcess
from tests.support.client import librdkafka_consumer

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka = pytest.importorskip("kafka")
aiokafka = pytest.importorskip("aiokafka")

pytestmark = pytest.mark.timeout(120)
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "2"}


def fresh() -> str:
    return f"made-{uuid.uuid4().hex[:8]}"


def confluent(bootstrap: str, topic: str) -> bytes:
    how = {"allow_auto_create_topics": True, "topic_metadata_refresh_interval_ms": 500}
    with closing(librdkafka_consumer(bootstrap, topic, **how)) as consumer:
        consumer.subscribe([topic])
        consumer.poll(1)
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        producer.produce(topic, b"x")
        assert producer.flush(20) == 0
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                return bytes(message.value() or b"")
        raise AssertionError("nothing was read")


def kafka_python(bootstrap: str, topic: str) -> bytes:
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", metadata_max_age_ms=500
    )
    try:
        consumer.poll(1000)
        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
        producer.send(topic, b"x").get(20)
        producer.close()
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            for rows in consumer.poll(1000).values():
                return bytes(rows[0].value)
        raise AssertionError("nothing was read")
    finally:
        consumer.close()


def aio(bootstrap: str, topic: str) -> bytes:
    async def run() -> bytes:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", metadata_max_age_ms=500
        )
        await consumer.start()
        try:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
            await producer.start()
            try:
                await producer.send_and_wait(topic, b"x")
            finally:
                await producer.stop()
            return bytes((await asyncio.wait_for(consumer.getone(), 40)).value)
        finally:
            await consumer.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("client", [confluent, kafka_python, aio])
def test_a_group_that_waits_for_a_topic_reads_it(broker: BrokerProcess, client: object) -> None:
    """A consumer that subscribed to a missing topic reads the record with which a producer creates the topic."""
    assert callable(client)
    assert client(broker.bootstrap, fresh()) == b"x"


@pytest.mark.parametrize("version", [1, 6, 12])
def test_a_leader_that_assigns_what_metadata_lists_and_watches_for_changes(broker: BrokerProcess, version: int) -> None:
    """Two requests for the metadata of a new topic return the same partitions.

    The leader of a kafka-go group requests a topic twice: for the assignment, and to watch for changes. If only the
    second response had the topic, the group would never have an assignment.
    """
    host, port = broker.bootstrap.split(":")
    connection = Connection((host, int(port)))
    body: Body = {"Topics": [{"Name": fresh()}]}
    if version >= 4:
        body["AllowAutoTopicCreation"] = True
    seen = [connection.request(codec.api_by_name("Metadata").key, version, body)["Topics"][0] for _ in range(2)]
    connection.close()
    assert [(one["ErrorCode"], len(one["Partitions"])) for one in seen] == [(0, 2), (0, 2)]
    assert seen[0] == seen[1]
