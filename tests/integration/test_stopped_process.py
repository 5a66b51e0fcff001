"""Broker whose process is stopped by SIGSTOP for some time: no record is lost, and its clients continue."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.support import wire
from tests.support.broker import BrokerProcess
from tests.support.wire import Connection

STOPPED_S, SOAK_STOPPED_S = 1, 60

pytestmark = pytest.mark.slow


def test_a_process_that_is_stopped_goes_on(start_broker: Callable[..., BrokerProcess], soak: bool) -> None:
    """A request sent meanwhile receives its response on the same connection, and all records are kept after a kill."""
    broker = start_broker(log__flush__interval__messages="1")
    with Connection(broker.bootstrap, timeout=SOAK_STOPPED_S + 30) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic("t", 1))) == 0
        request = wire.produce("t", 0, wire.batch([b"value"]), acks=-1)
        assert wire.produced(connection.ask(request)) == wire.Produced(0, 0)
        os.kill(broker.pid, signal.SIGSTOP)
        os.waitpid(broker.pid, os.WUNTRACED)  # all threads are stopped, so none takes the request before SIGCONT
        try:
            connection.send(request)
            time.sleep(SOAK_STOPPED_S if soak else STOPPED_S)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert wire.produced(connection.receive()) == wire.Produced(0, 1)
        assert wire.produced(connection.ask(request)) == wire.Produced(0, 2)
    broker.kill()
    broker.start()
    assert wire.end_offset(broker.bootstrap, "t") == 3
    assert "Traceback" not in "".join(broker.output)
