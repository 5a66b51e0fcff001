"""kill -9 under transactions: each is complete or absent, with its offsets, and no record is duplicated."""

import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import librdkafka_consumer
from tests.support.kill import Notes, create_topic, finish, start_module
from tests.support.seeds import kill_count, random_seed
from tests.support.topic_reader import read_to_end
from tests.support.transactional_load import RECORDS

PARTITIONS, WORKERS = 3, 3
NEXT_TRANSACTIONS = 6  # committed between two kills


class TransactionLog(Notes):
    """Notes of the workers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.committed: list[tuple[int, int]] = []
        self.replaced: list[str] = []
        self.done = False

    def note(self, kind: str, numbers: list[str]) -> bool:
        if kind == "commit":
            worker, number = map(int, numbers)
            self.committed.append((worker, number))
        elif kind == "fatal":
            self.replaced.append(" ".join(numbers))
        self.done = self.done or kind == "done"
        return kind in ("commit", "fatal", "done")


def committed_offsets(bootstrap: str, topic: str) -> list[int]:
    """Return the number of committed transactions of each worker's group."""
    found = []
    for worker in range(WORKERS):
        with closing(librdkafka_consumer(bootstrap, f"load-{worker}", isolation_level="read_committed")) as consumer:
            (row,) = consumer.committed([TopicPartition(topic, worker % PARTITIONS)], 30)
            found.append(max(0, row.offset))
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_in_transactions(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """After many kills, all records of a transaction are in all partitions, or none, as the committed offset says."""
    kills = kill_count(6, 200)
    rng = random.Random(random_seed())
    broker = start_broker(transaction__state__log__num__partitions="4", offsets__topic__num__partitions="4")
    create_topic(broker.bootstrap, "killed", PARTITIONS, segment_bytes=str(1 << 20))
    log = TransactionLog(tmp_path / "notes")
    load = start_module("transactional_load", broker.bootstrap, "killed", str(PARTITIONS), str(WORKERS), str(log.path))
    try:
        for done in range(kills + 1):
            known = len(log.read().committed)
            wait_for(
                "transactions after a restart",
                lambda known=known: len(log.read().committed) > known + NEXT_TRANSACTIONS or load.poll() is not None,  # type: ignore[misc]
                120,
            )
            assert load.poll() is None
            if done == kills:
                break
            time.sleep(rng.uniform(0, 0.3))  # the moment of the kill is random
            broker.kill()
            broker.start()
        finish(load, 120)
        assert log.read().done
        assert log.trouble == []
    finally:
        load.kill()
        load.wait(10)
    print(f"{len(log.committed)} transactions acknowledged; producers replaced: {log.replaced}")
    ends = committed_offsets(broker.bootstrap, "killed")
    for worker in range(WORKERS):
        acknowledged = [number for who, number in log.committed if who == worker]
        assert acknowledged == sorted(set(acknowledged)), f"worker {worker} committed a transaction twice"
        assert acknowledged[-1] < ends[worker], f"worker {worker}: the offset of an acknowledged transaction is lost"
    for partition, rows in read_to_end(broker.bootstrap, "killed", PARTITIONS).items():
        for worker in range(WORKERS):
            mine = [value for _, value in rows if value.startswith(f"{worker}:")]
            wanted = [f"{worker}:{number}:{i}" for number in range(ends[worker]) for i in range(RECORDS)]
            assert mine == wanted, f"partition {partition}, worker {worker}"
