"""Mixed load for hours: every record is checked, and memory, descriptors, threads and latency do not grow.

KBROKER_LOAD_SECONDS sets the duration: `make soak-long` runs eight hours, `make soak` two minutes.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.test_admin_kill import SETTINGS as AUTHORIZER
from tests.integration.test_admin_kill import Administrator, observe
from tests.integration.test_group_kill import GROUP, TOPIC, fetch_committed
from tests.integration.test_group_kill import SETTINGS as GROUPS
from tests.support import wire
from tests.support.broker import BrokerProcess, status_bytes, wait_for
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

SECONDS = float(os.environ.get("KBROKER_LOAD_SECONDS", "120"))
WARM_UP = 0.25  # share of the time before the first comparison, in which caches fill and members join
MAX_GROWTH_BYTES = 16 << 20
MAX_ABORTED_BYTES = 8  # memory of an aborted transaction in a partition
ENTRY_BYTES = 34  # of its file
MAX_MORE_DESCRIPTORS = 16  # connections of members that join and leave
EVERY_S = 0.5


@dataclass
class Sample:
    """Figures of the broker at one moment.

    memory_bytes is the anonymous memory: the kernel can drop mapped pages of indexes, which grow with the log.
    """

    memory_bytes: int
    aborted: int
    descriptors: int
    threads: int
    segments: int
    latency_s: float


def sample(broker: BrokerProcess, connection: wire.Connection) -> Sample:
    """Measure the process, and the time of a Produce with acks=all."""
    process = Path(f"/proc/{broker.pid}")
    begun = time.perf_counter()
    assert wire.produced(connection.ask(wire.produce("probe", 0, wire.batch([b"probe"])))).error_code == 0
    latency_s = time.perf_counter() - begun
    descriptors, threads = (len(list((process / folder).iterdir())) for folder in ("fd", "task"))
    segments = len(list(broker.folder.glob("__consumer_offsets-*/*.log")))
    aborted = sum(file.stat().st_size for file in broker.folder.glob("transactions-*/*.txnindex")) // ENTRY_BYTES
    return Sample(status_bytes(broker.pid, "RssAnon"), aborted, descriptors, threads, segments, latency_s)


def compared(samples: list[Sample]) -> dict[str, tuple[float, float]]:
    """Return the medians of the second quarter of the samples and of the last one."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[int(len(samples) * WARM_UP) :][:quarter], samples[-quarter:]

    def middle(some: list[Sample], name: str) -> float:
        return float(statistics.median(getattr(one, name) for one in some))

    return {name: (middle(early, name), middle(late, name)) for name in Sample.__annotations__}


def check_flat(figures: dict[str, tuple[float, float]]) -> None:
    """Check that only the segments with offsets and the aborted transactions have increased in number.

    Markers of offsets stay for a day, and each segment is open; transactions stay as long as their segments.
    """
    grown = {name: late - early for name, (early, late) in figures.items()}
    assert grown["memory_bytes"] <= MAX_GROWTH_BYTES + MAX_ABORTED_BYTES * grown["aborted"]
    assert grown["descriptors"] <= MAX_MORE_DESCRIPTORS + grown["segments"]
    assert figures["threads"][1] <= figures["threads"][0] + 1
    assert figures["latency_s"][1] <= 2 * figures["latency_s"][0] + 0.002


@pytest.mark.soak
@pytest.mark.timeout(int(SECONDS) * 2 + 600)
def test_mixed_load(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """A producer, a group that moves between both protocols, transactions and an administrator run together."""
    broker = start_broker(**GROUPS, **{name.replace(".", "__"): value for name, value in AUTHORIZER.items()})
    for topic, partitions in ((TOPIC, PARTITIONS), ("transactions", 2), ("probe", 1)):
        create_topic(broker.bootstrap, topic, partitions)
    to = broker.bootstrap
    acks, members = AckLog(tmp_path / "acks"), MemberLog(tmp_path / "commits")
    producer = start_module("acked_producer", to, TOPIC, str(PARTITIONS), str(acks.path), "lz4", "1")
    consumers = start_module("group_members", to, TOPIC, GROUP, str(members.path), "classic", "classic", "consumer")
    load = start_module("transactional_load", to, "transactions", "2", "2", str(tmp_path / "notes"))
    administrator = Administrator(0, 1)
    changes = threading.Thread(target=administrator.work, args=[to], daemon=True)
    changes.start()
    samples = []
    try:
        with wire.Connection(to) as connection:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                samples.append(sample(broker, connection))
                assert producer.poll() is consumers.poll() is load.poll() is None
                assert administrator.failure is None
                time.sleep(EVERY_S)
        assert finish(load, 120) == 0
        assert finish(producer) == 0
        ends = acks.read().sent
        wait_for("the group at the end of each partition", lambda: fetch_committed(to) == ends, 60, 0.2)
        assert finish(consumers, 60) == 0
    finally:
        for process in (producer, consumers, load):
            process.kill()
            process.wait(10)
    figures = compared(samples)
    text = ", ".join(f"{name} {early:.6g} -> {late:.6g}" for name, (early, late) in figures.items())
    print(f"{len(acks.acks)} records, {members.read().commits} commits, {administrator.done} changes; {text}")
    assert acks.trouble == members.trouble == []
    assert len(acks.acks) == sum(acks.sent.values()), "some records were neither acknowledged nor refused"
    for partition in range(PARTITIONS):
        check_partition(partition, read_all(to, TOPIC, partition, 600), acks)
        check_delivered(partition, members.delivered[partition], acks.sent[partition])
    broker.kill()
    changes.join(30)
    broker.start()
    administrator.check(observe(broker.bootstrap))
    check_flat(figures)
