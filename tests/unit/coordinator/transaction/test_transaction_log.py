"""Topic __transaction_state: malformed and misplaced records, and moves that cannot be written."""

import threading

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.coordinator import internal_topic
from kbroker.coordinator.transaction.transaction_coordinator import TransactionSettings
from tests.support.errors import error_of
from tests.support.groups import MemoryTopic
from tests.support.transactions import T0, Transactions


def over(topic: MemoryTopic) -> Transactions:
    topic.created = True
    return Transactions(topic=topic)


@pytest.mark.parametrize("value", [b"\0\1cut", b"\0\7later"])
def test_a_value_that_cannot_be_decoded_fences_its_partition(caplog: pytest.LogCaptureFixture, value: bytes) -> None:
    """The partition is not served, because a fenced producer might write again if an id's state is unknown."""
    topic = MemoryTopic(VirtualClock(), count=1)
    internal_topic.append(topic.logs[0], [(b"\0\0\0\1x", value)], 5)
    tx = over(topic)
    assert tx.coordinator.runtime.counts == (0, 0, 1)
    assert error_of(tx.init) is Errors.NOT_COORDINATOR
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
    (partition,) = over(topic).coordinator.runtime.shards
    assert partition.transactions == {}
    assert "malformed key" in caplog.text
    assert "newer kind" in caplog.text


def test_ids_of_another_number_of_partitions_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Ids that a larger partition count moves are reported, and partitions added at run time are not used."""
    topic = MemoryTopic(VirtualClock(), count=3)
    kept, topic.logs = topic.logs, topic.logs[:1]
    tx = over(topic)
    names = [f"id-{number}" for number in range(9)]
    for name in names:
        tx.init(name)
    topic.logs = kept
    assert {tx.coordinator.runtime.index_of(name) for name in names} == {0}
    again = tx.restart().coordinator
    left = [name for name in names if again.runtime.index_of(name) == 0]
    assert sorted(one.transactional_id for one in again.list_transactions()) == left
    assert f"has records of {9 - len(left)} transactional ids that belong to other partitions" in caplog.text


def test_a_move_that_cannot_be_written_leaves_the_id_as_it_was() -> None:
    tx = Transactions()
    mine = tx.init()
    tx.coordinator.runtime.find("x").log._inject_fault(write_errno=28)
    assert tx.add(mine) in (Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE)
    assert (tx.state(), tx.metadata().pending, tx.see().partitions) == ("Empty", None, frozenset())


def test_no_lock_is_held_while_a_disk_is_waited_for() -> None:
    """The pending move makes the id busy until its record is on disk."""
    clock = VirtualClock()
    topic = MemoryTopic(clock, **{"flush.messages": 1})
    topic.created = True
    tx = Transactions(clock=clock, topic=topic)
    mine = tx.init()

    class SlowDisk:
        """Log that lets another thread send a request during a sync."""

        def __init__(self, log: object) -> None:
            self.log = log
            self.seen: list[Errors] = []

        flushed_offset = 0
        max_message_bytes = 1 << 20

        def append(self, data: bytes, **how: object) -> object:
            return self.log.append(data, **how)._replace(flush_offset=1)  # type: ignore[attr-defined]

        def flush(self, offset: int) -> None:
            thread = threading.Thread(target=lambda: self.seen.append(error_of(tx.init)))
            thread.start()
            thread.join(5)

    index = tx.coordinator.runtime.index_of("x")
    topic.logs[index] = disk = SlowDisk(topic.logs[index])
    assert tx.add(mine, T0) is Errors.NONE
    assert disk.seen == [Errors.CONCURRENT_TRANSACTIONS]
    assert tx.state() == "Ongoing"


def test_an_id_whose_tombstone_cannot_be_written_stays() -> None:
    """No move of the id is pending: its producer can initialize, and the next expiration retries."""
    tx = Transactions(TransactionSettings(id_expiration_ms=1000))
    tx.init()
    log = tx.coordinator.runtime.find("x").log
    tx.clock.advance_ms(1000)
    log._inject_fault(write_errno=28)
    assert tx.coordinator.expire_ids() == 0
    assert (tx.state(), tx.metadata().pending) == ("Empty", None)
    log._inject_fault()
    assert tx.coordinator.expire_ids() == 1
    assert error_of(tx.see) is Errors.TRANSACTIONAL_ID_NOT_FOUND


def test_ids_expire_in_batches_that_the_topic_takes() -> None:
    """Ids expire even if their tombstones together exceed max.message.bytes and the size of a segment."""
    clock = VirtualClock()
    topic = MemoryTopic(clock, **{"max.message.bytes": 500, "segment.bytes": 600})
    topic.created = True
    tx = Transactions(TransactionSettings(id_expiration_ms=1000), clock=clock, topic=topic)
    names = [f"{'x' * 200}-{number}" for number in range(150)]
    for name in names:
        tx.init(name)
    clock.advance_ms(1000)
    assert tx.coordinator.expire_ids() == len(names)
    assert tx.coordinator.counts() == tx.restart().coordinator.counts() == (0, 0)
