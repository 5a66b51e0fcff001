"""Classic groups on a virtual clock: joins, syncs, sessions, rebalances, static members and members that die."""

import time
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.timer.purgatory import DelayedOperation
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.classic_membership import Membership
from kbroker.coordinator.group_coordinator import GroupSettings
from kbroker.coordinator.group_shard import GroupShard
from tests.support.errors import error_of, raising
from tests.support.groups import REBALANCE_MS, SESSION_MS, Groups, MemoryTopic

NONE = Errors.NONE


# ---------------------------------------------------------------- join


def test_an_empty_group_waits_for_more_members_and_no_longer() -> None:
    """The first rebalance ends exactly after the initial rebalance delay if no other member joins."""
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=3000))
    joined = groups.join()
    groups.after(2900)
    assert joined == []
    groups.after(100)
    assert (joined.one.error, joined.one.generation_id, joined.one.leader_id) == (NONE, 1, joined.one.member_id)


def test_the_initial_delay_is_prolonged_by_newcomers_up_to_the_rebalance_timeout() -> None:
    """A join during the initial delay prolongs the delay, up to the rebalance timeout."""
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=3000))
    responses = [groups.join(rebalance_ms=7000)]
    for _ in range(2):
        groups.after(2000)
        responses.append(groups.join(rebalance_ms=7000))
        groups.after(1000)
    groups.after(900)
    assert not any(responses)
    groups.after(100)
    assert [response.one.generation_id for response in responses] == [1, 1, 1]


def test_a_member_id_is_handed_out_first(groups: Groups) -> None:
    """A join of version 4 without a member id gets MEMBER_ID_REQUIRED and an id; a join with the id is accepted."""
    given = groups.join(known=True).one
    assert given.error is Errors.MEMBER_ID_REQUIRED
    assert given.member_id.startswith("client-")
    assert groups.members() == []
    joined = groups.join(given.member_id, known=True).one
    assert (joined.error, joined.member_id, joined.generation_id) == (NONE, given.member_id, 1)


def test_an_unused_member_id_expires_with_its_session(groups: Groups) -> None:
    """A member id that no member uses delays a rebalance until its session timeout."""
    first = groups.lone()
    groups.join(known=True, session_ms=6000)
    waiting = groups.join(first.member_id, rebalance_ms=60_000)
    groups.after(5900)
    assert waiting == []
    groups.beat(first.member_id, 1)
    groups.after(200)
    assert waiting.one.generation_id == 2


def test_a_group_whose_only_member_never_joined_is_there_until_the_next_look(groups: Groups) -> None:
    """The member id expires, and the group is Empty until the next expiration of offsets, as in Apache Kafka 4.3.1."""
    groups.join(known=True, session_ms=6000)
    groups.after(6100)
    assert [groups.state(), groups.state()] == ["Empty", "Empty"]
    groups.coordinator.offsets.expire()
    assert groups.state() == "Dead"


def test_the_protocol_with_most_votes_is_chosen_among_the_common_ones() -> None:
    """A protocol that every member supports is chosen before one with more votes that a member does not support."""
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=10))
    wanted = [["x", "a", "b"], ["b", "a"], ["b", "a"]]
    responses = [groups.join(protocols=[(name, b"") for name in names]) for names in wanted]
    groups.after(300)
    assert {response.one.protocol_name for response in responses} == {"b"}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("range roundrobin", "range"),
        ("roundrobin range", "range"),
        ("range sticky", "sticky"),
        ("sticky range", "sticky"),
        ("cooperative-sticky range", "range"),
        ("range cooperative-sticky", "range"),
        ("sticky roundrobin", "sticky"),
        ("b a", "a"),
        ("zz b", "zz"),
        ("range roundrobin sticky", "sticky"),
        ("sticky cooperative-sticky roundrobin", "sticky"),
        ("uniform stream \u00e9", "uniform"),
        ("p4 p3 p2 p1", "p1"),
    ],
)
def test_a_tie_of_votes_is_decided_as_kafka_decides_it(names: str, chosen: str) -> None:
    """The broker chooses the protocol of Apache Kafka 4.3.1 if each member prefers a different common protocol."""
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=10))
    known = names.split()
    wanted = [[one, *(name for name in known if name != one)] for one in known]
    responses = [groups.join(protocols=[(name, b"") for name in favourites]) for favourites in wanted]
    groups.after(300)
    assert {response.one.protocol_name for response in responses} == {chosen}


def test_an_assignment_is_shown_in_every_state_and_metadata_in_a_stable_group(groups: Groups) -> None:
    """The description is that of Apache Kafka 4.3.1; an interrupted rebalance leaves no assignment."""

    def shown() -> tuple[str, str, list[tuple[bytes, bytes]]]:
        found = groups.coordinator.describe("g")
        return found.state.value, found.protocol_name, [(one.metadata, one.assignment) for one in found.members]

    one = groups.join(protocols=[("range", b"m1")]).one
    assert shown() == ("CompletingRebalance", "", [(b"", b"")])
    groups.sync(one.member_id, 1, {one.member_id: b"all"})
    assert shown() == ("Stable", "range", [(b"m1", b"all")])
    waiting = groups.join(protocols=[("range", b"m2")])
    assert shown() == ("PreparingRebalance", "", [(b"", b"all"), (b"", b"")])
    groups.join(one.member_id, protocols=[("range", b"m1")])
    assert shown() == ("CompletingRebalance", "", [(b"", b"all"), (b"", b"")])
    groups.sync(waiting.one.member_id, 2)
    groups.join(protocols=[("range", b"m3")])
    assert shown() == ("PreparingRebalance", "", [(b"", b"")] * 3)


def test_assignments_that_cannot_be_stored_write_one_line(groups: Groups, caplog: pytest.LogCaptureFixture) -> None:
    """A member that rejoins at once, as librdkafka does, while the replicas are offline, causes one log line."""
    joined = groups.join().one
    assert groups.topic is not None
    for is_under in (True, False):
        for log in groups.topic.logs:
            log.is_under_min_isr = is_under
        for _ in range(20 if is_under else 1):
            synced = groups.sync(joined.member_id, joined.generation_id, {joined.member_id: b"all"}).one
            assert synced.error is (Errors.COORDINATOR_NOT_AVAILABLE if is_under else NONE)
            joined = groups.join(joined.member_id).one
    assert caplog.text.count("group g: cannot store the assignments") == 1


@pytest.mark.parametrize(
    "how", [{"group": ""}, {"session_ms": 5999}, {"member_id": "stranger"}, {"protocols": []}, {"kind": ""}]
)
def test_a_join_that_is_refused_leaves_nothing(groups: Groups, how: dict[str, Any]) -> None:
    """A refused join does not create a group."""
    assert groups.join(**how).one.error is not NONE
    assert groups.coordinator.list_groups() == []


def test_a_full_group_takes_no_member_in() -> None:
    """A full group (group.max.size) rejects a new member, and accepts a rejoin of an existing member."""
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=0, max_size=1))
    first = groups.lone()
    assert groups.join().one.error is Errors.GROUP_MAX_SIZE_REACHED
    assert groups.join(first.member_id).one.generation_id == 2


def test_in_a_rebalance_the_members_that_have_joined_count() -> None:
    """In a rebalance, group.max.size counts the members that have rejoined."""
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    leader, _ = groups.pair()
    assert [groups.join(leader.member_id), groups.join()] == [[], []]
    assert groups.join().one.error is Errors.GROUP_MAX_SIZE_REACHED


def test_a_follower_that_joins_again_unchanged_hears_of_the_same_generation(groups: Groups) -> None:
    """A follower that rejoins unchanged causes no rebalance; changed metadata causes one."""
    leader, follower = groups.pair()
    again = groups.join(follower.member_id).one
    assert (again.generation_id, again.members) == (2, ())
    assert groups.state() == "Stable"
    waiting = groups.join(follower.member_id, protocols=[("range", b"new")])
    assert waiting == []
    assert groups.state() == "PreparingRebalance"
    groups.join(leader.member_id)
    assert waiting.one.generation_id == 3


def test_a_second_join_of_one_member_completes_the_first(groups: Groups) -> None:
    """The first of two joins of a member completes with REBALANCE_IN_PROGRESS."""
    first = groups.lone()
    groups.join()
    waiting = groups.join(first.member_id, protocols=[("range", b"x")])
    assert waiting.one.generation_id == 2
    one = groups.join(first.member_id, protocols=[("range", b"y")])
    two = groups.join(first.member_id, protocols=[("range", b"z")])
    assert one.one.error is Errors.REBALANCE_IN_PROGRESS
    assert two == []


# ---------------------------------------------------------------- sync


def test_members_wait_for_the_leaders_assignment(groups: Groups) -> None:
    """A follower's sync completes with the leader's; a member without an assignment gets an empty one."""
    first, second = groups.joined_pair()
    follower = groups.sync(second.member_id, 2)
    assert follower == []
    leader = groups.sync(first.member_id, 2, {first.member_id: b"L", "stranger": b"S"})
    assert leader.one.assignment == b"L"
    assert (follower.one.error, follower.one.assignment) == (NONE, b"")
    assert groups.state() == "Stable"
    assert groups.sync(first.member_id, 2).one.assignment == b"L"


def test_a_newcomer_sends_waiting_syncs_back_to_join(groups: Groups) -> None:
    """A waiting sync completes with REBALANCE_IN_PROGRESS when a new member starts a rebalance."""
    _, second = groups.joined_pair()
    follower = groups.sync(second.member_id, 2)
    groups.join()
    assert follower.one.error is Errors.REBALANCE_IN_PROGRESS
    assert groups.state() == "PreparingRebalance"


def test_a_second_sync_of_one_member_completes_the_first(groups: Groups) -> None:
    """The first of two syncs of a member completes with REBALANCE_IN_PROGRESS."""
    _, second = groups.joined_pair()
    one = groups.sync(second.member_id, 2)
    two = groups.sync(second.member_id, 2)
    assert (one.one.error, two) == (Errors.REBALANCE_IN_PROGRESS, [])


# ---------------------------------------------------------------- members that die


def test_a_silent_member_is_out_at_the_end_of_its_session(groups: Groups) -> None:
    """A member without a heartbeat is removed exactly at its session timeout, which leaves an empty group."""
    one = groups.lone()
    groups.after(SESSION_MS - 100)
    assert groups.members() == [one.member_id]
    assert groups.beat(one.member_id, 1) is NONE
    groups.after(SESSION_MS - 100)
    assert groups.members() == [one.member_id]
    groups.after(100)
    assert (groups.state(), groups.members()) == ("Empty", [])
    assert groups.beat(one.member_id, 1) is Errors.UNKNOWN_MEMBER_ID


def test_a_member_that_dies_in_a_stable_group_starts_a_rebalance(groups: Groups) -> None:
    """The remaining member gets REBALANCE_IN_PROGRESS, rejoins, and is the only member of the next generation."""
    leader, dead = groups.pair()
    for _ in range(3):
        groups.after(SESSION_MS // 3)
        code = groups.beat(leader.member_id, 2)
    groups.after(100)
    code = groups.beat(leader.member_id, 2)
    assert code is Errors.REBALANCE_IN_PROGRESS
    assert groups.join(leader.member_id).one.generation_id == 3
    assert groups.members() == [leader.member_id]
    assert groups.beat(dead.member_id, 2) is Errors.UNKNOWN_MEMBER_ID


def test_a_member_that_dies_before_it_rejoins_is_left_behind(groups: Groups) -> None:
    """A rebalance waits for a dead member until its session timeout, and then completes for the other members."""
    leader, dead = groups.pair()
    waiting = groups.join(leader.member_id)
    newcomer = groups.join()
    assert (waiting, newcomer) == ([], [])
    groups.after(SESSION_MS + 100)
    assert waiting.one.generation_id == newcomer.one.generation_id == 3
    assert dead.member_id not in groups.members()


def test_a_member_that_beats_but_never_rejoins_is_out_after_the_rebalance_timeout(groups: Groups) -> None:
    """A member that sends heartbeats without a rejoin delays a rebalance until the rebalance timeout."""
    leader, lazy = groups.pair()
    waiting = groups.join(leader.member_id)
    for _ in range(REBALANCE_MS // 5000):
        assert waiting == []
        assert groups.beat(lazy.member_id, 2) is Errors.REBALANCE_IN_PROGRESS
        groups.after(5000)
    assert waiting.one.generation_id == 3
    assert groups.members() == [leader.member_id]


def test_a_leader_that_dies_before_it_rejoins_is_replaced(groups: Groups) -> None:
    """A member that has rejoined becomes the leader."""
    leader, other = groups.pair()
    waiting = groups.join(other.member_id, protocols=[("range", b"changed")])
    groups.after(SESSION_MS + 100)
    assert (waiting.one.leader_id, waiting.one.generation_id) == (other.member_id, 3)
    assert leader.member_id not in groups.members()


def test_a_leader_that_dies_before_it_syncs_does_not_block_the_others(groups: Groups) -> None:
    """A waiting sync completes with REBALANCE_IN_PROGRESS when the session of the leader ends."""
    _, second = groups.joined_pair()
    synced = groups.sync(second.member_id, 2)
    groups.after(SESSION_MS)
    assert synced.one.error is Errors.REBALANCE_IN_PROGRESS
    assert groups.join(second.member_id).one.leader_id == second.member_id


def test_a_follower_that_beats_but_never_syncs_is_out_after_the_rebalance_timeout(groups: Groups) -> None:
    """A group without a follower's sync is stable, and rebalances at the rebalance timeout (KIP-735)."""
    first, second = groups.joined_pair()
    lazy = second.member_id
    groups.sync(first.member_id, 2, {})
    for _ in range(REBALANCE_MS // 5000):
        assert groups.beat(first.member_id, 2) is NONE
        assert groups.beat(lazy, 2) is NONE
        groups.after(5000)
    assert groups.beat(first.member_id, 2) is Errors.REBALANCE_IN_PROGRESS
    assert groups.members() == [first.member_id]


def test_a_newcomer_that_gives_up_in_a_long_rebalance_is_out_after_five_minutes(groups: Groups) -> None:
    """A new member's join expires after five minutes if the rebalance takes longer."""
    leader = groups.lone(session_ms=1_000_000, rebalance_ms=1_000_000)
    newcomer = groups.join(rebalance_ms=1_000_000)
    groups.after(5 * 60_000 + 100)
    assert newcomer.one.error is Errors.UNKNOWN_MEMBER_ID
    assert groups.members() == [leader.member_id]


def test_leaving_rebalances_at_once(groups: Groups) -> None:
    """A member that leaves starts a rebalance at once; the last member leaves an empty group."""
    leader, other = groups.pair()
    assert groups.leave(other.member_id, "stranger") == [NONE, Errors.UNKNOWN_MEMBER_ID]
    assert groups.join(leader.member_id).one.generation_id == 3
    assert groups.leave(leader.member_id) == [NONE]
    assert groups.state() == "Empty"
    assert groups.leave(leader.member_id) == [Errors.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("waiting_leaves_last", [True, False])
def test_members_that_leave_together_are_removed_before_the_rebalance_goes_on(
    groups: Groups, waiting_leaves_last: bool
) -> None:
    """A waiting join is not completed by the removal of another member in the same request, as in Kafka."""
    leader, other = groups.pair()
    waiting = groups.join(leader.member_id)
    leaving = [other.member_id, leader.member_id]
    assert groups.leave(*(leaving if waiting_leaves_last else leaving[::-1])) == [NONE, NONE]
    assert waiting.one.error is Errors.UNKNOWN_MEMBER_ID
    assert groups.state() == "Empty"
    assert groups.lone().generation_id == leader.generation_id + 2


def test_a_leaving_members_delayed_requests_complete(groups: Groups) -> None:
    """The waiting join of a member that leaves completes with UNKNOWN_MEMBER_ID."""
    groups.pair()
    newcomer = groups.join()
    assert newcomer == []
    groups.leave(groups.members()[-1])
    assert newcomer.one.error is Errors.UNKNOWN_MEMBER_ID


# ---------------------------------------------------------------- static members


def test_a_static_member_returns_without_a_rebalance(groups: Groups) -> None:
    """A returning static member gets a new id and the old assignment in the same generation; the old id is fenced."""
    first = groups.lone(instance="i")
    back = groups.join(instance="i", skip=True).one
    assert back.member_id != first.member_id
    assert (back.generation_id, back.leader_id, back.skip_assignment) == (1, back.member_id, True)
    assert [one.member_id for one in back.members] == [back.member_id]
    assert groups.state() == "Stable"
    assert groups.beat(first.member_id, 1, instance="i") is Errors.FENCED_INSTANCE_ID
    assert groups.join(first.member_id, instance="i").one.error is Errors.FENCED_INSTANCE_ID
    assert groups.sync(back.member_id, 1, instance="i").one.assignment == b"all"
    groups.after(SESSION_MS - 100)
    assert groups.members() == [back.member_id]
    groups.after(100)
    assert groups.members() == []


def test_a_static_member_that_waits_is_fenced_by_its_successor(groups: Groups) -> None:
    """The waiting join of a static member completes with FENCED_INSTANCE_ID when its instance id joins again.

    The session of the successor cannot end while its join waits, although the first one was that of a new member.
    """
    groups.lone(session_ms=60_000, rebalance_ms=60_000)
    one = groups.join(instance="i", session_ms=6000)
    two = groups.join(instance="i", session_ms=6000)
    assert one.one.error is Errors.FENCED_INSTANCE_ID
    groups.after(6100)
    assert two == []
    groups.after(54_000)
    assert two.one.error is Errors.NONE


def test_a_static_member_survives_a_rebalance_it_missed(groups: Groups) -> None:
    """A static member whose session continues stays in the next generation; a new member leads it."""
    static = groups.lone(instance="i", session_ms=60_000, rebalance_ms=7000)
    newcomer = groups.join(rebalance_ms=7000)
    groups.after(7100)
    assert newcomer.one.generation_id == 2
    assert static.member_id in groups.members()
    assert newcomer.one.leader_id == newcomer.one.member_id


def test_members_join_a_rebalance_that_all_others_have_left(groups: Groups) -> None:
    """A rebalance that every other member has left waits for a pending member id, and accepts new members."""
    alone = groups.lone()
    pending = groups.join(known=True).one
    newcomer = groups.join(known=True).one
    groups.join(newcomer.member_id)
    assert groups.leave(newcomer.member_id, alone.member_id) == [Errors.NONE] * 2
    assert (groups.state(), groups.members()) == ("PreparingRebalance", [])
    assert groups.join(kind="connect").one.error is Errors.INCONSISTENT_GROUP_PROTOCOL
    other, last = groups.join(), groups.join(pending.member_id)
    assert {other.one.error, last.one.error} == {Errors.NONE}
    assert other.one.generation_id == last.one.generation_id == alone.generation_id + 1


def test_a_rebalance_that_no_member_rejoins_waits_on(groups: Groups) -> None:
    """A rebalance in which only silent static members are left waits until their sessions end."""
    static = groups.lone(instance="i", session_ms=30_000, rebalance_ms=7000)
    newcomer = groups.join(rebalance_ms=7000)
    groups.leave(groups.members()[-1])
    assert newcomer.one.error is Errors.UNKNOWN_MEMBER_ID
    groups.after(7100)
    assert groups.state() == "PreparingRebalance"
    assert groups.members() == [static.member_id]
    groups.after(30_000)
    assert groups.state() == "Empty"


def test_a_rebalance_time_out_of_zero_does_not_occupy_the_reaper(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebalance that no member rejoins is not repeated at once, even if the client chose a time-out of 0."""
    first = groups.lone()
    static = groups.join(instance="i", rebalance_ms=0)
    again = groups.join(first.member_id).one
    groups.sync(static.one.member_id, 2, instance="i")
    groups.sync(again.member_id, 2, {})
    waits: list[int] = []
    wait = Membership.watch_join

    def counted(membership: Membership, group: ClassicGroup, waiting: DelayedOperation) -> None:
        waits.append(waiting.timeout_ms)
        if len(waits) < 30:
            wait(membership, group, waiting)

    monkeypatch.setattr(Membership, "watch_join", counted)
    groups.leave(again.member_id)
    groups.after(1000)
    assert waits == [0, *[100] * 11]
    assert groups.members() == [static.one.member_id]


# ---------------------------------------------------------------- the whole


def test_a_thousand_members_join_at_once() -> None:
    """A thousand members join and sync in one generation within ten seconds."""
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=3000))
    begun = time.perf_counter()
    responses = [groups.join() for _ in range(1000)]
    groups.after(6100)
    joined = [response.one for response in responses]
    assert {one.generation_id for one in joined} == {1}
    (leader,) = [one for one in joined if one.members]
    assert len(leader.members) == 1000
    assignments = {one.member_id: one.member_id.encode() for one in leader.members}
    synced = [groups.sync(one.member_id, 1, assignments if one is leader else None) for one in joined]
    assert all(response.one.assignment == one.member_id.encode() for one, response in zip(joined, synced, strict=True))
    assert groups.state() == "Stable"
    assert time.perf_counter() - begun < 10


def test_a_stop_completes_every_delayed_request(groups: Groups) -> None:
    """A stop completes waiting joins with NOT_COORDINATOR; later requests get COORDINATOR_NOT_AVAILABLE."""
    first = groups.lone()
    waiting = groups.join()
    groups.lone(group="other")
    groups.join(group="third", rebalance_ms=60_000)
    groups.coordinator.close()
    assert waiting.one.error is Errors.NOT_COORDINATOR
    assert error_of(groups.beat, first.member_id, 1) is Errors.COORDINATOR_NOT_AVAILABLE
    groups.coordinator.close()


def test_members_get_an_error_if_the_group_cannot_be_written(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sync gets the error of the failed append, and the group rebalances."""
    first, second = groups.joined_pair()
    follower = groups.sync(second.member_id, 2)
    monkeypatch.setattr(GroupShard, "append", raising(KafkaError(Errors.NOT_COORDINATOR)))
    leader = groups.sync(first.member_id, 2, {first.member_id: b"x"})
    assert follower.one.error is leader.one.error is Errors.NOT_COORDINATOR
    assert groups.state() == "PreparingRebalance"


def test_members_get_an_error_if_the_group_is_too_large_for_a_record() -> None:
    """An assignment above max.message.bytes gets UNKNOWN_SERVER_ERROR, as in Kafka, and the group rebalances."""
    clock = VirtualClock()
    groups = Groups(clock=clock, topic=MemoryTopic(clock, **{"max.message.bytes": 10_000}))
    first = groups.join().one
    large = groups.sync(first.member_id, 1, {first.member_id: b"x" * 10_000})
    assert large.one.error is Errors.UNKNOWN_SERVER_ERROR
    assert groups.state() == "PreparingRebalance"
    assert groups.beat(first.member_id, 1) is Errors.REBALANCE_IN_PROGRESS
    again = groups.join(first.member_id).one
    assert (again.error, again.generation_id) == (Errors.NONE, 2)
    small = groups.sync(first.member_id, 2, {first.member_id: b"x" * 9_000})
    assert small.one.assignment == b"x" * 9_000
    assert groups.state() == groups.restart().state() == "Stable"


def test_a_newcomer_that_dies_while_the_group_waits_for_more() -> None:
    """A member that leaves during the initial delay is removed, and the other member leads."""
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=3000))
    gone = groups.join(session_ms=6000)
    stays = groups.join()
    (member_id, _) = groups.members()
    assert groups.leave(member_id) == [Errors.NONE]
    assert gone.one.error is Errors.UNKNOWN_MEMBER_ID
    groups.after(6000)
    assert (stays.one.error, stays.one.leader_id) == (Errors.NONE, stays.one.member_id)
    assert groups.members() == [stays.one.member_id]
