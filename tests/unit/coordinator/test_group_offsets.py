"""Committed offsets and stored groups: rules, Kafka's record bytes, restarts, damage, deletion and expiration."""

import struct
import uuid
from collections.abc import Callable

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, ProtocolError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator import group_records
from kbroker.coordinator.classic_group import ClassicGroup, GroupState, Member
from kbroker.coordinator.classic_membership import JoinRequest, LeavingMember, SyncRequest
from kbroker.coordinator.group_coordinator import GroupSettings
from kbroker.coordinator.group_records import CommittedOffset, GroupKey, OffsetKey
from kbroker.coordinator.internal_topic import Written, partition_of
from kbroker.metadata.topics import ZERO_ID
from kbroker.protocol import codec
from kbroker.protocol.records import build_batch, iter_records
from tests.support.errors import error_of
from tests.support.fake_image import FakeImage
from tests.support.groups import RANGE, SESSION_MS, Groups, MemoryTopic

PLACE = ("t", 0)


def value(
    offset: int, metadata: str = "note", epoch: int = 3, time_ms: int = 5, expires_ms: int = -1
) -> CommittedOffset:
    return CommittedOffset(offset, epoch, metadata, time_ms, expires_ms)


def commit(
    groups: Groups,
    offset: int = 7,
    *,
    group: str = "g",
    member: str = "",
    generation: int = -1,
    place: TopicPartition = PLACE,
) -> None:
    now_ms = groups.clock.wall_ms()
    groups.coordinator.offsets.commit(group, member, None, generation, {place: value(offset, time_ms=now_ms)})


# ---------------------------------------------------------------- records


def restored_group(value: bytes) -> ClassicGroup:
    group = ClassicGroup("g")
    group.restore(codec.decode_versioned("GroupMetadataValue", value)[1])
    return group


def test_records_are_kafkas_bytes() -> None:
    """Keys and values equal bytes written by hand from Kafka's schemas: keys 1 and 2, offsets 4, groups 3."""
    assert group_records.offset_key("g", "t", 5) == bytes.fromhex("0001 0001 67 0001 74 00000005")
    assert group_records.encode_offset(value(7, "n", 3, 9)) == bytes.fromhex(
        "0004 0000000000000007 00000003 02 6e 0000000000000009 00"
    )
    topic_id = uuid.UUID(int=5)
    assert group_records.encode_offset(value(7, "n", 3, 9)._replace(topic_id=topic_id)) == bytes.fromhex(
        "0004 0000000000000007 00000003 02 6e 0000000000000009 01 00 10" + topic_id.hex
    )
    assert group_records.encode_offset(value(7, "n", 3, 9, 11)) == bytes.fromhex(
        "0001 0000000000000007 0001 6e 0000000000000009 000000000000000b"
    )
    assert group_records.group_key("g") == bytes.fromhex("0002 0001 67")
    group = ClassicGroup("g")
    group.adopt([Member("m", None, "c", "/h", 2, 1, [("range", b"s")], b"a")], 4, "consumer", 6)
    assert group.record()[1] == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000004 0005 72616e6765 0001 6d 0000000000000006 00000001"
        "0001 6d ffff 0001 63 0002 2f68 00000002 00000001 00000001 73 00000001 61"
    )


def test_keys_of_long_group_ids_are_not_kept() -> None:
    """A key with a group id above 255 bytes is not cached: a client could fill the cache with ids of 32 KiB."""
    kept = group_records._offset_key.cache_info
    before = kept().misses
    group_records.offset_key("h" * 255, "t", 5)
    assert kept().misses == before + 1
    assert group_records.offset_key("h" * 256, "t", 5)[4:260] == b"h" * 256
    assert kept().misses == before + 1


def test_every_version_of_kafkas_values_can_be_read() -> None:
    """Values of versions 0 to 4 are decoded; a field that a version lacks has its default."""
    topic_id = uuid.UUID(int=5)
    body = {
        "Offset": 7,
        "LeaderEpoch": 3,
        "Metadata": "n",
        "CommitTimestamp": 9,
        "ExpireTimestamp": 11,
        "TopicId": topic_id,
    }
    for version, epoch, expires in ((0, -1, -1), (1, -1, 11), (2, -1, -1), (3, 3, -1), (4, 3, -1)):
        data = codec.encode_versioned("OffsetCommitValue", version, body)
        found = CommittedOffset(7, epoch, "n", 9, expires, topic_id if version == 4 else ZERO_ID)
        assert group_records.decode_offset(data) == found
    group = ClassicGroup("g")
    group.adopt([Member("m", "i", "c", "/h", 2, 1, [("range", b"s")], b"a")], 4, "x", 6)
    restored = restored_group(group.record()[1])
    assert restored.record() == group.record()
    assert (restored.members["m"].group_instance_id, restored.generation_id, restored.state_timestamp_ms) == ("i", 4, 6)
    row = {
        "MemberId": "m",
        "ClientId": "c",
        "ClientHost": "/h",
        "SessionTimeout": 1,
        "Subscription": b"",
        "Assignment": b"",
    }
    oldest = codec.encode_versioned(
        "GroupMetadataValue",
        0,
        {"ProtocolType": "x", "Generation": 1, "Protocol": None, "Leader": None, "Members": [row]},
    )
    read = restored_group(oldest).members["m"]
    assert (read.rebalance_timeout_ms, read.group_instance_id) == (1, None)


def test_keys_say_what_they_are() -> None:
    """A key is decoded as an offset of either version, a group or another kind; a damaged key is refused."""
    key = group_records.offset_key("g", "t", 5)
    assert group_records.decode_key(key) == OffsetKey("g", "t", 5)
    assert group_records.decode_key(b"\0\0" + key[2:]) == OffsetKey("g", "t", 5)
    assert group_records.decode_key(group_records.group_key("g")) == GroupKey("g")
    assert group_records.decode_key(struct.pack(">h", 3)) is None
    for damaged in (b"", b"\0", key[:-1], b"\0\2\0\5g"):
        with pytest.raises(ProtocolError):
            group_records.decode_key(damaged)


@pytest.mark.parametrize(
    ("group_id", "partition"), [("", 0), ("g", 3), ("hello", 22), ("\U0001f600", 49), ("polygenelubricants", 0)]
)
def test_a_groups_partition_is_kafkas(group_id: str, partition: int) -> None:
    """A group's partition is Java's String.hashCode over UTF-16, whose minimum integer counts as 0."""
    assert partition_of(group_id, 50) == partition


# ---------------------------------------------------------------- commits


def test_what_is_committed_is_there_and_can_go_backwards(groups: Groups) -> None:
    """A fetch returns the last committed offset of a partition, even a lower one, and none for an unknown group."""
    commit(groups, 7)
    commit(groups, 3)
    commit(groups, 9, place=("u", 1))
    assert groups.coordinator.offsets.fetch("g", [PLACE, ("t", 1)]).committed[PLACE].offset == 3
    assert {place: one.offset for place, one in groups.coordinator.offsets.fetch("g").committed.items()} == {
        PLACE: 3,
        ("u", 1): 9,
    }
    assert groups.coordinator.offsets.fetch("h").committed == {}
    assert groups.coordinator.describe("h") is None


def test_members_may_commit_while_others_join(groups: Groups) -> None:
    """A member commits before it rejoins a rebalance (KIP-429)."""
    one = groups.lone()
    groups.join()
    commit(groups, 5, member=one.member_id, generation=1)
    assert groups.coordinator.offsets.fetch("g").committed[PLACE].offset == 5


def test_a_commit_is_a_sign_of_life(groups: Groups) -> None:
    """A commit extends the member's session."""
    one = groups.lone()
    for _ in range(4):
        groups.after(SESSION_MS - 1000)
        commit(groups, member=one.member_id, generation=1)
    assert groups.members() == [one.member_id]


def test_a_commit_the_log_refuses_is_not_there(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that a closed log refuses gets the coordinator's error, and the old offset remains."""
    commit(groups, 1)
    for log in groups.topic.logs:
        log.close()
    assert error_of(commit, groups, 2) in (Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE)
    assert groups.coordinator.offsets.fetch("g").committed[PLACE].offset == 1


def test_a_commit_of_many_partitions_is_split_into_batches(groups: Groups) -> None:
    """A commit of 4,000 partitions with long metadata, which exceeds one batch, is stored."""
    offsets = {("t", index): value(index, "m" * 1000) for index in range(4000)}
    groups.coordinator.offsets.commit("g", "", None, -1, offsets)
    assert groups.restart().coordinator.offsets.fetch("g").committed == offsets


# ---------------------------------------------------------------- restarts


def test_offsets_and_groups_survive_a_restart(groups: Groups) -> None:
    """Offsets, members, generation and assignments survive a restart, and members continue without a rebalance."""
    one, two = groups.pair()
    commit(groups, 1, member=one.member_id, generation=2)
    commit(groups, 2, member=one.member_id, generation=2)
    commit(groups, 5, group="plain")
    again = groups.restart()
    assert again.coordinator.offsets.fetch("g").committed[PLACE].offset == 2
    assert (
        again.coordinator.offsets.fetch("plain").committed[PLACE]
        == groups.coordinator.offsets.fetch("plain").committed[PLACE]
    )
    assert again.coordinator.describe("g") == groups.coordinator.describe("g")
    assert again.beat(two.member_id, 2) is Errors.NONE
    commit(again, 3, member=one.member_id, generation=2)
    again.after(SESSION_MS + 100)
    assert again.state() == "Empty"
    third = again.restart()
    assert (third.state(), third.coordinator.offsets.fetch("g").committed[PLACE].offset) == ("Empty", 3)
    assert third.join().one.generation_id > 2


def test_a_static_member_that_returned_is_remembered_under_its_new_id(groups: Groups) -> None:
    """A static member's new id survives a restart: its heartbeat is not fenced."""
    groups.lone(instance="i")
    back = groups.join(instance="i", skip=True).one
    assert groups.restart().beat(back.member_id, 1, instance="i") is Errors.NONE


def test_a_rebalance_that_a_stop_interrupts_goes_on_with_the_group_that_was(groups: Groups) -> None:
    """After a restart the group has its last written generation; members of the unfinished one must rejoin."""
    first, second = groups.joined_pair()
    assert second.generation_id == 2
    again = groups.restart()
    assert again.members() == [first.member_id]
    assert again.beat(first.member_id, 2) is Errors.ILLEGAL_GENERATION
    assert again.beat(second.member_id, 2) is Errors.UNKNOWN_MEMBER_ID


def test_damaged_records_are_left_out_and_the_rest_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    """A load skips invalid keys, invalid groups and keys of other kinds, which no coordinator acknowledged."""
    groups = Groups(topic=MemoryTopic(clock := VirtualClock(), 1), clock=clock)
    commit(groups, 1)
    (log,) = groups.topic.logs
    rows = [(b"\0", b""), (b"\0\2\0\1x", b"\0\3nonsense"), (b"\0\1\0\1h", b"v"), (b"\0\x09zz", b"v"), (None, b"v")]
    log.append(build_batch(rows), is_client=False)
    commit(groups, 2, place=("t", 2))
    again = groups.restart()
    assert {place: one.offset for place, one in again.coordinator.offsets.fetch("g").committed.items()} == {
        PLACE: 1,
        ("t", 2): 2,
    }
    assert "cannot be decoded" in caplog.text


def calls(groups: Groups, group: str) -> dict[str, Callable[[], object]]:
    """Return every request of a client about a group, by name."""
    one = groups.coordinator
    subscription = JoinRequest(group, "", None, "c", "/h", 20_000, 10_000, "consumer", RANGE)
    return {
        "find": lambda: one.runtime.find(group),
        "join": lambda: one.join(subscription, lambda result: None),
        "sync": lambda: one.sync(SyncRequest(group, 1, "m", None, None, None, {}), lambda result: None),
        "heartbeat": lambda: one.heartbeat(group, "m", None, 1),
        "leave": lambda: one.leave(group, [LeavingMember("m", None)]),
        "commit": lambda: commit(groups, group=group),
        "committed": lambda: one.offsets.fetch(group, [PLACE]),
        "all committed": lambda: one.offsets.fetch(group),
        "delete offsets": lambda: one.offsets.delete(group, [PLACE]),
        "describe": lambda: one.describe(group),
        "delete": lambda: one.delete(group),
    }


def test_groups_of_an_offline_partition_are_not_served(groups: Groups, caplog: pytest.LogCaptureFixture) -> None:
    """Groups of an offline partition get NOT_COORDINATOR and nothing is written; the other groups are served."""
    assert [partition_of(name, 3) for name in ("b", "c", "d")] == [2, 0, 1]
    for name in ("b", "c", "d"):
        commit(groups, group=name)
    kept, groups.topic.logs[0] = groups.topic.logs[0], None
    again = groups.restart()
    for what, ask in calls(again, "c").items():
        assert error_of(ask) is Errors.NOT_COORDINATOR, what
    assert error_of(calls(again, "f")["commit"]) is Errors.NOT_COORDINATOR
    assert again.coordinator.runtime.counts == (2, 0, 1)
    assert [one.group_id for one in again.coordinator.list_groups()] == ["d", "b"]
    for name in ("b", "d"):
        assert again.coordinator.offsets.fetch(name).committed[PLACE].offset == 7
        commit(again, 8, group=name)
    logged = "__consumer_offsets-0 in memory/0 cannot be read: the partition is offline. Its groups are not served"
    assert logged in caplog.text
    assert "run: kbroker log verify --repair memory/0" in caplog.text
    groups.topic.logs[0] = kept
    whole = again.restart().coordinator
    assert [whole.offsets.fetch(name).committed[PLACE].offset for name in ("b", "c", "d")] == [8, 7, 8]
    assert whole.runtime.counts == (3, 0, 0)


def test_groups_of_another_number_of_partitions_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Groups whose partition changes with a larger partition count are not served after a restart, and logged."""
    groups = Groups(topic=MemoryTopic(clock := VirtualClock(), 2), clock=clock)
    found = {(partition_of(name, 2), partition_of(name, 5)): name for name in map(str, range(999))}
    moved, kept = found[1, 0], found[1, 1]
    for name in (moved, kept):
        commit(groups, 25, group=name)
    groups.topic.logs += MemoryTopic(clock, 5).logs[2:]
    assert groups.coordinator.offsets.fetch(moved).committed[PLACE].offset == 25, "the count is the one at the start"
    after = groups.restart().coordinator
    assert [after.offsets.fetch(name).committed.get(PLACE, value(-1)).offset for name in (moved, kept)] == [-1, 25]
    assert [one.group_id for one in after.list_groups()] == [kept]
    assert f"__consumer_offsets-1 has records of 1 groups that belong to other partitions, as '{moved}'" in caplog.text


def test_an_offsets_topic_that_is_made_again_is_whole(groups: Groups) -> None:
    """A recreated offsets topic serves a group whose partition was unreadable in the deleted topic."""
    groups.topic.ensure()
    kept, groups.topic.logs[0] = groups.topic.logs[0], None
    again = groups.restart()
    assert error_of(commit, again, group="c") is Errors.NOT_COORDINATOR
    again.topic.logs[0] = kept
    again.coordinator.topic_deleted("__consumer_offsets")
    commit(again, group="c")
    assert again.coordinator.offsets.fetch("c").committed[PLACE].offset == 7


def test_an_offset_that_is_malformed_fences_its_partition(caplog: pytest.LogCaptureFixture) -> None:
    """A partition with a malformed offset is not served, as in Kafka: any offset of its groups may be wrong."""
    groups = Groups(topic=MemoryTopic(clock := VirtualClock(), 1), clock=clock)
    commit(groups, 1)
    groups.topic.logs[0].append(build_batch([(group_records.offset_key("g", "t", 1), b"")]), is_client=False)
    again = groups.restart()
    assert error_of(again.coordinator.offsets.fetch, "g") is Errors.NOT_COORDINATOR
    assert "the offset of group g for t-1 is malformed" in caplog.text
    assert "install the release that wrote this" in caplog.text


def test_the_log_holds_what_kafka_would_have_written() -> None:
    """A join, a commit and a deletion write exactly Kafka's records."""
    groups = Groups(topic=MemoryTopic(clock := VirtualClock(), 1), clock=clock)
    one = groups.lone()
    commit(groups, 4, member=one.member_id, generation=1)
    groups.leave(one.member_id)
    groups.coordinator.delete("g")
    data = groups.topic.logs[0].read(0).records
    rows = [(group_records.decode_key(bytes(row.key)), row.value) for row in iter_records(data)]  # type: ignore[arg-type]
    place, group = OffsetKey("g", "t", 0), GroupKey("g")
    assert [key for key, _ in rows] == [group, place, group, place, group]
    assert [found is None for _, found in rows] == [False, False, False, True, True]
    stored = restored_group(rows[0][1])  # type: ignore[arg-type]
    assignment = stored.members[one.member_id].assignment
    assert (stored.leader_id, stored.protocol_name, assignment) == (one.member_id, "range", b"all")
    empty = restored_group(rows[2][1])  # type: ignore[arg-type]
    assert (empty.generation_id, empty.members) == (2, {})


# ---------------------------------------------------------------- deletion and expiry


def test_deleting_groups(groups: Groups) -> None:
    """Only an empty group is deleted; its offsets are deleted with it, after a restart too."""
    groups.lone(group="live")
    commit(groups)
    assert error_of(groups.coordinator.delete, "live") is Errors.NON_EMPTY_GROUP
    assert error_of(groups.coordinator.delete, "missing") is Errors.GROUP_ID_NOT_FOUND
    groups.coordinator.delete("g")
    assert groups.coordinator.offsets.fetch("g").committed == {}
    assert groups.restart().coordinator.describe("g") is None
    assert [one.group_id for one in groups.coordinator.list_groups()] == ["live"]


def test_deleting_offsets_of_a_live_group(groups: Groups) -> None:
    """OffsetDelete deletes offsets of topics without a subscriber; another protocol type needs an empty group."""
    subscription = codec.encode_versioned("ConsumerProtocolSubscription", 1, {"Topics": ["t"]})
    one = groups.lone(protocols=[("range", subscription)])
    commit(groups, member=one.member_id, generation=1)
    commit(groups, member=one.member_id, generation=1, place=("u", 0))
    results = groups.coordinator.offsets.delete("g", [PLACE, ("u", 0), ("u", 1)])
    assert results == {PLACE: Errors.GROUP_SUBSCRIBED_TO_TOPIC, ("u", 0): Errors.NONE, ("u", 1): Errors.NONE}
    assert set(groups.restart().coordinator.offsets.fetch("g").committed) == {PLACE}
    groups.lone(group="connect", kind="connect")
    assert error_of(groups.coordinator.offsets.delete, "connect", [PLACE]) is Errors.NON_EMPTY_GROUP
    assert error_of(groups.coordinator.offsets.delete, "missing", [PLACE]) is Errors.GROUP_ID_NOT_FOUND
    assert error_of(groups.coordinator.offsets.delete, "", [PLACE]) is Errors.INVALID_GROUP_ID


@pytest.mark.parametrize("restarts", [False, True])
def test_a_group_without_offsets_stays_until_the_next_expiry(groups: Groups, restarts: bool) -> None:
    """A group whose last offset is deleted is found until offsets are next checked for expiry, after a restart too."""
    commit(groups)
    groups = groups.restart() if restarts else groups
    for _ in range(2):
        assert groups.coordinator.offsets.delete("g", [PLACE]) == {PLACE: Errors.NONE}
    groups.coordinator.offsets.expire()
    assert error_of(groups.coordinator.offsets.delete, "g", [PLACE]) is Errors.GROUP_ID_NOT_FOUND


def test_deletions_are_on_disk_before_they_are_acknowledged() -> None:
    """With flush.messages=1 the deletion of offsets, and of a group, returns when its tombstones are synced."""
    clock = VirtualClock()
    groups = Groups(clock=clock, topic=MemoryTopic(clock, **{"flush.messages": 1}))
    commit(groups)
    commit(groups, place=("u", 0))
    log = groups.coordinator.runtime.find("g").log
    ends = [log.log_end_offset]
    for delete in (lambda: groups.coordinator.offsets.delete("g", [PLACE]), lambda: groups.coordinator.delete("g")):
        delete()
        ends.append(log.log_end_offset)
        assert log.flushed_offset == ends[-1]
    assert ends == sorted(set(ends))


def test_a_deletion_that_another_client_has_begun_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion of offsets that are already deleted returns when the tombstones of the first deletion are synced."""
    clock = VirtualClock()
    groups = Groups(clock=clock, topic=MemoryTopic(clock, **{"flush.messages": 1}))
    commit(groups)
    commit(groups, place=("u", 0))
    log = groups.coordinator.runtime.find("g").log
    with monkeypatch.context() as patch:
        patch.setattr(Written, "await_disk", lambda written: None)  # the first client still waits
        groups.coordinator.offsets.delete("g", [PLACE])
    assert log.flushed_offset < log.log_end_offset
    groups.coordinator.offsets.delete("g", [PLACE])
    assert log.flushed_offset == log.log_end_offset


def test_a_consumer_whose_subscription_cannot_be_read_may_want_any_topic(groups: Groups) -> None:
    """OffsetDelete treats every topic as subscribed if a member's subscription is malformed."""
    one = groups.lone(protocols=[("range", b"\0\0\xff")])
    commit(groups, member=one.member_id, generation=1)
    assert groups.coordinator.offsets.delete("g", [PLACE]) == {PLACE: Errors.GROUP_SUBSCRIBED_TO_TOPIC}


@pytest.mark.parametrize("version", [-1, 0, 1, 3, 9])
@pytest.mark.parametrize("rest", [b"", b"xx"])
def test_metadata_is_read_as_version_0_whatever_version_it_names(version: int, rest: bytes) -> None:
    """A subscription is decoded as version 0: some clients send version 1 or 3 with the fields of version 0."""
    day = 24 * 3600 * 1000
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=day))
    metadata = struct.pack(">hih", version, 1, 1) + b"t" + struct.pack(">i", -1) + rest
    one = groups.lone(protocols=[("range", metadata)])
    for place in (PLACE, ("u", 0), ("v", 0)):
        commit(groups, member=one.member_id, generation=1, place=place)
    deleted = groups.coordinator.offsets.delete("g", [PLACE, ("u", 0)])
    assert deleted == {PLACE: Errors.GROUP_SUBSCRIBED_TO_TOPIC, ("u", 0): Errors.NONE}
    groups = groups.restart()
    groups.clock.advance_ms(day)
    assert groups.coordinator.offsets.expire() == 1
    assert set(groups.coordinator.offsets.fetch("g").committed) == {PLACE}


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\0", b"\0\0\0\0\0\1\0\1t"])
def test_metadata_that_ends_early_says_nothing_about_topics(groups: Groups, metadata: bytes) -> None:
    """A truncated subscription counts as a subscription to any topic, as in Apache Kafka 4.3.1."""
    one = groups.lone(protocols=[("range", metadata)])
    commit(groups, member=one.member_id, generation=1, place=("u", 0))
    assert groups.coordinator.offsets.delete("g", [("u", 0)]) == {("u", 0): Errors.GROUP_SUBSCRIBED_TO_TOPIC}


@pytest.mark.parametrize("how", ["its offset is deleted", "its topic is deleted"])
def test_a_group_that_only_committed_outlives_its_last_offset(groups: Groups, how: str) -> None:
    """The group is Empty until the next expiration of offsets, as in Apache Kafka 4.3.1."""
    commit(groups)
    if how == "its offset is deleted":
        assert groups.coordinator.offsets.delete("g", [PLACE]) == {PLACE: Errors.NONE}
    else:
        groups.coordinator.topic_deleted("t")
    assert groups.state() == "Empty"
    assert [one.group_id for one in groups.coordinator.list_groups()] == ["g"]
    assert groups.coordinator.offsets.delete("g", [PLACE]) == {PLACE: Errors.NONE}
    groups.coordinator.offsets.expire()
    assert groups.state() == "Dead"
    assert error_of(groups.coordinator.offsets.delete, "g", [PLACE]) is Errors.GROUP_ID_NOT_FOUND


def test_offsets_go_with_their_topic(groups: Groups) -> None:
    """Offsets are deleted with their topic, and all groups with the offsets topic; waiting joins then complete."""
    commit(groups)
    commit(groups, place=("u", 0))
    groups.coordinator.topic_deleted("t")
    assert set(groups.coordinator.offsets.fetch("g").committed) == {("u", 0)}
    groups.lone(group="live")
    waiting = groups.join(group="live")
    groups.coordinator.topic_deleted("__consumer_offsets")
    assert waiting.one.error is Errors.NOT_COORDINATOR
    assert groups.coordinator.list_groups() == []


def test_offsets_of_a_topic_that_was_created_again_stay() -> None:
    """The deletion of a topic leaves the offsets of a new topic with its name, even after a restart."""
    image = FakeImage(t=2)
    groups = Groups(image=image)
    old, new = uuid.UUID(int=1), uuid.UUID(int=2)
    image.delete("t")
    image.create("t", 2)
    rows = {("t", 0): value(1)._replace(topic_id=old), ("t", 1): value(2)._replace(topic_id=new)}
    groups.coordinator.offsets.commit("g", "", None, -1, {**rows, ("u", 0): value(3)})
    found = groups.coordinator.offsets.fetch("g", list(rows), topic_ids={"t": new})
    assert found.committed == {("t", 1): rows["t", 1]}
    assert set(groups.coordinator.offsets.fetch("g", list(rows)).committed) == set(rows)
    groups.coordinator.topic_deleted("t")
    assert set(groups.coordinator.offsets.fetch("g").committed) == {("t", 1), ("u", 0)}
    again = groups.restart()
    assert again.coordinator.offsets.fetch("g", list(rows), topic_ids={"t": new}) == found
    image.delete("t")
    again.coordinator.topic_deleted("t")
    assert set(again.coordinator.offsets.fetch("g").committed) == {("u", 0)}


def test_offsets_of_a_topic_that_the_registry_lacks_are_kept_at_the_start() -> None:
    """The logs of a topic may have failed to open, or recovered metadata may have a new id for it."""
    image = FakeImage(t=2)
    groups = Groups(image=image)
    rows = {("t", 0): value(1)._replace(topic_id=uuid.UUID(int=1)), ("v", 0): value(2)._replace(topic_id=uuid.uuid4())}
    groups.coordinator.offsets.commit("g", "", None, -1, rows)
    image.delete("t")
    image.create("t", 2)
    for _ in range(2):
        groups = groups.restart()
        assert groups.coordinator.offsets.fetch("g").committed == rows


def test_offsets_expire_when_the_group_has_been_empty_long_enough() -> None:
    """Offsets expire once a group was empty for the retention time; a live group keeps those of subscribed topics."""
    day = 24 * 3600 * 1000
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=7 * day))
    subscription = codec.encode_versioned("ConsumerProtocolSubscription", 1, {"Topics": ["t"]})
    one = groups.lone(protocols=[("range", subscription)])
    commit(groups, member=one.member_id, generation=1)
    commit(groups, member=one.member_id, generation=1, place=("u", 0))
    commit(groups, group="plain")
    groups.clock.advance_ms(7 * day - 1)
    assert groups.coordinator.offsets.expire() == 0
    groups.clock.advance_ms(1)
    assert groups.coordinator.offsets.expire() == 2
    assert set(groups.coordinator.offsets.fetch("g").committed) == {PLACE}
    assert groups.coordinator.describe("plain") is None
    groups.leave(one.member_id)
    groups.clock.advance_ms(7 * day - 1)
    assert groups.coordinator.offsets.expire() == 0
    groups.clock.advance_ms(1)
    assert groups.coordinator.offsets.expire() == 1
    assert groups.coordinator.list_groups() == []
    assert groups.restart().coordinator.list_groups() == []


def test_an_old_client_says_itself_how_long_its_offsets_last(groups: Groups) -> None:
    """RetentionTimeMs of OffsetCommit 2 to 4 overrides the broker's setting."""
    now_ms = groups.clock.wall_ms()
    groups.coordinator.offsets.commit("g", "", None, -1, {PLACE: value(1, expires_ms=now_ms + 1000, time_ms=now_ms)})
    groups.clock.advance_ms(999)
    assert groups.coordinator.offsets.expire() == 0
    assert groups.restart().coordinator.offsets.fetch("g").committed[PLACE].expire_timestamp_ms == now_ms + 1000
    groups.clock.advance_ms(1)
    assert groups.coordinator.offsets.expire() == 1


def test_states_are_listed_as_they_are() -> None:
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=1000))
    groups.join(group="preparing")
    commit(groups, group="empty")
    assert {one.group_id: one.state for one in groups.coordinator.list_groups()} == {
        "preparing": GroupState.PREPARING_REBALANCE,
        "empty": GroupState.EMPTY,
    }
