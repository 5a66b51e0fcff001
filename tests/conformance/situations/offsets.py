"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from typing import Any

from tests.conformance.bodies import (
    RANGE,
    STRANGE_ID,
    add_partitions,
    commit,
    committed,
    group,
    lone_member,
    named,
    producer,
    subscription,
)
from tests.conformance.codec import ZERO_ID
from tests.conformance.run import TRANSACTIONS, situation
from tests.conformance.talk import Talk

COMMIT, FETCH = "2-10", "1-10"


@situation("OffsetCommit", COMMIT)
def without_members(talk: Talk) -> None:
    """Commit without members, fetch offset, metadata and leader epoch, and commit a lower offset."""
    name, topic = group(talk), talk.topic(partitions=2)
    talk.ask(commit(name, topic, 7, leader_epoch=0), "with an epoch")
    talk.ask(commit(name, topic, 8, partition=1, metadata=None), "no metadata")
    talk.also("OffsetFetch", 7, committed(7, name, [(topic, [0, 1])]))
    talk.ask(commit(name, topic, 3, metadata=""), "backwards")
    talk.also("OffsetFetch", 5, committed(5, name, None), "all")


@situation("OffsetCommit", COMMIT)
def by_a_member(talk: Talk) -> None:
    """Commit in the member's generation, in another, as an unknown member, and without a member or generation."""
    name, topic = group(talk), talk.topic()
    member = lone_member(talk, name)
    rows = (("right", 1, member.id), ("generation", 9, member.id), ("stranger", 1, "stranger"), ("no member", -1, ""))
    for note, generation, id in (*rows, ("no generation", -1, member.id)):
        talk.ask(commit(name, topic, generation=generation, member=id), note)


@situation("OffsetCommit", "7-10")
def by_a_static_member(talk: Talk) -> None:
    """Commit with the member's instance, another's member id, and an unknown instance."""
    name, topic = group(talk), talk.topic()
    member = lone_member(talk, name, instance="i")
    for note, id, instance in (
        ("right", member.id, "i"),
        ("fenced", "other", "i"),
        ("no such instance", member.id, "j"),
    ):
        talk.ask(commit(name, topic, generation=1, member=id, instance=instance), note)


@situation("OffsetCommit", COMMIT)
def before_sync(talk: Talk) -> None:
    """Commit as a member that has joined, while the group waits for the leader's sync."""
    name, topic = group(talk), talk.topic()
    member = lone_member(talk, name, is_synced=False)
    talk.ask(commit(name, topic, generation=1, member=member.id))


@situation("OffsetCommit", COMMIT)
def member_of_no_group(talk: Talk) -> None:
    """Commit in a generation of an unknown group."""
    talk.ask(commit(group(talk), talk.topic(), generation=3, member="stranger"))


@situation("OffsetCommit", COMMIT)
def topics_that_are_not_there(talk: Talk) -> None:
    """Commit offsets of an unknown topic and unknown partitions besides known ones."""
    name, topic = group(talk), talk.topic()
    body = commit(name, topic)
    (row,) = body["Topics"][0]["Partitions"]
    body["Topics"][0]["Partitions"] += [{**row, "PartitionIndex": index} for index in (4, -1)]
    body["Topics"].append({"Name": talk.name("absent"), "TopicId": STRANGE_ID, "Partitions": [row]})
    talk.ask(body)


@situation("OffsetCommit", "10")
def topic_without_an_id(talk: Talk) -> None:
    """Commit an offset of the zero topic id."""
    body = commit(group(talk), talk.topic())
    body["Topics"][0]["TopicId"] = ZERO_ID
    talk.ask(body)


@situation("OffsetCommit", COMMIT)
def size_of_metadata(talk: Talk) -> None:
    """Commit metadata of the maximum size of 4096 bytes, and of one more."""
    name, topic = group(talk), talk.topic()
    for size in (4096, 4097):
        talk.ask(commit(name, topic, metadata="m" * size), f"{size}")


@situation("OffsetCommit", COMMIT)
def odd_offsets(talk: Talk) -> None:
    """Commit offsets below zero, of no topics, and of a topic without partitions."""
    name, topic = group(talk), talk.topic()
    for offset in (-1, -5):
        talk.ask(commit(name, topic, offset), f"offset {offset}")
    talk.also("OffsetFetch", 5, committed(5, name, [(topic, [0])]))
    talk.ask({**commit(name, topic), "Topics": []}, "no topics")
    talk.ask({**commit(name, topic), "Topics": [named(topic)]}, "no partitions")


@situation("OffsetCommit", "2-4")
def retention_time(talk: Talk) -> None:
    """Commit with a retention time, a field of old versions that is accepted."""
    name, topic = group(talk), talk.topic()
    talk.ask({**commit(name, topic), "RetentionTimeMs": 60_000})
    talk.also("OffsetFetch", 3, committed(3, name, [(topic, [0])]))


@situation("OffsetCommit", COMMIT, alone=True)
def group_without_a_name(talk: Talk) -> None:
    """Use the group with the empty name: commit, fetch, describe and delete."""
    topic = talk.topic()
    group(talk)

    def clear() -> None:
        talk.quietly("DeleteGroups", 1, {"GroupsNames": [""]})

    clear()
    talk.at_end(clear)
    talk.ask(commit("", topic, 4))
    talk.also("OffsetFetch", talk.version, committed(talk.version, "", [(topic, [0])]))
    talk.also("DescribeGroups", min(talk.version, 6), {"Groups": [""]})
    talk.also("DeleteGroups", 2, {"GroupsNames": [""]})


@situation("OffsetFetch", FETCH)
def ways_to_ask(talk: Talk) -> None:
    """Fetch offsets of some partitions, of an unknown topic, of all, of no topic, and of no partition."""
    name, topic = group(talk), talk.topic(partitions=2)
    talk.quietly("OffsetCommit", 6, commit(name, topic, 7, leader_epoch=0))
    rows: dict[str, Any] = {"some": [(topic, [0, 1, 9])], "unknown": [(talk.name("absent"), [0])], "all": None}
    for note, wanted in (*rows.items(), ("no topic", []), ("no partition", [(topic, [])])):
        if wanted is not None or talk.version >= 2:
            talk.ask(committed(talk.version, name, wanted), note)


@situation("OffsetFetch", FETCH)
def unknown_group(talk: Talk) -> None:
    """Fetch offsets of an unknown group, which is not an error."""
    group(talk)
    name, topic = talk.name("absent"), talk.topic()
    talk.ask(committed(talk.version, name, [(topic, [0])]), "a partition")
    if talk.version >= 2:
        talk.ask(committed(talk.version, name, None), "all")


@situation("OffsetFetch", "8-10")
def several_groups(talk: Talk) -> None:
    """Fetch offsets of two groups and an unknown one, of one group twice, and of none."""
    one, two, topic = group(talk), talk.name("second"), talk.topic()
    for offset, name in enumerate((one, two), 1):
        talk.quietly("OffsetCommit", 6, commit(name, topic, offset))
    rows = [committed(talk.version, name, [(topic, [0])])["Groups"][0] for name in (one, two, talk.name("absent"))]
    for note, wanted in (("three", rows), ("twice", [rows[0], rows[0]]), ("none", [])):
        talk.ask({"Groups": wanted}, note)


@situation("OffsetFetch", "9-10")
def epochs_of_members(talk: Talk) -> None:
    """Fetch with member epochs from a group without members, and from a classic group."""
    name, topic = group(talk), talk.topic()
    talk.quietly("OffsetCommit", 6, commit(name, topic, 1))
    talk.ask(committed(talk.version, name, [(topic, [0])], MemberId="stranger", MemberEpoch=5), "no members")
    other = talk.name("classic")
    member = lone_member(talk, other)
    for note, id, epoch in (("right", member.id, 1), ("wrong epoch", member.id, 7), ("no member", "", -1)):
        talk.ask(committed(talk.version, other, [(topic, [0])], MemberId=id, MemberEpoch=epoch), note)


@situation("OffsetFetch", "10")
def ids_that_are_not_there(talk: Talk) -> None:
    """Fetch offsets of an unknown topic id and of the zero id."""
    rows = [{"TopicId": each, "PartitionIndexes": [0]} for each in (STRANGE_ID, ZERO_ID)]
    talk.ask({"Groups": [{"GroupId": group(talk), "Topics": rows}]})


@situation("OffsetFetch", "1-9")
def deleted_topic(talk: Talk) -> None:
    """Fetch offsets of a deleted topic, which are deleted with the topic."""
    name, topic = group(talk), talk.topic()
    talk.quietly("OffsetCommit", 6, commit(name, topic, 3))
    talk.quietly("DeleteTopics", 5, {"TopicNames": [topic.name], "TimeoutMs": 10_000})
    talk.gone(topic.name)

    def offset() -> int:
        response = talk.quietly("OffsetFetch", 5, committed(5, name, [(topic, [0])]))
        return int(response["Topics"][0]["Partitions"][0]["CommittedOffset"])

    talk.until("the end of its offsets", lambda: offset() == -1)
    talk.ask(committed(talk.version, name, [(topic, [0])]))


@situation("OffsetDelete", "0")
def deleted(talk: Talk) -> None:
    """Delete offsets that are committed, that are not committed, and of unknown partitions."""
    name, topic = group(talk), talk.topic(partitions=2)
    talk.quietly("OffsetCommit", 6, commit(name, topic, 3))
    partitions = [{"PartitionIndex": index} for index in (0, 1, 7)]
    rows = [{"Name": topic.name, "Partitions": partitions}, {"Name": talk.name("absent"), "Partitions": partitions[:1]}]
    talk.ask({"GroupId": name, "Topics": rows})
    talk.also("OffsetFetch", 5, committed(5, name, [(topic, [0])]))
    talk.ask({"GroupId": name, "Topics": [{"Name": topic.name}]}, "no partitions")
    talk.ask({"GroupId": name, "Topics": []}, "no topics")


@situation("OffsetDelete", "0")
def bad_deletes(talk: Talk) -> None:
    """Delete offsets of an unknown group, without a name, of a subscribed topic, and of a group of another type."""
    name, topic, other = group(talk), talk.topic(), talk.name("connect")
    rows = [{"Name": each, "Partitions": [{"PartitionIndex": 0}]} for each in (topic.name, talk.name("absent"))]
    talk.ask({"GroupId": talk.name("absent"), "Topics": rows[:1]}, "unknown")
    talk.ask({"GroupId": "", "Topics": rows[:1]}, "no name")
    lone_member(talk, name, protocols=[{"Name": "range", "Metadata": subscription(topic.name)}])
    talk.ask({"GroupId": name, "Topics": rows}, "subscribed")
    lone_member(talk, other, ProtocolType="connect", protocols=RANGE)
    talk.ask({"GroupId": other, "Topics": rows[:1]}, "of another type")


# ---- transactions


@situation("OffsetFetch", "7-10", needs=TRANSACTIONS)
def stable_offsets(talk: Talk) -> None:
    """Fetch stable offsets during a transaction with offsets, when there are none, and after its commit."""
    name, topic = group(talk), talk.topic()
    mine = producer(talk, talk.name("tx"))
    talk.quietly("OffsetCommit", 6, commit(name, topic, 1))
    talk.quietly("AddOffsetsToTxn", 3, {**mine.who, "GroupId": name})
    talk.quietly("TxnOffsetCommit", 3, {**commit(name, topic, 9, metadata=""), **mine.who})
    rows = [(topic, [0])]
    talk.ask(committed(talk.version, name, rows, stable=True), "stable")
    talk.ask(committed(talk.version, name, rows), "as it is")
    talk.ask(committed(talk.version, name, None, stable=True), "all, stable")
    talk.quietly("EndTxn", 3, {**mine.who, "Committed": True})

    def offset() -> int:
        response = talk.quietly("OffsetFetch", 7, committed(7, name, rows))
        return int(response["Topics"][0]["Partitions"][0]["CommittedOffset"])

    talk.until("the commit", lambda: offset() == 9)
    talk.ask(committed(talk.version, name, rows, stable=True), "afterwards")


@situation("OffsetCommit", "2,9", needs=TRANSACTIONS)
def beside_a_transaction(talk: Talk) -> None:
    """Commit without a transaction while a transaction is open, and fetch the offset after its abort."""
    name, topic = group(talk), talk.topic()
    mine = producer(talk, talk.name("tx"))
    talk.quietly("AddPartitionsToTxn", 3, add_partitions(3, mine.who, topic))
    talk.ask(commit(name, topic, 4))
    talk.quietly("EndTxn", 3, {**mine.who, "Committed": False})
    talk.also("OffsetFetch", 5, committed(5, name, [(topic, [0])]))
