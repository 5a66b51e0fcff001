"""Groups with members that change between the classic and the consumer protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.classic_group import JoinResult
from kbroker.coordinator.classic_membership import LeavingMember
from kbroker.coordinator.consumer_group.embedded_protocol import read_subscription
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.modern_group.settings import Limits
from kbroker.protocol import codec
from tests.support.consumer_groups import AT_ONCE, Beat, ConsumerGroupBench
from tests.support.fake_image import FakeImage


def protocols(
    topics: Sequence[str] = ("t",), owned: Mapping[str, Sequence[int]] | None = None, version: int = 3
) -> list[tuple[str, bytes]]:
    rows = [{"Topic": name, "Partitions": list(some)} for name, some in (owned or {}).items()]
    body = {"Topics": list(topics), "UserData": None, "OwnedPartitions": rows, "GenerationId": -1, "RackId": None}
    return [("range", codec.encode_versioned("ConsumerProtocolSubscription", version, body))]


def test_a_subscription_has_its_rack() -> None:
    body = {"Topics": ["t"], "UserData": None, "OwnedPartitions": [], "GenerationId": -1, "RackId": "r"}
    data = codec.encode_versioned("ConsumerProtocolSubscription", 3, body)
    assert read_subscription(data, FakeImage(t=1)) == (["t"], {}, "r")


def assignment(parts: Mapping[str, Sequence[int]], user_data: bytes | None = None) -> bytes:
    rows = [{"Topic": name, "Partitions": list(some)} for name, some in parts.items()]
    body = {"AssignedPartitions": rows, "UserData": user_data}
    return codec.encode_versioned("ConsumerProtocolAssignment", 3, body)


def parts(data: bytes) -> dict[str, list[int]]:
    body = codec.decode_versioned("ConsumerProtocolAssignment", data)[1]
    return {row["Topic"]: list(row["Partitions"]) for row in body["AssignedPartitions"]}


def classic_pair(bench: ConsumerGroupBench, **how: Any) -> tuple[str, str]:
    """Create a stable classic group of two members with two partitions each, and return their ids."""
    groups = bench.groups
    first: JoinResult = groups.join(protocols=protocols(), **how).one
    groups.sync(first.member_id, 1, {first.member_id: assignment({"t": [0, 1, 2, 3]})})
    waiting = groups.join(protocols=protocols(), **how)
    again = groups.join(first.member_id, protocols=protocols(), **how).one
    two = waiting.one
    given = {again.member_id: assignment({"t": [0, 1]}), two.member_id: assignment({"t": [2, 3]})}
    groups.sync(two.member_id, 2)
    groups.sync(again.member_id, 2, given)
    assert groups.state() == "Stable"
    return again.member_id, two.member_id


def test_a_classic_group_becomes_a_consumer_group_with_its_members(bench: ConsumerGroupBench) -> None:
    one, two = classic_pair(bench)
    assert bench.join("new") == Beat("new", 3, {})
    assert bench.kind() == "consumer"
    described = bench.described()
    assert {row.member.member_id for row in described.members} == {one, two, "new"}
    assert (described.epoch, described.target_epoch) == (3, 3)
    assert bench.groups.beat(one, 2) is Errors.REBALANCE_IN_PROGRESS
    # the members rejoin, revoke partitions of other members, and rejoin again
    target = bench.targets()
    for member_id, has in ((one, [0, 1]), (two, [2, 3])):
        joined = bench.groups.join(member_id, protocols=protocols(owned={"t": has})).one
        kept = sorted(set(has) & set(target[member_id].get("t", [])))
        assert parts(bench.groups.sync(member_id, joined.generation_id).one.assignment) == ({"t": kept} if kept else {})
        joined = bench.groups.join(member_id, protocols=protocols(owned={"t": kept})).one
        assert joined.generation_id == 3
        assert parts(bench.groups.sync(member_id, 3).one.assignment) == target[member_id]
        assert bench.groups.beat(member_id, 3) is Errors.NONE
    assert bench.beat("new", 3) == Beat("new", 3, target["new"])
    assert bench.described().state.value == "Stable"
    again = bench.restart()
    assert again.targets() == bench.targets()
    assert again.groups.beat(one, 3) is Errors.NONE


def test_the_last_consumer_that_leaves_takes_the_new_protocol_along(bench: ConsumerGroupBench) -> None:
    one, two = classic_pair(bench)
    bench.join("new")
    assert bench.beat("new", -1) == Beat("new", -1, None)
    assert bench.kind() == "classic"
    assert bench.groups.state() == "PreparingRebalance"
    waiting = bench.groups.join(one, protocols=protocols())
    assert bench.groups.join(two, protocols=protocols()).one.generation_id == 4
    assert waiting.one.generation_id == 4
    assert set(bench.groups.members()) == {one, two}
    assert ConsumerGroupBench.kind(bench.restart()) == "classic"


def test_a_session_that_ends_downgrades_too(bench: ConsumerGroupBench) -> None:
    one, two = classic_pair(bench, rebalance_ms=60_000)
    bench.join("new")
    for _ in range(9):
        bench.after(5000)
        bench.groups.beat(one, 2)
        bench.groups.beat(two, 2)
    assert bench.kind() == "classic"


def test_offsets_stay_with_the_group(bench: ConsumerGroupBench) -> None:
    one, _ = classic_pair(bench)
    bench.coordinator.offsets.commit("g", one, None, 2, {("t", 0): CommittedOffset(7, -1, "", 1)})
    bench.join("new")
    offsets = bench.coordinator.offsets.fetch("g", None, False, None, -1).committed
    assert offsets[("t", 0)].offset == 7
    bench.beat("new", -1)
    assert bench.coordinator.offsets.fetch("g").committed[("t", 0)].offset == 7
    assert bench.restart().coordinator.offsets.fetch("g").committed[("t", 0)].offset == 7


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_no_upgrade_where_the_configuration_forbids_it(policy: str) -> None:
    bench = ConsumerGroupBench(settings=replace(AT_ONCE, migration_policy=policy))
    classic_pair(bench)
    with pytest.raises(KafkaError, match="online upgrade is disabled") as refused:
        bench.join("new")
    assert refused.value.error is Errors.GROUP_ID_NOT_FOUND
    assert bench.groups.state() == "Stable"


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_no_downgrade_where_the_configuration_forbids_it(policy: str) -> None:
    bench = ConsumerGroupBench(settings=AT_ONCE)
    classic_pair(bench)
    bench.join("new")
    settings: ConsumerGroupSettings = replace(AT_ONCE, migration_policy=policy)
    again = ConsumerGroupBench(bench.image, settings, clock=bench.clock, topic=bench.topic)
    again.beat("new", -1)
    assert again.kind() == "consumer"


def test_an_empty_group_is_of_the_protocol_of_who_comes_next() -> None:
    bench = ConsumerGroupBench(settings=replace(AT_ONCE, migration_policy="disabled"))
    joined = bench.groups.join(protocols=protocols()).one
    bench.groups.leave(joined.member_id)
    assert bench.groups.state() == "Empty"
    bench.join("new")
    assert bench.kind() == "consumer"
    assert bench.restart().kind() == "consumer"
    bench.beat("new", -1)
    assert bench.groups.join(protocols=protocols()).one.error is Errors.NONE
    assert bench.kind() == "classic"


@pytest.mark.parametrize("how", [{"protocols": []}, {"kind": ""}, {"member_id": "stranger"}])
def test_a_refused_join_does_not_convert_an_empty_group(bench: ConsumerGroupBench, how: dict[str, Any]) -> None:
    bench.join("new")
    bench.beat("new", -1)
    assert bench.topic is not None
    count = bench.topic.record_count
    assert bench.groups.join(**how).one.error is not Errors.NONE
    assert (bench.kind(), bench.state(), bench.topic.record_count) == ("consumer", "Empty", count)


def test_a_classic_member_joins_a_consumer_group(bench: ConsumerGroupBench) -> None:
    bench.join("new")
    required = bench.groups.join(protocols=protocols(), known=True).one
    assert required.error is Errors.MEMBER_ID_REQUIRED
    joined = bench.groups.join(required.member_id, protocols=protocols(), known=True).one
    assert (joined.error, joined.generation_id, joined.protocol_name, joined.leader_id) == (Errors.NONE, 3, "range", "")
    bench.beat("new", 2)
    bench.beat("new", 2, has={"t": [0, 1]})
    member_id = joined.member_id
    assert parts(bench.groups.sync(member_id, 3, kind="consumer", name="range").one.assignment) == {}
    assert bench.groups.beat(member_id, 3) is Errors.REBALANCE_IN_PROGRESS  # its new partitions are free
    joined = bench.groups.join(member_id, protocols=protocols(), known=True).one
    assert parts(bench.groups.sync(member_id, joined.generation_id).one.assignment) == {"t": [2, 3]}
    assert bench.groups.beat(member_id, 3) is Errors.NONE


def test_what_a_classic_member_is_refused(bench: ConsumerGroupBench) -> None:
    bench.join("new")
    assert bench.groups.join(protocols=protocols(), kind="connect").one.error is Errors.INCONSISTENT_GROUP_PROTOCOL
    assert bench.groups.sync("new", 2).one.error is Errors.UNKNOWN_MEMBER_ID
    assert bench.groups.beat("new", 2) is Errors.UNKNOWN_MEMBER_ID
    joined = bench.groups.join(protocols=protocols()).one
    assert bench.groups.sync(joined.member_id, 9).one.error is Errors.ILLEGAL_GENERATION
    wrong = bench.groups.sync(joined.member_id, joined.generation_id, name="roundrobin")
    assert wrong.one.error is Errors.INCONSISTENT_GROUP_PROTOCOL
    foreign = bench.groups.sync(joined.member_id, joined.generation_id, kind="connect")
    assert foreign.one.error is Errors.INCONSISTENT_GROUP_PROTOCOL
    assert bench.groups.beat(joined.member_id, 9) is Errors.ILLEGAL_GENERATION
    assert bench.groups.join(joined.member_id, protocols=[("range", b"\0")]).one.error is Errors.UNKNOWN_SERVER_ERROR
    bench.join("another")
    behind = bench.groups.sync(joined.member_id, joined.generation_id)
    assert behind.one.error is Errors.REBALANCE_IN_PROGRESS
    assert bench.groups.leave("unknown", joined.member_id) == [Errors.UNKNOWN_MEMBER_ID, Errors.NONE]
    closed = ConsumerGroupBench(settings=replace(AT_ONCE, migration_policy="disabled"))
    closed.join("new")
    assert closed.groups.join(protocols=protocols()).one.error is Errors.INCONSISTENT_GROUP_PROTOCOL


def test_static_classic_members_of_a_consumer_group(bench: ConsumerGroupBench) -> None:
    """Static members sync, send heartbeats and leave by their instance ids, with or without their member ids."""
    bench.join("new")
    one, two = (bench.groups.join(instance=name, protocols=protocols()).one for name in ("i", "k"))
    assert bench.groups.sync(two.member_id, two.generation_id, instance="i").one.error is Errors.FENCED_INSTANCE_ID
    assert bench.groups.sync(two.member_id, two.generation_id, instance="l").one.error is Errors.UNKNOWN_MEMBER_ID
    assert bench.groups.sync(two.member_id, two.generation_id, instance="k").one.error is Errors.NONE
    leaving = [("", "l"), (two.member_id, "i"), ("", "i"), (two.member_id, "k")]
    assert bench.coordinator.leave("g", [LeavingMember(*row) for row in leaving]) == [
        Errors.UNKNOWN_MEMBER_ID, Errors.FENCED_INSTANCE_ID, Errors.NONE, Errors.NONE,
    ]  # fmt: skip
    assert [row.member.member_id for row in bench.described().members] == ["new"]
    assert bench.groups.beat(one.member_id, one.generation_id, instance="i") is Errors.UNKNOWN_MEMBER_ID


def test_a_classic_group_too_large_for_the_other_protocol_is_not_converted() -> None:
    bench = ConsumerGroupBench(settings=replace(AT_ONCE, max_size=1))
    one, two = classic_pair(bench)
    why = "the group size exceeds the consumer group maximum size"
    with pytest.raises(KafkaError, match=f"Cannot upgrade classic group g to consumer group because {why}"):
        bench.join("new")
    assert set(bench.groups.members()) == {one, two}


def test_a_classic_member_that_does_not_sync_is_removed(bench: ConsumerGroupBench) -> None:
    bench.join("new")
    joined = bench.groups.join(protocols=protocols(), rebalance_ms=5000, session_ms=30_000).one
    bench.after(5000)
    assert bench.groups.beat(joined.member_id, joined.generation_id) is Errors.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_does_not_join_again_is_removed(bench: ConsumerGroupBench) -> None:
    one, _ = classic_pair(bench, session_ms=60_000, rebalance_ms=5000)
    bench.join("new")
    assert bench.groups.beat(one, 2) is Errors.REBALANCE_IN_PROGRESS
    bench.after(20_000)
    assert one not in {row.member.member_id for row in bench.described().members}


def test_a_classic_static_member_takes_the_place_of_a_consumer(bench: ConsumerGroupBench) -> None:
    """The replacement of the last consumer-protocol member makes the group classic, without a rebalance."""
    bench.join("new", instance="i")
    joined = bench.groups.join(instance="i", protocols=protocols()).one
    assert joined.error is Errors.NONE
    assert bench.kind() == "classic"
    assert bench.groups.state() == "Stable"
    synced = bench.groups.sync(joined.member_id, joined.generation_id, instance="i").one
    assert parts(synced.assignment) == {"t": [0, 1, 2, 3]}
    assert ConsumerGroupBench.kind(bench.restart()) == "classic"


def test_data_of_a_custom_assignor_stops_an_upgrade(bench: ConsumerGroupBench) -> None:
    joined = bench.groups.join(protocols=protocols()).one
    bench.groups.sync(joined.member_id, 1, {joined.member_id: assignment({"t": [0]}, b"own")})
    with pytest.raises(KafkaError, match="unsupported custom assignor"):
        bench.join("new")
    malformed = ConsumerGroupBench(FakeImage(t=1))
    joined = malformed.groups.join(protocols=[("range", b"\0")]).one
    malformed.groups.sync(joined.member_id, 1, {joined.member_id: b""})
    with pytest.raises(KafkaError, match="embedded consumer protocol is malformed"):
        malformed.join("new")


def test_a_sync_with_malformed_metadata_of_the_first_protocol(bench: ConsumerGroupBench) -> None:
    """The upgrade reads only the common protocol's metadata; the sync fails as in Kafka, without a decoding error."""
    one = bench.groups.join(protocols=[("own", b"\0"), *protocols()]).one
    bench.groups.sync(one.member_id, 1, {one.member_id: assignment({"t": [0, 1, 2, 3]})})
    waiting = bench.groups.join(protocols=protocols())
    bench.groups.join(one.member_id, protocols=[("own", b"\0"), *protocols()])
    two = waiting.one.member_id
    bench.groups.sync(one.member_id, 2, {one.member_id: assignment({"t": [0, 1]}), two: assignment({"t": [2, 3]})})
    bench.join("new", [])
    assert bench.groups.sync(one.member_id, 2).one.error is Errors.UNKNOWN_SERVER_ERROR


def test_an_upgrade_during_a_rebalance_sends_the_members_back(bench: ConsumerGroupBench) -> None:
    one, two = classic_pair(bench)
    waiting = bench.groups.join(one, protocols=protocols())  # the leader rejoins
    assert bench.groups.state() == "PreparingRebalance"
    assert not waiting
    bench.join("new")
    assert waiting.one.error is Errors.REBALANCE_IN_PROGRESS
    assert bench.groups.join(two, protocols=protocols(owned={"t": [2, 3]})).one.error is Errors.NONE


@pytest.mark.parametrize("loaded", [True, False])
def test_an_upgrade_before_the_first_generation_uses_the_protocol_that_would_be_selected(loaded: bool) -> None:
    """A group has no protocol until the end of the initial rebalance, for example after its sessions expired."""
    bench = ConsumerGroupBench(FakeImage(t=4, u=4))
    if loaded:
        classic_pair(bench)
    bench = replace(bench.restart(), initial_delay_ms=3000)
    if loaded:
        bench.after(60_000)
        assert bench.groups.state() == "Empty"
    ((_, data),) = protocols(["u"])
    waiting = bench.groups.join(protocols=[("own", b""), ("range", data)])
    other = bench.groups.join(protocols=protocols(["u"]))
    assert bench.groups.state() == "PreparingRebalance"
    bench.join("new")
    assert bench.kind() == "consumer"
    assert waiting.one.error is other.one.error is Errors.REBALANCE_IN_PROGRESS
    assert bench.targets()["new"] == {"t": [0, 1, 2, 3]}
    assert bench.restart().targets() == bench.targets()
    one = waiting.one.member_id
    assert one in bench.targets()
    joined = bench.groups.join(one, protocols=protocols(["u"])).one
    assert joined.error is Errors.NONE
    assigned = parts(bench.groups.sync(one, joined.generation_id).one.assignment)
    assert assigned == bench.targets()[one]


def test_an_upgrade_reads_the_next_protocol_of_members_that_do_not_support_the_present_one() -> None:
    bench = ConsumerGroupBench()
    ((_, data),) = protocols()
    both = [("range", data), ("sticky", data)]
    joined = bench.groups.join(protocols=both).one
    assert joined.protocol_name == "range"
    bench.groups.sync(joined.member_id, 1, {joined.member_id: assignment({"t": [0, 1, 2, 3]})})
    bench.groups.join(protocols=[("sticky", data)])
    assert bench.groups.state() == "PreparingRebalance"
    assert bench.join("new").epoch == 2
    assert len(bench.described().members) == 3


def test_a_protocol_named_twice_counts_once(bench: ConsumerGroupBench) -> None:
    """A duplicate protocol of a member counts once; otherwise members without a common protocol could join."""
    bench.join("new")
    ((_, data),) = protocols()
    assert bench.groups.join(protocols=[("a", data)]).one.error is Errors.NONE
    assert bench.groups.join(protocols=[("a", data), ("b", data), ("b", data)]).one.error is Errors.NONE
    assert bench.groups.join(protocols=[("b", data)]).one.error is Errors.INCONSISTENT_GROUP_PROTOCOL
    assert bench.groups.join(protocols=[("a", data)]).one.error is Errors.NONE
    assert bench.beat("new", -1) == Beat("new", -1, None)
    assert bench.kind() == "classic"


@pytest.mark.parametrize("leaves", [True, False])
def test_metadata_that_cannot_be_read_keeps_no_member_in_the_group(bench: ConsumerGroupBench, leaves: bool) -> None:
    """The last consumer-protocol member leaves or expires, and the group cannot become a classic one."""
    bench.join("new")
    ((_, data),) = protocols()
    how: dict[str, Any] = {"session_ms": 300_000, "rebalance_ms": 300_000}
    bench.groups.join(protocols=[("own", data), ("range", b"")], **how)
    bench.groups.join(protocols=[("range", data)], **how)
    if leaves:
        assert bench.beat("new", -1) == Beat("new", -1, None)
    else:
        bench.after(45_000)
    assert bench.kind() == "consumer"
    assert len(bench.described().members) == 2


def test_members_of_the_classic_protocol_alone_share_what_another_had() -> None:
    """The target assignment is computed without heartbeats of the consumer protocol if no downgrade is allowed."""
    bench = ConsumerGroupBench(settings=replace(AT_ONCE, migration_policy="upgrade"))
    bench.join("new")
    joined = bench.groups.join(protocols=protocols()).one
    one = joined.member_id
    bench.beat("new", 2, has={"t": [0, 1, 2, 3]})
    bench.beat("new", 2, has={"t": bench.targets()["new"]["t"]})
    joined = bench.groups.join(one, protocols=protocols()).one
    has = parts(bench.groups.sync(one, joined.generation_id).one.assignment)
    assert len(has["t"]) == 2
    assert bench.groups.beat(one, joined.generation_id) is Errors.NONE
    bench.beat("new", -1)
    assert bench.kind() == "consumer"
    assert bench.groups.beat(one, joined.generation_id) is Errors.REBALANCE_IN_PROGRESS
    joined = bench.groups.join(one, protocols=protocols(owned=has)).one
    has = parts(bench.groups.sync(one, joined.generation_id).one.assignment)
    assert has == {"t": [0, 1, 2, 3]}
    assert bench.groups.beat(one, joined.generation_id) is Errors.NONE
    bench.image.grow("t", 6)
    assert bench.groups.beat(one, joined.generation_id) is Errors.REBALANCE_IN_PROGRESS
    joined = bench.groups.join(one, protocols=protocols(owned=has)).one
    assert parts(bench.groups.sync(one, joined.generation_id).one.assignment) == {"t": [0, 1, 2, 3, 4, 5]}
    bench.image.create("other", 1)
    assert bench.groups.beat(one, joined.generation_id) is Errors.NONE


def test_a_classic_member_that_takes_up_the_new_protocol_need_not_sync(bench: ConsumerGroupBench) -> None:
    bench.join("new")
    joined = bench.groups.join(protocols=protocols(), rebalance_ms=5000).one
    epoch = bench.join(joined.member_id).epoch
    bench.after(6000)
    assert bench.beat(joined.member_id, epoch).epoch >= epoch


def test_a_loaded_classic_member_has_no_rebalance_time_out_of_the_other_protocol() -> None:
    """The member has revoked its partitions and has the epoch at which it was loaded."""
    settings = ConsumerGroupSettings(assignment_interval=Limits(15_000, 0, 15_000), assignors=("range", "uniform"))
    bench = ConsumerGroupBench(FakeImage(t=2, u=2), settings=settings)
    bench.join("new", ["t", "u"])
    how: dict[str, Any] = {"session_ms": 60_000, "rebalance_ms": 5000}
    one = bench.groups.join(protocols=protocols(["t", "u"]), **how).one.member_id
    bench.groups.sync(one, 2)
    bench.after(15_000)
    bench.beat("new", 2, has={"t": [0, 1], "u": [0, 1]})
    bench.beat("new", 2, has=bench.targets()["new"])
    joined = bench.groups.join(one, protocols=protocols(["t", "u"]), **how).one
    assert joined.generation_id == 3
    has = parts(bench.groups.sync(one, 3).one.assignment)
    assert set(has) == {"t", "u"}
    bench.groups.join(one, protocols=protocols(["t"], owned=has), **how)
    assert parts(bench.groups.sync(one, 3).one.assignment) == {"t": has["t"]}
    again = bench.restart()
    again.groups.join(one, protocols=protocols(["t"], owned={"t": has["t"]}), **how)
    again.groups.sync(one, 3)
    assert again.groups.beat(one, 3) is Errors.NONE
    again.after(6000)
    assert again.groups.beat(one, 3) is Errors.NONE
