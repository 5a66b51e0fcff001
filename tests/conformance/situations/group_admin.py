"""Groups looked at and deleted: DescribeGroups, ListGroups, DeleteGroups, FindCoordinator."""

from tests.conformance.bodies import await_group, commit, committed, group, leave, lone_member, producer, sync
from tests.conformance.codec import Body
from tests.conformance.run import TRANSACTIONS, situation
from tests.conformance.talk import Talk

DESCRIBE, DELETE, FIND = "0-6", "0-2", "0-6"


@situation("DescribeGroups", DESCRIBE)
def states(talk: Talk) -> None:
    """Unknown, waiting for the sync, stable, empty, and only offsets."""
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
    """A known and an unknown one, one twice, none."""
    name = group(talk)
    lone_member(talk, name)
    for note, names in (("unknown beside", [name, talk.name("absent")]), ("twice", [name, name]), ("none", [])):
        talk.ask({"Groups": names}, note)


@situation("DescribeGroups", "3-6")
def operations_described(talk: Talk) -> None:
    """When they are asked for."""
    name = group(talk)
    lone_member(talk, name)
    talk.ask({"Groups": [name], "IncludeAuthorizedOperations": True})


@situation("DescribeGroups", "4-6")
def static_member_described(talk: Talk) -> None:
    """With its instance."""
    name = group(talk)
    lone_member(talk, name, instance="i")
    talk.ask({"Groups": [name]})


@situation("ListGroups", "0-5")
def listed(talk: Talk) -> None:
    """A stable group, an empty one, one that has only offsets."""
    stable, empty, offsets = group(talk), talk.name("empty"), talk.name("offsets")
    lone_member(talk, stable)
    member = lone_member(talk, empty)
    talk.quietly("LeaveGroup", 1, leave(1, empty, member.id))
    talk.quietly("OffsetCommit", 2, commit(offsets, talk.topic()))
    talk.ask({}, only={"Groups": talk.is_own("GroupId")})


@situation("ListGroups", "4-5")
def listed_by_state(talk: Talk) -> None:
    """In either case, several, and unknown states."""
    stable, empty = group(talk), talk.name("empty")
    lone_member(talk, stable)
    talk.quietly("OffsetCommit", 2, commit(empty, talk.topic()))
    for wanted in (["Stable"], ["empty"], ["Stable", "Empty"], ["Dead"], ["Nonsense"]):
        talk.ask({"StatesFilter": wanted}, ", ".join(wanted), only={"Groups": talk.is_own("GroupId")})


@situation("ListGroups", "5")
def listed_by_type(talk: Talk) -> None:
    """In either case, several, and unknown types."""
    lone_member(talk, group(talk))
    for wanted in (["classic"], ["Classic"], ["consumer"], ["nonsense"], ["classic", "consumer"]):
        talk.ask({"TypesFilter": wanted}, ", ".join(wanted), only={"Groups": talk.is_own("GroupId")})


@situation("DeleteGroups", DELETE)
def deleted(talk: Talk) -> None:
    """One with members, an unknown one, an empty one; the last again; none; and what is left of it."""
    live, empty, topic = group(talk), talk.name("empty"), talk.topic()
    lone_member(talk, live)
    talk.quietly("OffsetCommit", 2, commit(empty, topic))
    for note, names in (("three", [live, talk.name("absent"), empty]), ("again", [empty]), ("none", [])):
        talk.ask({"GroupsNames": names}, note)
    talk.also("OffsetFetch", 2, committed(2, empty, [(topic, [0])]))
    talk.also("DescribeGroups", 5, {"Groups": [empty]})


@situation("DeleteGroups", DELETE)
def deleted_twice_at_once(talk: Talk) -> None:
    """Named twice in a request."""
    name = group(talk)
    talk.quietly("OffsetCommit", 2, commit(name, talk.topic()))
    talk.ask({"GroupsNames": [name, name]})


# ---- FindCoordinator


def keys(version: int, *names: str, kind: int = 0) -> Body:
    return {"KeyType": kind, **({"CoordinatorKeys": list(names)} if version >= 4 else {"Key": names[0]})}


@situation("FindCoordinator", FIND)
def coordinator_of_a_group(talk: Talk) -> None:
    """The one broker; also for a name that no group can have."""
    await_group(talk, talk.name("g"))
    talk.ask(keys(talk.version, talk.name("g")))
    talk.ask(keys(talk.version, ""), "no name")


@situation("FindCoordinator", "1-6", needs=TRANSACTIONS)
def coordinator_of_a_transaction(talk: Talk) -> None:
    """The one broker."""
    producer(talk, talk.name("tx"))
    talk.ask(keys(talk.version, talk.name("tx"), kind=1))


@situation("FindCoordinator", "4-6")
def coordinators_of_several(talk: Talk) -> None:
    """Each has its response; none has none."""
    await_group(talk, talk.name("g"))
    talk.ask(keys(talk.version, talk.name("a"), talk.name("b"), ""), "three")
    talk.ask(keys(talk.version), "none")


@situation("FindCoordinator", "1-6", over=("2", "3", "-1"))
def kinds_of_keys(talk: Talk, kind: str) -> None:
    """2 is a share group's from version 6 on; 3 and -1 are nothing's."""
    talk.ask(keys(talk.version, talk.name("g"), kind=int(kind)))


@situation("FindCoordinator", "6")
def key_of_a_share_partition(talk: Talk) -> None:
    """It has three parts."""
    talk.ask(keys(6, "one part", f"{talk.name('g')}:AAAAAAAAAAAAAAAAAAAAAA:x", kind=2))
