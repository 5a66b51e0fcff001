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
    """Offset, metadata and leader epoch come back; a commit may go backwards."""
    name, topic = group(talk), talk.topic(partitions=2)
    talk.ask(commit(name, topic, 7, leader_epoch=0), "with an epoch")
    talk.ask(commit(name, topic, 8, partition=1, metadata=None), "no metadata")
    talk.also("OffsetFetch", 7, committed(7, name, [(topic, [0, 1])]))
    talk.ask(commit(name, topic, 3, metadata=""), "backwards")
    talk.also("OffsetFetch", 5, committed(5, name, None), "all")


@situation("OffsetCommit", COMMIT)
def by_a_member(talk: Talk) -> None:
    """In its generation, in another; a stranger; without a member, without a generation."""
    name, topic = group(talk), talk.topic()
    member = lone_member(talk, name)
    rows = (("right", 1, member.id), ("generation", 9, member.id), ("stranger", 1, "stranger"), ("no member", -1, ""))
    for note, generation, id in (*rows, ("no generation", -1, member.id)):
        talk.ask(commit(name, topic, generation=generation, member=id), note)


@situation("OffsetCommit", "7-10")
def by_a_static_member(talk: Talk) -> None:
    """Its instance, another's member id, an unknown instance."""
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
    """The member has joined, and the group waits for its leader."""
    name, topic = group(talk), talk.topic()
    member = lone_member(talk, name, is_synced=False)
    talk.ask(commit(name, topic, generation=1, member=member.id))


@situation("OffsetCommit", COMMIT)
def member_of_no_group(talk: Talk) -> None:
    """A generation of a group that is not there."""
    talk.ask(commit(group(talk), talk.topic(), generation=3, member="stranger"))


@situation("OffsetCommit", COMMIT)
def topics_that_are_not_there(talk: Talk) -> None:
    """A topic and partitions, beside one that is."""
    name, topic = group(talk), talk.topic()
    body = commit(name, topic)
    (row,) = body["Topics"][0]["Partitions"]
    body["Topics"][0]["Partitions"] += [{**row, "PartitionIndex": index} for index in (4, -1)]
    body["Topics"].append({"Name": talk.name("absent"), "TopicId": STRANGE_ID, "Partitions": [row]})
    talk.ask(body)


@situation("OffsetCommit", "10")
def topic_without_an_id(talk: Talk) -> None:
    """The zero id."""
    body = commit(group(talk), talk.topic())
    body["Topics"][0]["TopicId"] = ZERO_ID
    talk.ask(body)


@situation("OffsetCommit", COMMIT)
def size_of_metadata(talk: Talk) -> None:
    """4096 bytes are allowed."""
    name, topic = group(talk), talk.topic()
    for size in (4096, 4097):
        talk.ask(commit(name, topic, metadata="m" * size), f"{size}")


@situation("OffsetCommit", COMMIT)
def odd_offsets(talk: Talk) -> None:
    """Below zero; no topics, and a topic without partitions."""
    name, topic = group(talk), talk.topic()
    for offset in (-1, -5):
        talk.ask(commit(name, topic, offset), f"offset {offset}")
    talk.also("OffsetFetch", 5, committed(5, name, [(topic, [0])]))
    talk.ask({**commit(name, topic), "Topics": []}, "no topics")
    talk.ask({**commit(name, topic), "Topics": [named(topic)]}, "no partitions")


@situation("OffsetCommit", "2-4")
def retention_time(talk: Talk) -> None:
    """The field of old versions is taken."""
    name, topic = group(talk), talk.topic()
    talk.ask({**commit(name, topic), "RetentionTimeMs": 60_000})
    talk.also("OffsetFetch", 3, committed(3, name, [(topic, [0])]))


@situation("OffsetCommit", COMMIT, alone=True)
def group_without_a_name(talk: Talk) -> None:
    """It takes commits, gives them back, and can be deleted."""
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
    """Some partitions, an unknown topic, all, no topic, no partition."""
    name, topic = group(talk), talk.topic(partitions=2)
    talk.quietly("OffsetCommit", 6, commit(name, topic, 7, leader_epoch=0))
    rows: dict[str, Any] = {"some": [(topic, [0, 1, 9])], "unknown": [(talk.name("absent"), [0])], "all": None}
    for note, wanted in (*rows.items(), ("no topic", []), ("no partition", [(topic, [])])):
        if wanted is not None or talk.version >= 2:
            talk.ask(committed(talk.version, name, wanted), note)


@situation("OffsetFetch", FETCH)
def unknown_group(talk: Talk) -> None:
    """It has no offsets, which is not an error."""
    group(talk)
    name, topic = talk.name("absent"), talk.topic()
    talk.ask(committed(talk.version, name, [(topic, [0])]), "a partition")
    if talk.version >= 2:
        talk.ask(committed(talk.version, name, None), "all")


@situation("OffsetFetch", "8-10")
def several_groups(talk: Talk) -> None:
    """Two and an unknown one, one twice, none."""
    one, two, topic = group(talk), talk.name("second"), talk.topic()
    for offset, name in enumerate((one, two), 1):
        talk.quietly("OffsetCommit", 6, commit(name, topic, offset))
    rows = [committed(talk.version, name, [(topic, [0])])["Groups"][0] for name in (one, two, talk.name("absent"))]
    for note, wanted in (("three", rows), ("twice", [rows[0], rows[0]]), ("none", [])):
        talk.ask({"Groups": wanted}, note)


@situation("OffsetFetch", "9-10")
def epochs_of_members(talk: Talk) -> None:
    """Commit with member epochs in a group without any, and in a classic group."""
    name, topic = group(talk), talk.topic()
    talk.quietly("OffsetCommit", 6, commit(name, topic, 1))
    talk.ask(committed(talk.version, name, [(topic, [0])], MemberId="stranger", MemberEpoch=5), "no members")
    other = talk.name("classic")
    member = lone_member(talk, other)
    for note, id, epoch in (("right", member.id, 1), ("wrong epoch", member.id, 7), ("no member", "", -1)):
        talk.ask(committed(talk.version, other, [(topic, [0])], MemberId=id, MemberEpoch=epoch), note)


@situation("OffsetFetch", "10")
def ids_that_are_not_there(talk: Talk) -> None:
    """An unknown id and the zero id."""
    rows = [{"TopicId": each, "PartitionIndexes": [0]} for each in (STRANGE_ID, ZERO_ID)]
    talk.ask({"Groups": [{"GroupId": group(talk), "Topics": rows}]})


@situation("OffsetFetch", "1-9")
def deleted_topic(talk: Talk) -> None:
    """Its offsets go with it."""
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
    """An unknown group, no name, a topic somebody reads, a group that is not a consumer group."""
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
    """While a transaction holds offsets there are none; afterwards they are its."""
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
    """A plain commit while one is open, seen when that was aborted."""
    name, topic = group(talk), talk.topic()
    mine = producer(talk, talk.name("tx"))
    talk.quietly("AddPartitionsToTxn", 3, add_partitions(3, mine.who, topic))
    talk.ask(commit(name, topic, 4))
    talk.quietly("EndTxn", 3, {**mine.who, "Committed": False})
    talk.also("OffsetFetch", 5, committed(5, name, [(topic, [0])]))
