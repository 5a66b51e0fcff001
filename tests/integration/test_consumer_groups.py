"""Groups of the consumer protocol (KIP-848) with librdkafka: rebalances, patterns, migration, kill -9."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import fill_partitions, librdkafka_consumer, names

confluent_kafka = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")

pytestmark = pytest.mark.timeout(120)
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "4",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.assignment.interval.ms": "0",
}


class Member:
    """Consumer that polls in its own thread and keeps its assignment and the values that it read."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], **settings: Any) -> None:
        self.assigned: set[tuple[str, int]] = set()
        self.read: list[bytes] = []
        self.errors: list[Any] = []
        self._stop = threading.Event()
        known: dict[str, Any] = {"group.protocol": "consumer"}
        if settings.get("group.protocol") == "classic":
            known = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
            # Kafka does not upgrade a group with the user data of the sticky assignors
            known["partition.assignment.strategy"] = "range"
        known |= {
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 500,
        }
        self.consumer = librdkafka_consumer(bootstrap, group, **{**known, **settings})
        self.consumer.subscribe(topics)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self.consumer.poll(0.05)
            self.assigned = {(one.topic, one.partition) for one in self.consumer.assignment()}
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(message.error())
            else:
                self.read.append(message.value() or b"")
                self.consumer.commit(message=message, asynchronous=True)

    def close(self) -> None:
        """Leave the group."""
        self._stop.set()
        self._thread.join(30)
        self.consumer.close()


@pytest.fixture
def join(broker: BrokerProcess) -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def make(group: str, topics: list[str], **settings: Any) -> Member:
        members.append(Member(broker.bootstrap, group, topics, **settings))
        return members[-1]

    yield make
    for member in members:
        member.close()


def fill(bootstrap: str, topic: str, count: int = 40) -> None:
    fill_partitions(bootstrap, topic, count, prefix=f"{topic} ")


def is_shared(topic: str, *members: Member, count: int = 4) -> bool:
    """Return whether the members have all partitions, each once, and no member is without one."""
    sizes = [len(member.assigned) for member in members]
    whole = {(topic, partition) for partition in range(count)}
    return set().union(*(member.assigned for member in members)) == whole and sum(sizes) == count and min(sizes) > 0


def described(broker: BrokerProcess, group: str) -> Any:
    admin = confluent_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    return admin.describe_consumer_groups([group])[group].result(30)


def group_type(broker: BrokerProcess, group: str) -> str:
    admin = confluent_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    listed = admin.list_consumer_groups().result(30).valid
    return str(next(one.type.name for one in listed if one.group_id == group))


def test_members_come_and_go_and_nothing_is_read_twice(broker: BrokerProcess, join: Callable[..., Member]) -> None:
    topic, group = names()
    fill(broker.bootstrap, topic)
    one = join(group, [topic])
    wait_for("one member reads all records", lambda: len(one.read) == 40)
    assert group_type(broker, group) == "CONSUMER"
    two = join(group, [topic])
    wait_for("two members share the topic", lambda: is_shared(topic, one, two))
    fill(broker.bootstrap, topic)
    wait_for("both members read", lambda: len(one.read) + len(two.read) == 80)
    one.close()
    wait_for("the other member has all partitions", lambda: is_shared(topic, two))
    assert not one.errors
    assert not two.errors
    assert described(broker, group).state.name == "STABLE"


def test_a_regular_expression_finds_topics(broker: BrokerProcess, join: Callable[..., Member]) -> None:
    topic, group = names()
    fill(broker.bootstrap, topic, 4)
    fill(broker.bootstrap, f"{topic}-other", 4)
    one = join(group, [f"^{topic}.*"])
    wait_for("both topics are read", lambda: len(one.read) == 8)
    assert {name for name, _ in one.assigned} == {topic, f"{topic}-other"}


@pytest.mark.soak
def test_a_regular_expression_finds_topics_that_come_later(broker: BrokerProcess, join: Callable[..., Member]) -> None:
    """A regular expression is resolved again within ten seconds."""
    topic, group = names()
    fill(broker.bootstrap, topic, 4)
    one = join(group, [f"^{topic}.*"])
    wait_for("the topic is found", lambda: len(one.read) == 4)
    later = f"{topic}-later"
    fill(broker.bootstrap, later, 4)
    wait_for("the later topic is found", lambda: len(one.read) == 8, seconds=40)
    assert {name for name, _ in one.assigned} == {topic, later}


def test_a_group_changes_its_protocol_while_its_members_are_alive(
    broker: BrokerProcess, join: Callable[..., Member]
) -> None:
    """The first member of the consumer protocol upgrades the group, and the end of the last one downgrades it; all
    records are read.
    """
    topic, group = names()
    fill(broker.bootstrap, topic)
    classic = {"group.protocol": "classic"}
    one, two = join(group, [topic], **classic), join(group, [topic], **classic)
    wait_for("classic members share the topic", lambda: is_shared(topic, one, two))
    assert group_type(broker, group) == "CLASSIC"
    new = join(group, [topic])
    wait_for("three members share the topic", lambda: is_shared(topic, one, two, new), seconds=40)
    assert group_type(broker, group) == "CONSUMER"
    fill(broker.bootstrap, topic)
    expected = {f"{topic} {n}".encode() for n in range(40)}
    wait_for("the members read the new records", lambda: {*one.read, *two.read, *new.read} == expected)
    new.close()
    wait_for("classic members share the topic again", lambda: is_shared(topic, one, two), seconds=40)
    assert group_type(broker, group) == "CLASSIC"


def test_members_live_through_a_broker_that_is_killed_in_a_rebalance(tmp_path: Path) -> None:
    """After kills during rebalances, members keep their group, committed offsets are kept, and a new member has
    partitions.
    """
    broker = BrokerProcess(tmp_path / "data", SETTINGS)
    broker.start()
    members: list[Member] = []
    try:
        topic, group = names()
        fill(broker.bootstrap, topic)
        members.append(Member(broker.bootstrap, group, [topic]))
        wait_for("one member reads all records", lambda: len(members[0].read) == 40)
        committed = described(broker, group)
        assert committed.state.name == "STABLE"
        for number in range(3):
            members.append(Member(broker.bootstrap, group, [topic]))
            if number:
                wait_for("the member is known", lambda: len(described(broker, group).members) == len(members))
            broker.kill()
            broker.start()
            wait_for("all members share the topic", lambda: is_shared(topic, *members), seconds=40)
        fill(broker.bootstrap, topic)
        wait_for("the new records are read", lambda: sum(len(one.read) for one in members) >= 80)
        assert sum(len(one.read) for one in members) <= 84, "what was committed was read again"
    finally:
        for member in members:
            member.close()
        broker.discard()
