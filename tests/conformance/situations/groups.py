"""Classic protocol of groups: join, sync, heartbeat, leave."""

import time
from typing import Any

from tests.conformance.bodies import MEMBER_ID_REQUIRED, group, heartbeat, join, leave, lone_member, sync
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.talk import Talk

JOIN, SYNC = "0-9", "0-5"
REBALANCE_IN_PROGRESS = 27


def joined(talk: Talk, name: str, *, on: str = "main", **how: Any) -> Body:
    """Join, and join again with the member id of the first response if it is required."""
    response = talk.ask(join(name, **how), f"{on} joins", on=on)
    if response["ErrorCode"] == MEMBER_ID_REQUIRED:
        response = talk.ask(join(name, response["MemberId"], **how), f"{on} joins with its id", on=on)
    return response


@situation("JoinGroup", JOIN)
def life_of_a_member(talk: Talk) -> None:
    """Join, sync, send a heartbeat and leave, each in the version of the same age."""
    name, version = group(talk), min(talk.version, 5)
    mine = joined(talk, name)
    member, generation = mine["MemberId"], mine["GenerationId"]
    talk.also("SyncGroup", version, sync(name, generation, member, {member: b"all of it"}))
    talk.also("Heartbeat", min(version, 4), heartbeat(name, generation, member))
    talk.also("LeaveGroup", version, leave(version, name, member))
    talk.also("DescribeGroups", 5, {"Groups": [name]})


@situation("JoinGroup", JOIN)
def rebalance(talk: Talk) -> None:
    """Join as a second member: the first rejoins, the leader receives both, and each gets its assignment."""
    name = group(talk)
    one = joined(talk, name, on="one")
    talk.quietly("SyncGroup", 1, sync(name, one["GenerationId"], one["MemberId"], {one["MemberId"]: b"all"}), on="one")
    id_of_two = ""
    if talk.version >= 4:
        id_of_two = talk.ask(join(name), "two asks for an id", on="two")["MemberId"]
    waiting = talk.begin("JoinGroup", talk.version, join(name, id_of_two), "two", on="two")
    beat = heartbeat(name, one["GenerationId"], one["MemberId"])
    talk.until("the rebalance", lambda: talk.quietly("Heartbeat", 1, beat)["ErrorCode"] == REBALANCE_IN_PROGRESS)
    talk.also("Heartbeat", min(talk.version, 4), beat, "meanwhile", on="one")
    body = sync(name, one["GenerationId"], one["MemberId"])
    talk.also("SyncGroup", min(talk.version, 5), body, "meanwhile", on="one")
    one = talk.ask(join(name, one["MemberId"]), "one joins again", on="one")
    two = waiting.end()
    members = {"one": one, "two": two}
    leads, follows = ("one", "two") if one["Leader"] == one["MemberId"] else ("two", "one")
    leader, follower = members[leads], members[follows]
    body = sync(name, follower["GenerationId"], follower["MemberId"])
    waiting = talk.begin("SyncGroup", 1, body, "of the follower", on=follows)
    parts = {leader["MemberId"]: b"leads", follower["MemberId"]: b"follows"}
    talk.also("SyncGroup", 1, sync(name, leader["GenerationId"], leader["MemberId"], parts), "of the leader", on=leads)
    waiting.end()


@situation("JoinGroup", JOIN)
def session_timeouts(talk: Talk) -> None:
    """Join with session timeouts below the minimum, above the maximum, and below zero."""
    name = group(talk)
    for timeout_ms in (5999, 1_800_001, -1):
        talk.ask(join(name, SessionTimeoutMs=timeout_ms), f"{timeout_ms} ms")


@situation("JoinGroup", JOIN)
def bad_joins(talk: Talk) -> None:
    """Join without a group name, as unknown members, without protocols, and without a protocol type."""
    name = group(talk)
    talk.ask(join(""), "no name")
    talk.ask(join(name, "stranger"), "a stranger, no such group")
    lone_member(talk, name)
    talk.ask(join(name, "stranger"), "a stranger")
    talk.ask(join(talk.name("second"), protocols=[]), "no protocols")
    talk.ask(join(talk.name("third"), ProtocolType=""), "no type")


@situation("JoinGroup", JOIN)
def protocols_that_do_not_fit(talk: Talk) -> None:
    """Join with another protocol type, and without a protocol in common."""
    name = group(talk)
    lone_member(talk, name)
    talk.ask(join(name, ProtocolType="connect"), "type")
    talk.ask(join(name, protocols=[{"Name": "sticky", "Metadata": b""}]), "name")


@situation("JoinGroup", JOIN)
def joins_again(talk: Talk) -> None:
    """Rejoin as the leader, with the same and with other metadata."""
    name = group(talk)
    member = lone_member(talk, name, on="main")
    talk.ask(join(name, member.id), "the same")
    talk.ask(join(name, member.id, protocols=[{"Name": "range", "Metadata": b"other"}]), "other metadata")


@situation("JoinGroup", JOIN)
def choice_of_protocol(talk: Talk) -> None:
    """Join with several protocols, of which the first is chosen. (Kafka never responds to some invalid metadata.)"""
    joined(talk, group(talk), protocols=[{"Name": name, "Metadata": b"m"} for name in ("sticky", "range")])


@situation("JoinGroup", "4-9")
def member_that_has_only_an_id(talk: Talk) -> None:
    """Use a member id without joining: sync, heartbeat and leave. (The result of DescribeGroups is a race in Kafka.)"""
    name = group(talk)
    given = talk.ask(join(name), "asks for an id")["MemberId"]
    talk.also("Heartbeat", 3, heartbeat(name, 0, given))
    talk.also("SyncGroup", 3, sync(name, 0, given))
    talk.also("LeaveGroup", 3, leave(3, name, given))
    talk.ask(join(name, given), "after it has left")


@situation("JoinGroup", "5-9")
def static_member(talk: Talk) -> None:
    """Join as a static member, rejoin with a new id without a rebalance, and use the fenced id."""
    name = group(talk)
    first = talk.ask(join(name, instance="i"), "first")
    old = first["MemberId"]
    body = sync(name, first["GenerationId"], old, {old: b"its part"}, GroupInstanceId="i")
    talk.also("SyncGroup", min(talk.version, 5), body)
    second = talk.ask(join(name, instance="i"), "comes back", on="second")
    talk.observe("has a new id", old != second["MemberId"])
    talk.also("Heartbeat", 3, heartbeat(name, first["GenerationId"], old, "i"), "old id")
    talk.ask(join(name, old, instance="i"), "old id")
    talk.also("SyncGroup", 3, sync(name, first["GenerationId"], old, GroupInstanceId="i"), "old id")
    body = sync(name, second["GenerationId"], second["MemberId"], GroupInstanceId="i")
    talk.also("SyncGroup", 3, body, "new id", on="second")
    talk.also("DescribeGroups", 4, {"Groups": [name]})


@situation("SyncGroup", SYNC)
def bad_syncs(talk: Talk) -> None:
    """Sync an unknown group, as an unknown member, in another generation, without a name, and correctly."""
    name = group(talk)
    talk.ask(sync(name, 1, "stranger"), "no such group")
    member = lone_member(talk, name)
    rows = (("stranger", name, 1, "stranger"), ("generation", name, 99, member.id), ("no name", "", 1, member.id))
    for note, group_id, generation, id in (*rows, ("right", name, 1, member.id)):
        talk.ask(sync(group_id, generation, id), note)


@situation("SyncGroup", "5")
def protocol_in_a_sync(talk: Talk) -> None:
    """Sync with a protocol, which must be the group's or null."""
    name = group(talk)
    member = lone_member(talk, name)
    for fields in (
        {"ProtocolType": "connect"},
        {"ProtocolName": "other"},
        {"ProtocolType": None, "ProtocolName": None},
    ):
        talk.ask(sync(name, 1, member.id, **fields), ", ".join(map(str, fields.values())))


@situation("SyncGroup", SYNC)
def leader_without_a_part(talk: Talk) -> None:
    """Sync as a leader that gives an assignment only to an unknown member."""
    name = group(talk)
    member = lone_member(talk, name, is_synced=False)
    talk.ask(sync(name, 1, member.id, {"stranger": b"a part"}))
    talk.also("DescribeGroups", 4, {"Groups": [name]})


@situation("Heartbeat", "0-4")
def bad_heartbeats(talk: Talk) -> None:
    """Send heartbeats of unknown groups and members, before the sync, of another generation, without names."""
    name = group(talk)
    talk.ask(heartbeat(name, 1, "stranger"), "no such group")
    member = lone_member(talk, name, is_synced=False)
    rows = (("before sync", name, 1, member.id), ("stranger", name, 1, "stranger"), ("generation", name, 0, member.id))
    for note, group_id, generation, id in (*rows, ("no name", "", 1, member.id), ("no member", name, 1, "")):
        talk.ask(heartbeat(group_id, generation, id), note)


@situation("Heartbeat", "3-4")
def static_heartbeats(talk: Talk) -> None:
    """Send heartbeats with the right instance, another's member id, and an unknown instance."""
    name = group(talk)
    member = lone_member(talk, name, instance="i")
    rows = (("right", member.id, "i"), ("fenced", "other", "i"), ("no such instance", member.id, "j"))
    for note, id, instance in rows:
        talk.ask(heartbeat(name, member.generation, id, instance), note)


@situation("Heartbeat", "0-4")
def session_ends(talk: Talk) -> None:
    """Exceed the session timeout of six seconds, after which the silent member is removed."""
    name = group(talk)
    member = lone_member(talk, name, SessionTimeoutMs=6000)
    time.sleep(7)
    talk.ask(heartbeat(name, member.generation, member.id))
    talk.also("DescribeGroups", 5, {"Groups": [name]})


@situation("LeaveGroup", SYNC)
def leaves(talk: Talk) -> None:
    """Leave an unknown group, as an unknown member, as a member, again, and without a name."""
    name = group(talk)
    talk.ask(leave(talk.version, name, "stranger"), "no such group")
    member = lone_member(talk, name)
    rows = (
        ("stranger", name, "stranger"),
        ("leaves", name, member.id),
        ("again", name, member.id),
        ("no name", "", member.id),
    )
    for note, *who in rows:
        talk.ask(leave(talk.version, *who), note)


@situation("LeaveGroup", "3-5")
def several_leave(talk: Talk) -> None:
    """Remove no members, wrong pairs of member and instance, and a member by its instance only."""
    name = group(talk)
    lone_member(talk, name, instance="i")
    wrong = [
        {"MemberId": "stranger"},
        {"MemberId": "other", "GroupInstanceId": "i"},
        {"MemberId": "", "GroupInstanceId": "j"},
    ]
    for note, members in (("none", []), ("wrong", wrong), ("by instance", [{"MemberId": "", "GroupInstanceId": "i"}])):
        talk.ask({"GroupId": name, "Members": members}, note)
