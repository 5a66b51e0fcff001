"""Share groups (KIP-932): share sessions, acquired records, acknowledgements, and errors."""

import uuid
from typing import Any

from tests.conformance.bodies import fill, group
from tests.conformance.codec import ZERO_ID, Body
from tests.conformance.run import situation
from tests.conformance.situations.consumer_groups import GROUP_RESOURCE, visible
from tests.conformance.situations.share_groups import joined
from tests.conformance.talk import Talk, Topic

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
Acks = dict[int, list[tuple[int, int, list[int]]]]


def topics(topic: Topic | None, partitions: tuple[int, ...], acks: Acks) -> list[Body]:
    if topic is None:
        return []
    rows = [
        {
            "PartitionIndex": index,
            "AcknowledgementBatches": [
                {"FirstOffset": first, "LastOffset": last, "AcknowledgeTypes": types}
                for first, last, types in acks.get(index, [])
            ],
        }
        for index in sorted({*partitions, *acks})
    ]
    return [{"TopicId": topic.id, "Partitions": rows}]


def share_fetch(
    name: str, epoch: int, topic: Topic | None = None, *partitions: int, acks: Acks | None = None, **fields: Any
) -> Body:
    return {
        "GroupId": name, "MemberId": "m", "ShareSessionEpoch": epoch, "MaxWaitMs": 0, "MinBytes": 0,
        "MaxBytes": 1 << 20, "MaxRecords": 500, "BatchSize": 500, "ShareAcquireMode": 0, "IsRenewAck": False,
        "Topics": topics(topic, partitions, acks or {}), "ForgottenTopicsData": [], **fields,
    }  # fmt: skip


def acknowledge(name: str, epoch: int, topic: Topic | None, acks: Acks, **fields: Any) -> Body:
    return {
        "GroupId": name,
        "MemberId": "m",
        "ShareSessionEpoch": epoch,
        "IsRenewAck": False,
        "Topics": topics(topic, (), acks),
        **fields,
    }


WAITS: dict[str, Any] = {"MaxWaitMs": 10_000, "MinBytes": 1}


def reading_group(talk: Talk, topic: Topic) -> str:
    """Return a share group that reads from the start, with a member that has the partitions."""
    name = group(talk)
    visible(talk, topic)
    earliest = {"Name": "share.auto.offset.reset", "ConfigOperation": 0, "Value": "earliest"}
    resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": name, "Configs": [earliest]}
    talk.quietly("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
    joined(talk, name, "m", topic)
    return name


@situation("ShareFetch", "1-2")
def life(talk: Talk) -> None:
    """Open a share session, acquire, acknowledge, wait, change partitions, and close it."""
    topic = talk.topic(partitions=2)
    name = reading_group(talk, topic)
    fill(talk, topic)
    talk.ask(share_fetch(name, 0, topic, 0, **WAITS), "opens and acquires")
    talk.ask(share_fetch(name, 1), "nothing new")
    talk.ask(share_fetch(name, 2, topic, acks={0: [(0, 0, [ACCEPT])]}), "acknowledges")
    fill(talk, topic, partition=1)
    talk.ask(share_fetch(name, 3, topic, 1, **WAITS), "one more")
    talk.ask(share_fetch(name, 4, ForgottenTopicsData=[{"TopicId": topic.id, "Partitions": [1]}]), "one less")
    talk.ask(share_fetch(name, 5, topic, acks={1: [(0, 0, [RELEASE])]}, MaxRecords=0), "releases what it forgot")
    talk.ask(share_fetch(name, -1), "closes")
    talk.ask(share_fetch(name, 6), "afterwards")


@situation("ShareFetch", "1-2")
def wrong_epochs(talk: Talk) -> None:
    """Send epochs without a session, too high, repeated, and acknowledgements in the first request."""
    topic = talk.topic()
    name = reading_group(talk, topic)
    talk.ask(share_fetch(name, 1, topic, 0), "no session")
    talk.ask(share_fetch(name, -1), "closes none")
    talk.ask(share_fetch(name, -2), "epoch -2")
    talk.ask(share_fetch(name, 0, topic, acks={0: [(0, 0, [ACCEPT])]}), "acknowledges at once")
    talk.ask(share_fetch(name, 0, topic, 0, MaxWaitMs=500, MinBytes=1), "opens")
    for note, epoch in (("too high", 5), ("right", 1), ("again", 1), ("next", 2)):
        talk.ask(share_fetch(name, epoch), note)
    talk.ask(share_fetch(name, 3, MemberId="other"), "another member")
    talk.ask(share_fetch(name, 0, topic, 0, MaxWaitMs=500, MinBytes=1), "opens again")
    talk.ask(share_fetch(name, 3), "of the former one")


@situation("ShareFetch", "1-2")
def requests_that_cannot_be(talk: Talk) -> None:
    """Send requests that are refused before anything is looked up."""
    topic = talk.topic()
    name = reading_group(talk, topic)
    rows: dict[str, Body] = {
        "no group": share_fetch(name, 0, topic, 0, GroupId=None),
        "no member": share_fetch(name, 0, topic, 0, MemberId=None),
        "empty member": share_fetch(name, 0, topic, 0, MemberId=""),
        "member id of 37": share_fetch(name, 0, topic, 0, MemberId="m" * 37),
        "member id of 36": share_fetch(name, 0, topic, 0, MemberId="m" * 36, MaxWaitMs=500, MinBytes=1),
        "no records": share_fetch(name, 0, topic, 0, MaxRecords=0),
        "no bytes": share_fetch(name, 0, topic, 0, MaxBytes=0),
        "no topics": share_fetch(name, 0),
    }
    for note, body in rows.items():
        talk.ask(body, note)


@situation("ShareFetch", "2")
def renewals(talk: Talk) -> None:
    """Renew locks, with the other fields zero as required, and with one of them 1."""
    topic = talk.topic()
    name = reading_group(talk, topic)
    fill(talk, topic)
    talk.ask(share_fetch(name, 0, topic, 0, **WAITS), "acquires")
    acks: Acks = {0: [(0, 0, [RENEW])]}
    zero = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 0, "MaxRecords": 0}
    for field in zero:
        body = share_fetch(name, 1, topic, acks=acks, IsRenewAck=True, **{**zero, field: 1})
        talk.ask(body, f"{field} of 1")
    talk.ask(share_fetch(name, 1, topic, acks=acks, IsRenewAck=True, **zero), "renews")
    talk.ask(share_fetch(name, 2, topic, acks=acks), "without saying so")
    talk.ask(share_fetch(name, 3, topic, acks={0: [(0, 0, [ACCEPT])]}), "accepts")


@situation("ShareFetch", "1-2")
def partitions_in_error(talk: Talk) -> None:
    """Fetch an unknown partition, which is in the responses until it is forgotten."""
    topic = talk.topic()
    name = reading_group(talk, topic)
    talk.ask(share_fetch(name, 0, topic, 0, 7, MaxWaitMs=500, MinBytes=1), "opens")
    talk.ask(share_fetch(name, 1), "again")
    talk.ask(share_fetch(name, 2, topic, acks={7: [(0, 0, [ACCEPT])]}), "acknowledges one")
    gone = [{"TopicId": topic.id, "Partitions": [7]}]
    talk.ask(share_fetch(name, 3, ForgottenTopicsData=gone), "forgets it")
    talk.ask(share_fetch(name, 4), "afterwards")


@situation("ShareFetch", "1-2")
def unknown_topics(talk: Talk) -> None:
    """Fetch unknown topic ids."""
    topic = talk.topic()
    name = reading_group(talk, topic)
    partitions = [{"PartitionIndex": 0, "AcknowledgementBatches": []}]
    for label, topic_id in (("unknown", uuid.UUID(int=77)), ("none", ZERO_ID)):
        rows = [*topics(topic, (0,), {}), {"TopicId": topic_id, "Partitions": partitions}]
        talk.ask(share_fetch(name, 0, Topics=rows, MaxWaitMs=500, MinBytes=1), f"{label}: opens")
        talk.ask(share_fetch(name, 1), f"{label}: again")


@situation("ShareFetch", "2", over=("batches", "limit"))
def acquire_modes(talk: Talk, mode: str) -> None:
    """Acquire whole batches, or at most the maximum number of records."""
    topic = talk.topic()
    name = reading_group(talk, topic)
    for _ in range(3):
        fill(talk, topic)
    how: dict[str, Any] = {"ShareAcquireMode": int(mode == "limit"), "MaxRecords": 1, "BatchSize": 1}
    talk.ask(share_fetch(name, 0, topic, 0, **how, **WAITS), "the first ones")
    talk.ask(share_fetch(name, 1, **how), "the next ones")
    talk.ask(share_fetch(name, 2, **{**how, "MaxRecords": 500}), "all others")


@situation("ShareFetch", "1")
def the_last_delivery(talk: Talk) -> None:
    """Release a record until it is archived after the last delivery."""
    topic = talk.topic()
    name = reading_group(talk, topic)
    fill(talk, topic)
    talk.ask(share_fetch(name, 0, topic, 0, **WAITS), "acquires")
    for epoch in range(1, 6):
        talk.ask(share_fetch(name, epoch, topic, acks={0: [(0, 0, [RELEASE])]}, MaxWaitMs=300, MinBytes=1), str(epoch))


@situation("ShareAcknowledge", "1-2")
def answers(talk: Talk) -> None:
    """Acknowledge records in all ways, too late, as another member, and beyond the acquired records."""
    topic = talk.topic()
    name = reading_group(talk, topic)
    for _ in range(3):
        fill(talk, topic)
    first: dict[str, Any] = {"Topics": topics(topic, (0,), {})}
    acquired = talk.quietly("ShareFetch", 2, share_fetch(name, 0, **first, **WAITS), on="main")
    last = max(
        row["LastOffset"] for one in acquired["Responses"] for p in one["Partitions"] for row in p["AcquiredRecords"]
    )
    epoch = 0
    rows: dict[str, Acks] = {
        "past the end": {0: [(0, last + 5, [ACCEPT])]},
        "beyond": {0: [(last + 5, last + 6, [ACCEPT])]},
        "the wrong way round": {0: [(1, 0, [ACCEPT])]},
        "not in order": {0: [(1, 1, [ACCEPT]), (0, 0, [ACCEPT])]},
        "no type": {0: [(0, 0, [])]},
        "too few types": {0: [(0, 2, [ACCEPT, ACCEPT])]},
        "type 5": {0: [(0, 0, [5])]},
        "type -1": {0: [(0, 0, [-1])]},
        "type of a renewal": {0: [(0, 0, [RENEW])]},
        "no such partition": {4: [(0, 0, [ACCEPT])]},
        "nothing": {0: []},
        "the second one": {0: [(1, 1, [ACCEPT])]},
        "the second one again": {0: [(1, 1, [ACCEPT])]},
        "the first one": {0: [(0, 0, [REJECT])]},
        "the first one again": {0: [(0, 0, [ACCEPT])]},
    }
    for note, acks in rows.items():
        epoch += 1
        talk.ask(acknowledge(name, epoch, topic, acks), note)
    talk.quietly("ShareFetch", 2, share_fetch(name, 0, **first, MemberId="other"), on="main")
    talk.ask(acknowledge(name, 1, topic, {0: [(2, 2, [ACCEPT])]}, MemberId="other"), "of another member")
    talk.ask(acknowledge(name, -1, topic, {0: [(2, 2, [RELEASE])]}), "the last one")
    talk.ask(acknowledge(name, epoch + 1, topic, {0: [(2, 2, [ACCEPT])]}), "afterwards")


@situation("ShareAcknowledge", "1-2")
def sessions(talk: Talk) -> None:
    """Send epochs of sessions, and acknowledgements that are refused before anything is looked up."""
    topic = talk.topic()
    name = reading_group(talk, topic)
    acks: Acks = {0: [(0, 0, [ACCEPT])]}
    talk.ask(acknowledge(name, 0, topic, acks), "the first epoch")
    talk.ask(acknowledge(name, 1, topic, acks), "no session")
    talk.ask(acknowledge(name, -1, topic, acks), "closes none")
    talk.ask(acknowledge(name, 1, topic, acks, GroupId=None), "no group")
    talk.ask(acknowledge(name, 1, topic, acks, MemberId=""), "no member")
    talk.ask(acknowledge(name, 1, topic, acks, MemberId="m" * 37), "member id of 37")
    talk.quietly("ShareFetch", 2, share_fetch(name, 0, topic, 0), on="main")
    talk.ask(acknowledge(name, 2, topic, acks), "too high")
    talk.ask(acknowledge(name, 1, None, {}), "nothing")
    unknown = {"TopicId": uuid.UUID(int=77), "Partitions": topics(topic, (), acks)[0]["Partitions"]}
    talk.ask(acknowledge(name, 2, topic, acks, Topics=[unknown]), "unknown topic")
    talk.ask(acknowledge(name, -1, None, {}), "closes")
