"""Check testcontainers for Python on an image, with and without KRaft: `python check.py IMAGE`."""

import sys

from confluent_kafka import Consumer, Producer, TopicPartition
from testcontainers.community.kafka import KafkaContainer


def check(container: KafkaContainer) -> None:
    """Start a container, and write and read a record."""
    with container as kafka:
        bootstrap = kafka.get_bootstrap_server()
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce("greetings", b"hello")
        assert producer.flush(30) == 0
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
        consumer.assign([TopicPartition("greetings", 0, 0)])
        message = consumer.poll(30)
        consumer.close()
        assert message is not None
        assert message.value() == b"hello"


check(KafkaContainer(sys.argv[1]).with_kraft())
check(KafkaContainer(sys.argv[1]))
print("ok")
