"""Wake-ups of an idle broker: each new connection is served at once."""

import time
from collections.abc import Callable

import pytest

from tests.support import wire
from tests.support.broker import BrokerProcess
from tests.support.wire import Connection

PATIENCE_S = 0.1


@pytest.mark.parametrize("threads", [1, 3])
def test_each_new_connection_gets_a_response_at_once(start_broker: Callable[..., BrokerProcess], threads: int) -> None:
    """None of 10,000 connections waits for the half second after which a network thread would wake up on its own."""
    broker = start_broker(num__network__threads=str(threads))
    slow = []
    for number in range(10_000):
        begun = time.perf_counter()
        with Connection(broker.bootstrap) as connection:
            connection.ask(wire.header(wire.API_VERSIONS, 0, number))
        took = time.perf_counter() - begun
        if took > PATIENCE_S:
            slow.append((number, took))
    # a busy machine may delay some; after a lost wake-up, the wait is half a second or endless
    lost = [took for _, took in slow if took > 4 * PATIENCE_S]
    assert not lost, slow
    assert len(slow) <= 5, slow
