"""Groups described and deleted: DescribeGroups, ListGroups, DeleteGroups, FindCoordinator."""

from tests.conformance.bodies import await_group, commit, committed, group, leave, lone_member, producer, sync
from tests.conformance.codec import Body
from tests.conformance.run import TRANSACTIONS, situation
from tests.conformance.talk import Talk

DESCRIBE, DELETE, FIND = "0-6", "0-2", "0-6"


@situation("DescribeGroups", DESCRIBE)
def states(talk: Talk) -> None:
    """Describe a group that is unknown, waits for the sync, is stable, is empty, and has only offsets."""
    name, other = group(talk), talk.name("offsets")
    ask = {"Groups": [name]}
    talk.ask(ask, "unknown")
    member = lone_member(talk, name, is_synced=False)
    talk.ask(ask, "before sync")
    talk.quietly("SyncGroup", 1, sync(name, 1, member.id, {member.id: b"a part"}))
    talk.ask(ask, "stable")
    talk.quietly("LeaveGroup", 1, leave(1, name, member.id))
    talk.ask(ask, "empty")
    talk.quietly("OffsetCommit", 2, commit(other, talk.topic()))
    talk.ask({"Groups": [other]}, "offsets")


@situation("DescribeGroups", DESCRIBE)
def several_described(talk: Talk) -> None:
    """Describe a known and an unknown group, one group twice, and none."""
    name = group(talk)
    lone_member(talk, name)
    for note, names in (("unknown beside", [name, talk.name("absent")]), ("twice", [name, name]), ("none", [])):
        talk.ask({"Groups": names}, note)


@situation("DescribeGroups", "3-6")
def operations_described(talk: Talk) -> None:
    """Describe a group with its authorized operations."""
    name = group(talk)
    lone_member(talk, name)
    talk.ask({"Groups": [name], "IncludeAuthorizedOperations": True})


@situation("DescribeGroups", "4-6")
def static_member_described(talk: Talk) -> None:
    """Describe a group with a static member."""
    name = group(talk)
    lone_member(talk, name, instance="i")
    talk.ask({"Groups": [name]})


@situation("ListGroups", "0-5")
def listed(talk: Talk) -> None:
    """List a stable group, an empty group, and a group with only offsets."""
    stable, empty, offsets = group(talk), talk.name("empty"), talk.name("offsets")
    lone_member(talk, stable)
    member = lone_member(talk, empty)
    talk.quietly("LeaveGroup", 1, leave(1, empty, member.id))
    talk.quietly("OffsetCommit", 2, commit(offsets, talk.topic()))
    talk.ask({}, only={"Groups": talk.is_own("GroupId")})


@situation("ListGroups", "4-5")
def listed_by_state(talk: Talk) -> None:
    """List groups by states in either case, by several, and by unknown ones."""
    stable, empty = group(talk), talk.name("empty")
    lone_member(talk, stable)
    talk.quietly("OffsetCommit", 2, commit(empty, talk.topic()))
    for wanted in (["Stable"], ["empty"], ["Stable", "Empty"], ["Dead"], ["Nonsense"]):
        talk.ask({"StatesFilter": wanted}, ", ".join(wanted), only={"Groups": talk.is_own("GroupId")})


@situation("ListGroups", "5")
def listed_by_type(talk: Talk) -> None:
    """List groups by types in either case, by several, and by unknown ones."""
    lone_member(talk, group(talk))
    for wanted in (["classic"], ["Classic"], ["consumer"], ["nonsense"], ["classic", "consumer"]):
        talk.ask({"TypesFilter": wanted}, ", ".join(wanted), only={"Groups": talk.is_own("GroupId")})


@situation("DeleteGroups", DELETE)
def deleted(talk: Talk) -> None:
    """Delete a group with members, an unknown and an empty group, the last one again, and none; fetch its offsets."""
    live, empty, topic = group(talk), talk.name("empty"), talk.topic()
    lone_member(talk, live)
    talk.quietly("OffsetCommit", 2, commit(empty, topic))
    for note, names in (("three", [live, talk.name("absent"), empty]), ("again", [empty]), ("none", [])):
        talk.ask({"GroupsNames": names}, note)
    talk.also("OffsetFetch", 2, committed(2, empty, [(topic, [0])]))
    talk.also("DescribeGroups", 5, {"Groups": [empty]})


@situation("DeleteGroups", DELETE)
def deleted_twice_at_once(talk: Talk) -> None:
    """Delete a group that is named twice in a request."""
    name = group(talk)
    talk.quietly("OffsetCommit", 2, commit(name, talk.topic()))
    talk.ask({"GroupsNames": [name, name]})


# ---- FindCoordinator


def keys(version: int, *names: str, kind: int = 0) -> Body:
    return {"KeyType": kind, **({"CoordinatorKeys": list(names)} if version >= 4 else {"Key": names[0]})}


@situation("FindCoordinator", FIND)
def coordinator_of_a_group(talk: Talk) -> None:
    """Find the coordinator of a group, and of a name that no group can have."""
    await_group(talk, talk.name("g"))
    talk.ask(keys(talk.version, talk.name("g")))
    talk.ask(keys(talk.version, ""), "no name")


@situation("FindCoordinator", "1-6", needs=TRANSACTIONS)
def coordinator_of_a_transaction(talk: Talk) -> None:
    """Find the coordinator of a transactional id."""
    producer(talk, talk.name("tx"))
    talk.ask(keys(talk.version, talk.name("tx"), kind=1))


@situation("FindCoordinator", "4-6")
def coordinators_of_several(talk: Talk) -> None:
    """Find the coordinators of several groups, and of none."""
    await_group(talk, talk.name("g"))
    talk.ask(keys(talk.version, talk.name("a"), talk.name("b"), ""), "three")
    talk.ask(keys(talk.version), "none")


@situation("FindCoordinator", "1-6", over=("2", "3", "-1"))
def kinds_of_keys(talk: Talk, kind: str) -> None:
    """Find coordinators by type 2, that of share groups from version 6 on, and by unknown types."""
    talk.ask(keys(talk.version, talk.name("g"), kind=int(kind)))


@situation("FindCoordinator", "6")
def key_of_a_share_partition(talk: Talk) -> None:
    """Find the coordinator of share partitions whose keys do not have three valid parts."""
    talk.ask(keys(6, "one part", f"{talk.name('g')}:AAAAAAAAAAAAAAAAAAAAAA:x", kind=2))
