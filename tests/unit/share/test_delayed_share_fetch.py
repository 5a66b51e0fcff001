"""Reads of a share fetch."""

import threading
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.log.log_types import ReadInfo
from kbroker.share.acquisition import AcquireMode
from kbroker.share.delayed_share_fetch import DelayedShareFetch, ReadPartition, ShareFetch, ShareFetchParams
from kbroker.share.share_partition import SharePartitionKey
from tests.support.errors import raising
from tests.support.share import KEY, ShareBench, header


def test_one_batch_may_exceed_the_limit_until_there_are_records() -> None:
    """Partitions without records leave the exception to the next partition; after records the limit holds."""
    read: list[bool] = []

    def log(records: bytes) -> Any:
        def reads(offset: int, max_bytes: int, *, min_one: bool, isolation: int) -> ReadInfo:
            read.append(min_one)
            return ReadInfo(0, 20, 20, 0, records, 0, [])

        return SimpleNamespace(read=reads)

    share: Any = SimpleNamespace(
        acquire_fetch_lock=lambda _: True,
        release_fetch_lock=lambda _: None,
        next_fetch_offset=lambda: 0,
        free_records=lambda: 10,
        record_bytes=1.0,
        acquire=lambda *_: [],
    )
    keys = [SharePartitionKey("g", UUID(int=7), "t", index) for index in range(4)]
    logs = [log(records) for records in (b"", header(0, 9), b"", header(0, 9))]
    done: list[list[bytes]] = []
    fetch = ShareFetch(
        "m",
        ShareFetchParams(0, 1, 400, 10, 10, AcquireMode.BATCH_OPTIMIZED, is_read_committed=False),
        {key: ReadPartition(share, one) for key, one in zip(keys, logs, strict=True)},
        lambda results: done.append([bytes(one.records) for one in results.values()]),
        lambda key, error: None,
    )
    DelayedShareFetch(fetch, lambda key, log: None, lambda *ready: None).on_complete()
    assert (read, done) == ([True, True, False, False], [[b""] * 4])


def test_partitions_are_released_if_the_response_cannot_be_made() -> None:
    """Other share fetches that wait for the partitions need not wait for their time-out."""
    key = SharePartitionKey("g", UUID(int=7), "t", 0)
    share: Any = SimpleNamespace(
        acquire_fetch_lock=lambda _: True, release_fetch_lock=lambda _: None, next_fetch_offset=lambda: 0
    )
    log: Any = None
    params = ShareFetchParams(0, 1, 400, 10, 10, AcquireMode.BATCH_OPTIMIZED, is_read_committed=False)
    partitions = {key: ReadPartition(share, log)}
    fetch = ShareFetch("m", params, partitions, raising(MemoryError), lambda key, error: None, lambda: True)
    released: list[SharePartitionKey] = []
    with pytest.raises(MemoryError):
        DelayedShareFetch(fetch, lambda key, log: None, lambda *ready: released.extend(ready)).on_complete()
    assert released == [key]


def test_an_error_while_partitions_are_read_is_that_of_each_unread_one(caplog: pytest.LogCaptureFixture) -> None:
    """The partition that was read before the error keeps its result."""
    keys = [SharePartitionKey("g", UUID(int=7), "t", index) for index in range(2)]
    share: Any = SimpleNamespace(
        acquire_fetch_lock=lambda _: True,
        release_fetch_lock=lambda _: None,
        next_fetch_offset=lambda: 0,
        free_records=lambda: 10,
        record_bytes=1.0,
        acquire=lambda *_: [],
    )
    logs: list[Any] = [
        SimpleNamespace(read=lambda *_, **__: ReadInfo(0, 20, 20, 0, header(0, 9), 0, [])),
        SimpleNamespace(read=raising(ValueError("damaged"))),
    ]
    done: list[dict[SharePartitionKey, Any]] = []
    fetch = ShareFetch(
        "m",
        ShareFetchParams(0, 1, 400, 10, 10, AcquireMode.BATCH_OPTIMIZED, is_read_committed=False),
        {key: ReadPartition(share, one) for key, one in zip(keys, logs, strict=True)},
        done.append,
        lambda key, error: None,
    )
    DelayedShareFetch(fetch, lambda key, log: None, lambda *ready: None).on_complete()
    assert [list(results) for results in done] == [keys]
    assert not isinstance(done[0][keys[0]], KafkaError)
    assert done[0][keys[1]].error is Errors.UNKNOWN_SERVER_ERROR
    assert list(fetch.errors) == [keys[1]]
    assert "cannot complete the share fetch of m" in caplog.text


def test_a_fetch_without_memory_keeps_no_partition() -> None:
    """Other fetches can read the partition, and the fetch has a response."""
    bench = ShareBench((0, 9))
    log: Any = None
    done: list[object] = []
    params = ShareFetchParams(0, 1, 400, 10, 10, AcquireMode.BATCH_OPTIMIZED, is_read_committed=False)
    fetch = ShareFetch("m", params, {KEY: ReadPartition(bench.partition, log)}, done.append, lambda key, error: None)
    operation = DelayedShareFetch(fetch, raising(MemoryError), lambda *ready: None)
    with pytest.raises(MemoryError):
        operation.try_complete()
    assert bench.partition.acquire_fetch_lock("another")
    bench.partition.release_fetch_lock("another")
    operation.on_complete()
    assert done == [{}]
    assert bench.partition.acquire_fetch_lock("another")


def test_an_attempt_of_another_thread_unlocks_no_partition_that_is_being_read() -> None:
    """A time-out reads while an append lets the same fetch try again; no other fetch reads the partition meanwhile."""
    bench = ShareBench((0, 9))
    taken: list[bool] = []

    def attempt() -> None:
        if operation.lock.acquire(blocking=False):  # type: ignore[attr-defined]
            operation.try_complete()

    def read(offset: int, max_bytes: int, *, min_one: bool, isolation: int) -> ReadInfo:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        taken.append(bench.partition.acquire_fetch_lock("another"))
        return ReadInfo(0, 10, 10, 0, b"", 0, [])

    log: Any = SimpleNamespace(read=read)
    params = ShareFetchParams(0, 1, 400, 10, 10, AcquireMode.BATCH_OPTIMIZED, is_read_committed=False)
    partitions = {KEY: ReadPartition(bench.partition, log)}
    fetch = ShareFetch("m", params, partitions, lambda results: None, lambda key, error: None)
    operation = DelayedShareFetch(fetch, lambda key, log: None, lambda *ready: None)
    operation.on_complete()
    assert taken == [False]
