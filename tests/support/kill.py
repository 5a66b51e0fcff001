"""Parts of the tests of kill -9: logs of other processes, and checks of partitions afterwards."""

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typing_extensions import Self

from tests.support.client import librdkafka_consumer

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 4


def start_module(module: str, *args: str) -> subprocess.Popen[bytes]:
    """Start a module of tests.support in a process that ends when its standard input is closed."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", f"tests.support.{module}", *args]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})


def finish(process: subprocess.Popen[bytes], seconds: float = 90) -> int:
    """Close the standard input of a process, wait for its end and return its status; kill it at the deadline."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        return process.wait(seconds)
    finally:
        process.kill()
        process.wait(10)


class Notes:
    """Log of another process: a file of lines, read while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: list[str] = []  # lines of an unknown kind
        self._at = 0
        self._rest = ""

    def read(self) -> Self:
        """Read the lines that were written since the last call."""
        if not self.path.exists():
            return self
        with self.path.open(encoding="utf-8") as file:
            file.seek(self._at)
            data = self._rest + file.read()
            self._at = file.tell()  # words: ok, Python's name
        *lines, self._rest = data.split("\n")
        for line in lines:
            kind, _, numbers = line.partition(" ")
            if not self.note(kind, numbers.split()):
                self.trouble.append(line)
        return self

    def note(self, kind: str, numbers: list[str]) -> bool:
        """Record the values of one line; return False for a line of an unknown kind."""
        raise NotImplementedError


class AckLog(Notes):
    """Log of `acked_producer`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.acks: list[tuple[int, int, int]] = []
        self.sent: dict[int, int] = {}

    def note(self, kind: str, numbers: list[str]) -> bool:
        if kind == "ack":
            partition, number, offset = map(int, numbers)
            self.acks.append((partition, number, offset))
        elif kind == "sent":
            partition, count = map(int, numbers)
            self.sent[partition] = count
        return kind in ("ack", "sent")


class MemberLog(Notes):
    """Log of `group_members`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commits = 0
        self.committed: dict[int, int] = {}  # the highest acknowledged offset of each partition
        self.delivered: dict[int, list[tuple[int, int]]] = {}

    def note(self, kind: str, numbers: list[str]) -> bool:
        if kind == "commit":
            partition, offset = map(int, numbers)
            self.commits += 1
            self.committed[partition] = max(offset, self.committed.get(partition, 0))
        elif kind == "read":
            partition, first, last = map(int, numbers)
            self.delivered.setdefault(partition, []).append((first, last))
        return kind in ("commit", "read")


def create_topic(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(topic, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})
    admin.create_topics([new])[topic].result(20)


def read_all(bootstrap: str, topic: str, partition: int, seconds: float = 60) -> list[tuple[int, bytes]]:
    """Return all records of a partition as (offset, value)."""
    consumer = librdkafka_consumer(bootstrap, check_crcs=True, auto_offset_reset="error")
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
    """Check that the records acknowledged by the broker have their offsets, in order, without duplicates or gaps."""
    numbers = []
    for expected, (offset, value) in enumerate(records):
        assert offset == expected, f"offset {offset} where {expected} was due"
        owner, text, _ = value.split(b":", 2)
        assert int(owner) == partition
        numbers.append(int(text))
    wrong = [(i, a, b) for i, (a, b) in enumerate(itertools.pairwise(numbers)) if b != a + 1]
    assert not wrong, f"order broken, first at offset {wrong[0][0] + 1}: {wrong[0][2]} after {wrong[0][1]}"
    assert numbers[:1] in ([], [0])
    assert len(numbers) == log.sent[partition]
    for acknowledged, number, offset in log.acks:
        if acknowledged == partition:
            assert offset < len(numbers), (
                f"record {number} acknowledged at {offset}, the partition ends at {len(numbers)}"
            )
            assert numbers[offset] == number, f"offset {offset} was acknowledged for {number}, holds {numbers[offset]}"


def check_delivered(partition: int, ranges: list[tuple[int, int]], end: int) -> None:
    """Check that every offset from 0 to the end was delivered to the group at least once."""
    due = 0
    for first, last in sorted(ranges):
        assert first <= due, f"no member received offsets {due} to {first - 1} of partition {partition}"
        due = max(due, last + 1)
    assert due == end, f"partition {partition} was delivered up to {due}, it ends at {end}"
