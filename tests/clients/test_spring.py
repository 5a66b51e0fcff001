"""Spring for Apache Kafka with KafkaTransactionManager, unmodified, with rollbacks and kill -9."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.exactly_once import PARTITIONS, fill, java_worker, run_over_kills, started
from tests.clients.programs import SPRING
from tests.support.broker import BrokerProcess
from tests.support.topic_reader import Reader, read_to_end

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_copy(start_broker: Callable[..., BrokerProcess], tmp_path: Path, soak: bool) -> None:
    """The output equals the input, with every seventh batch rolled back once, and program and broker killed."""
    count = 100_000 if soak else 16_000
    broker = started(start_broker, "in", "out")
    fill(broker.bootstrap, "in", ((number % PARTITIONS, "", str(number)) for number in range(count)))
    worker = java_worker("SpringCopy", tmp_path, broker.bootstrap, pom=SPRING)
    output = Reader(broker.bootstrap, "out", PARTITIONS)
    try:
        run_over_kills(broker, worker, output, count, ("worker", "broker") * (5 if soak else 1))
        assert output.rows == read_to_end(broker.bootstrap, "in", PARTITIONS)
        assert read_to_end(broker.bootstrap, "out", PARTITIONS) == output.rows
        written = read_to_end(broker.bootstrap, "out", PARTITIONS, "read_uncommitted")
        assert sum(map(len, written.values())) > count, "no transaction was aborted"
    finally:
        worker.discard()
        output.close()
