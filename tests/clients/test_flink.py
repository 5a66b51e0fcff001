"""Flink's KafkaSink with EXACTLY_ONCE, unmodified, with kill -9 of program and broker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.exactly_once import PARTITIONS, Worker, count_over_kills, fill, lines, started
from tests.clients.programs import FLINK, java_program
from tests.support.broker import BrokerProcess

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.mark.parametrize("naming", ["INCREMENTING", "POOLING"])
def test_word_count(naming: str, start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """Each word is counted one by one, with state in checkpoints and transactions committed after them.

    A restart finds open transactions with InitProducerId if names are INCREMENTING, and with ListTransactions if they
    are POOLING. It commits those of its checkpoint with the producer id and epoch stored there.
    """
    command = java_program("FlinkWordCount", FLINK)
    broker = started(start_broker, "lines", "counted")
    text = lines(100_000)
    fill(broker.bootstrap, "lines", ((number % PARTITIONS, "", line) for number, line in enumerate(text)))
    worker = Worker([*command, broker.bootstrap, str(tmp_path / "checkpoints"), naming], tmp_path)
    count_over_kills(broker, worker, text, ("worker", "broker", "worker"))
