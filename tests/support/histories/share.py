"""Random requests of members of share groups, and for the offsets of these groups."""

from typing import Any

from tests.support.histories.draw import RACKS, Draw
from tests.support.histories.steps import ABSENT, TOPICS, Step

SUBSCRIPTIONS = (TOPICS[:1], TOPICS[:2], TOPICS, (ABSENT,), (TOPICS[0], TOPICS[0]), ())


def stored(group: Any) -> Step:
    """Return a request whose responses are equal after the initialization and deletion of share partitions."""
    return Step("DescribeShareGroupOffsets", 0, {"Groups": [{"GroupId": group, "Topics": None}]})


def heartbeat(draw: Draw) -> Step:
    group = draw.group()
    member = draw.newer_member(group, "s")
    epoch = draw.epoch(group, member)
    body: dict[str, Any] = {
        "GroupId": group,
        "MemberId": member if draw.happens(0.97) else draw.one(["", " ", "m" * 37]),
        "MemberEpoch": epoch,
        "RackId": draw.one(RACKS),
    }
    if epoch == 0 or draw.happens(0.3):
        body["SubscribedTopicNames"] = [*draw.one(SUBSCRIPTIONS)] if draw.happens(0.95) else None
    return Step("ShareGroupHeartbeat", 1, body, settled=stored(group))


def describe_offsets(draw: Draw) -> Step:
    """Describe offsets; those of named topics of a group without a name are a deliberate difference."""
    groups = [
        {
            "GroupId": group,
            "Topics": None
            if group == "" or draw.happens(0.4)
            else [
                {"TopicName": t, "Partitions": [0]}
                for t in draw.random.sample([*TOPICS, ABSENT, ""], draw.one([0, 1, 2]))
            ],
        }
        for group in [draw.group() for _ in draw.rows(0, 1, 2)]
    ]
    return Step("DescribeShareGroupOffsets", draw.random.randint(0, 1), {"Groups": groups})


def alter_offsets(draw: Draw) -> Step:
    """Alter offsets of at least one partition that exists; otherwise DeleteGroups has a deliberate difference."""
    topics = [
        {
            "TopicName": name,
            "Partitions": [
                {"PartitionIndex": p, "StartOffset": draw.one([0, 3, 7])}
                for p in (0, *draw.random.sample([1, 2, 9], draw.one([0, 0, 1])))
            ],
        }
        for name in draw.random.sample([*TOPICS, ABSENT, "", "b a d"], draw.one([0, 1, 1, 2]))
    ]
    group = draw.group()
    return Step("AlterShareGroupOffsets", 0, {"GroupId": group, "Topics": topics}, settled=stored(group))


def delete_offsets(draw: Draw) -> Step:
    topics = [{"TopicName": draw.topic()} for _ in draw.rows(0, 1, 1, 2)]
    group = draw.group()
    return Step("DeleteShareGroupOffsets", 0, {"GroupId": group, "Topics": topics}, settled=stored(group))
