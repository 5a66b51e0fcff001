"""The target assignment of a streams group: the tasks that each member is to have in the end.

Source: ``TargetAssignmentBuilder``, ``GroupMetadataManager.maybeUpdateStreamsTargetAssignment``.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.common.java.java_hash import hash_map_order, timeline_map_order
from kbroker.coordinator.modern_group.group import TargetAssignment
from kbroker.coordinator.modern_group.records import GroupRecord
from kbroker.coordinator.streams_group import assignor
from kbroker.coordinator.streams_group.assignor import STANDBY_REPLICAS, MemberSpec, SubtopologySpec
from kbroker.coordinator.streams_group.group import StreamsGroup
from kbroker.coordinator.streams_group.internal_topics import ConfiguredTopology
from kbroker.coordinator.streams_group.member import StreamsGroupMember
from kbroker.coordinator.streams_group.tasks import NO_TARGET, TargetTasks


def assign(
    group: StreamsGroup,
    epoch: int,
    updated: StreamsGroupMember | None,
    configured: ConfiguredTopology,
    configs: Mapping[str, str],
    now_ms: int,
) -> tuple[TargetAssignment, list[GroupRecord]]:
    """Make the target assignment for a group epoch, with one member as in ``updated``.

    While the topics do not fit the topology, it is empty.
    Returns: the target of this member, and the records of all changes.
    """
    members = {member_id: group.members[member_id] for member_id in timeline_map_order(group.members)}
    if updated is not None:
        members[updated.member_id] = updated
    specs = {one: MemberSpec(member.process_id, group.target(one)) for one, member in members.items()}
    targets: Mapping[str, TargetTasks] = {}
    if configured.is_ready and specs:
        subtopologies = {
            one: SubtopologySpec(configured.task_counts[one], bool(subtopology.changelog_topics))
            for one, subtopology in configured.subtopologies.items()
        }
        targets = assignor.assign(specs, subtopologies, int(configs.get(STANDBY_REPLICAS, 0)))
    ordered = {member_id: targets.get(member_id, NO_TARGET) for member_id in hash_map_order(specs)}
    own = NO_TARGET if updated is None else ordered[updated.member_id]
    return TargetAssignment(epoch, own), group.target_changes(epoch, ordered, now_ms)
