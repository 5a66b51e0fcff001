"""Reader of a whole topic at an isolation level, during and after its writes."""

from contextlib import closing

from confluent_kafka import KafkaError, TopicPartition

from tests.support.broker import wait_for
from tests.support.client import librdkafka_consumer

Row = tuple[str, str]  # key and value


class Reader:
    """Reader that follows a topic across kills of the broker and keeps all records."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed") -> None:
        self.rows: dict[int, list[Row]] = {partition: [] for partition in range(partitions)}
        self._ends: set[int] = set()
        self._consumer = librdkafka_consumer(
            bootstrap, isolation_level=isolation, enable_partition_eof=True, metadata_recovery_strategy="none",
            reconnect_backoff_max_ms=200,
        )  # fmt: skip
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in self.rows])

    def count(self) -> int:
        """Read available records; return the number of records read so far."""
        for message in self._consumer.consume(2000, 0.1):
            partition, error = message.partition(), message.error()
            assert partition is not None
            if error is None:
                key, value = message.key(), message.value()
                assert value is not None
                self.rows[partition].append(((key or b"").decode(), value.decode()))
                self._ends.discard(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends.add(partition)
            else:
                assert error.retriable() or error.code() < 0, error
        return sum(map(len, self.rows.values()))

    def is_at_end(self) -> bool:
        self.count()
        return len(self._ends) == len(self.rows)

    def close(self) -> None:
        self._consumer.close()


def read_to_end(bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed") -> dict[int, list[Row]]:
    """Return all records of a topic by partition, in order."""
    with closing(Reader(bootstrap, topic, partitions, isolation)) as reader:
        wait_for(f"the end of {topic}", reader.is_at_end, every=0)
    return reader.rows
