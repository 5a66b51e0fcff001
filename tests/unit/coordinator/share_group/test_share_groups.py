"""Share groups: heartbeats, assignments, initialization of share partitions, offsets, restarts and group types."""

from dataclasses import replace

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_shard import GroupShard
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.coordinator.share_group.settings import ShareGroupSettings
from tests.support.errors import error_of, raising
from tests.support.fake_image import FakeImage
from tests.support.fixtures import fixture_of
from tests.support.groups import Groups, MemoryTopic
from tests.support.share_groups import AT_ONCE, ShareGroupBench

ALL = {"t": [0, 1, 2, 3]}


bench = fixture_of(ShareGroupBench)


def test_a_lone_member_gets_everything_once_its_partitions_are_initialized(bench: ShareGroupBench) -> None:
    """The response to the first heartbeat has no partitions, as in Kafka."""
    joined = bench.join("a")
    assert (joined.epoch, joined.has) == (2, {})
    assert bench.partitions() == ({}, ALL, [])
    followed = bench.beat("a", joined.epoch)
    assert (followed.epoch, followed.has) == (3, ALL)
    assert bench.beat("a", 3).has is None
    assert bench.epochs() == (3, 3)
    assert bench.beat("a", 2).epoch == 3, "the previous epoch is accepted"


def test_members_share_partitions() -> None:
    bench = ShareGroupBench(FakeImage(t=2))
    assert sorted(map(str, bench.settled("a", "b").values())) == ["{'t': [0]}", "{'t': [1]}"]
    several = ShareGroupBench(FakeImage(t=1)).settled("a", "b", "c")
    assert several == {member: {"t": [0]} for member in "abc"}


def test_target_assignments_are_an_interval_apart() -> None:
    bench = ShareGroupBench(settings=ShareGroupSettings())
    epoch = bench.join("a").epoch
    assert bench.beat("a", epoch).has is None
    assert bench.epochs() == (3, 2)
    bench.after(1000)
    assert bench.beat("a", epoch).has == ALL


def test_a_new_topic_and_more_partitions_are_noticed(bench: ShareGroupBench) -> None:
    bench.settled("a", topics=("t", "u"))
    bench.image.create("u", 1)
    bench.image.grow("t", 5)
    epoch = bench.groups.describe("g").members[0].member_epoch
    for _ in range(3):
        epoch = bench.beat("a", epoch).epoch
    assert bench.assigned() == {"a": {"t": [0, 1, 2, 3, 4], "u": [0]}}


def test_leave_and_session_timeout(bench: ShareGroupBench) -> None:
    bench.settled("a", "b")
    bench.beat("a", -1)
    assert bench.groups.describe("g").state.value == "Stable"
    assert error_of(bench.beat, "a", 3) is Errors.UNKNOWN_MEMBER_ID
    bench.after(44_999)
    assert bench.assigned().keys() == {"b"}
    bench.after(1)
    assert (bench.assigned(), bench.groups.describe("g").state.value) == ({}, "Empty")


def test_a_member_is_removed_by_an_operator(bench: ShareGroupBench) -> None:
    bench.settled("a")
    bench.coordinator.remove_member("g", "a")
    assert error_of(bench.beat, "a", 3) is Errors.UNKNOWN_MEMBER_ID
    assert error_of(bench.coordinator.remove_member, "g", "a") is Errors.UNKNOWN_MEMBER_ID
    assert error_of(bench.coordinator.remove_member, "other", "a") is Errors.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("epoch", "text"),
    [
        (9, r"The share group member has a greater member epoch \(9\) than the one known by the group coordinator"),
        (1, r"has a smaller member epoch \(1\) .* \(3\), and it does not match the previous member epoch \(2\)\. The"),
    ],
)
def test_wrong_epochs_are_fenced(bench: ShareGroupBench, epoch: int, text: str) -> None:
    bench.settled("a")
    with pytest.raises(KafkaError, match=text) as raised:
        bench.beat("a", epoch)
    assert raised.value.error is Errors.FENCED_MEMBER_EPOCH


def test_a_full_group_refuses_new_members() -> None:
    bench = ShareGroupBench(settings=replace(AT_ONCE, max_size=1))
    bench.settled("a")
    with pytest.raises(KafkaError, match="The share group has reached its maximum capacity of 1 members") as raised:
        bench.join("b")
    assert raised.value.error is Errors.GROUP_MAX_SIZE_REACHED
    assert bench.join("a").epoch == 3


def test_unknown_groups_and_members(bench: ShareGroupBench) -> None:
    for run, text in (
        (lambda: bench.beat("a", 1), "Share group g not found."),
        (lambda: bench.beat("a", -1), "Group g not found."),
        (lambda: bench.groups.describe("g"), "Group g not found."),
    ):
        with pytest.raises(KafkaError, match=text) as raised:
            run()
        assert raised.value.error is Errors.GROUP_ID_NOT_FOUND
    assert bench.coordinator.list_groups() == []


def test_everything_survives_a_restart(bench: ShareGroupBench) -> None:
    assigned = bench.settled("a", "b")
    again = bench.restart()
    assert again.assigned() == assigned
    assert (again.epochs(), again.partitions()) == (bench.epochs(), bench.partitions())
    assert [(one.group_id, one.group_type, one.state.value) for one in again.coordinator.list_groups()] == [
        ("g", "share", "Stable")
    ]
    again.after(45_000)
    assert again.assigned() == {}


def test_the_kinds_of_groups_exclude_each_other(bench: ShareGroupBench) -> None:
    """An empty share group keeps its type too."""
    classic = Groups(clock=bench.clock)
    classic.coordinator = bench.coordinator
    bench.settled("a")
    assert classic.join(group="g").one.error is Errors.INCONSISTENT_GROUP_PROTOCOL
    bench.beat("a", -1)
    assert classic.join(group="g").one.error is Errors.INCONSISTENT_GROUP_PROTOCOL
    assert classic.join("known", group="g").one.error is Errors.INCONSISTENT_GROUP_PROTOCOL
    for run in (
        lambda: bench.coordinator.offsets.commit("g", "", None, -1, {}),
        lambda: bench.coordinator.offsets.commit("g", "m", None, 1, {}, api_version=8),
        lambda: bench.coordinator.offsets.delete("g", [("t", 0)]),
        lambda: bench.coordinator.consumer_groups.describe("g"),
    ):
        with pytest.raises(KafkaError, match="Group g is not a consumer group") as raised:
            run()
        assert raised.value.error is Errors.GROUP_ID_NOT_FOUND
    assert not bench.coordinator.offsets.fetch("g").committed
    classic.lone(group="c")
    with pytest.raises(KafkaError, match="Group c is not a share group"):
        bench.join("a", group="c")


def test_an_empty_group_stays_until_it_is_deleted(bench: ShareGroupBench) -> None:
    """The group's share partitions are deleted with the group."""
    bench.settled("a")
    assert error_of(bench.coordinator.delete, "g") is Errors.NON_EMPTY_GROUP
    bench.beat("a", -1)
    bench.after(30 * 86_400_000)
    bench.coordinator.offsets.expire()
    assert [one.group_id for one in bench.coordinator.list_groups()] == ["g"]
    bench.coordinator.delete("g")
    assert bench.restart().coordinator.list_groups() == []
    assert bench.share is not None
    key = SharePartitionKey("g", bench.image.id("t"), 0)
    assert error_of(bench.share.read, key, 0) is Errors.INVALID_REQUEST


def test_a_failed_initialization_is_tried_again(bench: ShareGroupBench) -> None:
    kept, bench.share = bench.share, None
    epoch = bench.join("a").epoch
    assert bench.partitions() == ({}, {}, [])
    bench.share = kept
    bench.beat("a", epoch)
    assert bench.partitions() == ({}, ALL, [])


def test_an_interrupted_initialization_is_tried_again_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ShareGroupBench()
    monkeypatch.setattr(bench.groups, "_initialize", lambda *_: {})  # simulates a kill between the two records
    epoch = bench.join("a").epoch
    assert bench.partitions() == (ALL, {}, [])
    bench.beat("a", epoch)
    assert bench.partitions() == (ALL, {}, [])
    again = bench.restart()
    again.beat("a", epoch)
    assert again.partitions() == ({}, ALL, [])


def test_an_interrupted_initialization_is_tried_again_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another request may still be at work before that."""
    bench = ShareGroupBench()
    with monkeypatch.context() as patch:
        patch.setattr(bench.groups, "_initialize", lambda *_: {})
        epoch = bench.join("a").epoch
    bench.after(bench.settings.initialize_retry_ms - 1)
    bench.beat("a", epoch)
    assert bench.partitions() == (ALL, {}, [])
    bench.after(1)
    bench.beat("a", epoch)
    assert bench.partitions() == ({}, ALL, [])


def test_an_interrupted_initialization_is_tried_again_after_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second attempt does not wait for the wall-clock time of the first one."""
    bench = ShareGroupBench()
    with monkeypatch.context() as patch:
        patch.setattr(bench.groups, "_initialize", lambda *_: {})
        epoch = bench.join("a").epoch
    bench.groups.membership.clock = VirtualClock(start_epoch_ms=bench.clock.wall_ms() - 86_400_000)
    bench.beat("a", epoch)
    assert bench.partitions() == ({}, ALL, [])


def test_a_deleted_topic_leaves_the_group() -> None:
    """A topic that is deleted while the coordinator is stopped leaves the group too."""
    bench = ShareGroupBench(FakeImage(t=1, u=1))
    bench.settled("a", topics=("t", "u"))
    bench.image.delete("t")
    bench.coordinator.topic_deleted("t")
    assert bench.partitions() == ({}, {"u": [0]}, [])
    bench.image.delete("u")
    assert bench.restart().partitions() == ({}, {}, [])


def test_a_deleted_topic_whose_removal_cannot_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group makes one target assignment without the topic, not one with each heartbeat."""
    bench = ShareGroupBench(FakeImage(t=2, u=1))
    bench.settled("a", topics=("t", "u"))
    with monkeypatch.context() as patch:
        patch.setattr(GroupShard, "append", raising(KafkaError(Errors.NOT_COORDINATOR)))
        bench.image.delete("u")
        bench.coordinator.topic_deleted("u")
    epoch = bench.epochs()[0]
    for _ in range(3):
        assert bench.beat("a", bench.described().members[0].member_epoch).epoch == epoch + 1
    assert bench.epochs() == (epoch + 1, epoch + 1)
    assert bench.assigned() == {"a": {"t": [0, 1]}}


def test_altered_offsets(bench: ShareGroupBench) -> None:
    """Altering offsets creates the group, and is refused when the group has members."""
    results = bench.groups.alter_offsets("g", {"t": {0: 5, 9: 0}, "v": {0: 1}})
    assert {place: error and error.error for place, error in results.items()} == {
        ("t", 0): None,
        ("t", 9): Errors.UNKNOWN_TOPIC_OR_PARTITION,
        ("v", 0): Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert bench.partitions() == ({}, {"t": [0]}, [])
    assert bench.share is not None
    key = SharePartitionKey("g", bench.image.id("t"), 0)
    assert bench.share.summary(key).start_offset == 5
    again = bench.restart()
    assert [one.state.value for one in again.coordinator.list_groups()] == ["Empty"]
    again.settled("a")
    assert again.assigned() == {"a": ALL}
    assert error_of(again.groups.alter_offsets, "g", {"t": {0: 1}}) is Errors.NON_EMPTY_GROUP
    assert again.share is not None
    assert again.share.summary(key).start_offset == 5


def test_an_offset_beside_one_that_cannot_be_altered_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offset was acknowledged: the initialization for a member that joins later must not replace it."""
    bench = ShareGroupBench(FakeImage(t=2))
    assert bench.share is not None
    initialize = bench.share.initialize

    def initialize_one(key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        if key.partition == 1:
            raise KafkaError(Errors.COORDINATOR_LOAD_IN_PROGRESS)
        initialize(key, state_epoch, start_offset)

    with monkeypatch.context() as patch:
        patch.setattr(bench.share, "initialize", initialize_one)
        results = bench.groups.alter_offsets("g", {"t": {0: 5, 1: 6}})
    assert [error and error.error for error in results.values()] == [None, Errors.COORDINATOR_LOAD_IN_PROGRESS]
    bench.settled("a")
    assert bench.partitions() == ({}, {"t": [0, 1]}, [])
    key = SharePartitionKey("g", bench.image.id("t"), 0)
    assert [bench.share.summary(key._replace(partition=index)).start_offset for index in (0, 1)] == [5, -1]


def test_altered_offsets_that_the_group_cannot_note(bench: ShareGroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets without a note in the group are errors, since they would be replaced when a member joins."""
    failure = KafkaError(Errors.NOT_COORDINATOR, "the folder is offline")
    monkeypatch.setattr(bench.groups, "_note_initialized", raising(failure))
    assert bench.groups.alter_offsets("g", {"t": {0: 5}}) == {("t", 0): failure}


def test_records_of_share_partitions_are_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Altered offsets are acknowledged, and states deleted, when the group's records about them are synced."""
    clock = VirtualClock()
    bench = ShareGroupBench(clock=clock, topic=MemoryTopic(clock, **{"flush.messages": 1}))
    bench.groups.alter_offsets("g", {"t": {0: 5}})
    log = bench.coordinator.runtime.find("g").log
    assert log.flushed_offset == log.log_end_offset
    assert bench.share is not None
    unflushed: list[int] = []
    monkeypatch.setattr(bench.share, "delete", lambda key: unflushed.append(log.log_end_offset - log.flushed_offset))
    bench.groups.delete_offsets("g", ["t"])
    bench.groups.alter_offsets("g", {"t": {0: 5}})
    bench.groups.delete_states("g")
    assert unflushed == [0, 0]


def test_offsets_that_are_deleted_while_they_are_altered(
    bench: ShareGroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group does not note share partitions without a state, which its members could never read."""
    bench.groups.alter_offsets("g", {"t": {0: 5}})
    assert bench.share is not None
    initialize = bench.share.initialize

    def initialize_and_delete(key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        initialize(key, state_epoch, start_offset)
        assert bench.groups.delete_offsets("g", ["t"]) == {"t": bench.image.id("t")}

    with monkeypatch.context() as patch:
        patch.setattr(bench.share, "initialize", initialize_and_delete)
        assert bench.groups.alter_offsets("g", {"t": {0: 7}}) == {("t", 0): None}
    assert bench.partitions() == ({}, {}, [])
    bench.settled("a")
    assert bench.partitions() == ({}, ALL, [])


@pytest.mark.parametrize("is_group", [False, True])
def test_a_member_that_joins_during_a_deletion(
    bench: ShareGroupBench, is_group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Share partitions that the member has initialized, and whose states are then deleted, are initialized again."""
    bench.settled("a")
    bench.beat("a", -1)
    share = bench.share
    assert share is not None
    delete = share.delete

    def join_and_delete(key: SharePartitionKey) -> None:
        monkeypatch.setattr(share, "delete", delete)
        bench.settled("b")
        delete(key)

    monkeypatch.setattr(share, "delete", join_and_delete)
    if is_group:
        assert error_of(bench.coordinator.delete, "g") is Errors.NON_EMPTY_GROUP
    else:
        assert bench.groups.delete_offsets("g", ["t"]) == {"t": bench.image.id("t")}
    bench.settled("b")
    for one in (bench, bench.restart()):
        assert one.partitions() == ({}, ALL, [])
    for index in ALL["t"]:
        share.read(SharePartitionKey("g", bench.image.id("t"), index), -1)


def test_deleted_offsets() -> None:
    bench = ShareGroupBench(FakeImage(t=2, u=1))
    bench.settled("a")
    assert error_of(bench.groups.delete_offsets, "g", ["t"]) is Errors.NON_EMPTY_GROUP
    bench.beat("a", -1)
    results = bench.groups.delete_offsets("g", ["t", "u", "v"])
    assert results.pop("t") == bench.image.id("t")
    errors = {name: str(error) for name, error in results.items()}
    assert errors == {
        "u": "UNKNOWN_TOPIC_OR_PARTITION: There is no offset information to delete.",
        "v": str(KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)),
    }
    assert bench.partitions() == ({}, {}, [])
    assert bench.restart().partitions() == ({}, {}, [])


def test_a_failed_deletion_is_completed_later(bench: ShareGroupBench) -> None:
    bench.settled("a")
    bench.beat("a", -1)
    kept, bench.share = bench.share, None
    assert error_of(bench.coordinator.delete, "g") is Errors.COORDINATOR_NOT_AVAILABLE
    assert bench.partitions() == ({}, {}, ["t"])
    bench.share = kept
    bench.coordinator.delete("g")
    assert bench.coordinator.list_groups() == []


def test_a_failed_deletion_of_offsets_is_completed_later(bench: ShareGroupBench) -> None:
    bench.settled("a")
    bench.beat("a", -1)
    kept, bench.share = bench.share, None
    assert isinstance(bench.groups.delete_offsets("g", ["t"])["t"], KafkaError)
    bench.share = kept
    assert bench.groups.delete_offsets("g", ["t"]) == {"t": bench.image.id("t")}
    assert bench.partitions() == ({}, {}, [])


def test_a_topic_that_is_read_again_is_no_longer_deleted(bench: ShareGroupBench) -> None:
    bench.settled("a")
    bench.beat("a", -1)
    kept, bench.share = bench.share, None
    (error,) = bench.groups.delete_offsets("g", ["t"]).values()
    assert isinstance(error, KafkaError)
    assert bench.partitions() == ({}, {}, ["t"])
    bench.share = kept
    bench.settled("b")
    assert bench.partitions() == ({}, ALL, [])


def test_a_member_loses_a_topic_at_once() -> None:
    """A member has no partition of a topic without a subscription, even before the next target assignment."""
    bench = ShareGroupBench(FakeImage(t=1, u=1), ShareGroupSettings())
    bench.join("a", "t", "u")
    bench.after(1000)
    epoch = bench.beat("a", 2).epoch
    assert bench.assigned() == {"a": {"t": [0], "u": [0]}}
    followed = bench.beat("a", epoch, "t")
    assert (followed.epoch, followed.has) == (epoch, {"t": [0]})


def test_a_group_of_a_deleted_topic_can_be_deleted(bench: ShareGroupBench) -> None:
    """The group is deleted although the coordinator has not processed the deletion of the topic."""
    bench.settled("a")
    bench.beat("a", -1)
    bench.image.delete("t")
    bench.coordinator.delete("g")
    assert bench.coordinator.list_groups() == []
