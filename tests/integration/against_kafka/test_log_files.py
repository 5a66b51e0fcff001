"""Files of partitions that received the same requests, compared with Apache Kafka's."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kbroker.log import checkpoints
from tests.conformance.batches import TRANSACTIONAL, Record, batch, taken_apart
from tests.support import need, seeds
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Client, new_topics, produce_body, set_configs
from tests.support.kafka import ApacheKafka

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
SETTINGS = {
    "log.initial.task.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
    "transaction.state.log.num.partitions": "1",
}
RESOURCE_TOPIC = 2
NOT_YET = {14, 15, 16, 51}  # the coordinator is not available, loads or has moved; the last transaction is ending
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DAY_MS = 86_400_000
HAS_DELETE_HORIZON, IS_CONTROL = 1 << 6, 1 << 5


@dataclass
class Side:
    """One broker and the folder of its partitions."""

    client: Client
    data: Path
    producers: list[int] = field(default_factory=list)  # ids in the order of their assignment

    def call(
        self, api: str, version: int, body: dict[str, Any], code: Callable[[dict[str, Any]], int]
    ) -> dict[str, Any]:
        """Repeat a request until its coordinator can serve it; return the response without an error."""
        while (error := code(response := self.client.call(api, version, body))) in NOT_YET:
            time.sleep(0.02)
        assert error == 0, (api, response)
        return response

    def create(self, topic: str, configs: dict[str, str]) -> None:
        self.call("CreateTopics", 4, new_topics(topic, configs=configs), lambda found: found["Topics"][0]["ErrorCode"])
        rows = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]
        body = {"ReplicaId": -1, "Topics": rows}

        def leads() -> bool:
            found = self.client.call("ListOffsets", 2, body)
            return not found["Topics"][0]["Partitions"][0]["ErrorCode"]

        wait_for(f"the leader of {topic}", leads)

    def alter(self, topic: str, configs: dict[str, str]) -> None:
        body = set_configs(RESOURCE_TOPIC, topic, configs)
        self.call("IncrementalAlterConfigs", 1, body, lambda found: found["Responses"][0]["ErrorCode"])

    def produce(self, topic: str, records: bytes, transaction: str | None = None) -> tuple[int, int]:
        """Send a batch; return error code and base offset."""
        body = {"TransactionalId": transaction, **produce_body(topic, records, acks=-1)}
        row = self.client.call("Produce", 9, body)["Responses"][0]["PartitionResponses"][0]
        return row["ErrorCode"], row["BaseOffset"]

    def begin(self, transaction: str) -> tuple[int, int]:
        """Return a new producer id and its epoch."""
        self.call("FindCoordinator", 3, {"Key": transaction, "KeyType": 1}, lambda found: found["ErrorCode"])
        body = {"TransactionalId": transaction, "TransactionTimeoutMs": 600_000, "ProducerId": -1, "ProducerEpoch": -1}
        found = self.call("InitProducerId", 4, body, lambda found: found["ErrorCode"])
        self.producers.append(found["ProducerId"])
        return found["ProducerId"], found["ProducerEpoch"]

    def add(self, transaction: str, producer: tuple[int, int], topic: str) -> None:
        names = ("TransactionalId", "ProducerId", "ProducerEpoch", "Topics")
        values = (transaction, *producer, [{"Name": topic, "Partitions": [0]}])
        body = {f"V3AndBelow{name}": value for name, value in zip(names, values, strict=True)}

        def code(found: dict[str, Any]) -> int:
            return int(found["ResultsByTopicV3AndBelow"][0]["ResultsByPartition"][0]["PartitionErrorCode"])

        self.call("AddPartitionsToTxn", 3, body, code)

    def end(self, transaction: str, producer: tuple[int, int], *, commit: bool) -> None:
        body = {"TransactionalId": transaction, "ProducerId": producer[0], "ProducerEpoch": producer[1]}
        self.call("EndTxn", 3, {**body, "Committed": commit}, lambda found: found["ErrorCode"])

        def has_markers() -> bool:
            found = self.client.call("DescribeTransactions", 0, {"TransactionalIds": [transaction]})
            return str(found["TransactionStates"][0]["TransactionState"]).startswith("Complete")

        wait_for(f"the markers of {transaction}", has_markers)

    def segments(self, topic: str) -> list[Path]:
        return sorted((self.data / f"{topic}-0").glob("*.log"))

    def files(self, topic: str) -> dict[str, Any]:
        """Return the contents of the segments, of the indexes of sealed segments, and of the snapshots."""
        found: dict[str, Any] = {path.name: path.read_bytes() for path in self.segments(topic)}
        for path in self.segments(topic)[:-1]:
            found |= {each.name: each.read_bytes() for each in map(path.with_suffix, (".index", ".timeindex"))}
        for path in self.segments(topic)[1:]:
            snapshot = path.with_suffix(".snapshot")
            found[snapshot.name] = sorted_rows(snapshot.read_bytes()) if snapshot.exists() else None
        return found

    def complete_files(self, topic: str) -> dict[str, Any]:
        """Return the files once all snapshots exist, which Kafka writes later."""
        wait_for(f"the snapshots of {topic}", lambda: None not in self.files(topic).values())
        return self.files(topic)

    def wait_for_compaction(self, topic: str) -> None:
        """Wait until all sealed segments have been compacted."""
        checkpoint = checkpoints.offset_checkpoint(self.data / checkpoints.CLEANER_OFFSET_CHECKPOINT)
        end = int(self.segments(topic)[-1].stem)
        wait_for(f"a compaction of {topic}", lambda: checkpoint.read().get((topic, 0)) == end, 120)

    def batches(self, topic: str) -> list[dict[str, Any]]:
        """Return the batches without the values that depend on the time of a marker or of a compaction."""
        found = taken_apart(b"".join(path.read_bytes() for path in self.segments(topic)))
        for one in found:
            if one["Attributes"] & (IS_CONTROL | HAS_DELETE_HORIZON):
                one["BaseTimestamp"] = None
                for row in one["Records"]:
                    row["TimestampDelta"] = None
            if one["Attributes"] & IS_CONTROL:
                one["MaxTimestamp"] = None
            if one["ProducerId"] in self.producers:
                one["ProducerId"] = f"number {self.producers.index(one['ProducerId'])}"
        return list(found)


def sorted_rows(snapshot: bytes) -> list[tuple[Any, ...]]:
    """Return the producers of a snapshot, whose order is that of a hash map."""
    version, _, count = struct.unpack_from(">hIi", snapshot)
    return [version, *sorted(struct.iter_unpack(">qhiqiqiq", snapshot[10 : 10 + 46 * count]))]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """A kbroker and a Kafka that compact at once."""
    need.program("java", "mvn")
    folder = tmp_path_factory.mktemp("files")
    with (
        ApacheKafka(SETTINGS, folder=folder / "kafka") as kafka,
        BrokerProcess(folder / "data", SETTINGS) as kbroker,
        Client(kbroker.bootstrap) as ours,
        Client(kafka.bootstrap) as theirs,
    ):
        yield Side(ours, folder / "data"), Side(theirs, kafka.folder / "data")


def test_appended_batches_make_the_same_files(sides: tuple[Side, Side]) -> None:
    """Logs, indexes and snapshots are equal, with segments rolled by size, time or index, and falling timestamps."""
    first = seeds.history_seed()
    for seed in range(first, first + seeds.history_count(3, 60)):
        draw, topic = random.Random(seed), f"appended-{seed}"
        configs = {
            "segment.bytes": "1048576",
            "segment.ms": draw.choice(["604800000", "3600000", "60000", "5000"]),
            "segment.index.bytes": draw.choice(["10485760", "4000", "1024"]),
            "index.interval.bytes": draw.choice(["4096", "300", "1", "0"]),
            "compression.type": draw.choice(["producer", "producer", "uncompressed"]),
            "retention.ms": "-1",
        }
        for side in sides:
            side.create(topic, configs)
        size_bytes, step_ms, most = (
            draw.choice([50, 2000, 60_000]),
            draw.choice([10, 300, 3000]),
            draw.choice([1, 5, 60]),
        )
        now_ms, written, sequences = int(time.time() * 1000) - DAY_MS, 0, {1001: 0, 1002: 0}
        while written < draw.choice([200_000, 2_500_000]):
            count = draw.randint(1, most)
            values = [draw.randbytes(draw.randint(0, size_bytes // count + 1)) for _ in range(count)]
            rows = [Record(value, later_ms=draw.randint(-20, 50)) for value in values]
            now_ms += draw.randint(-step_ms // 3, step_ms)
            how: dict[str, Any] = {}
            if draw.random() < 0.3:
                producer = draw.choice(list(sequences))
                how = {"producer_id": producer, "epoch": 0, "sequence": sequences[producer]}
                sequences[producer] += count
            data = batch(*rows, time_ms=now_ms, codec=draw.choice(CODECS), **how)
            written += len(data)
            ours, theirs = (side.produce(topic, data) for side in sides)
            assert ours == theirs, (seed, configs)
        found, expected = (side.complete_files(topic) for side in sides)
        assert [*found] == [*expected], (seed, configs)
        assert [name for name in found if found[name] != expected[name]] == [], (seed, configs)


def test_compaction_leaves_the_same_batches(sides: tuple[Side, Side]) -> None:
    """Records, empty batches, markers and tombstones remain as in Kafka, after the first pass and after later ones."""
    first = seeds.history_seed()
    for seed in range(first, first + seeds.history_count(1, 20)):
        draw, topic = random.Random(seed), f"compacted-{seed}"
        configs = {
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0",
            "retention.ms": "-1",
            "index.interval.bytes": draw.choice(["4096", "1"]),
            "delete.retention.ms": draw.choice(["0", "86400000"]),
            "compression.type": draw.choice(["producer", "gzip", "uncompressed"]),
        }
        for side in sides:
            side.create(topic, configs)
        keys = [draw.randbytes(draw.randint(0, 12)) for _ in range(draw.choice([3, 40, 2000]))]
        for _ in range(3):
            choices, now_ms = draw.random(), int(time.time() * 1000) - DAY_MS
            for side in sides:
                side.alter(topic, {"cleanup.policy": "delete"})
                fill(side, topic, keys, now_ms, random.Random(choices))
                side.alter(topic, {"cleanup.policy": "compact"})
            for side in sides:
                side.wait_for_compaction(topic)
            ours, theirs = sides
            assert [path.name for path in ours.segments(topic)] == [path.name for path in theirs.segments(topic)], seed
            assert ours.batches(topic) == theirs.batches(topic), (seed, configs)


def fill(side: Side, topic: str, keys: list[bytes], now_ms: int, draw: random.Random) -> None:
    """Write keyed records, tombstones, and transactions, some of which are aborted; none is open at the end."""
    written, size_bytes = 0, draw.choice([300, 2000, 8000])
    labels = [f"{topic}-a", f"{topic}-b"]
    producers = {label: side.begin(label) for label in labels}
    sequences, open_ones = dict.fromkeys(labels, 0), set()
    while written < 2_000_000:
        label = draw.choice([*labels, None, None])
        values = [
            None if draw.random() < 0.25 else draw.randbytes(draw.randint(0, size_bytes))
            for _ in range(draw.choice([1, 1, 5]))
        ]
        rows = [Record(value, draw.choice(keys), later_ms=draw.randint(0, 50)) for value in values]
        now_ms += draw.randint(0, 500)
        how: dict[str, Any] = {}
        if label:
            producer_id, epoch = producers[label]
            how = {
                "producer_id": producer_id,
                "epoch": epoch,
                "sequence": sequences[label],
                "attributes": TRANSACTIONAL,
            }
            sequences[label] += len(rows)
            if label not in open_ones:
                side.add(label, producers[label], topic)
                open_ones.add(label)
        data = batch(*rows, time_ms=now_ms, codec=draw.choice(CODECS[:2]), **how)
        written += len(data)
        assert side.produce(topic, data, label)[0] == 0
        if label and draw.random() < 0.3:
            side.end(label, producers[label], commit=draw.random() < 0.6)
            open_ones.discard(label)
    for label in sorted(open_ones):
        side.end(label, producers[label], commit=draw.random() < 0.6)
