"""A broker for tests: fixtures for pytest, time that the test moves, faults on demand, snapshots, an HTTP control port.

    from kbroker.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        broker.create_topic("orders")
        with broker.faults.add("Produce", error="NOT_LEADER_OR_FOLLOWER", count=2):
            ...  # a client that produces to broker.bootstrap_servers is refused twice, or the block fails

The fixtures are in ``kbroker.testing.plugin``; pytest finds them once kbroker is installed. The names of this
module are loaded on first use: a run of pytest without a broker imports none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker._core.clock import VirtualClock as VirtualClock
    from kbroker.common.errors import Errors as Errors
    from kbroker.testing.cluster import EmbeddedCluster as EmbeddedCluster
    from kbroker.testing.control import ControlServer as ControlServer
    from kbroker.testing.embedded import EmbeddedBroker as EmbeddedBroker
    from kbroker.testing.embedded import Snapshot as Snapshot
    from kbroker.testing.embedded import VirtualBroker as VirtualBroker
    from kbroker.testing.faults import Fault as Fault
    from kbroker.testing.faults import FaultRules as FaultRules
    from kbroker.testing.transactions import HeldMarkers as HeldMarkers
    from kbroker.testing.waiting import wait_until as wait_until

_HOMES = {
    "ControlServer": "kbroker.testing.control",
    "EmbeddedBroker": "kbroker.testing.embedded",
    "EmbeddedCluster": "kbroker.testing.cluster",
    "Errors": "kbroker.common.errors",
    "Fault": "kbroker.testing.faults",
    "FaultRules": "kbroker.testing.faults",
    "HeldMarkers": "kbroker.testing.transactions",
    "Snapshot": "kbroker.testing.embedded",
    "VirtualBroker": "kbroker.testing.embedded",
    "VirtualClock": "kbroker._core.clock",
    "wait_until": "kbroker.testing.waiting",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
