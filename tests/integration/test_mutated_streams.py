"""Mutated frames of every API over TCP: the broker serves its other clients, and its memory does not grow."""

import contextlib
import socket
import struct
import time
import uuid
from collections.abc import Callable

import pytest

from kbroker._core.requests.request_queue import Queue
from tests.native.mutated_frames import MutatedFrames
from tests.support import wire
from tests.support.broker import BrokerProcess, rss_bytes, wait_for
from tests.support.client import Client, SteadyProducer
from tests.support.descriptors import socket_count
from tests.support.frames import TOPICS, Corpus
from tests.support.seeds import random_seed

PATIENCE_S = 0.02
TOPIC_ALREADY_EXISTS = 36
MAX_GROWTH_BYTES = 64 << 20
SETTINGS = {"auto__create__topics__enable": "false", "log__retention__bytes": str(4 << 20)}


def create_topics(bootstrap: str, *names: str) -> list[uuid.UUID]:
    """Create the topics that do not exist, and return the ids of all of them."""
    with Client(bootstrap) as client:
        for name in names:
            assert wire.first_topic_error(client.ask(wire.create_topic(name, 2))) in (0, TOPIC_ALREADY_EXISTS)
        topics = client.call("Metadata", 12, {"Topics": [{"Name": name} for name in names]})["Topics"]
    return [topic["TopicId"] for topic in topics]


def send(bootstrap: str, frame: bytes) -> None:
    """Send a frame over a new connection; wait for the response or the end of the connection."""
    connection = wire.Connection(bootstrap)
    try:
        connection.send_raw(struct.pack(">i", len(frame)) + frame)
        connection.socket.shutdown(socket.SHUT_WR)
        connection.socket.settimeout(PATIENCE_S)  # for a request that waits
        with contextlib.suppress(wire.Closed):
            connection.receive()
    except OSError:
        pass
    finally:
        connection.reset()  # a hundred thousand closed connections would use up the ports


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_mutated_frames_over_tcp(start_broker: Callable[..., BrokerProcess], soak: bool) -> None:
    """After 4,000 mutated frames, 100,000 in the soak, other clients are served and resources have not grown."""
    count = 100_000 if soak else 4_000
    seed = random_seed()
    broker = start_broker(**SETTINGS)
    ids = create_topics(broker.bootstrap, *TOPICS)
    create_topics(broker.bootstrap, "steady")
    keys = list(wire.ranges(broker.bootstrap))
    source = MutatedFrames(Queue(1, None), Corpus(seed, ids).frames(keys, 5), seed)
    steady = SteadyProducer(broker.bootstrap, "steady")
    slowest = 0.0
    try:
        assert steady.is_unharmed()
        memory, sockets = rss_bytes(broker.pid), socket_count(broker.pid)
        for sent in range(count):
            send(broker.bootstrap, source.take())
            if sent % 1000 == 0:
                begun = time.monotonic()
                assert wire.responses(broker.bootstrap, within=1.0), f"no response after {sent} frames"
                slowest = max(slowest, time.monotonic() - begun)
                assert steady.failures == []
                create_topics(broker.bootstrap, *TOPICS)  # replace those that frames have deleted
        assert steady.is_unharmed()
        growth = rss_bytes(broker.pid) - memory
        print(f"{count} frames, slowest response {slowest * 1e3:.0f} ms, memory grew by {growth >> 10} KiB")
        assert growth <= MAX_GROWTH_BYTES
        wait_for("sockets are closed again", lambda: socket_count(broker.pid) <= sockets, 60)
    finally:
        steady.stop()
    assert "Traceback" not in "".join(broker.output)
