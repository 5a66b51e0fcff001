"""Threads of the share partitions."""

from typing import Any

from kbroker._core.timer.key_signal import KeySignal
from kbroker.share.share_partition_service import SharePartitionService
from tests.support.server import make_bench


def test_a_close_ends_the_threads() -> None:
    ctx = make_bench().ctx
    persister: Any = None
    service = SharePartitionService(
        ctx.config, ctx.clock, ctx.topics, ctx.controller, ctx.features, persister, KeySignal(), ctx.metrics
    )
    service.start()
    service.close(5.0)
    assert [one.name for one in service._threads if one.is_alive()] == []
