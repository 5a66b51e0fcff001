"""Random requests of members of streams groups."""

from typing import Any

from tests.support.histories import offsets
from tests.support.histories.draw import RACKS, Draw
from tests.support.histories.steps import ABSENT, TOPICS, Step, owned

KIND = "t"
PLAIN = {"SubtopologyId": "0", "SourceTopics": [TOPICS[0]]}
TOPOLOGIES: list[list[dict[str, Any]]] = [
    *[[PLAIN]] * 4,
    [PLAIN, {"SubtopologyId": "1", "SourceTopics": [TOPICS[2]]}],
    [{"SubtopologyId": "0", "SourceTopics": [ABSENT]}],
    [],
    [{"SubtopologyId": "0", "SourceTopics": []}],
    [PLAIN, {"SubtopologyId": "0", "SourceTopics": [TOPICS[2]]}],
    [{"SubtopologyId": "0", "SourceTopics": [*TOPICS[:2]], "CopartitionGroups": [{"SourceTopics": [0, 1]}]}],
    [{"SubtopologyId": "0", "SourceTopics": [*TOPICS[:2]], "CopartitionGroups": [{"SourceTopics": [0, 9]}]}],
    [{"SubtopologyId": "0", "SourceTopics": [TOPICS[0]], "StateChangelogTopics": [{"Name": "b a d"}]}],
]


def _tasks(draw: Draw) -> list[dict[str, Any]]:
    return [{"SubtopologyId": draw.one(["0", "0", "1", "z"]), "Partitions": [draw.one([0, 1, 2, 9])]}]


def heartbeat(draw: Draw) -> Step:
    group = draw.group()
    member = draw.newer_member(group, KIND)
    epoch = draw.epoch(group, member)
    is_join = epoch == 0
    body: dict[str, Any] = {
        "GroupId": group,
        "MemberId": member,
        "MemberEpoch": epoch,
        "RackId": draw.one(RACKS),
        "EndpointInformationEpoch": draw.one([0, 0, -1, 1, 5]),
    }
    if is_join or draw.happens(0.2):
        body |= {"ActiveTasks": [], "StandbyTasks": [], "WarmupTasks": []}
        body |= {"RebalanceTimeoutMs": 60_000, "ProcessId": draw.one([*["p1", "p2", "p1"] * 8, ""])}
        if draw.happens(0.2):
            body["ClientTags"] = [{"Key": "k", "Value": draw.one("ab")}]
        if draw.happens(0.1):
            body["UserEndpoint"] = {"Host": f"host-of-{member}", "Port": 9}
    if is_join or draw.happens(0.1):
        is_odd = draw.happens(0.3)
        topology = {
            "Epoch": draw.one([0, 0, 0, 0, 1, -1]) if is_odd else 0,
            "Subtopologies": draw.one(TOPOLOGIES) if is_odd else [PLAIN],
        }
        body["Topology"] = topology if draw.happens(0.95) else None
    if not is_join:
        body |= _owned(draw, group, member)
    return Step("StreamsGroupHeartbeat", 0, body)


def _owned(draw: Draw, group: Any, member: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if draw.happens(0.6):
        found = {"ActiveTasks": owned(group, member), "StandbyTasks": [], "WarmupTasks": []}
    if draw.happens(0.08):
        standby = draw.one([[], None, _tasks(draw)])
        found = {"ActiveTasks": _tasks(draw), "StandbyTasks": standby, "WarmupTasks": []}
    if draw.happens(0.03):
        found["ShutdownApplication"] = True
    return found


def commit(draw: Draw) -> Step:
    return offsets.newer_commit(draw, KIND)


def fetch(draw: Draw) -> Step:
    return offsets.newer_fetch(draw, KIND)
