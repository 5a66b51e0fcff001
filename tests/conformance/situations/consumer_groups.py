"""Consumer protocol of groups (KIP-848): heartbeats, descriptions, offsets, lists, configs of groups."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from tests.conformance.bodies import (
    STRANGE_ID,
    assignment,
    commit,
    committed,
    group,
    join,
    lone_member,
    subscription,
    sync,
)
from tests.conformance.bodies import heartbeat as classic_heartbeat
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.talk import Talk, Topic

BEAT, DESCRIBE = "0-1", "0-1"
NOTHING: list[Body] = []
TOO_LONG = 32_768  # one character more than a string of a request may have
ASSIGNMENT_INTERVAL_S = 1.1  # the target assignments of a group are computed a second apart

Places = Sequence[tuple[Topic | uuid.UUID, Sequence[int]]]


def owned(places: Places) -> list[Body]:
    return [{"TopicId": getattr(topic, "id", topic), "Partitions": list(indexes)} for topic, indexes in places]


def beat(group_id: str, member: str, epoch: int, *, has: Places | None = None, **fields: Any) -> Body:
    """Return a heartbeat with as few fields as possible."""
    return {
        "GroupId": group_id, "MemberId": member, "MemberEpoch": epoch, "InstanceId": None, "RackId": None,
        "RebalanceTimeoutMs": -1, "SubscribedTopicNames": None, "SubscribedTopicRegex": None, "ServerAssignor": None,
        "TopicPartitions": None if has is None else owned(has), **fields,
    }  # fmt: skip


def first(group_id: str, member: str, topics: Sequence[Topic | str] | None, **fields: Any) -> Body:
    """Return the heartbeat with which a member joins."""
    names = None if topics is None else [getattr(topic, "name", topic) for topic in topics]
    given = {"RebalanceTimeoutMs": 60_000, "SubscribedTopicNames": names, **fields}
    return beat(group_id, member, 0, has=[], **given)


def joined(talk: Talk, group_id: str, member: str, topics: Sequence[Topic | str] | None, **fields: Any) -> Body:
    """Join without recording the response; return the response."""
    return talk.quietly("ConsumerGroupHeartbeat", 1, first(group_id, member, topics, **fields))


def describe(talk: Talk, note: str, *names: str, version: int = 1, **fields: Any) -> None:
    talk.also("ConsumerGroupDescribe", version, {"GroupIds": list(names), **fields}, note)


def visible(talk: Talk, *topics: Topic) -> None:
    """Wait until the coordinator has the metadata of new topics."""
    for number, topic in enumerate(topics):
        name = talk.name(f"sees-{topic.name[-8:]}-{number}")

        def has_it(name: str = name, topic: Topic = topic) -> bool:
            assignment = joined(talk, name, "m", [topic])["Assignment"]
            talk.quietly("ConsumerGroupHeartbeat", 1, beat(name, "m", -1))
            talk.quietly("DeleteGroups", 2, {"GroupsNames": [name]})
            return assignment is not None and bool(assignment["TopicPartitions"])

        talk.until(f"the coordinator sees {topic.name}", has_it, 20)


# ---- ConsumerGroupHeartbeat


@situation("ConsumerGroupHeartbeat", BEAT)
def life_of_a_lone_member(talk: Talk) -> None:
    """Join, send heartbeats, change the topics, leave and join again, with a description after each change."""
    name, topic, other = group(talk), talk.topic(partitions=3), talk.topic("other")
    visible(talk, topic, other)
    epoch = talk.ask(first(name, "m", [topic]), "joins")["MemberEpoch"]
    describe(talk, "joined", name)
    talk.ask(beat(name, "m", epoch), "follows")
    talk.ask(beat(name, "m", epoch, has=[(topic, [0, 1, 2])]), "says what it has")
    everything = {"RebalanceTimeoutMs": 60_000, "SubscribedTopicNames": [topic.name]}
    talk.ask(beat(name, "m", epoch, has=[(topic, [0, 1, 2])], **everything), "says everything")
    talk.ask(beat(name, "m", -1), "leaves")
    describe(talk, "empty", name)
    talk.ask(beat(name, "m", -1), "leaves again")
    talk.ask(beat(name, "m", epoch), "follows again")
    time.sleep(ASSIGNMENT_INTERVAL_S)
    talk.ask(first(name, "m", [topic, other]), "joins again")
    describe(talk, "has two topics", name)


@situation("ConsumerGroupHeartbeat", "0")
def member_without_an_id(talk: Talk) -> None:
    """Join without a member id: version 0 assigns one, version 1 requires the client's."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    response = talk.ask(first(name, "", [topic]), only={})
    talk.observe("length", len(response["MemberId"]))


@situation("ConsumerGroupHeartbeat", BEAT)
def requests_that_cannot_be(talk: Talk) -> None:
    """Send requests that are refused before their group is looked up."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    rows: dict[str, Body] = {
        "no group": first("", "m", [topic]),
        "blank group": first(" ", "m", [topic]),
        "no member": beat(name, "", 1),
        "no member leaves": beat(name, "", -1),
        "blank member": first(name, " ", [topic]) if talk.version else beat(name, " ", 1),
        "blank instance": first(name, "m", [topic], InstanceId=" "),
        "no instance": first(name, "m", [topic], InstanceId=""),
        "no rack": first(name, "m", [topic], RackId=""),
        "no time-out": first(name, "m", [topic], RebalanceTimeoutMs=-1),
        "owns something": first(name, "m", [topic], TopicPartitions=owned([(topic, [0])])),
        "owns null": first(name, "m", [topic], TopicPartitions=None),
        "no subscription": first(name, "m", None),
        "away without an instance": beat(name, "m", -2),
        "epoch -3": beat(name, "m", -3),
        "epoch of the least": beat(name, "m", -(2**31)),
        "no such assignor": first(name, "m", [topic], ServerAssignor="sticky"),
        "assignor without a name": first(name, "m", [topic], ServerAssignor=""),
        "assignor in capitals": first(name, "m", [topic], ServerAssignor="Range"),
    }
    for note, body in rows.items():
        talk.ask(body, note)
    describe(talk, "is there a group", name)


@situation("ConsumerGroupHeartbeat", BEAT)
def strange_numbers(talk: Talk) -> None:
    """Send negative and huge time-outs, and epochs of the future and the past."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    for note, timeout_ms in (("least", -(2**31)), ("zero", 0), ("most", 2**31 - 1)):
        talk.ask(first(talk.name(note), "m", [topic], RebalanceTimeoutMs=timeout_ms), f"{note} time-out")
    epoch = joined(talk, name, "m", [topic])["MemberEpoch"]
    for number in (epoch + 1, 2**31 - 1, epoch - 1):
        talk.ask(beat(name, "m", number), f"epoch {number - epoch:+}")
        talk.ask(beat(name, "m", number, has=[(topic, [0])]), f"epoch {number - epoch:+} with what it has")
    talk.ask(beat(name, "m", epoch), "is still there")


@situation("ConsumerGroupHeartbeat", BEAT)
def strangers(talk: Talk) -> None:
    """Send heartbeats to an unknown group, and as an unknown member."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    for note, epoch in (("follows", 1), ("leaves", -1)):
        talk.ask(beat(talk.name("absent"), "m", epoch), f"no such group, {note}")
    talk.ask(beat(talk.name("absent"), "m", -2, InstanceId="i"), "no such group, away")
    joined(talk, name, "m", [topic])
    for note, epoch in (("follows", 2), ("leaves", -1)):
        talk.ask(beat(name, "stranger", epoch), f"a stranger {note}")
    talk.ask(beat(name, "stranger", 2, InstanceId="i"), "a stranger's instance")
    talk.ask(beat(name, "stranger", -2, InstanceId="i"), "a stranger is away")


@situation("ConsumerGroupHeartbeat", BEAT)
def partitions_that_are_not_its_own(talk: Talk) -> None:
    """Report an unknown topic, unknown partitions, duplicates: the response to a lone member is the same."""
    name, topic = group(talk), talk.topic(partitions=2)
    visible(talk, topic)
    epoch = joined(talk, name, "m", [topic])["MemberEpoch"]
    for note, places in (
        ("no such topic", [(STRANGE_ID, [0])]),
        ("no such partition", [(topic, [7, -1])]),
        ("twice", [(topic, [0, 0]), (topic, [1, 1])]),
        ("none of a topic", [(topic, [])]),
    ):
        talk.ask(beat(name, "m", epoch, has=places), note)
        talk.ask(beat(name, "m", epoch - 1, has=places), f"{note}, an older epoch")


@situation("ConsumerGroupHeartbeat", BEAT)
def topics_that_are_not_there(talk: Talk) -> None:
    """Subscribe to unknown topics, impossible names, none, duplicates, and a topic that is created later."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    rows: dict[str, list[Topic | str]] = {
        "unknown": [talk.name("absent")],
        "impossible": ["a/b", "", "."],
        "none": [],
        "twice": [topic, topic],
        "one of two": [topic, talk.name("absent")],
    }
    for note, topics in rows.items():
        talk.ask(first(talk.name(note.replace(" ", "-")), "m", topics), note)
    epoch = joined(talk, name, "m", [talk.name("later")])["MemberEpoch"]
    talk.topic("later")
    talk.until(
        "the new topic",
        lambda: talk.quietly("ConsumerGroupHeartbeat", 1, beat(name, "m", epoch))["Assignment"] is not None,
    )
    describe(talk, "the new topic", name)


@situation("ConsumerGroupHeartbeat", BEAT)
def many_topics(talk: Talk) -> None:
    """Subscribe to many topics, and to more topics than a record of the group can hold."""
    name = group(talk)
    talk.ask(first(name, "m", [f"no-such-topic-{index:04}" for index in range(2000)]), "two thousand")
    talk.ask(first(name, "n", [f"{'x' * 200}-{index:05}" for index in range(10_000)]), "two megabytes")


@situation("ConsumerGroupHeartbeat", BEAT)
def two_members(talk: Talk) -> None:
    """Join as a second member, which waits until the first has revoked partitions; send old epochs; leave."""
    name, topic = group(talk), talk.topic(partitions=4)
    visible(talk, topic)
    one = talk.ask(first(name, "a", [topic]), "a joins")["MemberEpoch"]
    time.sleep(ASSIGNMENT_INTERVAL_S)
    talk.ask(first(name, "b", [topic]), "b joins", on="b")
    talk.ask(beat(name, "a", one), "a follows")
    describe(talk, "a gives up", name)
    talk.ask(beat(name, "a", one, has=[(topic, [0, 1, 2])]), "a has not given up all")
    response = talk.quietly("ConsumerGroupHeartbeat", 1, beat(name, "a", one, has=[(topic, [0, 1])]))
    rest = talk.quietly("ConsumerGroupHeartbeat", 1, beat(name, "a", one, has=[(topic, [2, 3])]))
    talk.observe("epochs of a", (response["MemberEpoch"], rest["MemberEpoch"]))
    talk.also("ConsumerGroupHeartbeat", talk.version, beat(name, "b", 2), "b follows", on="b")
    talk.also("ConsumerGroupHeartbeat", talk.version, beat(name, "b", 3), "b follows at 3", on="b")
    describe(talk, "both", name, IncludeAuthorizedOperations=True)
    talk.ask(beat(name, "a", -1), "a leaves")
    describe(talk, "after a", name)


@situation("ConsumerGroupHeartbeat", BEAT)
def static_member(talk: Talk) -> None:
    """Leave temporarily, rejoin with another member id, and leave permanently as a static member."""
    name, topic = group(talk), talk.topic(partitions=2)
    visible(talk, topic)
    epoch = talk.ask(first(name, "m", [topic], InstanceId="i"), "joins")["MemberEpoch"]
    talk.ask(first(name, "n", [topic], InstanceId="i"), "another joins as it")
    talk.ask(beat(name, "n", epoch, InstanceId="i"), "another follows as it")
    talk.ask(beat(name, "m", epoch), "follows without its instance")
    talk.ask(beat(name, "m", epoch, InstanceId="i"), "follows")
    talk.ask(beat(name, "n", -2, InstanceId="i"), "another says it is away")
    talk.ask(beat(name, "m", -2, InstanceId="i"), "is away")
    describe(talk, "away", name)
    talk.ask(beat(name, "m", epoch, InstanceId="i"), "follows while away")
    talk.ask(first(name, "n", [topic], InstanceId="i"), "comes back")
    talk.ask(beat(name, "m", epoch, InstanceId="i"), "old id")
    describe(talk, "back", name)
    talk.ask(beat(name, "n", -1, InstanceId="i"), "leaves")
    describe(talk, "left", name)


@situation("ConsumerGroupHeartbeat", BEAT, over=("range", "uniform"))
def assignors(talk: Talk, assignor: str) -> None:
    """Join with an assignor chosen by the member, which the description shows."""
    name, topic = group(talk), talk.topic(partitions=5)
    visible(talk, topic)
    talk.ask(first(name, "m", [topic], ServerAssignor=assignor), "joins")
    describe(talk, "joined", name)


@situation("ConsumerGroupHeartbeat", "1")
def regular_expressions(talk: Talk) -> None:
    """Subscribe by expressions: before the topics are resolved, empty, besides names, invalid, and too long."""
    name, topic = group(talk), talk.topic("abc", partitions=2)
    visible(talk, topic)
    epoch = talk.ask(first(name, "m", None, SubscribedTopicRegex=f"{talk.prefix}-a.c"), "joins")["MemberEpoch"]

    def resolved() -> bool:
        response = talk.quietly("ConsumerGroupHeartbeat", 1, beat(name, "m", epoch))
        return response["Assignment"] is not None and bool(response["Assignment"]["TopicPartitions"])

    talk.until("the topics", resolved, 20)
    describe(talk, "resolved", name)
    talk.ask(first(talk.name("empty"), "m", None, SubscribedTopicRegex=""), "empty")
    talk.ask(first(talk.name("beside"), "m", [topic], SubscribedTopicRegex="nothing"), "beside a name")
    describe(talk, "beside", talk.name("beside"))
    for regex in ("(", "a{2,1}", "[b-a]", "a(?=b)", r"(a)\1", "a**", "*", r"\y", "(?z)a", "a{1001}", ")"):
        talk.ask(first(talk.name("bad"), "m", None, SubscribedTopicRegex=regex), f"no expression: {regex}")
    for regex in ("(a*)*", "(a|a)*b", "a{1000}", "[[:alpha:]]", r"\Qa.b\E", "(?i)a", "x{,2}"):
        talk.ask(first(talk.name("good"), "m", None, SubscribedTopicRegex=regex), f"an expression: {regex}")
    talk.ask(first(talk.name("long"), "m", None, SubscribedTopicRegex="a" * TOO_LONG), "too long")


@situation("ConsumerGroupHeartbeat", "1", over=(r"a\b", r"\B", r"\pL+", r"[\p{Lu}_]", r"\p{Greek}", r"\C"))
def rare_expressions(talk: Talk, regex: str) -> None:
    """Subscribe by expressions with word boundaries and Unicode classes of RE2."""
    talk.ask(first(group(talk), "m", None, SubscribedTopicRegex=regex))


# ---- ConsumerGroupDescribe


@situation("ConsumerGroupDescribe", DESCRIBE)
def what_is_described(talk: Talk) -> None:
    """Describe groups: unknown, without a name, classic, with offsets only, several, one twice, none."""
    name, classic, offsets, topic = group(talk), talk.name("classic"), talk.name("offsets"), talk.topic()
    lone_member(talk, classic)
    talk.quietly("OffsetCommit", 2, commit(offsets, topic))
    joined(talk, name, "m", [topic])
    for note, names in (
        ("unknown", [talk.name("absent")]),
        ("no name", [""]),
        ("classic", [classic]),
        ("offsets", [offsets]),
        ("several", [name, classic, talk.name("absent")]),
        ("twice", [name, name]),
        ("none", []),
    ):
        talk.ask({"GroupIds": names}, note)
    talk.ask({"GroupIds": [name], "IncludeAuthorizedOperations": True}, "operations")


@situation("DescribeGroups", "0-6")
def consumer_group_described_as_classic(talk: Talk) -> None:
    """Describe a group of the consumer protocol as a classic group, which it is not."""
    name = group(talk)
    joined(talk, name, "m", [talk.topic()])
    talk.ask({"Groups": [name]})


@situation("ListGroups", "0-5")
def consumer_groups_listed(talk: Talk) -> None:
    """List a stable and an empty consumer group besides a classic group."""
    stable, empty, classic, topic = group(talk), talk.name("empty"), talk.name("classic"), talk.topic()
    joined(talk, stable, "m", [topic])
    joined(talk, empty, "m", [topic])
    talk.quietly("ConsumerGroupHeartbeat", 1, beat(empty, "m", -1))
    lone_member(talk, classic)
    talk.ask({}, only={"Groups": talk.is_own("GroupId")})


@situation("ListGroups", "5")
def consumer_groups_listed_by_type_and_state(talk: Talk) -> None:
    """List groups by both filters, with names in either case."""
    stable, classic, topic = group(talk), talk.name("classic"), talk.topic()
    joined(talk, stable, "m", [topic])
    lone_member(talk, classic)
    for types, states in (
        (["consumer"], []),
        (["Consumer", "classic"], ["stable"]),
        (["consumer"], ["Empty"]),
        (["consumer"], ["Assigning", "Reconciling"]),
        (["share"], []),
        (["streams"], []),
    ):
        body = {"TypesFilter": types, "StatesFilter": states}
        talk.ask(body, f"{', '.join(types)}; {', '.join(states)}", only={"Groups": talk.is_own("GroupId")})


@situation("DeleteGroups", "0-2")
def consumer_groups_deleted(talk: Talk) -> None:
    """Delete a group with a member and an empty group, and request the offsets of the deleted one."""
    live, empty, topic = group(talk), talk.name("empty"), talk.topic()
    joined(talk, live, "m", [topic])
    joined(talk, empty, "m", [topic])
    talk.quietly("ConsumerGroupHeartbeat", 1, beat(empty, "m", -1))
    talk.quietly("OffsetCommit", 2, commit(empty, topic))
    talk.ask({"GroupsNames": [live, empty]})
    describe(talk, "left", live, empty)
    talk.also("OffsetFetch", 7, committed(7, empty, [(topic, [0])]))


# ---- offsets of members


@situation("OffsetCommit", "2-10")
def by_a_member_of_the_consumer_protocol(talk: Talk) -> None:
    """Commit as a member at its epoch and at others, as an unknown member, and without a member."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    epoch = joined(talk, name, "m", [topic])["MemberEpoch"]
    for note, number, member in (
        ("right", epoch, "m"),
        ("older", epoch - 1, "m"),
        ("newer", epoch + 1, "m"),
        ("stranger", epoch, "stranger"),
        ("outside", -1, ""),
        ("no epoch", -1, "m"),
        ("no member", epoch, ""),
    ):
        talk.ask(commit(name, topic, generation=number, member=member), note)
    talk.also("OffsetFetch", 7, committed(7, name, [(topic, [0])]))


def ask_for_offsets(talk: Talk, name: str, topic: Topic, epoch: int) -> None:
    """Request the offsets of a group as member m at an epoch and at others, and as an unknown member."""
    talk.quietly("OffsetCommit", 9, commit(name, topic, generation=epoch, member="m"))
    for note, number, member in (
        ("right", epoch, "m"),
        ("older", epoch - 1, "m"),
        ("newer", epoch + 1, "m"),
        ("stranger", epoch, "stranger"),
        ("outside", -1, None),
        ("no epoch", -1, "m"),
    ):  # (Kafka fails for an epoch without a member.)
        talk.ask(committed(talk.version, name, [(topic, [0])], MemberId=member, MemberEpoch=number), note)
        talk.ask(committed(talk.version, name, None, MemberId=member, MemberEpoch=number), f"{note}, all")


@situation("OffsetFetch", "9-10")
def asked_for_by_a_member(talk: Talk) -> None:
    """Fetch offsets as a member at several epochs, as an unknown member, and without a member or an epoch."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    epoch = joined(talk, name, "m", [topic])["MemberEpoch"]
    ask_for_offsets(talk, name, topic, epoch)


@situation("OffsetDelete", "0")
def offsets_of_consumer_groups_deleted(talk: Talk) -> None:
    """Delete offsets of a topic that a member reads, and of another topic."""
    name, topic, other = group(talk), talk.topic(), talk.topic("other")
    joined(talk, name, "m", [topic])
    rows = [{"Name": one.name, "Partitions": [{"PartitionIndex": 0}]} for one in (topic, other)]
    talk.ask({"GroupId": name, "Topics": rows})


# ---- together with the classic protocol


@situation("JoinGroup", "0-9")
def joins_a_consumer_group(talk: Talk) -> None:
    """Join a consumer group by the classic protocol, with another type and no protocols; then an empty group, alone."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    epoch = joined(talk, name, "m", [topic])["MemberEpoch"]
    talk.ask(join(name, ProtocolType="connect"), "type")
    talk.ask(join(name, protocols=[]), "no protocols")
    talk.also("Heartbeat", 4, classic_heartbeat(name, epoch, "m"), "with the other protocol's id")
    talk.also("SyncGroup", 5, sync(name, epoch, "m"), "with the other protocol's id")
    talk.quietly("ConsumerGroupHeartbeat", 1, beat(name, "m", -1))
    lone_member(talk, name)
    talk.also("ListGroups", 5, {}, only={"Groups": talk.is_own("GroupId")})


@situation("ConsumerGroupHeartbeat", BEAT)
def joins_a_classic_group(talk: Talk) -> None:
    """Join classic groups of another type and with offsets only. (Kafka fails on invalid assignments.)"""
    name, connect, empty, topic = group(talk), talk.name("connect"), talk.name("empty"), talk.topic()
    visible(talk, topic)
    lone_member(talk, connect, ProtocolType="connect")
    lone_member(talk, name)
    talk.quietly("OffsetCommit", 2, commit(empty, topic))
    talk.ask(first(connect, "m", [topic]), "connect")
    talk.ask(beat(name, "m", 1), "follows in a classic group")
    talk.ask(beat(name, "m", -1), "leaves a classic group")
    talk.ask(first(empty, "m", [topic]), "empty")
    talk.also("OffsetFetch", 7, committed(7, empty, [(topic, [0])]))
    talk.also("ListGroups", 5, {}, only={"Groups": talk.is_own("GroupId")})


def classic_owner(talk: Talk, group_id: str, topic: Topic, *indexes: int) -> Any:
    """Join as a classic member that owns partitions, without recording the responses."""
    protocols = [{"Name": "range", "Metadata": subscription(topic.name)}]
    member = lone_member(talk, group_id, is_synced=False, protocols=protocols)
    parts = {member.id: assignment(topic.name, *indexes)}
    talk.quietly("SyncGroup", 3, sync(group_id, member.generation, member.id, parts))
    return member


@situation("ConsumerGroupHeartbeat", BEAT)
def migration_and_back(talk: Talk) -> None:
    """Convert a group and back: a classic member keeps its partitions until it rejoins, and is alone at the end."""
    name, topic = group(talk), talk.topic(partitions=2)
    visible(talk, topic)
    old = classic_owner(talk, name, topic, 0, 1)
    talk.quietly("OffsetCommit", 2, commit(name, topic, generation=old.generation, member=old.id))
    talk.ask(first(name, "m", [topic]), "joins", on="second")
    talk.also("ListGroups", 5, {}, only={"Groups": talk.is_own("GroupId")})
    describe(talk, "both", name)
    talk.also("Heartbeat", 4, classic_heartbeat(name, old.generation, old.id), "of the classic member")
    protocols = [{"Name": "range", "Metadata": subscription(topic.name)}]
    again = talk.quietly("JoinGroup", 5, join(name, old.id, protocols=protocols))
    talk.observe("the classic member joins", (again["ErrorCode"], again["GenerationId"], again["ProtocolName"]))
    body = sync(name, again["GenerationId"], old.id)
    talk.also("SyncGroup", 3, body, "of the classic member")
    talk.ask(beat(name, "m", 2), "follows", on="second")
    describe(talk, "both have a part", name)
    talk.also("OffsetFetch", 7, committed(7, name, [(topic, [0])]))
    talk.ask(beat(name, "m", -1), "leaves", on="second")
    talk.also("ListGroups", 5, {}, "after", only={"Groups": talk.is_own("GroupId")})
    talk.also("Heartbeat", 4, classic_heartbeat(name, again["GenerationId"], old.id), "after")
    talk.also("OffsetFetch", 7, committed(7, name, [(topic, [0])]), "after")


# ---- configs of groups


GROUP_RESOURCE = 32
SETTINGS = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms")


def altered(group_id: str, *rows: tuple[str, int, str | None]) -> Body:
    configs = [{"Name": name, "ConfigOperation": operation, "Value": value} for name, operation, value in rows]
    resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": group_id, "Configs": configs}
    return {"Resources": [resource], "ValidateOnly": False}


def until_configured(talk: Talk, ask: Body, interval_ms: str) -> None:
    def values() -> set[str]:
        rows = talk.quietly("DescribeConfigs", 4, ask)["Results"][0]["Configs"]
        return {row["Value"] for row in rows if row["Name"] == "consumer.heartbeat.interval.ms"}

    talk.until(f"an interval of {interval_ms}", lambda: values() == {interval_ms})


@situation("IncrementalAlterConfigs", "0-1")
def configs_of_groups(talk: Talk) -> None:
    """Set configs of a group, invalid ones, and delete them; a heartbeat's response has the interval."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    ask = {"Resources": [{"ResourceType": GROUP_RESOURCE, "ResourceName": name, "ConfigurationKeys": list(SETTINGS)}]}
    talk.also("DescribeConfigs", 4, ask, "of before")
    talk.ask(altered(name, ("consumer.session.timeout.ms", 0, "50000")), "session")
    talk.ask(altered(name, ("consumer.heartbeat.interval.ms", 0, "7000")), "interval")
    for note, setting, value in (
        ("below", "consumer.session.timeout.ms", "1000"),
        ("above", "consumer.session.timeout.ms", "600000"),
        ("below", "consumer.heartbeat.interval.ms", "1"),
        ("above", "consumer.heartbeat.interval.ms", "99999"),
        ("negative", "consumer.session.timeout.ms", "-1"),
        ("no number", "consumer.session.timeout.ms", "long"),
        ("unknown", "consumer.nothing", "1"),
        ("of topics", "retention.ms", "1"),
    ):
        talk.ask(altered(name, (setting, 0, value)), f"{setting} {note}")
    talk.ask(altered("", ("consumer.heartbeat.interval.ms", 0, "7000")), "no name")
    until_configured(talk, ask, "7000")
    talk.also("DescribeConfigs", 4, ask, "set")
    talk.also("ConsumerGroupHeartbeat", 1, first(name, "m", [topic]), "the interval of the group")
    talk.ask(
        altered(name, ("consumer.heartbeat.interval.ms", 1, None), ("consumer.session.timeout.ms", 1, None)), "back"
    )
    until_configured(talk, ask, "5000")
    talk.also("DescribeConfigs", 4, ask, "taken back")
