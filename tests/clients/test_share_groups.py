"""Members of share groups (KIP-932) with Kafka's own client and console program, and records with kill -9."""

from __future__ import annotations

import os
import random
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.programs import java_program
from tests.integration.test_java_tools import CONFIGS
from tests.support import need
from tests.support.broker import BrokerProcess, run_to_end, wait_for
from tests.support.kafka.tools import Tools
from tests.support.kill import create_topic, finish, read_all, start_module
from tests.support.seeds import kill_count, random_seed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STEPS = [
    "implicit",
    "accepted, rejected, released",
    "renewed, and released ones came again",
    "a closed member released its record",
    "two members share",
]
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
TOPIC, GROUP, PARTITIONS, DELIVERIES = "killed", "workers", 4, 5
SETTINGS = {
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "3000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "5000",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("share-groups") / "data", SETTINGS) as broker:
        yield broker.bootstrap


def test_members(address: str) -> None:
    """Implicit and explicit acknowledgements, renewal, a leaving member, and two members behave as in Kafka."""
    topic = f"t-{uuid.uuid4().hex[:10]}"
    printed = run_to_end([*java_program("ShareMembers"), address, "steps", topic], seconds=240)
    assert printed.splitlines() == STEPS


def test_console_share_consumer(address: str) -> None:
    need.kafka_tools()
    topic = f"t-{uuid.uuid4().hex[:10]}"
    create_topic(address, topic, 1)
    tools = Tools(address)
    tools(CONFIGS, "--alter", "--entity-type", "groups", "--entity-name", topic,
          "--add-config", "share.auto.offset.reset=earliest")  # fmt: skip
    run_to_end([*java_program("ShareMembers"), address, "fill", topic, "5"], seconds=60)
    printed = tools(CONSOLE, "--topic", topic, "--group", topic, "--max-messages", "5", "--timeout-ms", "30000")
    assert [line for line in printed.splitlines() if line.startswith("v")] == [f"v{number}" for number in range(5)]


class Deliveries:
    """Deliveries and acknowledgements of each record, by the lines of the members in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.counts: dict[tuple[int, int], list[int]] = {}
        self.stored: dict[tuple[int, int], int] = {}  # delivery count that a release has stored
        self.accepted: set[tuple[int, int]] = set()
        # accepted without a response, so that the acknowledgement may be stored or not
        self.unknown: set[tuple[int, int]] = set()
        self.errors: list[str] = []
        self.notes: Counter[str] = Counter()

    def read(self) -> Deliveries:
        with self._path.open() as file:
            file.seek(self._at)
            while (line := file.readline()).endswith("\n"):
                self._at = file.seek(0, os.SEEK_CUR)
                self._note(*line.split())
        return self

    def _note(self, kind: str, *words: str) -> None:
        if kind == "note":
            self.notes[words[0]] += 1
            return
        partition, offset, *rest = map(int, words)
        place = partition, offset
        before = self.counts.setdefault(place, [])
        if kind == "read":
            if place in self.accepted:
                self.errors.append(f"{place} was delivered after its acknowledgement")
            lowest, highest = self.stored.get(place, 0) + 1, max(before, default=0) + 1
            if not lowest <= rest[0] <= min(highest, DELIVERIES):
                self.errors.append(f"{place} has delivery count {rest[0]}, expected {lowest} to {highest}")
            before.append(rest[0])
            self.unknown.discard(place)
        elif kind == "unknown":
            self.unknown.add(place)
        elif kind == "accepted":
            self.accepted.add(place)
        else:
            self.stored[place] = before[-1]


def test_kill_9_under_a_share_group(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """Each record is delivered, but not again after it is accepted, and its delivery counts rise by one."""
    kills = kill_count(2, 50)
    rng = random.Random(random_seed())
    broker = start_broker(**{name.replace(".", "__"): value for name, value in SETTINGS.items()})
    create_topic(broker.bootstrap, TOPIC, PARTITIONS)
    log = tmp_path / "members"
    log.touch()
    seen = Deliveries(log)
    to = broker.bootstrap
    producer = start_module("acked_producer", to, TOPIC, str(PARTITIONS), str(tmp_path / "acks"), "none")
    command = [*java_program("ShareMembers"), to, "load", TOPIC, GROUP, str(log), "3"]
    members = subprocess.Popen(command, stdin=subprocess.PIPE)

    def wait_for_accepts(when: str, count: int = 50) -> None:
        before = len(seen.read().accepted)
        wait_for(f"acknowledgements {when}", lambda: len(seen.read().accepted) >= before + count or seen.errors, 90)
        assert seen.errors == [], f"{seen.errors[:3]}\n{broker.tail()}"
        assert producer.poll() is members.poll() is None

    try:
        for number in range(kills):
            wait_for_accepts(f"after {number} kills")
            time.sleep(rng.uniform(0, 1.0))  # only the time of the kill is random
            broker.kill()
            broker.start()
        wait_for_accepts("after the last kill")
        assert finish(producer) == 0
        records = {
            (partition, offset)
            for partition in range(PARTITIONS)
            for offset, _ in read_all(broker.bootstrap, TOPIC, partition)
        }

        def is_over() -> bool:
            last = {place for place, counts in seen.read().counts.items() if counts[-1] == DELIVERIES}
            return not records - seen.accepted - seen.unknown - last or bool(seen.errors)

        wait_for("the end of each record", is_over, 120, 0.2)
        assert finish(members, 60) == 0
    finally:
        for process in (producer, members):
            process.kill()
            process.wait(10)
            assert process.stdin is not None
            process.stdin.close()
    assert seen.read().errors == []
    assert set(seen.counts) >= records
    deliveries = sum(map(len, seen.counts.values()))
    print(f"{kills} kills, {len(records)} records, {deliveries} deliveries, {dict(seen.notes)}")
