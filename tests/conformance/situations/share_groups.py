"""Share groups (KIP-932): heartbeats, descriptions, offsets, lists, and the state of share partitions."""

import uuid
from typing import Any

from tests.conformance.bodies import STRANGE_ID, commit, committed, group, join, lone_member
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.situations.consumer_groups import TOO_LONG, first, visible
from tests.conformance.talk import Talk, Topic


def beat(group_id: str, member: str, epoch: int, *topics: Topic | str, **fields: Any) -> Body:
    """Return a heartbeat; without topics the subscription is unchanged."""
    names = [getattr(topic, "name", topic) for topic in topics] or None
    return {
        "GroupId": group_id,
        "MemberId": member,
        "MemberEpoch": epoch,
        "RackId": None,
        "SubscribedTopicNames": names,
        **fields,
    }


def joined(talk: Talk, group_id: str, member: str, *topics: Topic) -> int:
    """Join and send heartbeats until the member has partitions, without recording; return the member epoch."""
    epoch = [talk.quietly("ShareGroupHeartbeat", 1, beat(group_id, member, 0, *topics))["MemberEpoch"]]

    def has_some() -> bool:
        response = talk.quietly("ShareGroupHeartbeat", 1, beat(group_id, member, epoch[0], *topics))
        epoch[0] = response["MemberEpoch"]
        return bool((response["Assignment"] or {"TopicPartitions": []})["TopicPartitions"])

    talk.until(f"{member} has partitions", has_some, 20)
    reached: int = epoch[0]
    return reached


def describe(talk: Talk, note: str, *names: str, **fields: Any) -> None:
    talk.also("ShareGroupDescribe", 1, {"GroupIds": list(names), **fields}, note)


def offsets_of(group_id: str, *topics: tuple[str, list[int]] | None) -> Body:
    rows = None if topics == (None,) else [{"TopicName": one[0], "Partitions": one[1]} for one in topics if one]
    return {"Groups": [{"GroupId": group_id, "Topics": rows}]}


def alter(group_id: str, *rows: tuple[str, dict[int, int]]) -> Body:
    return {
        "GroupId": group_id,
        "Topics": [
            {"TopicName": name, "Partitions": [{"PartitionIndex": i, "StartOffset": at} for i, at in starts.items()]}
            for name, starts in rows
        ],
    }


# ---- ShareGroupHeartbeat, ShareGroupDescribe


@situation("ShareGroupHeartbeat", "1")
def life_of_a_lone_member(talk: Talk) -> None:
    """Join, send heartbeats, leave, and join again, with descriptions between."""
    name, topic = group(talk), talk.topic(partitions=3)
    visible(talk, topic)
    epoch = talk.ask(beat(name, "m", 0, topic), "joins")["MemberEpoch"]
    epoch = joined(talk, name, "m", topic)
    describe(talk, "joined", name)
    talk.ask(beat(name, "m", epoch), "follows")
    talk.ask(beat(name, "m", epoch, topic), "says everything")
    talk.ask(beat(name, "m", 0, topic), "joins again")
    talk.ask(beat(name, "m", -1), "leaves")
    describe(talk, "empty", name)
    talk.ask(beat(name, "m", -1), "leaves again")
    talk.ask(beat(name, "m", epoch), "follows again")
    talk.also("DeleteGroups", 2, {"GroupsNames": [name]}, "deleted")
    describe(talk, "deleted", name)


@situation("ShareGroupHeartbeat", "1")
def requests_that_cannot_be(talk: Talk) -> None:
    """Send requests that are refused before anything is looked up."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    rows: dict[str, Body] = {
        "no group": beat("", "m", 0, topic),
        "blank group": beat(" ", "m", 0, topic),
        "no member": beat(name, "", 0, topic),
        "blank member": beat(name, " ", 0, topic),
        "member id of 36": beat(name, "m" * 36, 1),
        "member id of 37": beat(name, "m" * 37, 0, topic),
        "no rack": beat(name, "m", 0, topic, RackId=""),
        "no subscription": beat(name, "m", 0),
        "an empty subscription": beat(name, "m", 0, SubscribedTopicNames=[]),
        "epoch -2": beat(name, "m", -2),
        "epoch of the least": beat(name, "m", -(2**31)),
        "no such group": beat(name, "m", 1),
        "leaves no such group": beat(name, "m", -1),
    }
    for note, body in rows.items():
        talk.ask(body, note)
    describe(talk, "is there a group", name, "", name)


@situation("ShareGroupHeartbeat", "1")
def epochs_of_others(talk: Talk) -> None:
    """Send future and past epochs, and heartbeats of an unknown member."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    epoch = joined(talk, name, "m", topic)
    for number in (epoch + 1, 2**31 - 1, epoch - 1, epoch - 2):
        talk.ask(beat(name, "m", number), f"epoch {number - epoch:+}")
    talk.ask(beat(name, "other", epoch), "another member")
    talk.ask(beat(name, "other", -1), "another member leaves")
    talk.ask(beat(name, "m", epoch), "is still there")
    talk.also("DeleteGroups", 2, {"GroupsNames": [name]}, "not empty")


@situation("ShareGroupHeartbeat", "1")
def topics_that_do_not_exist(talk: Talk) -> None:
    """Subscribe to a topic that does not exist."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    talk.ask(beat(name, "m", 0, talk.name("never made")), "joins")
    describe(talk, "joined", name)
    talk.ask(beat(name, "m", -1), "leaves")


@situation("ShareGroupHeartbeat", "1")
def kinds_of_groups(talk: Talk) -> None:
    """Send requests of other protocols to a share group, and share group requests to a classic group."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    joined(talk, name, "m", topic)

    def others(note: str) -> None:
        talk.also("JoinGroup", 9, join(name, ""), f"{note}: classic")
        talk.also("ConsumerGroupHeartbeat", 1, first(name, "c", [topic]), f"{note}: consumer")
        talk.also("Heartbeat", 4, {"GroupId": name, "GenerationId": 1, "MemberId": "m"}, f"{note}: heartbeat")
        talk.also("OffsetCommit", 9, commit(name, topic), f"{note}: commit")
        talk.also("OffsetFetch", 9, committed(9, name, [(topic, [0])]), f"{note}: fetch")
        talk.also("DescribeGroups", 6, {"Groups": [name]}, f"{note}: described as classic")
        talk.also("ConsumerGroupDescribe", 1, {"GroupIds": [name]}, f"{note}: described as a consumer group")
        row = {"Name": topic.name, "Partitions": [{"PartitionIndex": 0}]}
        talk.also("OffsetDelete", 0, {"GroupId": name, "Topics": [row]}, f"{note}: offsets deleted")

    others("with a member")
    talk.quietly("ShareGroupHeartbeat", 1, beat(name, "m", -1))
    others("empty")
    classic = talk.name("classic")
    lone_member(talk, classic)
    talk.ask(beat(classic, "m", 0, topic), "joins a classic group")
    describe(talk, "a classic group", classic)
    talk.also("AlterShareGroupOffsets", 0, alter(classic, (topic.name, {0: 0})), "offsets of a classic group")


# ---- offsets of share groups


@situation("DescribeShareGroupOffsets", "0-1")
def offsets_of_a_group(talk: Talk) -> None:
    """Describe offsets that were set, and offsets of topics that do not exist.

    Kafka does not respond about partitions that do not exist.
    """
    name, topic = group(talk), talk.topic(partitions=2)
    visible(talk, topic)
    talk.ask(offsets_of(name, None), "all of no group")
    talk.ask(offsets_of(name), "no topics")
    talk.also("AlterShareGroupOffsets", 0, alter(name, (topic.name, {0: 0, 1: 0})), "set")
    talk.ask(offsets_of(name, None), "all")
    talk.ask(offsets_of(name, (topic.name, [1]), (talk.name("never made"), [0])), "some")
    describe(talk, "the group", name)
    talk.also("DeleteShareGroupOffsets", 0, {"GroupId": name, "Topics": [{"TopicName": topic.name}]}, "deleted")
    talk.ask(offsets_of(name, None), "all after the deletion")
    talk.ask(offsets_of(name, (topic.name, [0])), "one after the deletion")
    talk.also("DeleteGroups", 2, {"GroupsNames": [name]}, "deleted too")


@situation("AlterShareGroupOffsets", "0")
def offsets_that_cannot_be_set(talk: Talk) -> None:
    """Set offsets without a group id, of unknown topics and partitions, and of a group with members."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    talk.ask(alter("", (topic.name, {0: 0})), "no group id")
    talk.ask(alter(name, (talk.name("never made"), {0: 0})), "no such topic")
    talk.ask(alter(name, (topic.name, {0: 3, 5: 0})), "no such partition")
    joined(talk, name, "m", topic)
    talk.ask(alter(name, (topic.name, {0: 1})), "a member")
    talk.quietly("ShareGroupHeartbeat", 1, beat(name, "m", -1))
    talk.ask(alter(name, (topic.name, {0: 1})), "empty again")


@situation("DeleteShareGroupOffsets", "0")
def offsets_that_cannot_be_deleted(talk: Talk) -> None:
    """Delete offsets of no group, of a group with members, of a topic that is not read, and of an unknown topic."""
    name, topic, other = group(talk), talk.topic(), talk.topic("other")
    visible(talk, topic, other)
    rows = [{"TopicName": one} for one in (topic.name, other.name, talk.name("never made"))]
    talk.ask({"GroupId": "", "Topics": rows}, "no group id")
    talk.ask({"GroupId": name, "Topics": rows}, "no such group")
    joined(talk, name, "m", topic)
    talk.ask({"GroupId": name, "Topics": rows}, "a member")
    talk.quietly("ShareGroupHeartbeat", 1, beat(name, "m", -1))
    talk.ask({"GroupId": name, "Topics": rows}, "empty")
    talk.ask({"GroupId": name, "Topics": []}, "no topics")


# ---- state of share partitions


def state_rows(topic_id: uuid.UUID, **fields: Any) -> Body:
    return {"TopicId": topic_id, "Partitions": [{"Partition": 0, **fields}]}


def state_topic(talk: Talk, name: str, topic: Topic) -> None:
    """Wait for the share coordinator of a share partition, whose topic may have to be created."""

    def is_served() -> bool:
        body = {"GroupId": name, "Topics": [state_rows(topic.id, LeaderEpoch=0)]}
        row = talk.quietly("ReadShareGroupStateSummary", 1, body)["Results"][0]["Partitions"][0]
        return bool(row["ErrorCode"] == 0)

    talk.quietly("AlterShareGroupOffsets", 0, alter(talk.name("maker"), (topic.name, {0: 0})))
    talk.until("the share coordinator is there", is_served, 20)


@situation("WriteShareGroupState", "0-1")
def state_of_a_share_partition(talk: Talk) -> None:
    """Initialize the state of a share partition, read it as leaders, write, be fenced, and delete it."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    state_topic(talk, name, topic)

    def send(api: str, version: int, note: str, topic_id: uuid.UUID = topic.id, **fields: Any) -> None:
        talk.also(api, version, {"GroupId": name, "Topics": [state_rows(topic_id, **fields)]}, note)

    def write(note: str, state: int, leader: int, start: int, *batches: tuple[int, int, int, int]) -> None:
        names = "FirstOffset", "LastOffset", "DeliveryState", "DeliveryCount"
        rows = [dict(zip(names, batch, strict=True)) for batch in batches]
        fields = {"StateEpoch": state, "LeaderEpoch": leader, "StartOffset": start, "DeliveryCompleteCount": 2}
        talk.ask({"GroupId": name, "Topics": [state_rows(topic.id, **fields, StateBatches=rows)]}, note)

    send("ReadShareGroupState", 0, "read before", LeaderEpoch=0)
    write("written before", 0, 0, 0)
    send("InitializeShareGroupState", 0, "initialized", StateEpoch=1, StartOffset=-1)
    send("ReadShareGroupState", 0, "read", LeaderEpoch=3)
    send("ReadShareGroupState", 0, "read by an earlier leader", LeaderEpoch=2)
    write("written", 1, 3, 10, (12, 14, 2, 1), (16, 16, 0, 1))
    write("written over", 1, 3, 11, (13, 15, 4, 2))
    write("start stays", 1, 3, -1, (17, 17, 2, 1))
    write("earlier leader", 1, 2, 0)
    write("earlier state", 0, 3, 0)
    send("ReadShareGroupState", 0, "read again", LeaderEpoch=3)
    for version in (0, 1):
        send("ReadShareGroupStateSummary", version, f"summary {version}", LeaderEpoch=3)
    send("InitializeShareGroupState", 0, "earlier state is initialized", StateEpoch=0, StartOffset=5)
    send("InitializeShareGroupState", 0, "initialized again", StateEpoch=2, StartOffset=5)
    send("ReadShareGroupState", 0, "read after that", LeaderEpoch=3)
    send("DeleteShareGroupState", 0, "deleted")
    send("DeleteShareGroupState", 0, "deleted again")
    send("ReadShareGroupStateSummary", 1, "summary of nothing", LeaderEpoch=3)
    send("ReadShareGroupStateSummary", 1, "no such topic", STRANGE_ID, LeaderEpoch=3)
    send("InitializeShareGroupState", 0, "no such topic is initialized", STRANGE_ID, StateEpoch=0, StartOffset=0)
    send("DeleteShareGroupState", 0, "no such topic is deleted", STRANGE_ID)


@situation("InitializeShareGroupState", "0")
def states_that_cannot_be(talk: Talk) -> None:
    """Initialize states without a group, topics or partitions, and of unknown partitions."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    state_topic(talk, name, topic)
    fields = {"StateEpoch": 0, "StartOffset": 0}
    talk.ask({"GroupId": "", "Topics": [state_rows(topic.id, **fields)]}, "no group id")
    talk.ask({"GroupId": name, "Topics": []}, "no topics")
    talk.ask({"GroupId": name, "Topics": [{"TopicId": topic.id, "Partitions": []}]}, "no partitions")
    for index in (-1, 1, 2**31 - 1):
        rows = [{"TopicId": topic.id, "Partitions": [{"Partition": index, **fields}]}]
        talk.ask({"GroupId": name, "Topics": rows}, f"partition {index}")


@situation("FindCoordinator", "6")
def coordinators_of_share_partitions(talk: Talk) -> None:
    """Find coordinators of share partitions, whose keys are a group, a topic id and a partition."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    state_topic(talk, name, topic)
    there = f"{name}:AAAAAAAAAAAAAAAAAAAAAA:0"
    wrong = [f"{name}:AAAAAAAAAAAAAAAAAAAAAA", ":AAAAAAAAAAAAAAAAAAAAAA:0", f"{name}:AAAA:0", f"{there}0000000000", ""]
    talk.ask({"KeyType": 2, "CoordinatorKeys": [there, f"a:{there}", *wrong]})


@situation("ShareGroupHeartbeat", "1")
def long_names(talk: Talk) -> None:
    """Join with a rack of the maximum length of a string, which is too long for a record."""
    name, topic = group(talk), talk.topic()
    visible(talk, topic)
    talk.ask(beat(name, "m", 0, topic, RackId="r" * TOO_LONG), "rack")
