"""Random requests of members of classic groups."""

from collections.abc import Sequence
from typing import Any

from tests.conformance.bodies import assignment, subscription
from tests.support.histories.draw import Draw
from tests.support.histories.steps import PARTITIONS, TOPICS, Known, Reference, Step, member_id

SESSION_MS, TOO_SHORT_MS = 30_000, 10
REBALANCE_MS = 40_000
SUBSCRIPTIONS = (TOPICS[:1], TOPICS[:2], TOPICS[1:2])


def _joined_id(label: str) -> Reference:
    """Return the id of a member that has joined; for a member that has only an id, return the label itself."""

    def value(known: Known) -> Any:
        found = member_id(label).value(known)
        return label if ("pending", found) in known.values else found

    return Reference(f"id of {label}, joined", value)


def join(
    draw: Draw, version: int = 2, static: float = 0.33, subscriptions: Sequence[Sequence[str]] = SUBSCRIPTIONS
) -> Step:
    """Join a group. Args: ``version``: first one. ``static``: probability of a group instance id."""
    group, version = draw.group(), draw.random.randint(version, 9)
    instance = draw.instance(static) if version >= 5 else None
    is_new = draw.happens(0.5) or not draw.labels(group)
    label = draw.member(group) if not is_new else "stranger" if draw.happens(0.05) else ""
    if label and draw.happens(0.8):
        instance = None
    own = label or draw.new_label(group)
    names = (
        draw.one([["range"], ["range"], ["range", "rr"], ["rr", "range"], ["rr"], []])
        if draw.happens(0.6)
        else ["range"]
    )
    topics = draw.one(subscriptions)
    body = {
        "GroupId": group,
        "SessionTimeoutMs": SESSION_MS if draw.happens(0.97) else TOO_SHORT_MS,
        "RebalanceTimeoutMs": REBALANCE_MS,
        "MemberId": member_id(label) if label else "",
        "GroupInstanceId": instance,
        "ProtocolType": "consumer" if draw.happens(0.92) else draw.one(["connect", ""]),
        "Protocols": [{"Name": n, "Metadata": subscription(*topics, version=draw.random.randint(0, 3))} for n in names],
    }
    return Step("JoinGroup", version, body, label=own)


def sync(draw: Draw) -> Step:
    group, version = draw.group(), draw.random.randint(0, 5)
    indexes = range(PARTITIONS[TOPICS[0]])
    parts = [
        {"MemberId": member_id(label), "Assignment": assignment(TOPICS[0], *indexes[number : number + 1])}
        for number, label in enumerate(draw.labels(group))
    ]
    body: dict[str, Any] = {
        "GroupId": group,
        "GenerationId": draw.generation(group),
        "MemberId": member_id(draw.member(group)),
        "Assignments": parts if draw.happens(0.8) else [],
        "GroupInstanceId": draw.instance(0.1) if version >= 3 else None,
    }
    if version >= 5:
        body["ProtocolType"] = "consumer" if draw.happens(0.95) else draw.one([None, "x"])
        body["ProtocolName"] = draw.one(["range", "range", "range", "rr", None])
    return Step("SyncGroup", version, body)


def heartbeat(draw: Draw) -> Step:
    group, version = draw.group(), draw.random.randint(0, 4)
    body = {
        "GroupId": group,
        "GenerationId": draw.generation(group),
        "MemberId": member_id(draw.member(group)),
        "GroupInstanceId": draw.instance(0.1) if version >= 3 else None,
    }
    return Step("Heartbeat", version, body)


def leave(draw: Draw) -> Step:
    """Leave as a member that has joined: a leave with only an id differs deliberately (docs/compatibility.md)."""
    group, version = draw.group(), draw.random.randint(0, 5)
    member = _joined_id(draw.member(group))
    if version < 3:
        return Step("LeaveGroup", version, {"GroupId": group, "MemberId": member})
    rows = [
        {
            "MemberId": draw.one([member, _joined_id(draw.member(group)), ""]),
            "GroupInstanceId": draw.instance(),
            "Reason": "why",
        }
        for _ in draw.rows(0, 1, 1, 1, 2, 3)
    ]
    return Step("LeaveGroup", version, {"GroupId": group, "Members": rows})
