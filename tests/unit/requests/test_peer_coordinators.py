"""Coordinators of the nodes of one process."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.common.errors import KafkaError
from kbroker.requests import peers


class Runtime:
    """Partitions of ``__transaction_state``, of which this node leads those of ``led``."""

    name, exists = "__transaction_state", True

    def __init__(self, led: str) -> None:
        self._led = led

    def is_leader(self, key: str) -> bool:
        return key == self._led

    def index_of(self, key: str) -> int:
        return 0


@pytest.mark.parametrize(("leader", "expected"), [(1, "own"), (2, "other")])
def test_the_leader_of_two_nodes_coordinates(leader: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for an id of the other node goes to that node; without a leader it is refused."""
    own: Any = SimpleNamespace(runtime=Runtime("id" if leader == 1 else ""))
    other: Any = SimpleNamespace(runtime=Runtime(""))
    ctx: Any = SimpleNamespace(transactions=own)
    ctx.peers = {1: ctx, 2: SimpleNamespace(transactions=other)}
    monkeypatch.setattr(peers, "current_leader", lambda ctx, topic, index: (leader, 0))
    assert peers.transactions_of(ctx, "id") is {"own": own, "other": other}[expected]
    if leader == 2:
        monkeypatch.setattr(peers, "current_leader", lambda ctx, topic, index: (-1, 0))
        with pytest.raises(KafkaError, match="__transaction_state-0 has no leader"):
            peers.transactions_of(ctx, "id")
