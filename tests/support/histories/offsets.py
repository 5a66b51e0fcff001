"""Random requests for the committed offsets of groups."""

from typing import Any

from tests.support.histories.draw import Draw
from tests.support.histories.steps import ABSENT, TOPICS, Step, epoch_of, member_id, topic_id

RETENTION_MS = (-1, -1, 3_600_000, 0)


def _classic_member(draw: Draw, group: Any) -> dict[str, Any]:
    """Return the fields of OffsetCommit that name a member or, half the time, none."""
    if draw.happens(0.5):
        return {"GenerationIdOrMemberEpoch": -1, "MemberId": "", "GroupInstanceId": draw.instance(0.05)}
    return {
        "GenerationIdOrMemberEpoch": draw.generation(group),
        "MemberId": member_id(draw.member(group)) if draw.happens(0.9) else "",
        "GroupInstanceId": draw.instance(0.1),
    }


def _newer_member(draw: Draw, group: Any, kind: str) -> dict[str, Any]:
    """Return the fields of OffsetCommit that name a member of a newer protocol, or none."""
    if draw.happens(0.3):
        return {"GenerationIdOrMemberEpoch": -1, "MemberId": "", "GroupInstanceId": None}
    member = draw.newer_member(group, kind)
    epochs = [*[epoch_of(group, member)] * 4, epoch_of(group, member, -1), epoch_of(group, member, 1), -1, 0]
    return {
        "GenerationIdOrMemberEpoch": draw.one(epochs),
        "MemberId": member,
        "GroupInstanceId": draw.one([None, None, None, "i1"]),
    }


def commit(draw: Draw) -> Step:
    group, version = draw.group(), draw.random.randint(2, 10)
    return commit_as(draw, group, version, _classic_member(draw, group))


def commit_as(draw: Draw, group: Any, version: int, member: dict[str, Any]) -> Step:
    """Return a commit of a member of any protocol."""
    topics: dict[str, dict[str, Any]] = {}
    for _ in draw.rows(0, 1, 1, 2, 2, 3):
        name = draw.topic()
        rows = {
            index: _offset(draw, index) for index in (draw.one([0, 0, 0, 1, 2, 3, -1]) for _ in draw.rows(1, 1, 2, 3))
        }
        topics[name] = {"Name": name, "TopicId": topic_id(name), "Partitions": list(rows.values())}
    if version < 7:
        member = {**member, "GroupInstanceId": None}
    body = {"GroupId": group, **member, "Topics": list(topics.values()), "RetentionTimeMs": draw.one(RETENTION_MS)}
    return Step("OffsetCommit", version, body)


def _offset(draw: Draw, index: int) -> dict[str, Any]:
    return {
        "PartitionIndex": index,
        "CommittedOffset": draw.one([0, 5, 7, -1, -5, 2**62]),
        "CommittedLeaderEpoch": draw.one([-1, 0, 5, -7]),
        "CommittedMetadata": draw.one([None, "", "note"]),
    }


def fetch(draw: Draw) -> Step:
    version = draw.random.randint(1, 10)
    if version < 8:
        body = {"GroupId": draw.group(), "Topics": _asked(draw, version)}
        return Step("OffsetFetch", version, body | {"RequireStable": version >= 7 and draw.happens(0.3)})
    groups = []
    for _ in draw.rows(0, 1, 1, 2, 3):
        group = draw.group()
        row = {"GroupId": group, "Topics": _asked(draw, version)}
        if version >= 9 and draw.happens(0.6):
            member = draw.member(group)
            row |= {"MemberId": draw.one(["", member_id(member)]), "MemberEpoch": draw.generation(group)}
        groups.append(row)
    return Step("OffsetFetch", version, {"Groups": groups, "RequireStable": draw.happens(0.3)})


def _asked(draw: Draw, version: int) -> list[dict[str, Any]] | None:
    if version >= 2 and draw.happens(0.3):
        return None
    rows: list[dict[str, Any]] = []
    for _ in draw.rows(0, 1, 1, 2, 3):
        name = draw.topic()
        named = {"TopicId": topic_id(name)} if version >= 10 else {"Name": name}
        rows.append({**named, "PartitionIndexes": [draw.one([0, 0, 1, 2, 3, -1]) for _ in draw.rows(0, 1, 2, 3)]})
    return rows


def delete(draw: Draw) -> Step:
    topics = [
        {
            "Name": name,
            "Partitions": [{"PartitionIndex": p} for p in draw.random.sample([0, 1, 2, 3, -1], draw.one([1, 2]))],
        }
        for name in draw.random.sample([*TOPICS, ABSENT, ""], draw.one([0, 1, 1, 2]))
    ]
    return Step("OffsetDelete", 0, {"GroupId": draw.group(), "Topics": topics})


def newer_commit(draw: Draw, kind: str) -> Step:
    group = draw.group()
    return commit_as(draw, group, draw.random.randint(2, 10), _newer_member(draw, group, kind))


def newer_fetch(draw: Draw, kind: str) -> Step:
    step = fetch(draw)
    for row in step.body.get("Groups", ()) if step.version >= 9 else ():
        if draw.happens(0.7):
            member = _newer_member(draw, row["GroupId"], kind)
            row |= {"MemberId": member["MemberId"] or None, "MemberEpoch": member["GenerationIdOrMemberEpoch"]}
    return step
