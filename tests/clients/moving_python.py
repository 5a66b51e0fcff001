"""Producer and member of a group for Python clients while leaders and coordinators move; see moving.py.

moving_python NAME BOOTSTRAP TOPIC COUNT
"""

import json
import sys
import threading
import time
from collections import Counter

from tests.clients.moving import PACE_S, PARTITIONS


class Moving:
    """Counts of acknowledged, failed and read records.

    Threads: the producer's and the consumer's.
    """

    def __init__(self, bootstrap: str, topic: str, count: int) -> None:
        self.bootstrap, self.topic, self.count = bootstrap, topic, count
        self.acked = 0
        self.failed: list[str] = []
        self.read: Counter[str] = Counter()

    def run(self) -> None:
        consumer = threading.Thread(target=self.consume)
        consumer.start()
        self.produce()
        consumer.join()
        print(json.dumps({"acked": self.acked, "failed": self.failed, "read": len(self.read)}), flush=True)

    def noted(self, value: str) -> None:
        if not self.read:
            print("ready", flush=True)
        self.read[value] += 1

    def produce(self) -> None:
        raise NotImplementedError

    def consume(self) -> None:
        raise NotImplementedError


class Confluent(Moving):
    def produce(self) -> None:
        import confluent_kafka as ck

        settings = {"enable.idempotence": True, "retry.backoff.ms": 20, "log_level": 0}
        producer = ck.Producer({"bootstrap.servers": self.bootstrap, **settings})

        def done(error: object, message: object) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acked += 1

        for number in range(self.count):
            producer.produce(self.topic, str(number).encode(), partition=number % PARTITIONS, on_delivery=done)
            producer.poll(0)
            time.sleep(PACE_S)
        producer.flush(60)

    def consume(self) -> None:
        import confluent_kafka as ck

        settings = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 100, "log_level": 0}
        consumer = ck.Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.topic, **settings})
        consumer.subscribe([self.topic])
        while len(self.read) < self.count:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.noted((message.value() or b"").decode())
        consumer.close()


class KafkaPython(Moving):
    def produce(self) -> None:
        import kafka

        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap, enable_idempotence=True, retry_backoff_ms=20, acks="all"
        )
        futures = []
        for number in range(self.count):
            futures.append(producer.send(self.topic, str(number).encode(), partition=number % PARTITIONS))
            time.sleep(PACE_S)
        producer.flush(60)
        for future in futures:
            try:
                future.get(60)
                self.acked += 1
            except kafka.errors.KafkaError as error:
                self.failed.append(str(error))
        producer.close()

    def consume(self) -> None:
        import kafka

        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.topic,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            retry_backoff_ms=20,
        )
        while len(self.read) < self.count:
            for records in consumer.poll(10_000).values():  # an assignment that arrives after a poll is lost
                for record in records:
                    self.noted(record.value.decode())
        consumer.close()


if __name__ == "__main__":
    client = {"librdkafka": Confluent, "kafka-python": KafkaPython}[sys.argv[1]]
    client(sys.argv[2], sys.argv[3], int(sys.argv[4])).run()
