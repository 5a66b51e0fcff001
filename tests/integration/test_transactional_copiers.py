"""Kafka's TransactionalMessageCopier: the output equals the input after aborts and kill -9 of the broker."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import need
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kafka import java_command
from tests.support.kill import create_topic
from tests.support.topic_reader import read_to_end

confluent_kafka = pytest.importorskip("confluent_kafka")

COPIERS, RECORDS, PER_TRANSACTION = 3, 6_000, 50
TIMEOUT_S = 150.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    need.program("java", "mvn")
    with BrokerProcess(tmp_path / "data", {"group.initial.rebalance.delay.ms": "0"}) as broker:
        create_topic(broker.bootstrap, "in", COPIERS)
        create_topic(broker.bootstrap, "out", COPIERS)
        yield broker


class Copier:
    """Copier in a separate JVM; ``output`` has its printed lines."""

    def __init__(self, bootstrap: str, index: int) -> None:
        command = java_command(
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", bootstrap, "--input-topic", "in", "--input-partition", str(index)),
            *("--output-topic", "out", "--consumer-group", "copiers", "--transactional-id", f"copier-{index}"),
            *("--transaction-size", str(PER_TRANSACTION), "--enable-random-aborts", "--use-group-metadata"),
        )
        self.output: list[str] = []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.output.extend(self.process.stdout)

    def copied(self) -> int:
        """Return the number of records in committed transactions."""
        lines = [json.loads(line) for line in self.output if line.startswith("{")]
        return max((line.get("totalProcessed", 0) for line in lines), default=0)

    def is_done(self) -> bool:
        return self.process.poll() is not None

    def discard(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def read(bootstrap: str, isolation: str) -> list[int]:
    """Return all values of the output."""
    rows = read_to_end(bootstrap, "out", COPIERS, isolation)
    return [int(value) for index in rows for _, value in rows[index]]


def test_the_output_is_the_input(broker: BrokerProcess) -> None:
    """Three copiers that abort a third of their transactions copy each record once, although the broker is killed
    twice.
    """
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce("in", str(number), partition=number % COPIERS)
    assert producer.flush(30) == 0
    copiers = [Copier(broker.bootstrap, index) for index in range(COPIERS)]
    try:
        for share in (4, 2):
            wait_for(
                f"1/{share} is copied",
                lambda share=share: sum(c.copied() for c in copiers) * share > RECORDS,  # type: ignore[misc]
                TIMEOUT_S,
            )
            broker.kill()
            broker.start()
        wait_for("all copiers have ended", lambda: all(c.is_done() for c in copiers), TIMEOUT_S)
    finally:
        for copier in copiers:
            copier.discard()
    shown = "".join(line for copier in copiers for line in copier.output[-20:])
    assert [copier.process.returncode for copier in copiers] == [0] * COPIERS, shown
    assert sorted(read(broker.bootstrap, "read_committed")) == list(range(RECORDS))
    assert len(read(broker.bootstrap, "read_uncommitted")) > RECORDS, "no transaction was aborted"
