"""Loading and unloading of partitions of the offsets topic, and the groups and offsets served meanwhile."""

import threading
import uuid
from collections.abc import Callable

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.internal_topic import partition_of
from kbroker.log._partition_log import PartitionLog
from tests.support.errors import error_of
from tests.support.groups import Groups, MemoryTopic, open_producers
from tests.support.transactional_offsets import PLACE, add, commit, committed, complete, single, unstable


def test_an_unloaded_partition_is_not_served() -> None:
    """Requests of an unloaded partition's groups get NOT_COORDINATOR, delayed ones too; other groups are served."""
    groups = Groups()
    assert [partition_of(name, 3) for name in ("b", "c", "d")] == [2, 0, 1]
    for name in ("b", "c", "d"):
        commit(groups, 7, group=name)
    add(groups, 9, group="c")
    first = groups.lone(group="c")
    waiting = groups.join(group="c")
    count = groups.topic.record_count
    groups.coordinator.runtime.unload(0, 1)
    assert waiting.one.error is Errors.NOT_COORDINATOR
    assert error_of(commit, groups, 8, group="c") is Errors.NOT_COORDINATOR
    assert error_of(add, groups, 8, group="c") is Errors.NOT_COORDINATOR
    assert error_of(committed, groups, "c") is Errors.NOT_COORDINATOR
    assert error_of(groups.beat, first.member_id, 1, group="c") is Errors.NOT_COORDINATOR
    assert complete(groups, 0) is Errors.NOT_COORDINATOR
    assert sorted(one.group_id for one in groups.coordinator.list_groups()) == ["b", "d"]
    assert groups.coordinator.runtime.counts == (2, 0, 0)
    groups.coordinator.offsets.expire()
    groups.after(60_000)
    assert groups.topic.record_count == count
    commit(groups, 8, group="b")
    groups.coordinator.runtime.load(0, 2)
    assert committed(groups, "c") == {PLACE: 7}
    assert unstable(groups, PLACE, group="c") == {PLACE}
    assert groups.members("c") == [first.member_id]
    assert groups.beat(first.member_id, 1, group="c") is Errors.NONE
    assert complete(groups, 0) is Errors.NONE
    assert committed(groups, "c") == {PLACE: 9}
    assert groups.coordinator.runtime.counts == (3, 0, 0)


def test_a_partition_that_is_served_is_not_loaded_again() -> None:
    """A load of a served partition keeps the delayed requests of its members."""
    groups = single()
    groups.lone()
    waiting = groups.join()
    groups.coordinator.runtime.load(0, 2)
    assert waiting == []


def test_a_partition_that_was_repaired_can_be_loaded() -> None:
    """A repaired partition is loaded without a restart."""
    groups = single()
    commit(groups, 7)
    kept, groups.topic.logs[0] = groups.topic.logs[0], None
    again = groups.restart()
    assert error_of(committed, again) is Errors.NOT_COORDINATOR
    groups.topic.logs[0] = kept
    again.coordinator.runtime.load(0, 0)
    assert committed(again) == {PLACE: 7}


def test_offsets_of_a_deleted_topic_in_a_partition_that_cannot_be_read() -> None:
    """The deletion is not complete before the partition is loaded."""
    groups = single()
    deleted = uuid.UUID(int=1)
    offset = CommittedOffset(7, -1, "", groups.clock.wall_ms(), topic_id=deleted)
    groups.coordinator.offsets.commit("g", "", None, -1, {PLACE: offset})
    kept, groups.topic.logs[0] = groups.topic.logs[0], None
    again = groups.restart()
    assert not again.coordinator.offsets.delete_topics({deleted})
    groups.topic.logs[0] = kept
    again.coordinator.runtime.load(0, 0)
    assert committed(again) == {PLACE: 7}
    assert again.coordinator.offsets.delete_topics({deleted})
    assert committed(again) == {}


def test_groups_are_not_listed_while_some_are_loaded() -> None:
    """ListGroups gets COORDINATOR_LOAD_IN_PROGRESS during a load: a partial list would look like deletions."""
    groups = single()
    commit(groups, 7)
    groups.coordinator.runtime.unload(0, 1)
    seen = []

    class Watched:
        """Log that sends requests when a load reads its damage."""

        def __init__(self, log: PartitionLog) -> None:
            self._log = log

        @property
        def damage(self) -> str | None:
            seen.append(error_of(groups.coordinator.list_groups))
            seen.append(error_of(committed, groups))
            return None

        def __getattr__(self, name: str) -> object:
            return getattr(self._log, name)

    groups.topic.logs[0] = Watched(groups.topic.logs[0])
    groups.coordinator.runtime.load(0, 2)
    assert seen == [Errors.COORDINATOR_LOAD_IN_PROGRESS] * 2
    assert committed(groups) == {PLACE: 7}


def test_a_transaction_on_a_fresh_topic() -> None:
    """The first transactional commit creates the topic and is stored in the group's partition."""
    groups = Groups(topic=MemoryTopic(clock := VirtualClock(), 3), clock=clock)
    assert groups.topic.partition_count == 0
    add(groups, 1, group="b")
    assert groups.coordinator.runtime.index_of("b") == 2
    assert open_producers(groups.coordinator, 2) == [1]


def test_a_marker_of_several_groups_during_the_deletion_of_the_topic() -> None:
    """A marker that holds the lock of a group never waits for the deletion of the topic, which waits for that lock."""
    groups = single()
    for name in ("a", "b"):
        add(groups, 1, group=name)
    group = groups.coordinator.runtime.at(0).groups["a"]
    lock, deletion_waits = group.lock, threading.Event()
    deletion = threading.Thread(target=groups.coordinator.topic_deleted, args=("__consumer_offsets",), daemon=True)

    class Watched:
        """The lock; the topic is deleted, and created again, once the marker holds it."""

        def acquire(self) -> None:
            lock.acquire()
            deletion.start()
            assert deletion_waits.wait(20)

        def release(self) -> None:
            lock.release()

        def __enter__(self) -> None:
            deletion_waits.set()
            lock.acquire()

        def __exit__(self, *failure: object) -> None:
            lock.release()

    group.lock = Watched()  # type: ignore[assignment]
    results: list[Errors] = []
    marker = threading.Thread(target=lambda: results.append(complete(groups, 0)), daemon=True)
    marker.start()
    marker.join(20)
    assert results == [Errors.NOT_COORDINATOR], "deadlock"
    deletion.join(20)
    assert not deletion.is_alive()


def test_offsets_are_on_disk_before_the_response() -> None:
    """With flush.messages=1, a commit, a transactional commit and a marker are flushed before the response."""
    clock = VirtualClock()
    groups = Groups(clock=clock, topic=MemoryTopic(clock, 1, **{"flush.messages": 1}))
    (log,) = groups.topic.logs
    acts: list[Callable[[], object]] = [lambda: commit(groups, 7), lambda: add(groups, 9), lambda: complete(groups, 0)]
    for number, act in enumerate(acts, 1):
        act()
        assert (log.log_end_offset, log.flushed_offset) == (number, number)
