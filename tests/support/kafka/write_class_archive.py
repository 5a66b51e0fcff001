"""Write the archive of classes that nodes, tools and clients of Apache Kafka read.

    python -m tests.support.kafka.write_class_archive

Otherwise the first nodes that the workers of a test run start have no archive, and each group of them writes one.
"""

import sys

from confluent_kafka import Consumer, Producer

from tests.support.broker import wait_for
from tests.support.kafka.broker import ApacheKafka, StartError
from tests.support.kafka.jars import ClassArchive, Unavailable

TOPIC = "topic"


def use(bootstrap: str) -> None:
    """Write and read a record, so that the node loads the classes of topics, transactions and groups."""
    servers = {"bootstrap.servers": bootstrap}
    producer = Producer({**servers, "transactional.id": "writer"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(TOPIC, b"value")
    producer.commit_transaction(60)
    consumer = Consumer({**servers, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    wait_for("the record", lambda: consumer.consume(1, 0.1), 60, every=0)
    consumer.close()


def main() -> None:
    """Write the archive unless it exists."""
    try:
        if not ClassArchive.of_node().exists():
            with ApacheKafka() as kafka:
                use(kafka.bootstrap)
    except (Unavailable, StartError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
