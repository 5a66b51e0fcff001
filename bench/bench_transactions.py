"""Cost of many transactional ids: memory and load time of 100,000 ids, transactions per second, and a list of all ids.

    python bench/bench_transactions.py [--ids 100000] [--open 10000]

Goals (two cores, Linux, CPython 3.11): 100,000 ids in 40 MiB, loaded in 1 s of CPU; a check of 10,000 open transactions
for timeouts in 10 ms; a transaction of one partition in 66 us of CPU in the coordinator alone.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.measured import Measured
from kbroker._core.clock import SystemClock
from kbroker.coordinator.internal_topic import InternalTopic
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.log._partition_log import PartitionLog
from kbroker.log.scheduler import Scheduler
from tests.support.transactions import FakeMarkers

PARTITIONS = 50
ENDS = 10_000


class FolderTopic(InternalTopic):
    """Topic ``__transaction_state`` in a folder."""

    partition_count = PARTITIONS

    def __init__(self, folder: Path, clock: SystemClock) -> None:
        self.logs = []
        for index in range(PARTITIONS):
            path = folder / f"__transaction_state-{index}"
            path.mkdir(exist_ok=True)
            self.logs.append(PartitionLog(path, "__transaction_state", index, uuid.UUID(int=1), {}, clock))

    def ensure(self) -> None:
        pass

    def partition(self, index: int) -> PartitionLog:
        return self.logs[index]

    def led_epoch(self, index: int) -> int:
        return 0

    def folder(self, index: int) -> str:
        return f"{index}"

    def close(self) -> None:
        for log in self.logs:
            log.close()


def coordinator_of(topic: FolderTopic, clock: SystemClock) -> TransactionCoordinator:
    return TransactionCoordinator(clock, topic, itertools.count(1000).__next__, FakeMarkers(), Scheduler(clock))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--open", type=int, default=10_000)
    asked = parser.parse_args()
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        topic = FolderTopic(Path(folder), clock)
        coordinator = coordinator_of(topic, clock)
        coordinator.start()
        with Measured(f"{asked.ids} new ids", asked.ids):
            producers = [coordinator.init_producer_id(f"application-{n:06d}", 900_000) for n in range(asked.ids)]
        with Measured(f"{asked.open} transactions opened", asked.open):
            for number in range(asked.open):
                coordinator.add_partitions(f"application-{number:06d}", *producers[number], [("t", number % 100)])
        mine = producers[-1]
        with Measured(f"{ENDS} transactions of one partition", ENDS):
            for _ in range(ENDS):
                coordinator.add_partitions(f"application-{asked.ids - 1:06d}", *mine, [("t", 0)])
                mine = coordinator.end_transaction(f"application-{asked.ids - 1:06d}", *mine, commit=True)
        del coordinator, producers
        with Measured(f"loading {asked.ids} ids", asked.ids):
            coordinator = coordinator_of(topic, clock)
            coordinator.start()
        assert coordinator.counts()[0] == asked.ids
        for what, look in (
            ("time-outs looked for", coordinator.abort_timed_out),
            ("expired ids looked for", coordinator.expire_ids),
            ("all ids listed", coordinator.list_transactions),
        ):
            with Measured(what):
                look()
        topic.close()


if __name__ == "__main__":
    main()
