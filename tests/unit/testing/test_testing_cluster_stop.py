"""Stop of an embedded cluster, one of whose nodes cannot be stopped."""

from unittest.mock import Mock

import pytest

from kbroker.testing import EmbeddedCluster


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
