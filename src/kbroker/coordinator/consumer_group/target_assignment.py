"""The target assignment of a group: the partitions that each member is to have in the end.

Source: ``TargetAssignmentBuilder``, ``GroupMetadataManager.maybeUpdateTargetAssignment``.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_hash import timeline_map_order
from kbroker.common.loggers import get_logger
from kbroker.coordinator.consumer_group.assignors import range_assignor, uniform_assignor
from kbroker.coordinator.consumer_group.assignors.group_spec import Assignor, GroupSpec, MemberSpec
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.member import NO_TARGET, ConsumerGroupMember, Target
from kbroker.coordinator.consumer_group.reconciliation import subscribed_topics
from kbroker.coordinator.modern_group.group import TargetAssignment
from kbroker.coordinator.modern_group.records import GroupRecord
from kbroker.coordinator.modern_group.topics_image import TopicsImage

logger = get_logger(__name__)

ASSIGNORS: Mapping[str, Assignor] = {
    uniform_assignor.NAME: uniform_assignor.assign,
    range_assignor.NAME: range_assignor.assign,
}


def assign(
    group: ConsumerGroup,
    epoch: int,
    updated: ConsumerGroupMember,
    *,
    assignor: str,
    is_homogeneous: bool,
    image: TopicsImage,
    now_ms: int,
) -> tuple[TargetAssignment, list[GroupRecord]]:
    """Make the target assignment for a group epoch, with one member as in ``updated``.

    Returns: the target of this member, and the records of all changes. Raises: KafkaError UNKNOWN_SERVER_ERROR.
    """
    members = {member_id: group.members[member_id] for member_id in timeline_map_order(group.members)}
    if updated.instance_id is not None:
        previous_id = group.static_members.get(updated.instance_id)
        if previous_id is not None and previous_id != updated.member_id:
            members.pop(previous_id, None)
    members[updated.member_id] = updated
    spec = _spec(group, members, updated, is_homogeneous, image)
    try:
        targets = ASSIGNORS[assignor](spec)
    except Exception as error:
        logger.exception("group %s: the assignor %s failed", group.group_id, assignor)
        text = f"Failed to compute a new target assignment for epoch {epoch}: {error}"
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, text) from error
    logger.info("group %s: %s made a target assignment for epoch %d", group.group_id, assignor, epoch)
    ordered: dict[str, Target] = {member_id: targets.get(member_id, NO_TARGET) for member_id in spec.members}
    return TargetAssignment(epoch, ordered[updated.member_id]), group.target_changes(epoch, ordered, now_ms)


def _spec(
    group: ConsumerGroup,
    members: Mapping[str, ConsumerGroupMember],
    updated: ConsumerGroupMember,
    is_homogeneous: bool,
    image: TopicsImage,
) -> GroupSpec:
    counts: dict[UUID, int] = {}
    known: dict[frozenset[str], frozenset[UUID]] = {}  # topic ids by set of names, which many members share
    specs: dict[str, MemberSpec] = {}
    for member_id, member in members.items():
        names = subscribed_topics(member, group.resolved)
        topics = known.get(names)
        if topics is None:
            found = [topic for name in names if (topic := image.get(name)) is not None]
            counts.update((topic.topic_id, topic.partition_count) for topic in found)
            topics = known[names] = frozenset(topic.topic_id for topic in found)
        previous_id = member_id
        if member is updated and member.instance_id is not None:  # it may take the place of another member
            previous_id = group.static_members.get(member.instance_id, member_id)
        specs[member_id] = MemberSpec(member.instance_id, topics, group.targets.get(previous_id, NO_TARGET))
    owned: dict[UUID, set[int]] = {}
    for target in group.targets.values():
        for topic_id, partitions in target.items():
            owned.setdefault(topic_id, set()).update(partitions)
    return GroupSpec(specs, is_homogeneous, owned, counts)
