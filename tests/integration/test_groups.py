"""Consumer groups of client libraries: rebalances, static members, commits, restarts, killed members."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, TopicPartition

from kbroker.broker import Broker
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import fill_partitions as fill
from tests.support.client import librdkafka_consumer, names

confluent_kafka = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")
kafka = pytest.importorskip("kafka")
aiokafka = pytest.importorskip("aiokafka")

pytestmark = pytest.mark.timeout(120)
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "4"}


class Confluent:
    """librdkafka consumer that a thread polls; keeps its assignment and the values that it read."""

    _is_cooperative = False

    def __init__(self, bootstrap: str, topic: str, group: str, **settings: object) -> None:
        self.assigned: set[int] = set()
        self.read: list[int] = []
        self.read_since_assigned: list[int] = []
        self.revocations = 0
        times = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
        self._consumer = librdkafka_consumer(bootstrap, group, **{**times, **settings})
        self._stop = threading.Event()
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_assign(self, consumer: object, partitions: list[TopicPartition]) -> None:
        if self._is_cooperative:
            self._consumer.incremental_assign(partitions)
            self.assigned |= {one.partition for one in partitions}
        else:
            self.read_since_assigned.clear()
            self._consumer.assign(partitions)
            self.assigned = {one.partition for one in partitions}

    def _on_revoke(self, consumer: object, partitions: list[TopicPartition]) -> None:
        self.revocations += 1
        if self._is_cooperative:
            self._consumer.incremental_unassign(partitions)
        else:
            self._consumer.unassign()
        self.assigned -= {one.partition for one in partitions}

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.read.append(int(message.value() or b""))
                self.read_since_assigned.append(self.read[-1])

    def stop(self, *, commit: bool = False) -> None:
        """Stop polling, commit if requested, and leave the group."""
        self._stop.set()
        self._thread.join(10)
        if commit:
            self._consumer.commit(asynchronous=False)
        self._consumer.close()


class Cooperative(Confluent):
    _is_cooperative = True

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__(bootstrap, topic, group, **{"partition.assignment.strategy": "cooperative-sticky"})


@pytest.mark.parametrize("kind", [Confluent, Cooperative])
def test_two_members_share_the_partitions(broker: BrokerProcess, kind: type[Confluent]) -> None:
    """Two members share the partitions until one leaves; a cooperative member keeps some through a rebalance."""
    topic, group = names()
    fill(broker.bootstrap, topic)
    one = kind(broker.bootstrap, topic, group)
    wait_for("one member has all partitions", lambda: one.assigned == {0, 1, 2, 3})
    two = kind(broker.bootstrap, topic, group)
    wait_for("two members have half of the partitions each", lambda: len(one.assigned) == len(two.assigned) == 2)
    assert one.assigned | two.assigned == {0, 1, 2, 3}
    assert one.revocations == 1 or kind is Confluent
    leaves, stays = (one, two) if kind is Cooperative else (two, one)
    leaves.stop()
    wait_for("the remaining member has all partitions", lambda: stays.assigned == {0, 1, 2, 3})
    wait_for("every record is read", lambda: kind is Cooperative or set(one.read) == set(range(40)))
    stays.stop()


def test_a_static_member_comes_back_to_its_partitions(broker: BrokerProcess) -> None:
    """A static member that returns within its session causes no rebalance and continues at its committed offset."""
    topic, group = names()
    fill(broker.bootstrap, topic)
    static = {"group.instance.id": "one", "session.timeout.ms": 30000}
    one = Confluent(broker.bootstrap, topic, group, **static)
    other = Confluent(broker.bootstrap, topic, group, **{"group.instance.id": "two"})
    wait_for("two members have half of the partitions each", lambda: len(one.assigned) == len(other.assigned) == 2)
    had, revocations = set(one.assigned), other.revocations
    wait_for("the static member has read its records", lambda: len(one.read_since_assigned) == 20)
    one.stop(commit=True)  # a static member does not send a leave
    back = Confluent(broker.bootstrap, topic, group, **static)
    wait_for("the static member has its partitions again", lambda: back.assigned == had)
    assert other.revocations == revocations
    assert back.read == []
    back.stop()
    other.stop()


def test_committed_offsets_are_where_the_next_consumer_begins(broker: BrokerProcess) -> None:
    """Three client libraries continue at each other's committed offsets in the same group."""
    topic, group = names()
    fill(broker.bootstrap, topic, 40)
    one = Confluent(broker.bootstrap, topic, group)
    wait_for("everything", lambda: len(one.read) == 40)
    one.stop(commit=True)
    fill(broker.bootstrap, topic, 8)
    options = {
        "bootstrap_servers": broker.bootstrap, "group_id": group, "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
    }  # fmt: skip
    python = kafka.KafkaConsumer(topic, **options)
    read: list[int] = []
    deadline = time.monotonic() + 30
    while len(read) < 8 and time.monotonic() < deadline:
        read += [int(one.value) for rows in python.poll(1000).values() for one in rows]
    assert sorted(read) == list(range(8))
    python.commit()
    python.close()
    fill(broker.bootstrap, topic, 4)

    async def consume() -> list[int]:
        consumer = aiokafka.AIOKafkaConsumer(topic, **options)
        await consumer.start()
        try:
            found = [int((await asyncio.wait_for(consumer.getone(), 30)).value) for _ in range(4)]
            await consumer.commit()
            return found
        finally:
            await consumer.stop()

    assert sorted(asyncio.run(consume())) == list(range(4))
    admin = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    places = [confluent_kafka.TopicPartition(topic, index) for index in range(4)]
    assert [one.offset for one in admin.committed(places, timeout=10)] == [13] * 4
    admin.close()


def test_two_members_of_aiokafka_and_kafka_python(broker: BrokerProcess) -> None:
    """Members of two client libraries share the partitions, and the one that stays receives all of them."""
    topic, group = names()
    fill(broker.bootstrap, topic)
    stop = threading.Event()
    assigned: set[int] = set()

    def poll() -> None:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            partition_assignment_strategy=[kafka.coordinator.assignors.roundrobin.RoundRobinPartitionAssignor],
        )
        while not stop.is_set():
            consumer.poll(1000)  # with 100 ms the client sometimes loses a response (docs/compatibility.md)
            assigned.clear()
            assigned.update(one.partition for one in consumer.assignment())
        consumer.close()

    async def share() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
        )
        await consumer.start()
        deadline = time.monotonic() + 40
        while not len(consumer.assignment()) == len(assigned) == 2:
            assert time.monotonic() < deadline, (consumer.assignment(), assigned)
            await asyncio.sleep(0.05)
        await consumer.stop()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        wait_for("the consumer has all partitions", lambda: assigned == {0, 1, 2, 3})
        asyncio.run(share())
        wait_for("the consumer has all partitions again", lambda: assigned == {0, 1, 2, 3})
    finally:  # a consumer that outlives its broker leaves sockets open during later tests
        stop.set()
        thread.join(20)


CHILD = """
import sys, confluent_kafka
consumer = confluent_kafka.Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[3],
    "session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "auto.offset.reset": "earliest"})
consumer.subscribe([sys.argv[2]], on_assign=lambda c, p: print("assigned", len(p), flush=True))
while True:
    consumer.poll(0.1)
"""


def test_a_killed_member_is_replaced(broker: BrokerProcess) -> None:
    """After the session timeout of a killed consumer, the other member receives its partitions."""
    topic, group = names()
    fill(broker.bootstrap, topic)
    one = Confluent(broker.bootstrap, topic, group)
    wait_for("one member has all partitions", lambda: one.assigned == {0, 1, 2, 3})
    child = subprocess.Popen([sys.executable, "-c", CHILD, broker.bootstrap, topic, group], stdout=subprocess.PIPE)
    try:
        wait_for("two members have half of the partitions each", lambda: len(one.assigned) == 2)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    wait_for("the remaining member has all partitions", lambda: one.assigned == {0, 1, 2, 3})
    one.stop()


@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_keeps_committed_offsets(
    crash: bool, start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """Committed offsets survive a stop and kill -9, and the next consumer continues at them."""
    topic, group = names()
    broker = start_broker(folder=tmp_path / "kept", **{k.replace(".", "__"): v for k, v in SETTINGS.items()})
    fill(broker.bootstrap, topic)
    one = Confluent(broker.bootstrap, topic, group)
    wait_for("everything", lambda: len(one.read) == 40)
    one.stop(commit=True)
    if crash:
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()
    admin = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    places = [confluent_kafka.TopicPartition(topic, index) for index in range(4)]
    assert [one.offset for one in admin.committed(places, timeout=10)] == [10] * 4
    admin.close()
    fill(broker.bootstrap, topic, 4)
    two = Confluent(broker.bootstrap, topic, group)
    wait_for("only what is new", lambda: sorted(two.read) == [0, 1, 2, 3])
    two.stop()


def test_members_go_on_over_a_restart_of_the_broker(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """A consumer continues to read when its broker was stopped and started again."""
    topic, group = names()
    broker = start_broker(folder=tmp_path / "kept", **{k.replace(".", "__"): v for k, v in SETTINGS.items()})
    fill(broker.bootstrap, topic)
    one = Confluent(broker.bootstrap, topic, group, **{"session.timeout.ms": 30000})
    wait_for("everything", lambda: len(one.read) == 40)
    assert broker.stop() == 0
    broker.start()
    fill(broker.bootstrap, topic, 4)
    wait_for("what came later", lambda: len(one.read) == 44, 60)
    one.stop()


def test_a_rebalance_while_the_broker_is_stopped(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """After a member was killed and another started while the broker was stopped, the live members share the
    partitions.
    """
    topic, group = names()
    broker = start_broker(folder=tmp_path / "kept", **{k.replace(".", "__"): v for k, v in SETTINGS.items()})
    fill(broker.bootstrap, topic)
    one = Confluent(broker.bootstrap, topic, group)
    child = subprocess.Popen([sys.executable, "-c", CHILD, broker.bootstrap, topic, group], stdout=subprocess.PIPE)
    try:
        wait_for("a half each", lambda: len(one.assigned) == 2)
        broker.kill()
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    two = Confluent(broker.bootstrap, topic, group)
    broker.start()
    wait_for(
        "two members have half of the partitions each again",
        lambda: len(one.assigned) == len(two.assigned) == 2 and one.assigned | two.assigned == {0, 1, 2, 3},
        60,
    )
    two.stop()
    wait_for("the remaining member has all partitions", lambda: one.assigned == {0, 1, 2, 3}, 60)
    one.stop()


def test_produce_into_the_offsets_topic_is_refused(broker: BrokerProcess) -> None:
    """`__consumer_offsets` has fifty partitions, and a client's record for the topic is refused."""
    admin = confluent_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    topic, group = names()
    fill(broker.bootstrap, topic, 1)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    found = admin.list_topics(timeout=10).topics["__consumer_offsets"]
    assert len(found.partitions) == 50
    errors: list[KafkaError] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("__consumer_offsets", b"x", key=b"k", partition=0, on_delivery=lambda e, m: errors.append(e))
    producer.flush(10)
    assert errors[0].code() == confluent_kafka.KafkaError.TOPIC_EXCEPTION


def test_a_broker_in_process_serves_groups() -> None:
    """A group works with a broker in memory, which can be stopped afterwards."""
    topic, group = names()
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.in.memory": True, **SETTINGS}) as broker:
        fill(broker.bootstrap_servers, topic)
        one = Confluent(broker.bootstrap_servers, topic, group)
        wait_for("everything", lambda: len(one.read) == 40)
        one.stop(commit=True)
        assert broker.context.groups.offsets.fetch(group).committed[topic, 0].offset == 10
