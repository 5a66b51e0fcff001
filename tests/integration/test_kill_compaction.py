"""kill -9 under compaction: the last acknowledged value of every key is kept."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from kbroker.log import checkpoints
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kill import create_topic, read_all
from tests.support.seeds import kill_count, random_seed

TOPIC = "compacted"
KEYS = 300
PADDING = b"." * 1000
SETTINGS = {"log__cleaner__backoff__ms": "20", "log__segment__delete__delay__ms": "200"}


class Writer(threading.Thread):
    """Producer of increasing numbers with random keys; keeps the acknowledged number of each key."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.acked: dict[int, int] = {}
        self.count = 0
        self.trouble: list[str] = []
        self.stopped = threading.Event()
        self._rng = random.Random(seed)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": 60_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is not None:
            self.trouble.append(str(error))
            return
        self.count += 1
        key, number = map(int, value.split()[:2])
        self.acked[key] = max(number, self.acked.get(key, -1))

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            key = self._rng.randrange(KEYS)
            try:
                self._producer.produce(TOPIC, b"%d %d %s" % (key, number, PADDING), b"%d" % key, 0, self._delivered)
                number += 1
            except BufferError:
                self._producer.poll(0.1)
            self._producer.poll(0)
            if number % 200 == 0:
                time.sleep(0.02)
        if self._producer.flush(60):
            self.trouble.append("records are left that no append was acknowledged for")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kill_9_under_compaction(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """No acknowledged last value of a key is lost or replaced by an earlier one, and compaction completed meanwhile."""
    kills = kill_count(5, 60)
    seed = random_seed()
    rng = random.Random(seed)
    broker = start_broker(**SETTINGS)
    configs = {"cleanup_policy": "compact", "segment_bytes": str(1 << 20), "min_cleanable_dirty_ratio": "0.01"}
    create_topic(broker.bootstrap, TOPIC, 1, **configs)
    checkpoint = broker.folder / checkpoints.CLEANER_OFFSET_CHECKPOINT
    writer = Writer(broker.bootstrap, seed)
    writer.start()
    cleaned = {0}  # offsets up to which the log was compacted at the kills
    try:
        for number in range(kills):
            before = writer.count
            wait_for(
                f"a segment's worth of records after {number} kills",
                lambda before=before: writer.count >= before + 1500 or writer.trouble,  # type: ignore[misc]
                60,
            )
            assert writer.trouble == []
            time.sleep(rng.uniform(0, 0.3))  # the moment of the kill is random
            broker.kill()
            cleaned.add(checkpoints.offset_checkpoint(checkpoint).read().get((TOPIC, 0), 0))
            broker.start()
    finally:
        writer.stopped.set()
        writer.join(90)
    assert writer.trouble == []
    found = read_all(broker.bootstrap, TOPIC, 0)
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    last: dict[int, int] = {}
    for _, value in found:
        key, number = map(int, value.split()[:2])
        assert number > last.get(key, -1), f"key {key} goes back from {last[key]} to {number}"
        last[key] = number
    lost = {key: (number, last.get(key)) for key, number in writer.acked.items() if last.get(key, -1) < number}
    assert not lost, f"acknowledged and last values by key: {lost}"
    assert len(cleaned) > kills // 3, f"few logs were cleaned: few kills were during cleaning ({cleaned})"
    assert len(found) < offsets[-1] + 1
    print(f"{kills} kills, {writer.count} acknowledged, {len(found)} of {offsets[-1] + 1} kept, cleaned to {cleaned}")
