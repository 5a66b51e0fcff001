"""Figures of a topic in lists, and the places of a page of messages."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.console.requests import PageError, Query
from kbroker.console.views.messages import _looked, _record
from kbroker.console.views.topics import Figures, _local_figures


def test_offline_partitions_of_a_topic() -> None:
    """A partition without a leader is offline, as is one that this node leads and could not read."""
    log = SimpleNamespace(high_watermark=9, log_start_offset=2, size_bytes=5)
    view = SimpleNamespace(
        partitions=(log, None, None, None),
        registrations=[SimpleNamespace(leader=leader) for leader in (0, 0, -1, 1)],
        hosted=lambda node_id: [log],
    )
    site: Any = SimpleNamespace(
        context=SimpleNamespace(topics={"t": view}, node_id=0),
        local=SimpleNamespace(topic_history=SimpleNamespace(rate=lambda name: 1.5)),
    )
    assert _local_figures(site, "t", has_sizes=True) == Figures(7, 5, 2, 1.5)
    assert _local_figures(site, "t", has_sizes=False) == Figures(7, None, 2, 1.5)
    view.hosted = lambda node_id: []
    assert _local_figures(site, "t", has_sizes=True) == Figures(offline=1)


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_step_without_more_records_is_the_last(is_complete: bool) -> None:
    """After the last step forward there is no newer page, and after the last step backward no older one."""
    step: Any = SimpleNamespace(is_complete=is_complete, marks={0: 7})
    search: Any = SimpleNamespace(
        partitions={0: SimpleNamespace(log_start_offset=0, high_watermark=20)},
        scan=SimpleNamespace(forward=lambda at, count: step, backward=lambda ends, count: step),
    )
    rest = None if is_complete else {0: 7}
    assert _looked(Query({"at": "0-5"}), search, 10) == (step, {0: 5}, rest, True)
    assert _looked(Query({"before": "0-15"}), search, 10) == (step, rest, {0: 15}, False)


def test_a_message_without_its_offset_is_wrong_usage() -> None:
    """The page of one message needs its offset; without it, and with partition 0 offline, there was no partition."""
    search: Any = SimpleNamespace(number=None, partitions={1: None})
    with pytest.raises(PageError, match="parameter offset is missing") as caught:
        _record(search, Query({"topic": "t"}))
    assert caught.value.status == 400
