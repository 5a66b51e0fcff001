"""Stop of an embedded cluster during its start, and of one with a node that cannot be stopped."""

from unittest.mock import Mock

import pytest

from kbroker.broker import StartCancelled
from kbroker.broker.runtime import BrokerRuntime
from kbroker.broker.storage import BrokerStorage
from kbroker.testing import EmbeddedCluster


@pytest.mark.parametrize(("owner", "step"), [(BrokerStorage, "load"), (BrokerRuntime, "_start_network")])
def test_a_signal_handler_that_stops_a_start(owner: type, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler, which runs in the start's thread, closes nothing; the start closes its parts and is cancelled."""
    cluster = EmbeddedCluster(2)
    original = getattr(owner, step)

    def stopped_meanwhile(*arguments: object) -> None:
        cluster.stop()
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, stopped_meanwhile)
        with pytest.raises(StartCancelled):
            cluster.start()
    assert cluster.live == []
    with cluster:
        assert cluster.live == [1, 2]


def test_a_node_that_cannot_stop_keeps_no_other_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised after the other nodes have stopped and the reserved ports are closed."""
    cluster = EmbeddedCluster(2)
    cluster.start()
    with monkeypatch.context() as patch:
        patch.setattr(cluster.node(2), "stop", Mock(side_effect=OSError("the folder cannot be removed")))
        with pytest.raises(OSError, match="the folder cannot be removed"):
            cluster.stop()
    assert cluster.live == [2]
    assert cluster._held == []
    cluster.stop()
