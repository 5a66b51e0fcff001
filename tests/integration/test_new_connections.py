"""A connection that comes while the broker is idle is served at once: no wake-up between its threads is lost."""

import time
from collections.abc import Callable

import pytest

from tests.support import wire
from tests.support.broker import BrokerProcess
from tests.support.wire import Connection

PATIENCE_S = 0.1


@pytest.mark.parametrize("threads", [1, 3])
def test_each_new_connection_gets_a_response_at_once(start_broker: Callable[..., BrokerProcess], threads: int) -> None:
    """The acceptor hands each over to a network thread that sleeps. One lost wake-up would cost its half second."""
    broker = start_broker(num__network__threads=str(threads))
    slow = []
    for number in range(10_000):
        begun = time.perf_counter()
        with Connection(broker.bootstrap) as connection:
            connection.ask(wire.header(wire.API_VERSIONS, 0, number))
        took = time.perf_counter() - begun
        if took > PATIENCE_S:
            slow.append((number, took))
    # a busy machine may take a core away for long; a lost wake-up waits for the threads' own half second, or for ever
    lost = [took for _, took in slow if took > 4 * PATIENCE_S]
    assert not lost, slow
    assert len(slow) <= 5, slow
