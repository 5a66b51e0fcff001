"""kill -9 under produce: what was acknowledged is there afterwards, once and in order."""

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import wire
from tests.support.broker import BrokerProcess, wait_for

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 4


class AckLog:
    """Reads what the producer wrote down, as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acks: list[tuple[int, int, int]] = []
        self.trouble: list[str] = []
        self.sent: dict[int, int] = {}
        self._at = 0
        self._rest = ""

    def read(self) -> "AckLog":
        if not self.path.exists():
            return self
        with self.path.open(encoding="utf-8") as file:
            file.seek(self._at)
            data = self._rest + file.read()
            self._at = file.tell()
        *lines, self._rest = data.split("\n")
        for line in lines:
            kind, _, rest = line.partition(" ")
            if kind == "ack":
                partition, number, offset = map(int, rest.split())
                self.acks.append((partition, number, offset))
            elif kind == "sent":
                partition, count = map(int, rest.split())
                self.sent[partition] = count
            else:
                self.trouble.append(line)
        return self


def create_topic(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(topic, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})
    admin.create_topics([new])[topic].result(20)


def read_all(bootstrap: str, topic: str, partition: int, seconds: float = 60) -> list[tuple[int, bytes]]:
    """Everything in a partition, as (offset, value)."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "check.crcs": True,
            "enable.partition.eof": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    found: list[tuple[int, bytes]] = []
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
        consumer.assign([TopicPartition(topic, partition, low)])
        deadline = time.monotonic() + seconds
        while (not found or found[-1][0] < high - 1) and high > low:
            assert time.monotonic() < deadline, f"read {len(found)} of {high - low} records of {topic}-{partition}"
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None, message.error()
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert value is not None
                found.append((offset, value))
    finally:
        consumer.close()
    return found


def check_partition(partition: int, records: list[tuple[int, bytes]], log: AckLog) -> None:
    """Acknowledged records are there, at the offset of their acknowledgement; nothing twice; order kept; no hole."""
    numbers = []
    for expected, (offset, value) in enumerate(records):
        assert offset == expected, f"offset {offset} where {expected} was due"
        owner, number, _ = value.split(b":", 2)
        assert int(owner) == partition
        numbers.append(int(number))
    wrong = [(i, a, b) for i, (a, b) in enumerate(itertools.pairwise(numbers)) if b != a + 1]
    assert not wrong, f"order broken, first at offset {wrong[0][0] + 1}: {wrong[0][2]} after {wrong[0][1]}"
    assert numbers[:1] in ([], [0])
    assert len(numbers) == log.sent[partition]
    for owner, number, offset in log.acks:
        if owner == partition:
            assert offset < len(numbers), (
                f"record {number} acknowledged at {offset}, the partition ends at {len(numbers)}"
            )
            assert numbers[offset] == number, f"offset {offset} was acknowledged for {number}, holds {numbers[offset]}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_loses_nothing(start_broker: Callable[..., BrokerProcess], tmp_path: Path, soak: bool) -> None:
    """After many kills with -9 every acknowledged record is there exactly once, in order, at its offset."""
    kills = 200 if soak else 30
    seed = int(os.environ.get("KBROKER_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"KBROKER_SEED={seed}")
    rng = random.Random(seed)
    broker = start_broker()
    create_topic(broker.bootstrap, "killed", PARTITIONS, segment_bytes=str(1 << 20))
    log = AckLog(tmp_path / "acks")
    codec = rng.choice(["none", "none", "lz4", "zstd"])
    producer = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.support.acked_producer"),
            *(broker.bootstrap, "killed", str(PARTITIONS), str(log.path), codec),
        ],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    restarts = []
    done = 0
    try:
        while done < kills:
            known = len(log.read().acks)
            wait_for(
                "acknowledgements after a restart",
                lambda known=known: len(log.read().acks) > known + 50 or log.trouble or producer.poll() is not None,
                60,
            )
            assert log.trouble == [], f"the producer gave up after {done} kills: {log.trouble[:3]}\n{broker.tail()}"
            assert producer.poll() is None
            time.sleep(rng.uniform(0.1, 1.4))  # the moment of the kill is what is random here
            broker.kill()
            done += 1
            if rng.random() < 0.2 and done < kills:  # again, in the middle of recovery
                second = BrokerProcess(broker.folder, broker.settings)
                second.port = broker.port
                doomed = subprocess.Popen(second.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(rng.uniform(0.02, 0.4))
                doomed.kill()
                doomed.wait(10)
                done += 1
            restarts.append(broker.start())
        known = len(log.read().acks)
        wait_for("acknowledgements after the last restart", lambda: len(log.read().acks) > known or log.trouble, 60)
    finally:
        assert producer.stdin is not None
        producer.stdin.close()
        try:
            producer.wait(90)
        finally:
            producer.kill()
            producer.wait(10)
    assert log.read().trouble == []
    assert sorted(log.sent) == list(range(PARTITIONS))
    assert len(log.acks) == sum(log.sent.values()), "some records were neither acknowledged nor refused"
    for partition in range(PARTITIONS):
        check_partition(partition, read_all(broker.bootstrap, "killed", partition), log)
    segments = list(broker.folder.glob("killed-*/*.log"))
    assert len(segments) > PARTITIONS, "no segment was ever rolled: the kills missed what they are for"
    restarts.sort()
    print(
        f"{done} kills, {len(log.acks)} records, {len(segments)} segments, codec {codec}; restart to ready: median "
        f"{restarts[len(restarts) // 2]:.2f} s, longest {restarts[-1]:.2f} s"
    )


@pytest.mark.slow
def test_sigterm_ends_in_order(start_broker: Callable[..., BrokerProcess]) -> None:
    """SIGTERM ends the broker with status 0; topics, ids and records are there after the next start."""
    broker = start_broker()
    create_topic(broker.bootstrap, "kept", 2)
    with wire.Connection(broker.bootstrap) as connection:
        for number in range(100):
            answer = wire.produced(connection.ask(wire.produce("kept", 1, wire.batch([b"%d" % number]))))
            assert answer == wire.Produced(0, number)
    assert broker.stop() == 0, broker.tail()
    broker.start()
    assert [value for _, value in read_all(broker.bootstrap, "kept", 1)] == [b"%d" % n for n in range(100)]
    assert read_all(broker.bootstrap, "kept", 0) == []


def test_second_broker_on_a_folder_is_refused(start_broker: Callable[..., BrokerProcess]) -> None:
    """Two brokers on one folder: the second says so in one line and leaves the first alone."""
    broker = start_broker()
    second = BrokerProcess(broker.folder)
    with pytest.raises(AssertionError, match="ended with"):
        second.start()
    assert "Traceback" not in second.tail()
    assert str(broker.folder) in second.tail()
    assert wire.answers(broker.bootstrap)
