"""Service around the group coordinator."""

import threading

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.coordinator.group_service import GroupService
from kbroker.log.scheduler import Scheduler
from kbroker.metrics.registry import Metrics
from tests.support.errors import raising
from tests.support.groups import refuse_share_partition
from tests.support.server import make_bench


def test_a_service_without_threads_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without threads closes its coordinator, which would write beside the next service's coordinator."""
    ctx, clock = make_bench().ctx, VirtualClock()
    scheduler, metrics = Scheduler(clock), Metrics(clock=clock)
    service = GroupService(ctx.config, clock, ctx.topics, scheduler, ctx.controller, metrics, refuse_share_partition)
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        service.start()
    assert service.coordinator.runtime.is_closed
    assert (ctx.topics.on_deleted, scheduler.task_names) == ([], [])
