"""Common parts of the tests against clusters of Kafka brokers: settings, and events during a test."""

import glob
import os
import time
from collections.abc import Callable, Iterable
from functools import partialmethod
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.find_spark_home import _find_spark_home

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.spark.errors import NO_WORKER
from kbroker.testing.waiting import wait_until
from tests.support.certificates import Certificates
from tests.support.client import drain
from tests.support.kafka import KafkaCluster
from tests.support.secured import PASSWORDS, PLAIN

USER = "alice"
LOGGING = Path(__file__).resolve().parents[1] / "support" / "kafka" / "log4j2.properties"
REQUEST_LOG = "kafka-request.log"
BATCHES_OF_A_STEP = 2


def start(count: int, certificates: Certificates, logs_requests: bool = False) -> KafkaCluster:
    """Start brokers with a SASL_SSL listener each.

    Args:
        logs_requests: the brokers write request logs in the format of Kafka's logger, whose jars precede those of the
            archive of classes, so that each start takes twice the CPU.
    """
    users = PLAIN.format(" ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items()))
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": users,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
    }
    if not logs_requests:
        return KafkaCluster(count, settings, protocol="SASL_SSL")
    jars = os.path.join(_find_spark_home(), "jars")
    named = [jar for name in ("slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2") for jar in
             glob.glob(f"{jars}/{name}-*.jar")]  # fmt: skip
    logging = (f"-Dlog4j2.configurationFile={LOGGING}", "-Dkafka.requests=debug", "-Dkafka.logs.dir={folder}")
    return KafkaCluster(count, settings, protocol="SASL_SSL", before=os.pathsep.join(named), options=logging)


def secured(certificates: Certificates) -> dict[str, str]:
    """Return the settings of a client of the SASL_SSL listener."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORDS[USER]}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
    }


def create(kafka: KafkaCluster, *topics: str, partitions: int = 4) -> None:
    """Create topics with a replica on each broker, which keep records of any age."""
    kept = {"retention.ms": "-1"}
    with Cluster(kafka.bootstrap) as cluster:
        Admin(cluster).create_topics([NewTopic(name, partitions, len(kafka.brokers), kept) for name in topics])


def fill(kafka: KafkaCluster, topic: str, count: int, partitions: int = 4, *, first: int = 0) -> None:
    """Send the values `first`, `first` + 1 ... in turn to the partitions, each acknowledged and stored once."""
    with Cluster(kafka.bootstrap) as cluster, Producer(cluster, idempotent=True) as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=number % partitions, timestamp_ms=1_000_000 + number)


def values(kafka: KafkaCluster, topic: str) -> list[int]:
    """Return the committed values of a topic of four partitions, sorted."""
    with Cluster(kafka.bootstrap) as cluster:
        return sorted(int(one.value or b"-1") for one in drain(cluster, topic, 4, read_committed=True))


def logged(kafka: KafkaCluster) -> list[str]:
    """Return the complete lines of all request logs until now."""
    found = [(broker.folder / REQUEST_LOG).read_text(encoding="utf-8") for broker in kafka.brokers]
    return [line for text in found for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Disturbance:
    """Events of a cluster while jobs run, one step after the other; `done` lists the complete steps."""

    def __init__(self, kafka: KafkaCluster, topics: Iterable[str]) -> None:
        self.kafka, self.topics = kafka, tuple(topics)
        self.done: list[str] = []
        self._admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap.split(","))

    def close(self) -> None:
        """Start the killed brokers again."""
        for broker in self.kafka.brokers:
            if not broker.is_running:
                broker.start()
        self._admin.close()

    def leaders(self, topic: str) -> dict[int, int]:
        with Cluster(self.kafka.bootstrap) as cluster:
            (described,) = Admin(cluster).describe_topics([topic])
        return {one.partition: one.leader for one in described.partitions}

    def move_leaders(self) -> None:
        """Move each partition's leadership to its next replica, by a reassignment and a preferred election."""
        for topic in self.topics:
            with Cluster(self.kafka.bootstrap) as cluster:
                (described,) = Admin(cluster).describe_topics([topic])
            wanted = {
                one.partition: [*one.replicas[one.replicas.index(one.leader) + 1 :],
                                *one.replicas[: one.replicas.index(one.leader) + 1]]
                for one in described.partitions
            }  # fmt: skip
            moves: Any = {TopicPartition(topic, number): replicas for number, replicas in wanted.items()}
            self._admin.alter_partition_reassignments(moves)

            def has_moved(topic: str = topic, wanted: dict[int, list[int]] = wanted) -> bool:
                self._admin.elect_leaders(0, {topic: list(wanted)}, raise_errors=False)
                return self.leaders(topic) == {number: replicas[0] for number, replicas in wanted.items()}

            wait_until(has_moved, 30)
        self.done.append("move_leaders")

    def kill(self, index: int = 1, step: str = "kill") -> None:
        """Kill a broker that leads partitions."""
        self.kafka.brokers[index].kill()
        self.done.append(step)

    kill_first = partialmethod(kill, 0, "kill_first")
    kill_second = partialmethod(kill, 1, "kill_second")
    kill_third = partialmethod(kill, 2, "kill_third")

    def restart(self) -> None:
        """Start the killed brokers, and wait until each partition has all its replicas in sync."""
        for broker in self.kafka.brokers:
            if not broker.is_running:
                broker.start()
        wait_until(self._is_whole, 60)
        self.done.append("restart")

    def _is_whole(self) -> bool:
        with Cluster(self.kafka.bootstrap) as cluster:
            found = Admin(cluster).describe_topics(list(self.topics))
        return all(len(one.isr) == len(one.replicas) for topic in found for one in topic.partitions)


def while_running(start_query: Callable[[], Any], steps: list[Callable[[], None]], seconds: float = 600) -> None:
    """Run a query to its end, and restart it if a Python worker of Spark never starts.

    Args: `steps`: after every BATCHES_OF_A_STEP batches the first one is removed and called; steps for which the query
    was too fast remain in the list. Raises: StreamingQueryException.
    """
    until = time.monotonic() + seconds
    query = start_query()
    has_ended = False
    taken_at = -1
    while not has_ended and time.monotonic() < until:
        try:
            has_ended = query.awaitTermination(0.05)
        except StreamingQueryException as error:
            if NO_WORKER not in str(error):
                raise
            query = start_query()
        batch = -1 if query.lastProgress is None else query.lastProgress["batchId"]
        if taken_at < 0 <= batch:
            taken_at = batch - 1
        if steps and taken_at >= 0 and batch >= taken_at + BATCHES_OF_A_STEP:
            steps.pop(0)()
            taken_at = query.lastProgress["batchId"]
    query.stop()
    assert has_ended, f"the query has not ended within {seconds:g} s"
