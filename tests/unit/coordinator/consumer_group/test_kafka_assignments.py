"""Assignors compared with recorded assignments of Apache Kafka 4.3.1: 40 groups with joins and departures.

The recording has, for each group, the assignor and the topics (id, partitions, name), and after each change the members
in the order of their joins with the numbers of their topics, and the target assignment.
"""

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.common.java.java_hash import timeline_map_order
from kbroker.coordinator.consumer_group.assignors.group_spec import GroupSpec, MemberSpec
from kbroker.coordinator.consumer_group.member import Target
from kbroker.coordinator.consumer_group.target_assignment import ASSIGNORS

RECORDED = json.loads(lzma.decompress(Path(__file__).with_name("kafka_assignments.json.xz").read_bytes()))


def spec(step: Mapping[str, Any], before: Mapping[str, Target], ids: list[UUID], counts: list[int]) -> GroupSpec:
    """Return the input of an assignor: existing members in the order of Kafka's map, then the new member."""
    wanted = dict(step["members"])
    came = [*(member_id for member_id in wanted if member_id in before), *(set(before) - set(wanted))]
    present = [member_id for member_id in timeline_map_order(came) if member_id in wanted]
    order = [*present, *(member_id for member_id in wanted if member_id not in before)]
    members = {
        member_id: MemberSpec(None, frozenset(ids[one] for one in wanted[member_id]), before.get(member_id, {}))
        for member_id in order
    }
    owned: dict[UUID, set[int]] = {}
    for member in members.values():
        for topic_id, partitions in member.target.items():
            owned.setdefault(topic_id, set()).update(partitions)
    is_homogeneous = len({tuple(topics) for topics in wanted.values()}) <= 1
    return GroupSpec(members, is_homogeneous, owned, dict(zip(ids, counts, strict=True)))


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_the_same_partitions_go_to_the_same_members(number: int) -> None:
    case = RECORDED[number]
    ids = [UUID(topic_id) for topic_id, _, _ in case["topics"]]
    counts = [count for _, count, _ in case["topics"]]
    before: dict[str, Target] = {}
    for step in case["steps"]:
        after = {
            member_id: {ids[int(topic)]: frozenset(partitions) for topic, partitions in target.items()}
            for member_id, target in step["target"].items()
        }
        if step["members"]:
            found = ASSIGNORS[case["assignor"]](spec(step, before, ids, counts))
            assert {member_id: found.get(member_id, {}) for member_id, _ in step["members"]} == after
        before = dict(after)
