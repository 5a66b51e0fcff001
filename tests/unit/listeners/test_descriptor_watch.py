"""Log of a shortage of file descriptors."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.listeners.descriptor_watch import DescriptorWatch


def test_shortage_and_its_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each continuing shortage is logged once, and its end once."""
    acceptors = [SimpleNamespace(out_of_descriptors=0), SimpleNamespace(out_of_descriptors=0)]
    server = SimpleNamespace(acceptors=acceptors, connection_quotas=SimpleNamespace(count=lambda: 7))
    watch = DescriptorWatch(cast("Any", server))
    logged = []
    with caplog.at_level(logging.INFO):
        for shortages in (0, 0, 3, 4, 4, 4):
            acceptors[1].out_of_descriptors = shortages
            caplog.clear()
            watch.look()
            logged.append([(record.levelname, record.getMessage()[:26]) for record in caplog.records])
    short, over = ("WARNING", "new connections wait: 7 ar"), ("INFO", "new connections are accept")
    assert logged == [[], [], [short], [short], [over], []]
