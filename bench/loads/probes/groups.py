"""Probes of consumer groups."""

import shutil
import subprocess
import tempfile
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, ShareConsumer
from confluent_kafka.admin import NewTopic

from bench.loads.contenders import Skipped
from bench.loads.probes.place import ANSWER_S, Config, Lacking, Place, Probe, expect
from kbroker.client.admin import Admin
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation, ConfigResourceType
from tests.clients.everyday import Lines
from tests.clients.everyday_python import GROUP_PARTITIONS, ConfluentEveryday
from tests.clients.programs import FRAMEWORKS, java_program

MEMBER: Config = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 10_000}


def take(consumer: Consumer, count: int, seconds: float = 25) -> list[bytes]:
    """Return the next `count` records of a member."""
    found: list[bytes] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        expect(time.monotonic() < deadline, f"{len(found)} of {count} records in {seconds:g} s")
        for message in consumer.consume(count - len(found), 0.2):
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append(message.value() or b"")
    return found


def half_by_half(place: Place) -> str:
    """Read and commit one half with one member and the other half with another; return the name of topic and group."""
    topic = place.create("resume")
    values = [b"%d" % n for n in range(20)]
    place.send(topic, values)
    config = place.config({"group.id": topic, **MEMBER})
    for half in (values[:10], values[10:]):
        consumer = Consumer(config)
        try:
            consumer.subscribe([topic])
            found = take(consumer, 10)
            expect(found == half, f"read from {found[0]!r} where {half[0]!r} was next")
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
    return topic


def resume(place: Place) -> None:
    half_by_half(place)


def new_protocol(place: Place) -> None:
    """A member of the consumer protocol (KIP-848) reads and commits."""
    config = {"group.protocol": "consumer", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    topic = place.create("new-protocol")
    place.send(topic, [b"%d" % n for n in range(10)])
    consumer = Consumer(place.config({"group.id": topic, **config}))
    try:
        consumer.subscribe([topic])
        take(consumer, 10, 15)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def two_members(place: Place) -> None:
    """A second member joins and shares, and the first leaves; each record is read once and committed."""
    topic = place.topic("share")
    everyday = ConfluentEveryday(place.bootstrap, topic, 0)
    everyday.client.create(f"{topic}-group", GROUP_PARTITIONS)
    Lines(place.bootstrap, topic).judge_group(everyday.group())


class Static:
    """Static member that records its assignments and revocations."""

    def __init__(self, place: Place, topic: str, instance: str) -> None:
        strategy = {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 300}
        config = {"group.id": topic, "group.instance.id": instance, **MEMBER, **strategy}
        self.held: list[int] = []
        self.changes = 0
        self.consumer = Consumer(place.config(config))
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self.held = sorted(one.partition for one in partitions)
        self.changes += 1

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        self.held = []
        self.changes += 1

    def poll(self) -> None:
        message = self.consumer.poll(0.1)
        if message is not None and message.error() is not None and message.error().code() == KafkaError._FATAL:
            raise KafkaException(message.error())


def static_member(place: Place) -> None:
    """A member with an instance id returns to its partitions without a rebalance of the other member."""
    topic = place.create("static", 4)
    members = [Static(place, topic, name) for name in ("one", "two")]
    try:
        deadline = time.monotonic() + 30
        while [len(member.held) for member in members] != [2, 2]:
            expect(time.monotonic() < deadline, f"the members hold {[member.held for member in members]}")
            for member in members:
                member.poll()
        one, two = members
        held, changes = one.held, two.changes
        one.consumer.close()
        members[0] = one = Static(place, topic, "one")
        until = time.monotonic() + 20
        while not one.held and time.monotonic() < until:
            one.poll()
            two.poll()
        settled = time.monotonic() + 2  # several heartbeats
        while time.monotonic() < settled:
            one.poll()
            two.poll()
        if two.changes != changes:
            raise Lacking("the group was rebalanced when the member came back")
        expect(one.held == held, f"it came back to {one.held} instead of {held}")
    finally:
        for member in members:
            member.consumer.close()


def share_group(place: Place) -> None:
    """Two members of a share group (KIP-932) read a partition together; each record is delivered once."""
    topic = place.create("shared")
    values = {b"%d" % n for n in range(200)}
    change = ConfigChange("share.auto.offset.reset", ConfigOperation.SET, "earliest")
    with place.cluster() as cluster:
        Admin(cluster).alter_configs(ConfigResourceType.GROUP, topic, [change])
    place.send(topic, sorted(values))
    members = [ShareConsumer(place.config({"group.id": topic})) for _ in range(2)]
    found: list[bytes] = []
    try:
        for member in members:
            member.subscribe([topic])
        deadline = time.monotonic() + 25
        while len(found) < len(values):
            expect(time.monotonic() < deadline, f"{len(found)} of {len(values)} records in 25 s")
            for member in members:
                for message in member.poll(0.2):
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    found.append(message.value() or b"")
        for member in members:  # the next poll acknowledges; librdkafka's close can wait forever before the first one
            found += [message.value() or b"" for message in member.poll(1)]
        expect(set(found) == values and len(found) == len(values), f"{len(found)} records, {len(set(found))} different")
    finally:
        for member in members:
            member.close()


def streams_group(place: Place) -> None:
    """Kafka Streams counts words in a streams group (KIP-1071); the broker creates the internal topics."""
    if any(shutil.which(program) is None for program in ("java", "javac", "mvn")):
        raise Skipped("needs a JDK and Maven")
    topics = {"lines": 2, "counted": 1, "left": 1, "right": 1, "joined": 1}
    made = place.admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in topics.items()])
    for topic in made.values():
        topic.result(ANSWER_S)
    place.send("lines", [b"a b", b"a c a"])
    with tempfile.TemporaryDirectory(prefix="streams-", ignore_cleanup_errors=True) as folder:
        command = [*java_program("StreamsGroup", FRAMEWORKS), place.bootstrap, folder, "at_least_once"]
        process = subprocess.Popen([*command, "127.0.0.1:1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wanted = {b"a": b"3", b"b": b"1", b"c": b"1"}
            deadline = time.monotonic() + 60
            while (counted := {message.key(): message.value() for message in place.read("counted")}) != wanted:
                expect(process.poll() is None, f"Kafka Streams ended with status {process.poll()}")
                expect(time.monotonic() < deadline, f"{counted} after 60 s")
        finally:
            process.kill()
            process.wait()


PROBES = [
    Probe("a group commits; the next member continues there", resume, 80, short=False),
    Probe("two members share (cooperative), one leaves; each record once", two_members, 200),
    Probe("a static member returns without a rebalance", static_member, 80, short=False),
    Probe("the group protocol of KIP-848", new_protocol, 40),
    Probe("share groups (KIP-932): two members, each record once", share_group, 60),
    Probe("streams groups (KIP-1071): Kafka Streams counts words", streams_group, 110),
]
