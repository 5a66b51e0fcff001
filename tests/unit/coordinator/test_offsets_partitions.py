"""Partitions of the offsets topic that are loaded and unloaded: which groups and offsets are served meanwhile."""

from __future__ import annotations

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.coordinator.internal_topic import partition_of
from kbroker.log._partition_log import PartitionLog
from tests.support.groups import Groups, MemoryTopic
from tests.support.transactional_offsets import PLACE, add, commit, committed, refused, single, unstable


def test_an_unloaded_partition_is_not_served() -> None:
    """Its groups get NOT_COORDINATOR, delayed requests too, and nothing is written; the others are served."""
    groups = Groups()
    assert [partition_of(name, 3) for name in ("b", "c", "d")] == [2, 0, 1]
    for name in ("b", "c", "d"):
        commit(groups, 7, group=name)
    add(groups, 9, group="c")
    first = groups.lone(group="c")
    waiting = groups.join(group="c")
    count = groups.topic.record_count
    groups.coordinator.unload_partition(0, 1)
    assert waiting.one.error is Errors.NOT_COORDINATOR
    assert refused(commit, groups, 8, group="c") is Errors.NOT_COORDINATOR
    assert refused(add, groups, 8, group="c") is Errors.NOT_COORDINATOR
    assert refused(committed, groups, "c") is Errors.NOT_COORDINATOR
    assert refused(groups.beat, first.member_id, 1, group="c") is Errors.NOT_COORDINATOR
    assert groups.coordinator.complete_transaction(0, 1, 0, 0, True, 0) is Errors.NOT_LEADER_OR_FOLLOWER
    assert sorted(one.group_id for one in groups.coordinator.list_groups()) == ["b", "d"]
    assert groups.coordinator.partition_counts == (2, 0, 0)
    groups.coordinator.expire_offsets()
    groups.after(60_000)
    assert groups.topic.record_count == count
    commit(groups, 8, group="b")
    groups.coordinator.load_partition(0, 2)
    assert committed(groups, "c") == {PLACE: 7}
    assert unstable(groups, PLACE, group="c") == {PLACE}
    assert groups.members("c") == [first.member_id]
    assert groups.beat(first.member_id, 1, group="c") is Errors.NONE
    assert groups.coordinator.complete_transaction(0, 1, 0, 0, True, 0) is Errors.NONE
    assert committed(groups, "c") == {PLACE: 9}
    assert groups.coordinator.partition_counts == (3, 0, 0)


def test_a_partition_that_is_served_is_not_loaded_again() -> None:
    """Its members keep their delayed requests."""
    groups = single()
    groups.lone()
    waiting = groups.join()
    groups.coordinator.load_partition(0, 2)
    assert waiting == []


def test_a_partition_that_was_repaired_can_be_loaded() -> None:
    """Without a restart of the others."""
    groups = single()
    commit(groups, 7)
    kept, groups.topic.logs[0] = groups.topic.logs[0], None
    again = groups.restart()
    assert refused(committed, again) is Errors.NOT_COORDINATOR
    groups.topic.logs[0] = kept
    again.coordinator.load_partition(0, 0)
    assert committed(again) == {PLACE: 7}


def test_a_late_order_does_not_undo_a_newer_one() -> None:
    """Each comes with its leader epoch: a load that was asked for before the leadership moved is ignored, and so is an
    unload from before it came back.
    """
    groups = single()
    commit(groups, 7)
    groups.coordinator.unload_partition(0, 4)
    for late in (0, 3, 4):
        groups.coordinator.load_partition(0, late)
        assert refused(committed, groups) is Errors.NOT_COORDINATOR
    groups.coordinator.load_partition(0, 5)
    for late in (0, 4, 5):
        groups.coordinator.unload_partition(0, late)
        assert committed(groups) == {PLACE: 7}
    groups.coordinator.unload_partition(0, 6)
    assert refused(committed, groups) is Errors.NOT_COORDINATOR


def test_a_deleted_topics_epochs_are_forgotten() -> None:
    """A new one of its name begins at 0 again."""
    groups = single()
    groups.coordinator.unload_partition(0, 4)
    groups.coordinator.topic_deleted("__consumer_offsets")
    groups.coordinator.unload_partition(0, 1)
    assert refused(committed, groups) is Errors.NOT_COORDINATOR
    groups.coordinator.load_partition(0, 2)
    assert committed(groups) == {}


def test_groups_are_not_listed_while_some_are_loaded() -> None:
    """A list without them would look as if they were deleted; each of them gets COORDINATOR_LOAD_IN_PROGRESS."""
    groups = single()
    commit(groups, 7)
    groups.coordinator.unload_partition(0, 1)
    seen = []

    class Watched:
        """Its damage is looked up first, while the partition is loaded."""

        def __init__(self, log: PartitionLog) -> None:
            self._log = log

        @property
        def damage(self) -> str | None:
            seen.append(refused(groups.coordinator.list_groups))
            seen.append(refused(committed, groups))
            return None

        def __getattr__(self, name: str) -> object:
            return getattr(self._log, name)

    groups.topic.logs[0] = Watched(groups.topic.logs[0])
    groups.coordinator.load_partition(0, 2)
    assert seen == [Errors.COORDINATOR_LOAD_IN_PROGRESS] * 2
    assert committed(groups) == {PLACE: 7}


def test_unloading_takes_offsets_of_moved_groups_along() -> None:
    """A group that is served elsewhere since the topic grew keeps what is committed, and nothing pending."""
    clock = VirtualClock()
    topic = MemoryTopic(clock, 2)
    groups = Groups(clock=clock, topic=topic)
    name = next(one for one in map(str, range(999)) if (partition_of(one, 2), partition_of(one, 5)) == (1, 0))
    commit(groups, 5, group=name)
    add(groups, 7, group=name)
    topic.logs += MemoryTopic(clock, 5).logs[2:]
    again = groups.restart()
    again.coordinator.unload_partition(1, 1)
    assert (committed(again, name), unstable(again, PLACE, group=name)) == ({PLACE: 5}, set())


def test_a_transaction_on_a_fresh_topic() -> None:
    """The first commit creates the topic, and is in the partition that has the group then."""
    groups = Groups(topic=MemoryTopic(clock := VirtualClock(), 3), clock=clock)
    assert groups.topic.partition_count == 0
    add(groups, 1, group="b")
    assert groups.coordinator.partition_for("b") == 2
    assert groups.coordinator.open_producers(2) == [1]
