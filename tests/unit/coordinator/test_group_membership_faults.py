"""Classic groups whose records cannot be stored, and members that repeat a request or join with another identity."""

import pytest

from kbroker.common.errors import Errors
from kbroker.coordinator.group_coordinator import GroupSettings
from kbroker.coordinator.group_records import CommittedOffset
from tests.support.groups import RANGE, SESSION_MS, Groups

NONE = Errors.NONE


def take_replicas_away(groups: Groups, are_gone: bool = True) -> None:
    """Make appends fail for lack of replicas, or succeed again."""
    assert groups.topic is not None
    for log in groups.topic.logs:
        log.is_under_min_isr = are_gone


def test_a_static_member_whose_return_cannot_be_stored(groups: Groups) -> None:
    """The join gets the error, and the former member continues with its id, protocols and session."""
    first = groups.lone(instance="i")
    take_replicas_away(groups)
    refused = groups.join(instance="i", protocols=[("range", b"other")], session_ms=60_000).one
    assert (refused.error, refused.member_id) == (Errors.COORDINATOR_NOT_AVAILABLE, "")
    assert groups.members() == [first.member_id]
    assert groups.beat(first.member_id, 1, instance="i") is NONE
    described = groups.coordinator.describe("g")
    assert described is not None
    assert [(one.metadata, one.assignment) for one in described.members] == [(RANGE[0][1], b"all")]
    take_replicas_away(groups, False)
    groups.after(SESSION_MS - 100)
    assert groups.members() == [first.member_id]
    groups.after(100)
    assert groups.members() == []


def test_a_static_member_that_returns_with_another_protocol(groups: Groups) -> None:
    """The group rebalances, as its members would use different protocols."""
    both = [("range", b""), ("roundrobin", b"")]
    assert groups.lone(instance="i", protocols=both).protocol_name == "range"
    back = groups.join(instance="i", protocols=both[::-1]).one
    assert (back.error, back.generation_id, back.protocol_name) == (NONE, 2, "roundrobin")
    assert groups.state() == "CompletingRebalance"


def test_a_member_whose_join_response_was_lost(groups: Groups) -> None:
    """The same join before the assignment gets the same response; a changed one starts another rebalance."""
    joined = groups.join().one
    again = groups.join(joined.member_id).one
    assert again == joined
    assert groups.state() == "CompletingRebalance"
    assert groups.join(joined.member_id, protocols=[("range", b"new")]).one.generation_id == 2


def test_an_id_of_a_dynamic_member_with_an_instance_id(groups: Groups) -> None:
    """A member id that was given to a dynamic member is unknown for a static member, and stays valid."""
    given = groups.join(known=True).one
    assert groups.join(given.member_id, instance="i").one.error is Errors.UNKNOWN_MEMBER_ID
    assert groups.join(given.member_id, known=True).one.error is NONE


def test_a_member_for_which_a_rebalance_has_no_place_left() -> None:
    """A known member that rejoins after others have taken all places is removed from the group."""
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    leader, follower = groups.pair()
    assert groups.leave(follower.member_id) == [NONE]
    waiting = [groups.join(), groups.join()]
    assert waiting == [[], []]
    refused = groups.join(leader.member_id).one
    assert (refused.error, refused.member_id) == (Errors.GROUP_MAX_SIZE_REACHED, "")
    assert [one.one.generation_id for one in waiting] == [3, 3]
    assert sorted(groups.members()) == sorted(one.one.member_id for one in waiting)


def test_an_empty_group_that_cannot_be_stored(groups: Groups, caplog: pytest.LogCaptureFixture) -> None:
    """The group is empty nevertheless; after a restart its members are back until their sessions end."""
    joined = groups.lone()
    take_replicas_away(groups)
    assert groups.leave(joined.member_id) == [NONE]
    assert (groups.state(), groups.members()) == ("Empty", [])
    (line,) = caplog.messages
    assert line.startswith("group g: cannot store that the group is empty: COORDINATOR_NOT_AVAILABLE")
    take_replicas_away(groups, False)
    groups.coordinator.close()
    groups = groups.restart()
    assert groups.members() == [joined.member_id]
    groups.after(SESSION_MS)
    assert groups.members() == []


def test_offsets_that_cannot_be_deleted_now(caplog: pytest.LogCaptureFixture) -> None:
    """Offsets that have expired, or are of a deleted topic, stay until their deletion can be stored."""
    day = 24 * 3600 * 1000
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=day))
    offsets = groups.coordinator.offsets
    for group in ("g", "h"):
        offsets.commit(group, "", None, -1, {("t", 0): CommittedOffset(7, -1, "", groups.clock.wall_ms())})
    groups.clock.advance_ms(day)
    take_replicas_away(groups)
    assert offsets.expire() == 0
    lines = [f"group {group}: cannot expire offsets: COORDINATOR_NOT_AVAILABLE" for group in ("g", "h")]
    assert [line.partition(": The")[0] for line in caplog.messages] == lines
    assert offsets.fetch("g").committed[("t", 0)].offset == 7
    assert not groups.coordinator.topic_deleted("t")
    assert any("the offsets of the deleted topic t will be deleted later" in line for line in caplog.messages)
    take_replicas_away(groups, False)
    assert offsets.expire() == 2
    assert offsets.fetch("g").committed == {}


def test_offsets_of_a_group_of_another_type_stay() -> None:
    """Offsets of a group with members expire by its subscriptions, which only consumers have."""
    day = 24 * 3600 * 1000
    groups = Groups(
        GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=day, max_session_timeout_ms=3 * day)
    )
    joined = groups.lone(kind="connect", session_ms=3 * day)
    value = CommittedOffset(7, -1, "", groups.clock.wall_ms())
    groups.coordinator.offsets.commit("g", joined.member_id, None, 1, {("t", 0): value})
    groups.clock.advance_ms(2 * day)
    assert groups.coordinator.offsets.expire() == 0
    assert groups.leave(joined.member_id) == [NONE]
    assert groups.coordinator.offsets.expire() == 0  # the retention begins when the group becomes empty
    groups.clock.advance_ms(day)
    assert groups.coordinator.offsets.expire() == 1
