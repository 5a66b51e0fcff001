"""Streams protocol of groups (KIP-1071): heartbeats, topologies, internal topics, descriptions, offsets, lists."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.bodies import commit, committed, group, join, lone_member, sync
from tests.conformance.bodies import heartbeat as classic_heartbeat
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.situations.consumer_groups import GROUP_RESOURCE, altered, ask_for_offsets
from tests.conformance.situations.consumer_groups import beat as consumer_beat
from tests.conformance.situations.consumer_groups import first as consumer_first
from tests.conformance.talk import Talk, Topic

V = "0"
AT_ONCE = {"streams.initial.rebalance.delay.ms": "0", "streams.assignment.interval.ms": "0"}
MISSING_INTERNAL_TOPICS = 3

Tasks = Mapping[str, Sequence[int]]


def rows_of(tasks: Tasks) -> list[Body]:
    return [{"SubtopologyId": one, "Partitions": list(indexes)} for one, indexes in tasks.items()]


def internal(name: str, partitions: int = 0, replicas: int = 0, **configs: str) -> Body:
    rows = [{"Key": key.replace("_", "."), "Value": value} for key, value in configs.items()]
    return {"Name": name, "Partitions": partitions, "ReplicationFactor": replicas, "TopicConfigs": rows}


def part(
    subtopology_id: str = "0",
    sources: Sequence[Topic | str] = (),
    changelogs: Sequence[Body] = (),
    sinks: Sequence[str] = (),
    repartition: Sequence[Body] = (),
    together: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
    regexes: Sequence[str] = (),
) -> Body:
    copartition = [
        {"SourceTopics": list(some), "SourceTopicRegex": [], "RepartitionSourceTopics": list(others)}
        for some, others in together
    ]
    return {
        "SubtopologyId": subtopology_id, "SourceTopics": [getattr(topic, "name", topic) for topic in sources],
        "SourceTopicRegex": list(regexes), "StateChangelogTopics": list(changelogs),
        "RepartitionSinkTopics": list(sinks), "RepartitionSourceTopics": list(repartition),
        "CopartitionGroups": copartition,
    }  # fmt: skip


def shape(*parts: Body, epoch: int = 0) -> Body:
    return {"Epoch": epoch, "Subtopologies": list(parts)}


def beat(group_id: str, member: str, epoch: int, has: Tasks | None = None, **fields: Any) -> Body:
    """Return a heartbeat with as few fields as possible. Args: ``has``: active tasks."""
    return {
        "GroupId": group_id, "MemberId": member, "MemberEpoch": epoch, "EndpointInformationEpoch": 0,
        "InstanceId": None, "RackId": None, "RebalanceTimeoutMs": -1, "Topology": None,
        "ActiveTasks": None if has is None else rows_of(has), "StandbyTasks": None if has is None else [],
        "WarmupTasks": None if has is None else [], "ProcessId": None, "UserEndpoint": None, "ClientTags": None,
        "TaskOffsets": None, "TaskEndOffsets": None, "ShutdownApplication": False, **fields,
    }  # fmt: skip


def first(group_id: str, member: str, topology: Body | None, **fields: Any) -> Body:
    """Return the heartbeat with which a member joins."""
    given = {"RebalanceTimeoutMs": 60_000, "Topology": topology, "ProcessId": f"process of {member}", **fields}
    return beat(group_id, member, 0, {}, **given)


def joined(talk: Talk, group_id: str, member: str, topology: Body, **fields: Any) -> Body:
    """Join without recording the response; return the response."""
    return talk.quietly("StreamsGroupHeartbeat", 0, first(group_id, member, topology, **fields))


def describe(talk: Talk, note: str, *names: str, **fields: Any) -> None:
    talk.also("StreamsGroupDescribe", 0, {"GroupIds": list(names), **fields}, note)


def set_up(talk: Talk, label: str = "g", **configs: str) -> str:
    """Return a group without delays, whose configs are deleted at the end of the conversation."""
    name = group(talk, label)
    configure(talk, name, {**AT_ONCE, **{key.replace("_", "."): value for key, value in configs.items()}})
    return name


def configure(talk: Talk, name: str, wanted: Mapping[str, str]) -> None:
    talk.quietly("IncrementalAlterConfigs", 1, altered(name, *((key, 0, value) for key, value in wanted.items())))
    back = altered(name, *((key, 1, None) for key in wanted))
    talk.at_end(lambda: talk.quietly("IncrementalAlterConfigs", 1, back))
    resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": name, "ConfigurationKeys": list(wanted)}

    def is_set() -> bool:
        rows = talk.quietly("DescribeConfigs", 4, {"Resources": [resource]})["Results"][0]["Configs"]
        return {row["Name"]: row["Value"] for row in rows} == dict(wanted)

    talk.until(f"the settings of {name}", is_set)


def visible(talk: Talk, *topics: Topic) -> None:
    """Wait until the coordinator has the metadata of new topics."""
    for topic in topics:
        name = talk.name(f"sees-{topic.name[-8:]}")

        def has_it(name: str = name, topic: Topic = topic) -> bool:
            response = joined(talk, name, "m", shape(part("0", [topic])))
            talk.quietly("StreamsGroupHeartbeat", 0, beat(name, "m", -1))
            talk.quietly("DeleteGroups", 2, {"GroupsNames": [name]})
            return all(row["StatusCode"] == 5 for row in response["Status"])

        talk.until(f"the coordinator sees {topic.name}", has_it, 20)


def until_ready(talk: Talk, name: str, member: str, epoch: int) -> None:
    """Wait until the internal topics exist."""
    talk.until(
        "the internal topics",
        lambda: not talk.quietly("StreamsGroupHeartbeat", 0, beat(name, member, epoch))["Status"],
        20,
    )


# ---- StreamsGroupHeartbeat


@situation("StreamsGroupHeartbeat", V)
def life_of_a_lone_member(talk: Talk) -> None:
    """Join, send heartbeats, report tasks, leave, and join again, with a description after each change."""
    name, topic = set_up(talk), talk.topic(partitions=3)
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    tags = [{"Key": "zone", "Value": "a"}, {"Key": "cluster", "Value": "b"}]
    epoch = talk.ask(first(name, "m", topology, RackId="r", ClientTags=tags), "joins")["MemberEpoch"]
    describe(talk, "joined", name, IncludeAuthorizedOperations=True)
    talk.ask(beat(name, "m", epoch), "follows")
    talk.ask(beat(name, "m", epoch, {"0": [0, 1, 2]}), "reports its tasks")
    talk.ask(beat(name, "m", epoch, ProcessId="another"), "has another process")
    talk.ask(beat(name, "m", -1), "leaves")
    describe(talk, "empty", name)
    talk.ask(beat(name, "m", -1), "leaves again")
    talk.ask(beat(name, "m", epoch), "follows again")
    talk.ask(first(name, "m", topology), "joins again")
    describe(talk, "again", name)


@situation("StreamsGroupHeartbeat", V)
def requests_that_cannot_be(talk: Talk) -> None:
    """Send requests that are refused before their group is looked up."""
    name, topic = group(talk), talk.topic()
    topology = shape(part("0", [topic]))
    offsets = [{"SubtopologyId": "0", "Partition": 0, "Offset": 1}]
    rows: dict[str, Body] = {
        "no group": first("", "m", topology),
        "blank group": first(" ", "m", topology),
        "no member": first(name, "", topology),
        "blank member": beat(name, " ", 1),
        "an instance": first(name, "m", topology, InstanceId="i"),
        "an instance without a name": first(name, "m", topology, InstanceId=""),
        "no rack": first(name, "m", topology, RackId=""),
        "no time-out": first(name, "m", topology, RebalanceTimeoutMs=-1),
        "no topology": first(name, "m", None),
        "has a task": first(name, "m", topology, ActiveTasks=rows_of({"0": [0]})),
        "has a standby task": first(name, "m", topology, StandbyTasks=rows_of({"0": [0]})),
        "has a warm-up task": first(name, "m", topology, WarmupTasks=rows_of({"0": [0]})),
        "active null": first(name, "m", topology, ActiveTasks=None),
        "standby null": first(name, "m", topology, StandbyTasks=None),
        "warm-up null": first(name, "m", topology, WarmupTasks=None),
        "one null of three": beat(name, "m", 1, {}, StandbyTasks=None),
        "two null of three": beat(name, "m", 1, ActiveTasks=[]),
        "warm-up tasks": beat(name, "m", 1, {}, WarmupTasks=rows_of({"0": [0]})),
        "offsets": beat(name, "m", 1, TaskOffsets=offsets),
        "no offsets": beat(name, "m", 1, TaskOffsets=[]),
        "end offsets": beat(name, "m", 1, TaskEndOffsets=offsets),
        "topology later": beat(name, "m", 1, Topology=topology),
        "topology while leaving": beat(name, "m", -1, Topology=topology),
        "away": beat(name, "m", -2),
        "away with an instance": beat(name, "m", -2, InstanceId="i"),
        "epoch -3": beat(name, "m", -3),
        "epoch of the least": beat(name, "m", -(2**31)),
        "a regular expression": first(name, "m", shape(part("0", [topic], regexes=["a.*"]))),
        "changelog with partitions": first(name, "m", shape(part("0", [topic], [internal(talk.name("c"), 3)]))),
    }
    for note, body in rows.items():
        talk.ask(body, note)
    describe(talk, "is there a group", name)


@situation("StreamsGroupHeartbeat", V)
def strangers(talk: Talk) -> None:
    """Send heartbeats to an unknown group, as an unknown member, and to other kinds of groups."""
    name, classic, consumer, topic = set_up(talk), talk.name("classic"), talk.name("consumer"), talk.topic()
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    for note, epoch in (("follows", 1), ("leaves", -1)):
        talk.ask(beat(talk.name("absent"), "m", epoch), f"no such group, {note}")
    joined(talk, name, "m", topology)
    for note, epoch in (("follows", 2), ("leaves", -1)):
        talk.ask(beat(name, "stranger", epoch), f"a stranger {note}")
    lone_member(talk, classic)
    talk.quietly("ConsumerGroupHeartbeat", 1, consumer_first(consumer, "m", [topic]))
    for note, other in (("classic", classic), ("consumer", consumer)):
        talk.ask(first(other, "m", topology), f"joins a {note} group")
        talk.ask(beat(other, "m", 1), f"follows in a {note} group")
        talk.ask(beat(other, "m", -1), f"leaves a {note} group")
    talk.also("ConsumerGroupHeartbeat", 1, consumer_first(name, "n", [topic]), "joins a streams group")
    talk.also("ConsumerGroupHeartbeat", 1, consumer_beat(name, "m", 2), "follows in a streams group")


@situation("StreamsGroupHeartbeat", V)
def strange_numbers(talk: Talk) -> None:
    """Send future and past epochs, time-outs, and unknown tasks. (Fewer tasks: docs/compatibility.md.)"""
    name, topic = set_up(talk), talk.topic(partitions=2)
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    for note, timeout_ms in (("least", -(2**31)), ("zero", 0), ("most", 2**31 - 1)):
        talk.ask(first(set_up(talk, note), "m", topology, RebalanceTimeoutMs=timeout_ms), f"{note} time-out")
    epoch = joined(talk, name, "m", topology)["MemberEpoch"]
    for number in (epoch + 1, 2**31 - 1, epoch - 1, epoch - 2):
        if number > 0:
            talk.ask(beat(name, "m", number), f"epoch {number - epoch:+}")
            talk.ask(beat(name, "m", number, {"0": [0]}), f"epoch {number - epoch:+} with a task")
    for note, tasks in (
        ("no such subtopology", {"9": [0]}),
        ("no such task", {"0": [7]}),
        ("a negative task", {"0": [-1]}),
        ("twice", {"0": [0, 0, 1]}),
    ):
        talk.ask(beat(name, "m", epoch, tasks), note)
    talk.ask(beat(name, "m", epoch, {}, StandbyTasks=rows_of({"0": [5]})), "no such standby task")
    talk.ask(first(name, "n", topology, ClientTags=[{"Key": "a", "Value": "b"}] * 2), "a tag twice")


@situation("StreamsGroupHeartbeat", V)
def topologies_that_cannot_be(talk: Talk) -> None:
    """Send topologies with invalid names, loops, unwritten repartition topics, and unequal partition counts."""
    topic, other = talk.topic(partitions=2), talk.topic("other", partitions=3)
    visible(talk, topic, other)
    r, q = talk.name("r"), talk.name("q")
    both = [topic, other]
    cases: dict[str, Body] = {
        "no subtopology": shape(),
        "no source": shape(part("0")),
        "a source that is missing": shape(part("0", [talk.name("absent"), topic])),
        "four that are missing": shape(part("0", [talk.name(f"absent-{number}") for number in range(4)])),
        "an impossible name": shape(part("0", ["a/b"])),
        "an empty name": shape(part("0", [""])),
        "two impossible names": shape(part("0", [topic], [internal("c d")], ["a/b"])),
        "a topic of Kafka": shape(part("0", ["__consumer_offsets"])),
        "two topics of Kafka": shape(part("0", [topic], sinks=["__transaction_state", "__share_group_state"])),
        "a loop": shape(part("0", [], sinks=[r], repartition=[internal(r)])),
        "nothing writes it": shape(part("0", [topic], repartition=[internal(r)])),
        "copartitioned sources": shape(part("0", both, together=[([0, 1], [])])),
        "copartitioned with a fixed number": shape(
            part("0", [topic], sinks=[r]), part("1", [other], repartition=[internal(r, 2)], together=[([0], [0])])
        ),
        "two fixed numbers": shape(
            part("0", [topic], sinks=[r, q]),
            part("1", [], repartition=[internal(r, 2), internal(q, 4)], together=[([], [0, 1])]),
        ),
        "an index too large": shape(part("0", [topic], together=[([1], [])])),
        "an index below 0": shape(part("0", [topic], together=[([], [-1])])),
        "no index": shape(part("0", [topic], together=[([], [])])),
        "an existing changelog": shape(part("0", [topic], [internal(other.name)])),
        "epoch -1": shape(part("0", [topic]), epoch=-1),
        "an id twice": shape(part("0", [topic]), part("0", [other])),
        "no id": shape(part("", [topic])),
    }
    for number, (note, topology) in enumerate(cases.items()):
        name = set_up(talk, f"g{number}")
        talk.ask(first(name, "m", topology), note)
        describe(talk, note, name)


@situation("StreamsGroupHeartbeat", V)
def internal_topics(talk: Talk) -> None:
    """Join with missing internal topics, which are created with the right numbers of partitions and configs."""
    name, topic = set_up(talk), talk.topic(partitions=3)
    visible(talk, topic)
    r, c, q = talk.name("r"), talk.name("c"), talk.name("q")
    talk.will_make(r, c, q)
    topology = shape(
        part("0", [topic], sinks=[r, q]),
        part(
            "1", [], [internal(c, cleanup_policy="compact", retention_ms="1000")],
            repartition=[internal(r, 0, 1, segment_bytes="52428800"), internal(q, 2)],
        ),
    )  # fmt: skip
    response = talk.ask(first(name, "m", topology), "joins", without=("StatusDetail",))
    epoch = response["MemberEpoch"]
    described = {"GroupIds": [name]}
    talk.also("StreamsGroupDescribe", 0, described, "not ready")
    until_ready(talk, name, "m", epoch)
    for made, partitions in ((r, 3), (q, 2), (c, 3)):
        talk.ready(made, partitions)
        talk.observe(f"partitions of {made[-1]}", len(talk.described(made)["Partitions"]))
    resources = [
        {
            "ResourceType": 2,
            "ResourceName": made,
            "ConfigurationKeys": ["cleanup.policy", "retention.ms", "segment.bytes"],
        }
        for made in (c, r)
    ]
    talk.also("DescribeConfigs", 4, {"Resources": resources}, "of the internal topics")
    describe(talk, "ready", name)
    talk.ask(first(name, "m", topology), "joins again")


@situation("StreamsGroupHeartbeat", V)
def internal_topics_that_cannot_be_made(talk: Talk) -> None:
    """Request internal topics with too many replicas or an unknown config; later heartbeats have the error."""
    topic = talk.topic(partitions=2)
    visible(talk, topic)
    for label, changelog in (
        ("replicas", internal(talk.name("c"), 0, 3)),
        ("config", internal(talk.name("d"), no_such="1")),
    ):
        name = set_up(talk, label)
        epoch = joined(talk, name, "m", shape(part("0", [topic], [changelog])))["MemberEpoch"]

        def shows(name: str = name, epoch: int = epoch) -> bool:
            rows = talk.quietly("StreamsGroupHeartbeat", 0, beat(name, "m", epoch))["Status"]
            return any("Creation failed" in row["StatusDetail"] for row in rows)

        talk.until("the error", shows)
        talk.ask(beat(name, "m", epoch), label)
        describe(talk, label, name)


@situation("StreamsGroupHeartbeat", V)
def two_members(talk: Talk) -> None:
    """Join as a second member, which waits until the first has revoked tasks; send old epochs and endpoints; leave."""
    name, topic = set_up(talk), talk.topic(partitions=4)
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    one = talk.ask(first(name, "a", topology, UserEndpoint={"Host": "a", "Port": 1}), "a joins")["MemberEpoch"]
    talk.ask(first(name, "b", topology, UserEndpoint={"Host": "b", "Port": 2}), "b joins", on="b")
    talk.ask(beat(name, "a", one), "a follows")
    describe(talk, "a revokes", name)
    talk.ask(beat(name, "a", one, {"0": [0, 1, 2]}), "a has not revoked all")
    talk.ask(beat(name, "a", one, {"0": [0, 1]}), "a has revoked")
    talk.ask(beat(name, "a", one, {"0": [0, 1]}), "a repeats it")
    talk.ask(beat(name, "a", one, {"0": [3]}), "a repeats another")
    talk.ask(beat(name, "b", 3), "b follows", on="b")
    talk.ask(beat(name, "b", 3, EndpointInformationEpoch=99), "b knows other endpoints", on="b")
    describe(talk, "both", name)
    talk.ask(beat(name, "a", -1), "a leaves")
    talk.ask(beat(name, "b", 3), "b follows", on="b")
    describe(talk, "after a", name)


@situation("StreamsGroupHeartbeat", V)
def standby_tasks(talk: Talk) -> None:
    """Assign standby tasks to another process, and change their number."""
    name, topic = set_up(talk, streams_num_standby_replicas="1"), talk.topic(partitions=2)
    changelog = talk.topic("c", partitions=2)
    visible(talk, topic, changelog)
    topology = shape(part("0", [topic], [internal(changelog.name)]))
    one = talk.ask(first(name, "a", topology), "a joins")["MemberEpoch"]
    talk.ask(first(name, "b", topology), "b joins", on="b")
    talk.ask(beat(name, "a", one), "a follows")
    talk.ask(beat(name, "a", one, {"0": [0]}), "a has revoked")
    talk.ask(beat(name, "b", 3), "b follows", on="b")
    talk.ask(beat(name, "a", 3), "a has a standby task")
    configure(talk, name, {"streams.num.standby.replicas": "0"})
    talk.ask(beat(name, "a", 3), "a without a standby task")
    describe(talk, "both", name)


@situation("StreamsGroupHeartbeat", V)
def other_topologies(talk: Talk) -> None:
    """Join with another topology of the same epoch, with an older and a newer epoch, and with the same topology."""
    name, topic, other = set_up(talk), talk.topic(), talk.topic("other")
    visible(talk, topic, other)
    joined(talk, name, "a", shape(part("0", [topic]), epoch=1))
    talk.ask(first(name, "b", shape(part("0", [other]), epoch=1)), "another")
    talk.ask(first(name, "b", shape(part("0", [other]), epoch=2)), "a newer epoch")
    talk.ask(first(name, "b", shape(part("0", [other]), epoch=0)), "an older epoch")
    talk.ask(first(name, "c", shape(part("0", [topic]), epoch=1)), "the same")
    talk.ask(beat(name, "b", 3), "the older one follows")


@situation("StreamsGroupHeartbeat", V)
def shutdown_of_the_application(talk: Talk) -> None:
    """Request a shutdown of the application, of which members are notified until the last one has left."""
    name, topic = set_up(talk), talk.topic()
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    epoch = joined(talk, name, "a", topology)["MemberEpoch"]
    joined(talk, name, "b", topology)
    talk.ask(beat(name, "a", epoch, ShutdownApplication=True), "a requests it")
    talk.ask(beat(name, "b", 3, ShutdownApplication=True), "b too")
    talk.ask(beat(name, "a", -1), "a leaves")
    talk.ask(beat(name, "b", 3), "b follows")
    talk.ask(beat(name, "b", -1), "b leaves")
    talk.ask(first(name, "c", topology), "a new member")


@situation("StreamsGroupHeartbeat", V)
def delays(talk: Talk) -> None:
    """Measure the delay of the first assignment of a group, and that between two assignments."""
    name, topic = group(talk), talk.topic(partitions=2)
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    talk.ask(first(name, "a", topology), "joins")
    talk.ask(beat(name, "a", 1), "follows")
    describe(talk, "delayed", name)
    later = group(talk, "later")
    configure(talk, later, {"streams.initial.rebalance.delay.ms": "0"})
    talk.ask(first(later, "a", topology), "no delay")
    talk.ask(first(later, "b", topology), "the next assignment")


# ---- StreamsGroupDescribe, and the APIs of all groups


@situation("StreamsGroupDescribe", V)
def what_is_described(talk: Talk) -> None:
    """Describe groups: unknown, without a name, of other kinds, several, one twice, none."""
    name, classic, consumer, topic = set_up(talk), talk.name("classic"), talk.name("consumer"), talk.topic()
    visible(talk, topic)
    lone_member(talk, classic)
    talk.quietly("ConsumerGroupHeartbeat", 1, consumer_first(consumer, "m", [topic]))
    joined(talk, name, "m", shape(part("0", [topic])), UserEndpoint={"Host": "h", "Port": 65_535})
    for note, names in (
        ("unknown", [talk.name("absent")]),
        ("no name", [""]),
        ("classic", [classic]),
        ("consumer", [consumer]),
        ("several", [name, classic, talk.name("absent")]),
        ("twice", [name, name]),
        ("none", []),
    ):
        talk.ask({"GroupIds": names}, note)
    talk.ask({"GroupIds": [name], "IncludeAuthorizedOperations": True}, "operations")
    talk.also("ConsumerGroupDescribe", 1, {"GroupIds": [name]}, "as a consumer group")
    talk.also("DescribeGroups", 6, {"Groups": [name]}, "as a classic group")


@situation("ListGroups", "3-5")
def streams_groups_listed(talk: Talk) -> None:
    """List a stable, an empty and a not ready group, by type and state. (Kafka does not find its own NotReady.)"""
    stable, empty, topic = set_up(talk), set_up(talk, "empty"), talk.topic()
    waiting = set_up(talk, "waiting")
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    joined(talk, stable, "m", topology)
    joined(talk, empty, "m", topology)
    talk.quietly("StreamsGroupHeartbeat", 0, beat(empty, "m", -1))
    joined(talk, waiting, "m", shape(part("0", [talk.name("absent")])))
    own = {"Groups": talk.is_own("GroupId")}
    talk.ask({}, only=own)
    for states in (["not_ready"], ["NOT_READY", "Empty"], ["Stable"], ["Assigning"]):
        talk.ask({"StatesFilter": states}, ", ".join(states), only=own)
    if talk.version >= 5:
        for types in (["streams"], ["Streams", "classic"], ["consumer"]):
            talk.ask({"TypesFilter": types}, ", ".join(types), only=own)


@situation("DeleteGroups", "0-2")
def streams_groups_deleted(talk: Talk) -> None:
    """Delete a group with a member and an empty group, and request the offsets of the deleted one."""
    live, empty, topic = set_up(talk), set_up(talk, "empty"), talk.topic()
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    joined(talk, live, "m", topology)
    joined(talk, empty, "m", topology)
    talk.quietly("StreamsGroupHeartbeat", 0, beat(empty, "m", -1))
    talk.quietly("OffsetCommit", 2, commit(empty, topic))
    talk.ask({"GroupsNames": [live, empty]})
    describe(talk, "left", live, empty)
    talk.also("OffsetFetch", 7, committed(7, empty, [(topic, [0])]))


@situation("OffsetCommit", "2-10")
def by_a_member_of_a_streams_group(talk: Talk) -> None:
    """Commit as a member at several epochs, as an unknown member, without a member, and for a topic not read."""
    name, topic, other = set_up(talk), talk.topic(), talk.topic("other")
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    epoch = joined(talk, name, "m", topology)["MemberEpoch"]
    for note, number, member, where in (
        ("right", epoch, "m", topic),
        ("right, of another topic", epoch, "m", other),
        ("older", epoch - 1, "m", topic),
        ("older, of another topic", epoch - 1, "m", other),
        ("newer", epoch + 1, "m", topic),
        ("stranger", epoch, "stranger", topic),
        ("outside", -1, "", topic),
        ("no epoch", -1, "m", topic),
        ("no member", epoch, "", topic),
    ):
        talk.ask(commit(name, where, generation=number, member=member), note)
    talk.also("OffsetFetch", 7, committed(7, name, [(topic, [0])]))
    rows = [{"Name": one.name, "Partitions": [{"PartitionIndex": 0}]} for one in (topic, other)]
    talk.also("OffsetDelete", 0, {"GroupId": name, "Topics": rows}, "while it reads one")


@situation("OffsetFetch", "9-10")
def asked_for_by_a_member_of_a_streams_group(talk: Talk) -> None:
    """Fetch offsets as a member at several epochs, as an unknown member, and without a member or an epoch."""
    name, topic = set_up(talk), talk.topic()
    visible(talk, topic)
    epoch = joined(talk, name, "m", shape(part("0", [topic])))["MemberEpoch"]
    ask_for_offsets(talk, name, topic, epoch)


@situation("JoinGroup", "0-9")
def joins_a_streams_group(talk: Talk) -> None:
    """Join a streams group by other protocols, while it has a member and when it is empty."""
    name, topic = set_up(talk), talk.topic()
    visible(talk, topic)
    epoch = joined(talk, name, "m", shape(part("0", [topic])))["MemberEpoch"]
    talk.ask(join(name), "with a member")
    talk.ask(join(name, "m"), "as the member")
    talk.also("Heartbeat", 4, classic_heartbeat(name, epoch, "m"), "with the other protocol's id")
    talk.also("SyncGroup", 5, sync(name, epoch, "m"), "with the other protocol's id")
    leaving = {"GroupId": name, "Members": [{"MemberId": "m", "GroupInstanceId": None, "Reason": None}]}
    talk.also("LeaveGroup", 5, leaving, "with the other protocol's id")
    talk.quietly("StreamsGroupHeartbeat", 0, beat(name, "m", -1))
    talk.also("ConsumerGroupHeartbeat", 1, consumer_first(name, "n", [topic]), "another protocol, empty")
    lone_member(talk, name)
    talk.also("ListGroups", 5, {}, only={"Groups": talk.is_own("GroupId")})


@situation("StreamsGroupHeartbeat", V)
def joins_an_empty_group(talk: Talk) -> None:
    """Join a group with offsets only, a former classic group, and a former consumer group."""
    topic = talk.topic()
    visible(talk, topic)
    topology = shape(part("0", [topic]))
    offsets, classic, consumer = (set_up(talk, label) for label in ("offsets", "classic", "consumer"))
    talk.quietly("OffsetCommit", 2, commit(offsets, topic))
    member = lone_member(talk, classic)
    rows = [{"MemberId": member.id, "GroupInstanceId": None}]
    talk.quietly("LeaveGroup", 3, {"GroupId": classic, "Members": rows})
    talk.quietly("ConsumerGroupHeartbeat", 1, consumer_first(consumer, "m", [topic]))
    talk.quietly("ConsumerGroupHeartbeat", 1, consumer_beat(consumer, "m", -1))
    for note, name in (("offsets", offsets), ("classic", classic), ("consumer", consumer)):
        talk.ask(first(name, "m", topology), note)
    talk.also("OffsetFetch", 7, committed(7, offsets, [(topic, [0])]))
    talk.also("ListGroups", 5, {}, only={"Groups": talk.is_own("GroupId")})


# ---- configs of groups


SETTINGS = {
    "streams.session.timeout.ms": ("50000", "1000", "600000", "-1", "long"),
    "streams.heartbeat.interval.ms": ("7000", "1", "99999", "0"),
    "streams.num.standby.replicas": ("1", "3", "-1"),
    "streams.initial.rebalance.delay.ms": ("10", "-1", "99999999"),
    "streams.assignment.interval.ms": ("10", "-1", "99999"),
}


@situation("IncrementalAlterConfigs", "1")
def configs_of_streams_groups(talk: Talk) -> None:
    """Set configs of a group, invalid ones, and delete them; a heartbeat's response has the interval."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    for setting, values in SETTINGS.items():
        for value in values:
            talk.ask(altered(name, (setting, 0, value)), f"{setting} {value}")
    back = [(setting, 1, None) for setting in SETTINGS]
    talk.at_end(lambda: talk.quietly("IncrementalAlterConfigs", 1, altered(name, *back)))
    configure(talk, name, {"streams.heartbeat.interval.ms": "7000"})
    talk.also("StreamsGroupHeartbeat", 0, first(name, "m", shape(part("0", [topic]))), "the interval of the group")
