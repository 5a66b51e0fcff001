"""kill -9 under group load: acknowledged records are kept and delivered, and no committed offset decreases."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.groups import CONSUMER, Groups
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kill import (
    PARTITIONS,
    AckLog,
    MemberLog,
    check_delivered,
    check_partition,
    create_topic,
    finish,
    read_all,
    start_module,
)
from tests.support.seeds import kill_count, random_seed

TOPIC, GROUP = "killed", "readers"
SETTINGS = {
    "group__initial__rebalance__delay__ms": "0",
    "group__min__session__timeout__ms": "1000",
    "offsets__topic__segment__bytes": str(1 << 20),
    "group__consumer__min__session__timeout__ms": "1000",
    "group__consumer__session__timeout__ms": "2000",
    "group__consumer__min__heartbeat__interval__ms": "100",
    "group__consumer__heartbeat__interval__ms": "200",
    "group__consumer__assignment__interval__ms": "0",
}
# protocols of two members that stay and one that joins and leaves; kills in a test and in the soak
PROTOCOLS = {
    "classic": ("classic classic classic", 2, 100),
    "consumer": ("consumer consumer consumer", 2, 50),
    "up-and-down": ("classic classic consumer", 2, 50),
    "down-and-up": ("consumer consumer classic", 1, 50),
}


def fetch_committed(bootstrap: str) -> dict[int, int]:
    with Cluster(bootstrap) as cluster:
        return {partition: found.offset for (_, partition), found in Groups(cluster).committed(GROUP).items()}


def check_owners(bootstrap: str) -> None:
    """Check that no partition has two owners; a classic group may describe earlier assignments."""
    with Cluster(bootstrap) as cluster:
        group = Groups(cluster).describe(GROUP)
    if group.group_type == CONSUMER:
        places = [place for member in group.members for place in member.assignment]
        assert len(places) == len(set(places)), group


def check_not_back(before: dict[int, int], after: dict[int, int], when: str) -> None:
    back = {p: (offset, after.get(p)) for p, offset in before.items() if after.get(p, -1) < offset}
    assert not back, f"committed offsets went back {when}, by partition: {back}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("protocols", PROTOCOLS)
def test_kill_9_under_a_group(start_broker: Callable[..., BrokerProcess], tmp_path: Path, protocols: str) -> None:
    """After each kill, committed offsets are at least the acknowledged ones; no acknowledged record is lost."""
    spoken, few, many = PROTOCOLS[protocols]
    kills = kill_count(few, many)
    rng = random.Random(random_seed())
    broker = start_broker(**SETTINGS)
    create_topic(broker.bootstrap, TOPIC, PARTITIONS, segment_bytes=str(1 << 20))
    acks, members = AckLog(tmp_path / "acks"), MemberLog(tmp_path / "commits")

    to = (broker.bootstrap, TOPIC)
    producer = start_module("acked_producer", *to, str(PARTITIONS), str(acks.path), rng.choice(["none", "lz4"]))
    consumers = start_module("group_members", *to, GROUP, str(members.path), *spoken.split())
    restarts = []
    known: dict[int, int] = {}

    def wait_for_commits(when: str, count: int = 10) -> None:
        before = members.read().commits
        wait_for(
            f"commits {when}",
            lambda: members.read().commits >= before + count or members.trouble or acks.read().trouble,
            60,
        )
        assert members.trouble == [], f"{members.trouble[:3]}\n{broker.tail()}"
        assert acks.trouble == [], f"{acks.trouble[:3]}\n{broker.tail()}"
        assert producer.poll() is consumers.poll() is None

    try:
        for number in range(kills):
            wait_for_commits(f"after {number} kills")
            time.sleep(rng.uniform(0, 1.0))  # the moment of the kill is random
            seen = fetch_committed(broker.bootstrap)
            check_not_back(known, seen, f"before kill {number + 1}")
            check_owners(broker.bootstrap)
            broker.kill()
            acknowledged = dict(members.read().committed)
            restarts.append(broker.start())
            known = fetch_committed(broker.bootstrap)
            check_not_back(seen, known, f"over kill {number + 1}")
            check_owners(broker.bootstrap)
            check_not_back(acknowledged, known, f"behind what was acknowledged before kill {number + 1}")
        wait_for_commits("after the last kill")
        assert finish(producer) == 0
        ends = acks.read().sent
        wait_for("the group at the end of each partition", lambda: fetch_committed(broker.bootstrap) == ends, 60, 0.2)
        assert finish(consumers, 60) == 0
    finally:
        for process in (producer, consumers):
            process.kill()
            process.wait(10)
            assert process.stdin is not None
            process.stdin.close()
    assert acks.trouble == members.read().trouble == []
    assert len(acks.acks) == sum(acks.sent.values()), "some records were neither acknowledged nor refused"
    for partition in range(PARTITIONS):
        check_partition(partition, read_all(broker.bootstrap, TOPIC, partition), acks)
        check_delivered(partition, members.delivered[partition], acks.sent[partition])
    restarts.sort()
    print(
        f"{kills} kills, {len(acks.acks)} records, {members.commits} commits; restart to ready: median "
        f"{restarts[len(restarts) // 2]:.2f} s, longest {restarts[-1]:.2f} s"
    )
