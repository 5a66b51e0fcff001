"""Run of a librdkafka client in its own process, which prints one JSON object.

python bench/loads/rdkafka.py produce BOOTSTRAP|mock TOPIC RECORDS SIZE_BYTES
python bench/loads/rdkafka.py transact BOOTSTRAP TOPIC RECORDS SIZE_BYTES RECORDS_EACH ABORT_EVERY   (0: none)
python bench/loads/rdkafka.py consume BOOTSTRAP TOPIC RECORDS
python bench/loads/rdkafka.py idle PORT CONNECTIONS        (open until standard input closes)
"""

import json
import resource
import socket
import sys
import time
from typing import Any


def produce(bootstrap: str, topic: str, records: int, size: int) -> dict[str, Any]:
    from confluent_kafka import Producer

    failures: list[str] = []
    config: dict[str, Any] = {
        "linger.ms": 5,
        "acks": "all",
        "queue.buffering.max.messages": 200_000,
        "queue.buffering.max.kbytes": 1 << 20,
        "delivery.report.only.error": True,
        "on_delivery": lambda error, message: failures.append(str(error)),
        "log_level": 0,
    }
    config |= {"test.mock.num.brokers": 1} if bootstrap == "mock" else {"bootstrap.servers": bootstrap}
    producer = Producer(config)
    producer.list_topics(topic, timeout=20)
    value = b"x" * size
    begun = time.perf_counter()
    for n in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
        if n % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    taken = time.perf_counter() - begun
    return {"mb_per_s": records * size / taken / 1e6, "acknowledged": records - left - len(failures)}


def transact(
    bootstrap: str, topic: str, records: int, size: int, records_each: int, abort_every: int
) -> dict[str, Any]:
    """Run sequential transactions of ``records_each`` records; each ``abort_every``th is aborted."""
    from confluent_kafka import Producer

    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "load",
            "linger.ms": 5,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, message: failures.append(str(error)),
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    value = b"x" * size
    ends: list[float] = []
    committed = 0
    begun = before = time.perf_counter()
    for n in range(records // records_each):
        producer.begin_transaction()
        for _ in range(records_each):
            producer.produce(topic, value, partition=0)
        if abort_every and n % abort_every == abort_every - 1:
            producer.flush(60)  # otherwise unsent records would be missing in the log
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            committed += records_each
        now = time.perf_counter()
        ends.append(now - before)
        before = now
    taken = before - begun
    if failures:
        raise RuntimeError(f"{len(failures)} records failed: {failures[0]}")
    ends.sort()
    return {
        "mb_per_s": len(ends) * records_each * size / taken / 1e6,
        "records_per_s": len(ends) * records_each / taken,
        "transaction_ms": ends[len(ends) // 2] * 1000,
        "committed": committed,
    }


def consume(bootstrap: str, topic: str, records: int) -> dict[str, Any]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "load",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
            # the default, a second without a Fetch when the queue is full, would dominate the figure
            "fetch.queue.backoff.ms": 1,
            "isolation.level": "read_committed",  # librdkafka's default
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    size, count, begun = 0, 0, 0.0
    deadline = time.monotonic() + 120
    while count < records and time.monotonic() < deadline:
        for message in consumer.consume(min(5000, records - count), 1.0):
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            begun = begun or time.perf_counter()
            size += len(message.value() or b"")
            count += 1
    taken = time.perf_counter() - begun
    consumer.close()
    return {"mb_per_s": size / taken / 1e6, "read": count}


def idle(port: int, connections: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(connections)]
    print(json.dumps({"held": len(held)}), flush=True)
    sys.stdin.read()


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind == "idle":
        idle(int(arguments[0]), int(arguments[1]))
    elif kind == "produce":
        print(json.dumps(produce(arguments[0], arguments[1], int(arguments[2]), int(arguments[3]))))
    elif kind == "transact":
        print(json.dumps(transact(arguments[0], arguments[1], *map(int, arguments[2:]))))
    else:
        print(json.dumps(consume(arguments[0], arguments[1], int(arguments[2]))))


if __name__ == "__main__":
    main()
