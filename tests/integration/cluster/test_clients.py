"""Client libraries that start from kbroker's address produce to and consume from partitions of Apache Kafka."""

import time

import pytest

from kbroker.common.errors import Errors
from tests.clients.programs import make_client
from tests.clients.python_clients import Record
from tests.support.broker import wait_for
from tests.support.client import Body, Client, librdkafka_consumer, librdkafka_producer
from tests.support.kafka import KafkaCluster
from tests.support.member_node import MemberNode

GROUP = 0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", ["confluent-kafka", "kafka-python", "franz-go", "java-console"])
def test_libraries_start_from_kbroker(name: str, member: MemberNode) -> None:
    """A client library creates a topic, produces to it with idempotence and consumes from it."""
    client = make_client(name, member.bootstrap)
    topic = f"library-{name}"
    client.create(topic, 1)
    records = [Record(f"{name} {number}".encode(), int(time.time() * 1000)) for number in range(20)]
    client.produce(topic, 0, records, codec="gzip", idempotent=True)
    found = client.consume(topic, 0, len(records))
    assert [record.value for record in found] == [record.value for record in records]


def test_a_group_finds_its_coordinator(kafka: KafkaCluster, member: MemberNode) -> None:
    """For the first group, kbroker requests the creation of `__consumer_offsets` and names another broker as
    coordinator.
    """
    with Client(member.bootstrap) as client:
        body: Body = {"KeyType": GROUP, "CoordinatorKeys": ["readers"]}

        def found() -> Body:
            (row,) = client.call("FindCoordinator", 6, body)["Coordinators"]
            return row if not row["ErrorCode"] else {}

        wait_for("the coordinator", found)
        assert found()["NodeId"] in (1, 2)
        (topic,) = client.call("Metadata", 13, {"Topics": [{"Name": "__consumer_offsets"}]})["Topics"]
        assert (len(topic["Partitions"]), len(topic["Partitions"][0]["ReplicaNodes"])) == (2, 2)
        beat = {"GroupId": "readers", "GenerationId": 1, "MemberId": "m", "GroupInstanceId": None}
        assert client.call("Heartbeat", 4, beat)["ErrorCode"] == Errors.NOT_COORDINATOR
        assert client.call("ListGroups", 5, {})["Groups"] == []
    producer = librdkafka_producer(member.bootstrap)
    producer.produce("created-by-a-client", b"first")
    producer.flush(30)
    consumer = librdkafka_consumer(member.bootstrap, group="readers")
    consumer.subscribe(["created-by-a-client"])
    wait_for("the record", lambda: (found := consumer.poll(0.2)) is not None and found.value() == b"first")
    consumer.close()
