"""Cost of groups of the consumer protocol for the coordinator: joins, a rebalance, heartbeats, memory, a start.

    python bench/bench_consumer_groups.py [--members 10000] [--partitions 5000] [--groups 1000]

Measures the CPU time of the coordinator alone, on a virtual clock and a log in memory, without a network. Goals
(CPython 3.11): a heartbeat in 50 us for any size of the group; a target assignment for 10,000 members in 0.5 s.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.measured import Measured
from kbroker._core.clock import VirtualClock
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from tests.support.consumer_groups import ConsumerGroupBench
from tests.support.fake_image import FakeImage

STEP_MS = 10
BEATS = 20_000


class Members:
    """Members of one group that follow the coordinator's assignments."""

    def __init__(self, bench: ConsumerGroupBench, group: str, topics: list[str]) -> None:
        self.bench = bench
        self.group = group
        self.topics = topics
        self.epochs: dict[str, int] = {}
        self.beats = 0

    def join(self, count: int) -> None:
        for number in range(count):
            member_id = f"{self.group}-{number:022}"
            self.epochs[member_id] = self.bench.join(member_id, self.topics, group=self.group).epoch

    def follow(self, member_id: str) -> bool:
        """Send a heartbeat, and another one if the assignment changed; return whether anything has changed."""
        epoch = self.epochs[member_id]
        beat = self.bench.beat(member_id, epoch, group=self.group)
        self.beats += 1
        has_other = beat.has is not None
        if has_other:
            beat = self.bench.beat(member_id, beat.epoch, group=self.group, has=beat.has)
            self.beats += 1
        self.epochs[member_id] = beat.epoch
        return has_other or beat.epoch != epoch

    def round(self) -> bool:
        """Send a heartbeat of each member; return whether anything has changed."""
        return sum(self.follow(member_id) for member_id in self.epochs) > 0

    def settle(self) -> None:
        """Send heartbeats until nothing changes."""
        while self.round():
            self.bench.after(STEP_MS)


def main() -> None:
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--groups", type=int, default=1_000)
    given = parser.parse_args()
    clock = VirtualClock()
    image = FakeImage(**{f"t{index}": 100 for index in range(given.partitions // 100)})
    bench = ConsumerGroupBench(image, ConsumerGroupSettings(), clock=clock)  # one assignment per second, by default
    topics = image.names()

    crowd = Members(bench, "crowd", topics)
    with Measured(f"{given.members:,} members join one group", given.members):
        crowd.join(given.members)
    bench.after(1000)
    with Measured("the target assignment, in one heartbeat"):
        crowd.follow(next(iter(crowd.epochs)))
    with Measured(f"all follow it ({given.partitions:,} partitions)"):
        crowd.settle()
    print(f"    in {crowd.beats:,} heartbeats; state {bench.described('crowd').state.value}")
    some = list(crowd.epochs.items())[:1000]
    with Measured("heartbeats that change nothing", BEATS):
        for _ in range(BEATS // len(some)):
            for member_id, epoch in some:
                bench.beat(member_id, epoch, group="crowd")
    with Measured("one member leaves"):
        member_id = next(iter(crowd.epochs))
        del crowd.epochs[member_id]
        bench.beat(member_id, -1, group="crowd")
    bench.after(1000)
    with Measured("and all follow"):
        crowd.settle()
    with Measured("a description"):
        bench.described("crowd")

    many = [Members(bench, f"g{number}", topics[:5]) for number in range(given.groups)]
    with Measured(f"{given.groups:,} groups of 10 members", 10 * given.groups):
        for group in many:
            group.join(10)
        bench.after(1000)
        for group in many:
            group.settle()
    with Measured("heartbeats that change nothing", 10 * given.groups):
        for group in many:
            group.round()
    with Measured("a list of the groups"):
        bench.coordinator.list_groups()
    with Measured("another coordinator loads all of it"):
        bench.restart()


if __name__ == "__main__":
    main()
