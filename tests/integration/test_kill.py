"""kill -9 under produce: acknowledged records are kept once and in order."""

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kill import PARTITIONS, AckLog, check_partition, create_topic, finish, read_all, start_module
from tests.support.seeds import kill_count, random_seed


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_loses_nothing(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """After many kills, every acknowledged record is stored exactly once, in order, at its offset."""
    kills = kill_count(5, 300)
    rng = random.Random(random_seed())
    broker = start_broker()
    create_topic(broker.bootstrap, "killed", PARTITIONS, segment_bytes=str(1 << 20))
    log = AckLog(tmp_path / "acks")
    codec = rng.choice(["none", "none", "lz4", "zstd"])
    producer = start_module("acked_producer", broker.bootstrap, "killed", str(PARTITIONS), str(log.path), codec)
    restarts = []
    done = 0
    try:
        while done < kills:
            known = len(log.read().acks)
            wait_for(
                "acknowledgements after a restart",
                lambda known=known: len(log.read().acks) > known + 50 or log.trouble or producer.poll() is not None,  # type: ignore[misc]
                60,
            )
            assert log.trouble == [], f"the producer gave up after {done} kills: {log.trouble[:3]}\n{broker.tail()}"
            assert producer.poll() is None
            time.sleep(rng.uniform(0.05, 0.8))  # the moment of the kill is random
            broker.kill()
            done += 1
            if rng.random() < 0.2 and done < kills:  # a second kill during the recovery
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
        finish(producer)
    assert log.read().trouble == []
    assert sorted(log.sent) == list(range(PARTITIONS))
    assert len(log.acks) == sum(log.sent.values()), "some records were neither acknowledged nor refused"
    for partition in range(PARTITIONS):
        check_partition(partition, read_all(broker.bootstrap, "killed", partition), log)
    segments = list(broker.folder.glob("killed-*/*.log"))
    assert len(segments) > PARTITIONS, "no segment was rolled: the kills tested no roll"
    restarts.sort()
    print(
        f"{done} kills, {len(log.acks)} records, {len(segments)} segments, codec {codec}; restart to ready: median "
        f"{restarts[len(restarts) // 2]:.2f} s, longest {restarts[-1]:.2f} s"
    )


@pytest.mark.slow
def test_sigterm_ends_in_order(start_broker: Callable[..., BrokerProcess]) -> None:
    """SIGTERM ends the broker with status 0; topics, ids and records are kept."""
    broker = start_broker()
    create_topic(broker.bootstrap, "kept", 2)
    with wire.Connection(broker.bootstrap) as connection:
        for number in range(100):
            response = wire.produced(connection.ask(wire.produce("kept", 1, wire.batch([b"%d" % number]))))
            assert response == wire.Produced(0, number)
    assert broker.stop() == 0, broker.tail()
    broker.start()
    assert [value for _, value in read_all(broker.bootstrap, "kept", 1)] == [b"%d" % n for n in range(100)]
    assert read_all(broker.bootstrap, "kept", 0) == []
