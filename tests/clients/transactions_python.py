"""Transactions of test_transactions.py on a client for Python, with the results as one line of JSON.

python -m tests.clients.transactions_python CLIENT BOOTSTRAP TOPIC
"""

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

Facts = dict[str, Any]
CONSUMED = {"commit": 7, "abort": 9}  # offsets of TOPIC-in that a transaction commits
TIMEOUT_S = 30.0


def values(note: str) -> list[str]:
    """Return the values of one transaction."""
    return [f"{note} {number}" for number in range(5)]


def confluent_kafka(bootstrap: str, topic: str) -> Facts:
    import confluent_kafka as client

    where = {"bootstrap.servers": bootstrap, "log_level": 0}
    reading = {**where, "enable.auto.commit": False, "isolation.level": "read_committed", "enable.partition.eof": True}

    def producer() -> Any:
        made = client.Producer({**where, "transactional.id": topic})
        made.init_transactions(TIMEOUT_S)
        return made

    def write(producer: Any, note: str) -> None:
        producer.begin_transaction()
        for value in values(note):
            producer.produce(topic, value, partition=0)

    members = client.Consumer({**reading, "group.id": topic})
    first = producer()
    for note, offset in CONSUMED.items():
        write(first, note)
        place = client.TopicPartition(f"{topic}-in", 0, offset)
        first.send_offsets_to_transaction([place], members.consumer_group_metadata(), TIMEOUT_S)
        if note == "commit":
            first.commit_transaction(TIMEOUT_S)
        else:
            first.flush(TIMEOUT_S)
            first.abort_transaction(TIMEOUT_S)
    (committed,) = members.committed([client.TopicPartition(f"{topic}-in", 0)], TIMEOUT_S)
    write(first, "open")
    first.flush(TIMEOUT_S)
    second = producer()
    fenced = ""
    try:
        first.commit_transaction(TIMEOUT_S)
    except client.KafkaException as error:
        fenced = error.args[0].name() if error.args[0].fatal() else f"not fatal: {error}"
    write(second, "second")
    second.commit_transaction(TIMEOUT_S)
    read: list[str] = []
    members.assign([client.TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        message = members.poll(1)
        if message is not None and message.error() is not None:
            break
        if message is not None:
            read.append(message.value().decode())
    members.close()
    return {"read": read, "offset": committed.offset, "fenced": fenced}


def kafka_python(bootstrap: str, topic: str) -> Facts:
    import kafka
    from kafka.errors import KafkaError
    from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

    def producer() -> Any:
        made = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
        made.init_transactions()
        return made

    def write(producer: Any, note: str) -> None:
        producer.begin_transaction()
        for value in values(note):
            producer.send(topic, value.encode(), partition=0)
        producer.flush(TIMEOUT_S)

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=topic,
        enable_auto_commit=False,
        isolation_level="read_committed",
        consumer_timeout_ms=int(TIMEOUT_S * 1000),
    )
    first = producer()
    place = kafka.TopicPartition(f"{topic}-in", 0)
    for note, offset in CONSUMED.items():
        write(first, note)
        first.send_offsets_to_transaction({place: OffsetAndMetadata(offset, "", -1)}, ConsumerGroupMetadata(topic))
        if note == "commit":
            first.commit_transaction()
        else:
            first.abort_transaction()
    committed = consumer.committed(place)
    write(first, "open")
    second = producer()
    fenced = ""
    try:
        first.commit_transaction()
    except KafkaError as error:
        fenced = type(error).__name__
    write(second, "second")
    second.commit_transaction()
    out = kafka.TopicPartition(topic, 0)
    consumer.assign([out])
    consumer.seek_to_beginning(out)
    end = consumer.end_offsets([out])[out]
    read: list[str] = []
    deadline = time.monotonic() + TIMEOUT_S
    while consumer.position(out) < end and time.monotonic() < deadline:
        for batch in consumer.poll(500).values():
            read += [record.value.decode() for record in batch]
    for one in (first, second):
        one.close(1)
    consumer.close()
    return {"read": read, "offset": committed, "fenced": fenced}


async def _aiokafka(bootstrap: str, topic: str) -> Facts:
    import aiokafka
    from aiokafka.errors import KafkaError

    async def producer() -> Any:
        made = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
        await made.start()
        return made

    async def write(producer: Any, note: str) -> None:
        await producer.begin_transaction()
        for value in values(note):
            await producer.send_and_wait(topic, value.encode(), partition=0)

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False, isolation_level="read_committed"
    )
    await consumer.start()
    first = await producer()
    place = aiokafka.TopicPartition(f"{topic}-in", 0)
    for note, offset in CONSUMED.items():
        await write(first, note)
        await first.send_offsets_to_transaction({place: offset}, topic)
        if note == "commit":
            await first.commit_transaction()
        else:
            await first.abort_transaction()
    committed = await consumer.committed(place)
    await write(first, "open")
    second = await producer()
    fenced = ""
    try:
        await first.commit_transaction()
    except KafkaError as error:
        fenced = type(error).__name__
    await write(second, "second")
    await second.commit_transaction()
    out = aiokafka.TopicPartition(topic, 0)
    consumer.assign([out])
    await consumer.seek_to_beginning(out)
    end = (await consumer.end_offsets([out]))[out]
    read: list[str] = []
    while await consumer.position(out) < end:
        for batch in (await consumer.getmany(timeout_ms=500)).values():
            read += [record.value.decode() for record in batch]
    for one in (first, second, consumer):
        with contextlib.suppress(KafkaError):
            await one.stop()
    return {"read": read, "offset": committed, "fenced": fenced}


def aiokafka(bootstrap: str, topic: str) -> Facts:
    return asyncio.run(asyncio.wait_for(_aiokafka(bootstrap, topic), 60))


def main() -> None:
    name, bootstrap, topic = sys.argv[1:]
    clients = {"confluent-kafka": confluent_kafka, "kafka-python": kafka_python, "aiokafka": aiokafka}
    print(json.dumps(clients[name](bootstrap, topic)))


if __name__ == "__main__":
    main()
