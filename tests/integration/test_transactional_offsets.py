"""Offsets in transactions with client libraries: commit, abort, restarts, kill -9, rebalances."""

import functools
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import fill_partitions, librdkafka_consumer

kafka = pytest.importorskip("kafka")

pytestmark = pytest.mark.timeout(180)
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20, "log_level": 0}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", SETTINGS) as running:
        yield running


def topics(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(30)


fill = functools.partial(fill_partitions, partitions=1)


def producer_of(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **QUICK})
    producer.init_transactions(60)
    return producer


def consumer_of(bootstrap: str, group: str, **settings: object) -> Consumer:
    return librdkafka_consumer(bootstrap, group, **{"isolation.level": "read_committed", **QUICK, **settings})


def committed(bootstrap: str, group: str, topic: str, isolation: str = "read_committed", seconds: float = 20) -> int:
    with closing(consumer_of(bootstrap, group, **{"isolation.level": isolation})) as consumer:
        (found,) = consumer.committed([TopicPartition(topic, 0)], seconds)
        return int(found.offset)


def read(bootstrap: str, topic: str, count: int, group: str) -> list[str]:
    consumer = consumer_of(bootstrap, group)
    consumer.subscribe([topic])
    found: list[str] = []
    deadline = time.monotonic() + 60
    try:
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(100, 0.2):
                assert message.error() is None
                found.append((message.value() or b"").decode())
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_offsets_follow_the_transaction(broker: BrokerProcess, how: str) -> None:
    """During a transaction, read_committed clients wait for its offsets and others read the old ones, until it ends."""
    source, sink, group = "in", "out", "g"
    topics(broker.bootstrap, source, sink)
    fill(broker.bootstrap, source, 10)
    consumer = consumer_of(broker.bootstrap, group)
    consumer.subscribe([source])
    assert len(consumer.consume(3, 30)) == 3
    consumer.commit(offsets=[TopicPartition(source, 0, 3)], asynchronous=False)
    producer = producer_of(broker.bootstrap, "tx")
    producer.begin_transaction()
    producer.produce(sink, b"out")
    producer.send_offsets_to_transaction([TopicPartition(source, 0, 7)], consumer.consumer_group_metadata(), 30)
    assert committed(broker.bootstrap, group, source, "read_uncommitted") == 3
    with pytest.raises(KafkaException):
        committed(broker.bootstrap, group, source, seconds=1)
    if how == "commit":
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    assert committed(broker.bootstrap, group, source) == (7 if how == "commit" else 3)
    assert committed(broker.bootstrap, group, source, "read_uncommitted") == (7 if how == "commit" else 3)
    consumer.close()


@pytest.mark.parametrize("commits", [True, False])
def test_open_transactions_survive_kill_9(broker: BrokerProcess, commits: bool) -> None:
    """After kill -9, the offsets of an open transaction stay pending until their producer or the next one ends it."""
    topics(broker.bootstrap, "in", "out")
    fill(broker.bootstrap, "in", 10)
    consumer = consumer_of(broker.bootstrap, "g")
    consumer.subscribe(["in"])
    assert consumer.consume(1, 30)
    producer = producer_of(broker.bootstrap, "tx")
    producer.begin_transaction()
    producer.produce("out", b"out")
    producer.send_offsets_to_transaction([TopicPartition("in", 0, 7)], consumer.consumer_group_metadata(), 30)
    producer.flush(30)
    broker.kill()
    broker.start()
    assert committed(broker.bootstrap, "g", "in", "read_uncommitted") == -1001
    with pytest.raises(KafkaException):
        committed(broker.bootstrap, "g", "in", seconds=1)
    if commits:
        producer.commit_transaction(60)
    else:
        producer_of(broker.bootstrap, "tx")
    assert committed(broker.bootstrap, "g", "in") == (7 if commits else -1001)
    broker.kill()
    broker.start()
    assert committed(broker.bootstrap, "g", "in") == (7 if commits else -1001)
    consumer.close()


def test_a_member_that_was_replaced_cannot_commit(broker: BrokerProcess) -> None:
    """A former member is fenced by the generation of its group, with any transactional id (KIP-447)."""
    topics(broker.bootstrap, "in", "out")
    fill(broker.bootstrap, "in", 10)
    old = consumer_of(broker.bootstrap, "g")
    old.subscribe(["in"])
    assert old.consume(1, 30)
    metadata = old.consumer_group_metadata()
    old.close()
    producer = producer_of(broker.bootstrap, "tx")
    new = consumer_of(broker.bootstrap, "g")
    new.subscribe(["in"])
    assert new.consume(1, 30)
    producer.begin_transaction()
    with pytest.raises(KafkaException) as info:
        producer.send_offsets_to_transaction([TopicPartition("in", 0, 7)], metadata, 30)
    assert info.value.args[0].txn_requires_abort()
    producer.abort_transaction(30)
    assert committed(broker.bootstrap, "g", "in") == -1001
    new.close()


def test_kafka_python_sends_offsets(broker: BrokerProcess) -> None:
    """kafka-python commits offsets in transactions with AddOffsetsToTxn and TxnOffsetCommit."""
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as Place

    topics(broker.bootstrap, "in", "out")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="tx")
    try:
        producer.init_transactions()
        for offset, commits in ((5, True), (9, False)):
            producer.begin_transaction()
            producer.send("out", b"out")
            producer.send_offsets_to_transaction({Place("in", 0): OffsetAndMetadata(offset, "note", -1)}, "g")
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        assert committed(broker.bootstrap, "g", "in") == 5
    finally:
        producer.close(timeout=5)


TRANSFORM = """
import json, sys
from confluent_kafka import Consumer, KafkaException, Producer
bootstrap, settings = sys.argv[1], json.loads(sys.argv[2])
def producer():
    while True:
        made = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx", **settings})
        try:
            made.init_transactions(60)
            return made
        except KafkaException as error:
            print("init", error, flush=True)
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False,
    "auto.offset.reset": "earliest", "isolation.level": "read_committed", "session.timeout.ms": 6000, **settings})
consumer.subscribe(["in"])
sender = producer()
while True:
    messages = [one for one in consumer.consume(20, 0.2) if one.error() is None]
    if not messages:
        continue
    try:
        sender.begin_transaction()
        for one in messages:
            sender.produce("out", one.value())
        sender.send_offsets_to_transaction(consumer.position(consumer.assignment()),
            consumer.consumer_group_metadata(), 60)
        sender.commit_transaction(60)
    except KafkaException as error:
        print("again", error, flush=True)
        sys.exit(3)  # like a crash: the next process aborts, and reads from the committed offset
"""


@pytest.mark.slow
def test_output_is_exactly_once_over_kills(broker: BrokerProcess, tmp_path: Path, soak: bool) -> None:
    """Records that are copied in transactions are stored once, although broker and program are killed."""
    count, kills = 600, 20 if soak else 4
    topics(broker.bootstrap, "in", "out")
    fill(broker.bootstrap, "in", count)
    stopped = threading.Event()
    lives: list[subprocess.Popen[bytes]] = []

    def keep_running() -> None:
        while not stopped.is_set():
            command = [sys.executable, "-c", TRANSFORM, broker.bootstrap, json.dumps(QUICK)]
            life = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            lives.append(life)
            life.wait()

    runner = threading.Thread(target=keep_running, daemon=True)
    runner.start()
    try:
        for number in range(kills):
            wait_for(f"a running copy after {number} kills", lambda: lives and lives[-1].poll() is None, 60)
            time.sleep(0.7 + 0.37 * (number % 3))  # the moments of the kills differ
            if number % 2:
                lives[-1].kill()
            else:
                broker.kill()
                broker.start()
        found = read(broker.bootstrap, "out", count, f"reader-{uuid.uuid4()}")
        assert sorted(map(int, found)) == list(range(count))
        wait_for("the last offset", lambda: committed(broker.bootstrap, "g", "in") == count, 60)
    finally:
        stopped.set()
        for life in lives:
            life.kill()
        runner.join(30)
    print(f"{kills} kills, {len(lives)} lives of the program")
