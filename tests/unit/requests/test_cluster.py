"""State of partitions for clients."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.common.errors import Errors
from kbroker.metadata.image.partition_registration import RECOVERED, PartitionRegistration
from kbroker.requests.cluster import partition_state


@pytest.mark.parametrize(
    ("leader", "log", "live", "registered", "error", "offline"),
    [
        pytest.param(2, None, {1, 2, 3}, {1, 2, 3}, Errors.NONE, [], id="another node leads"),
        pytest.param(1, "log", {1, 2}, {1, 2, 3}, Errors.NONE, [3], id="this node leads"),
        pytest.param(2, "log", {1, 3}, {1, 2, 3}, Errors.LISTENER_NOT_FOUND, [2], id="no listener"),
        pytest.param(2, "log", {1, 3}, {1, 3}, Errors.LEADER_NOT_AVAILABLE, [2], id="not registered"),
        pytest.param(1, None, {1, 3}, {1, 2, 3}, Errors.LEADER_NOT_AVAILABLE, [1, 2], id="log not read"),
        pytest.param(-1, "log", {1, 2, 3}, {1, 2, 3}, Errors.LEADER_NOT_AVAILABLE, [], id="no leader"),
    ],
)
def test_state_of_a_partition(
    leader: int, log: str | None, live: set[int], registered: set[int], error: Errors, offline: list[int]
) -> None:
    """A leader that serves no clients is not named; offline replicas are in the order of the replicas, each once."""
    ctx: Any = SimpleNamespace(node_id=1, image=SimpleNamespace(brokers=dict.fromkeys(registered)))
    registration = PartitionRegistration((1, 2, 3), (), (1, 2), (), (), leader, RECOVERED, 5, 6)
    view: Any = SimpleNamespace(registrations=(registration,), partitions=(log,))
    state = partition_state(ctx, view, 0, live)
    assert (state.error, state.leader, state.offline) == (error, -1 if error else leader, offline)
    assert (state.leader_epoch, state.replicas, state.isr) == (5, [1, 2, 3], [1, 2])
