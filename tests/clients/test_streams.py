"""Kafka Streams with exactly_once_v2, unmodified, with kill -9 of program and broker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.exactly_once import PARTITIONS, count_over_kills, fill, lines, started, streams_worker
from tests.support.broker import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_word_count(start_broker: Callable[..., BrokerProcess], tmp_path: Path, soak: bool) -> None:
    """Each word is counted one by one, with a repartition topic, a state store and its changelog topic."""
    broker = started(start_broker, "lines", "counted")
    text = lines(400_000 if soak else 60_000)
    fill(broker.bootstrap, "lines", ((number % PARTITIONS, "", line) for number, line in enumerate(text)))
    worker = streams_worker("WordCount", tmp_path, broker.bootstrap, str(tmp_path / "state"))
    count_over_kills(broker, worker, text, ("worker", "broker") * (5 if soak else 1))
