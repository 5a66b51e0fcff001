"""Threads of the share partitions, and the release of records of a member."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kbroker._core.timer.key_signal import KeySignal
from kbroker.apis import api78_share_fetch
from kbroker.share.sessions import SharedPartition
from kbroker.share.share_partition import SharePartitionKey
from kbroker.share.share_partition_service import SharePartitionService
from tests.support.server import make_bench
from tests.support.thread_starts import allow_threads


def make_service(signal: KeySignal) -> SharePartitionService:
    ctx = make_bench().ctx
    persister: Any = None
    return SharePartitionService(
        ctx.config, ctx.clock, ctx.topics, ctx.controller, ctx.features, persister, signal, ctx.metrics
    )


def test_a_close_ends_the_threads() -> None:
    service = make_service(KeySignal())
    service.start()
    service.close(5.0)
    assert [one.name for one in service._threads if one.is_alive()] == []


def test_a_start_without_threads_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request starts another service, with the same signal."""
    signal = KeySignal()
    service = make_service(signal)
    started = allow_threads(monkeypatch, 2)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        service.start()
    for thread in started:
        thread.join(10)
    assert [thread.is_alive() for thread in started] == [False, False]
    assert (service._topics.on_deleted, service._topics.on_elected) == ([], [])
    signal.watch(1, 1)
    assert signal.watched == 1


def test_records_of_a_member_are_released_while_a_fetch_of_it_ends() -> None:
    """The fetch changes the order of the partitions of the session that has ended."""
    manager = make_service(KeySignal()).manager
    first, second = (SharedPartition(UUID(int=1), index, "t") for index in range(2))
    session = manager.sessions.open("g", "m", [first, second], "c")
    released: list[int] = []

    class Share:
        def __init__(self, one: SharedPartition) -> None:
            self.one = one

        def release_member(self, member_id: str, done: object) -> None:
            released.append(self.one.partition)
            manager.sessions.must_respond(session, self.one.place, has_records=True, is_error=False)

    shares: Any = {SharePartitionKey("g", one.topic_id, "t", one.partition): Share(one) for one in (first, second)}
    manager._partitions = shares
    manager.release_member("g", "m")
    assert released == [0, 1]


def test_a_connection_that_was_closed_before_its_request_is_not_watched() -> None:
    """No event would end the watch."""
    signal = KeySignal()
    manager = make_service(signal).manager
    ctx: Any = None
    request: Any = SimpleNamespace(is_disconnected=True, connection_id="127.0.0.1:1-127.0.0.1:2-0-7")
    body = {"GroupId": "g", "MemberId": "m", "ShareSessionEpoch": 0}
    api78_share_fetch._ShareFetchRequest(ctx, manager, body, request)._partitions([], False)
    assert (signal.watched, manager._connections, len(manager.sessions)) == (0, {}, 0)
