"""One run of a librdkafka client in its own process; prints one JSON object.

python bench/loads/rdkafka.py produce BOOTSTRAP|mock TOPIC RECORDS SIZE_BYTES
python bench/loads/rdkafka.py consume BOOTSTRAP TOPIC RECORDS
python bench/loads/rdkafka.py idle PORT CONNECTIONS        (holds them until standard input closes)
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


def consume(bootstrap: str, topic: str, records: int) -> dict[str, Any]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "load",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
            # its default is a second without a Fetch whenever the queue is full: that would be what is measured
            "fetch.queue.backoff.ms": 1,
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
    else:
        print(json.dumps(consume(arguments[0], arguments[1], int(arguments[2]))))


if __name__ == "__main__":
    main()
