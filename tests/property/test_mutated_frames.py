"""Mutated frames of every API and version, in this process: each results in a response or a closed connection.

`make fuzz` sends ten million of them to a build with sanitizers; KBROKER_FUZZ_FRAMES sets another number for each test.
"""

import logging
import os
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kbroker.testing import VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.native.mutated_frames import MutatedFrames
from tests.support import wire
from tests.support.broker import rss_bytes
from tests.support.frames import TOPICS, Corpus
from tests.support.seeds import random_seed

NATIVE = [0, 1, 18]  # APIs that the native handlers serve
FRAMES = {"native": 100_000, "python": 20_000}
MANY = {"native": 7_000_000, "python": 3_000_000}
PER_TURN, MAX_WAITING = 5000, 2000
TURNS_OF_A_CORPUS = 20
LONGEST_WAIT_MS = 2**31
MAX_GROWTH_BYTES = 64 << 20
SETTINGS = {
    "log.retention.bytes": 4 << 20,
    "log.segment.bytes": 1 << 20,
    "log.retention.check.interval.ms": 60_000,
    "auto.create.topics.enable": False,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[VirtualBroker]:
    with VirtualBroker({**SETTINGS, "log.dirs": str(tmp_path / "data")}) as running:
        yield running


def topic_ids(broker: VirtualBroker) -> list[uuid.UUID]:
    """Create the topics that frames have deleted; return the ids of all topics."""
    for topic in TOPICS:
        if topic not in broker.topics:
            broker.create_topic(topic, 2)
    return [view.topic_id for view in broker.context.topics.all()]


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("kind", FRAMES)
def test_mutated_frames(broker: VirtualBroker, kind: str, soak: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Each frame is completed once, no handler fails, memory does not grow, and another client is served."""
    seed = random_seed()
    count = int(os.environ.get("KBROKER_FUZZ_FRAMES", "0")) or (MANY if soak else FRAMES)[kind]
    keys = [key for key in wire.ranges(broker.bootstrap_servers) if (key in NATIVE) == (kind == "native")]
    found = [0, 0, 0]
    memory = 0
    caplog.set_level(logging.ERROR)
    for turn in range(-(-count // PER_TURN)):
        if turn % TURNS_OF_A_CORPUS == 0:
            corpus = Corpus(seed + turn, topic_ids(broker))
            source = MutatedFrames(broker.parts.requests, corpus.frames(keys, 3), seed + turn)
        assert source.put(PER_TURN)
        wait_until(partial(is_done, broker, source, MAX_WAITING), 120, "responses")
        if turn % TURNS_OF_A_CORPUS == TURNS_OF_A_CORPUS - 1 or (turn + 1) * PER_TURN >= count:
            wait_until(partial(is_done, broker, source, 0), 120, "responses of the requests that waited")
            assert wire.responses(broker.bootstrap_servers, within=5.0)
            found = [sum(both) for both in zip(found, source.counts(), strict=True)]
            memory = memory or rss_bytes(os.getpid())
    responses, closed, mismatched = found
    print(f"{responses} responses, {closed} connections closed")
    assert responses + closed == -(-count // PER_TURN) * PER_TURN
    assert mismatched == 0, "responses with another correlation id than their request"
    assert min(responses, closed) > count // 20
    assert [record.getMessage() for record in caplog.records] == []
    if not os.environ.get("KBROKER_SANITIZED"):
        assert rss_bytes(os.getpid()) - memory <= MAX_GROWTH_BYTES


def is_done(broker: VirtualBroker, source: MutatedFrames, waiting: int) -> bool:
    """Return whether at most ``waiting`` frames lack a response; otherwise advance the clock by the longest wait."""
    if source.outstanding > waiting and broker.is_idle:
        broker.advance_ms(LONGEST_WAIT_MS, 60)
    return source.outstanding <= waiting
