"""__transaction_state: partitions loaded, dropped, damaged, more of them than before; moves that cannot be written."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.coordinator import internal_topic
from kbroker.coordinator.transaction.transaction_log import LOAD_TIME_WINDOW_MS, TransactionLog
from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata
from tests.support.groups import MemoryTopic
from tests.support.transactions import T0, Transactions, refused


def log_of(topic: MemoryTopic, clock: VirtualClock | None = None) -> TransactionLog:
    topic.created = True
    return TransactionLog(topic, clock or VirtualClock())


def put(log: TransactionLog, name: str, now_ms: int = 5) -> TransactionMetadata:
    partition = log.find(name)
    one = TransactionMetadata(name, 7, timeout_ms=100, now_ms=now_ms)
    with partition.lock:
        partition.transactions[name] = one
        log.append_move(partition, one, one.prepare_increment_epoch(100, None, now_ms))
    return one


def test_a_partition_that_is_offline_serves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The others do."""
    topic = MemoryTopic(VirtualClock())
    topic.logs[1] = None
    log = log_of(topic)
    log.load_all()
    assert sorted(one.index for one in log.partitions) == [0, 2]
    assert list(log.unreadable) == [1]
    assert "offline" in caplog.text
    name = next(name for name in "abcdef" if log.index_of(name) == 1)
    assert refused(log.find, name) is Errors.NOT_COORDINATOR


@pytest.mark.parametrize("value", [b"\0\1cut", b"\0\7later"])
def test_a_value_that_cannot_be_decoded_fences_its_partition(caplog: pytest.LogCaptureFixture, value: bytes) -> None:
    """What an id was must be known: a fenced producer might write again."""
    topic = MemoryTopic(VirtualClock(), count=1)
    internal_topic.append(topic.logs[0], [(b"\0\0\0\1x", value)], 5)
    log = log_of(topic)
    log.load_all()
    assert list(log.unreadable) == [0]
    assert (
        "__transaction_state-0 in memory/0 cannot be read: the state of transactional id 'x' is malformed: "
        in caplog.text
    )
    way_out = "stop the broker, install the release that wrote this record, then start it again"
    assert (
        f"Its transactional ids are not served (NOT_COORDINATOR) and nothing is written to it; {way_out}" in caplog.text
    )


def test_keys_that_are_none_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    topic = MemoryTopic(VirtualClock(), count=1)
    internal_topic.append(topic.logs[0], [(b"\0", b"v"), (b"\0\5later", b"v")], 5)
    log = log_of(topic)
    log.load_all()
    (partition,) = log.partitions
    assert partition.transactions == {}
    assert "malformed key" in caplog.text
    assert "newer kind" in caplog.text


def test_a_partition_that_is_being_loaded() -> None:
    """Error 14 until it is served."""
    topic = MemoryTopic(VirtualClock(), count=1)
    log = log_of(topic)
    log.load_all()
    log.unload(0, 1)
    seen = []
    original = topic.partition
    topic.partition = lambda index: (seen.append(refused(log.find, "x")), seen.append(log.is_loading), original(index))[  # type: ignore[arg-type, func-returns-value, method-assign]
        2
    ]
    log.load(0, 2)
    assert seen == [Errors.COORDINATOR_LOAD_IN_PROGRESS, True]
    assert not log.is_loading
    assert log.find("x").index == 0


def test_a_late_order_does_not_undo_a_newer_one() -> None:
    """Each comes with its leader epoch, which markers carry; what is late is ignored."""
    topic = MemoryTopic(VirtualClock(), count=1)
    log = log_of(topic)
    log.load_all()
    put(log, "x")
    assert log.find("x").coordinator_epoch == 0
    log.unload(0, 4)
    for late in (0, 3, 4):
        log.load(0, late)
        assert refused(log.find, "x") is Errors.NOT_COORDINATOR
    log.load(0, 5)
    for late in (0, 4, 5):
        log.unload(0, late)
        assert log.find("x").coordinator_epoch == 5
    log.load(0, 7)
    assert log.find("x").coordinator_epoch == 7
    log.unload(0, None)
    log.load(0, 0)
    assert log.find("x").coordinator_epoch == 0, "a new topic of the name begins at 0 again"


@pytest.mark.parametrize("served", [False, True])
def test_an_order_that_comes_while_a_partition_is_read(served: bool) -> None:
    """The partition is not served once it is read, unless the newest order says so; it is no longer being loaded."""
    topic = MemoryTopic(VirtualClock(), count=1)
    log = log_of(topic)
    log.load_all()
    put(log, "x")
    log.unload(0, 1)
    original, seen = topic.partition, []

    def moves(index: int) -> object:
        topic.partition = original  # type: ignore[method-assign]
        log.unload(0, 3)
        seen.append((refused(log.find, "x"), log.is_loading))
        return original(index)

    topic.partition = moves  # type: ignore[method-assign]
    log.load(0, 2)
    assert seen == [(Errors.NOT_COORDINATOR, False)]
    assert refused(log.find, "x") is Errors.NOT_COORDINATOR
    assert not log.is_loading
    if served:
        log.load(0, 4)
        assert log.find("x").coordinator_epoch == 4


def test_more_partitions_than_before() -> None:
    """Ids move to where they belong now, unless they are newer there."""
    topic = MemoryTopic(VirtualClock(), count=3)
    kept, topic.logs = topic.logs, topic.logs[:1]
    log = log_of(topic)
    log.load_all()
    names = [f"id-{number}" for number in range(9)]
    for name in names:
        put(log, name)
    topic.logs = kept
    grown = log_of(topic)
    grown.load_all()
    assert {grown.index_of(name) for name in names} == {0, 1, 2}
    for name in names:
        assert grown.find(name).transactions[name].producer_epoch == 0
    moved = next(name for name in names if grown.index_of(name) == 1)
    with grown.find(moved).lock:
        one = grown.find(moved).transactions[moved]
        grown.append_move(grown.find(moved), one, one.prepare_increment_epoch(100, None, 9))
    again = log_of(topic)
    again.load_all()
    assert again.find(moved).transactions[moved].producer_epoch == 1


def test_partitions_that_are_added_while_it_runs_wait_for_the_next_start() -> None:
    topic = MemoryTopic(VirtualClock(), count=3)
    kept, topic.logs = topic.logs, topic.logs[:1]
    log = log_of(topic)
    log.load_all()
    topic.logs = kept
    assert {log.index_of(f"id-{number}") for number in range(9)} == {0}


def test_a_move_that_cannot_be_written_leaves_the_id_as_it_was() -> None:
    tx = Transactions()
    mine = tx.init()
    log = tx.coordinator._log.find("x").log
    log._inject_fault(write_errno=28)
    assert tx.add(mine) in (Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE)
    assert (tx.state(), tx.metadata().pending, tx.see().partitions) == ("Empty", None, frozenset())


def test_no_lock_is_held_while_a_disk_is_waited_for() -> None:
    """The pending move keeps others out: an id is busy until its record is on disk."""
    clock = VirtualClock()
    topic = MemoryTopic(clock, **{"flush.messages": 1})
    topic.created = True
    tx = Transactions(clock=clock, topic=topic)
    mine = tx.init()
    partition = tx.coordinator._log.find("x")

    class SlowDisk:
        """Lets another thread ask while it syncs."""

        def __init__(self, log: object) -> None:
            self.log = log
            self.seen: list[Errors] = []

        flushed_offset = 0

        def append(self, data: bytes, **how: object) -> object:
            return self.log.append(data, **how)._replace(flush_offset=1)  # type: ignore[attr-defined]

        def flush(self, offset: int) -> None:
            thread = threading.Thread(target=lambda: self.seen.append(refused(tx.init)))
            thread.start()
            thread.join(5)

    partition.log = disk = SlowDisk(partition.log)
    assert tx.add(mine, T0) is Errors.NONE
    assert disk.seen == [Errors.CONCURRENT_TRANSACTIONS]
    assert tx.state() == "Ongoing"


def test_load_times() -> None:
    """Of the last minute."""
    clock = VirtualClock()
    topic = MemoryTopic(clock, count=2)
    log = log_of(topic, clock)
    assert math.isnan(log.load_times.max_ms)
    original = topic.partition

    class SlowLog:
        """Its first partition takes ten milliseconds."""

        def __init__(self, log: Any) -> None:
            self.log = log

        @property
        def damage(self) -> None:
            clock.advance_ms(10)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.log, name)

    topic.partition = lambda index: SlowLog(original(index)) if index == 0 else original(index)  # type: ignore[method-assign]
    log.load_all()
    assert log.load_times == (5, 10)
    clock.advance_ms(LOAD_TIME_WINDOW_MS + 11)
    assert math.isnan(log.load_times.average_ms)
