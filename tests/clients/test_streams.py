"""Kafka Streams with exactly_once_v2, unmodified: its counts are exact over kill -9 of program and broker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.exactly_once import PARTITIONS, Worker, count_over_kills, fill, lines, started
from tests.clients.programs import streams_program
from tests.support.broker import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_word_count(start_broker: Callable[..., BrokerProcess], tmp_path: Path, soak: bool) -> None:
    """A repartition topic, a state store and its changelog: each word is counted one by one, over every kill."""
    command = streams_program("WordCount")
    broker = started(start_broker, "lines", "counted")
    text = lines(400_000 if soak else 60_000)
    fill(broker.bootstrap, "lines", ((number % PARTITIONS, "", line) for number, line in enumerate(text)))
    worker = Worker([*command, broker.bootstrap, str(tmp_path / "state")], tmp_path)
    count_over_kills(broker, worker, text, ("worker", "broker") * (5 if soak else 1))
