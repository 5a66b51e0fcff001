"""Quix Streams with exactly-once semantics, unmodified, with kill -9 of program and broker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.exactly_once import PARTITIONS, Worker, count_over_kills, fill, lines, started
from tests.clients.programs import HERE, python_with
from tests.support.broker import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_word_count(start_broker: Callable[..., BrokerProcess], tmp_path: Path, soak: bool) -> None:
    """Each word is counted one by one, with a state store and its changelog topic."""
    program = [python_with("quixstreams"), str(HERE / "quixstreams_count.py")]
    broker = started(start_broker, "words", "counted")
    words = " ".join(lines(120_000 if soak else 12_000)).split()
    # the state of a word belongs to the word's partition
    fill(broker.bootstrap, "words", ((int(word.rpartition("-")[2]) % PARTITIONS, word, word) for word in words))
    worker = Worker([*program, broker.bootstrap, str(tmp_path / "state")], tmp_path)
    count_over_kills(broker, worker, words, ("worker", "broker") * (5 if soak else 1))
