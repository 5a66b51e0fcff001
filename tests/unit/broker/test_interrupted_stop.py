"""Stop of a broker that Ctrl-C interrupts."""

from pathlib import Path

import pytest

from kbroker.broker import Broker
from tests.support.errors import raising


def test_ctrl_c_ends_one_step_of_a_stop(tmp_path: Path) -> None:
    """The steps after the interrupted one close the port and the log, and the broker can start again."""
    broker = Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "node.id": 1})
    broker.start()
    assert broker._runtime is not None
    broker._runtime._on_stop("long step", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        broker.stop()
    with broker:
        assert broker.is_running
