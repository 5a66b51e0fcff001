"""Sticky task assignor compared with recorded assignments of Apache Kafka 4.3.1: 60 applications with changing members.

The recording was made with Kafka's ``TargetAssignmentBuilder`` and ``StickyTaskAssignor``. It has, for each
application, the subtopologies (id, number of tasks, whether they are stateful), and for each step the number of standby
replicas, the members in the order of their joins with their processes, the member whose heartbeat causes the
assignment, and the active and standby tasks of each member.
"""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from kbroker.coordinator.streams_group.assignor import STANDBY_REPLICAS
from kbroker.coordinator.streams_group.group import StreamsGroup
from kbroker.coordinator.streams_group.internal_topics import ConfiguredTopology
from kbroker.coordinator.streams_group.member import StreamsGroupMember
from kbroker.coordinator.streams_group.target_assignment import assign
from kbroker.coordinator.streams_group.tasks import TargetTasks
from kbroker.coordinator.streams_group.topology import Subtopology
from tests.support.streams_groups import subtopology, tasks

RECORDED = json.loads(lzma.decompress(Path(__file__).with_name("kafka_assignments.json.xz").read_bytes()))


def configured(rows: list[Any]) -> ConfiguredTopology:
    shapes = {one: Subtopology.of(subtopology(one, changelogs=["c"] if stateful else [])) for one, _, stateful in rows}
    return ConfiguredTopology(0, shapes, {one: count for one, count, _ in rows}, {}, None)


def member(row: tuple[str, str]) -> StreamsGroupMember:
    return StreamsGroupMember(row[0], process_id=row[1])


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_the_same_tasks_go_to_the_same_members(number: int) -> None:
    case = RECORDED[number]
    topology = configured(case["subtopologies"])
    before: dict[str, TargetTasks] = {}
    for step in case["steps"]:
        group = StreamsGroup("g")
        group.members = {row[0]: member(row) for row in step["members"]}
        group.targets = {one: before[one] for one in group.members if one in before}
        configs = {STANDBY_REPLICAS: str(step["standby"])}
        _, changes = assign(group, 2, member(step["updated"]), topology, configs, 0)
        after = {one: TargetTasks(tasks(active), tasks(standby)) for one, (active, standby) in step["target"].items()}
        for record in changes:
            group.replay(record)
        assert group.targets == after
        before = after
