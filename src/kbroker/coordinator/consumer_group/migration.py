"""Conversion of classic groups to consumer groups and back, with their members.

Source: ``ConsumerGroup.fromClassicGroup``, ``ClassicGroup.fromConsumerGroup``, ``GroupMetadataManager``; KIP-848.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.coordinator.classic_group import ClassicGroup, Member
from kbroker.coordinator.consumer_group.embedded_protocol import (
    read_assignment,
    read_subscription,
    read_version,
    write_assignment,
)
from kbroker.coordinator.consumer_group.group import CONSUMER, ConsumerGroup
from kbroker.coordinator.consumer_group.member import (
    NO_TARGET,
    ClassicMetadata,
    ClassicProtocol,
    ConsumerGroupMember,
    MemberState,
    owned_at,
)
from kbroker.coordinator.consumer_group.records import RECORDS
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.modern_group.records import GroupEpoch, GroupRecord
from kbroker.coordinator.modern_group.topics_image import TopicHashes, TopicsImage

logger = get_logger(__name__)


class NotDowngradedError(KafkaError):
    """Error of a consumer group whose members of the classic protocol cannot form a classic group."""

    def __init__(self, group: ConsumerGroup, why: str) -> None:
        super().__init__(Errors.GROUP_ID_NOT_FOUND, f"Cannot downgrade the classic group {group.group_id}: {why}.")


def check_upgrade(group: ClassicGroup, settings: ConsumerGroupSettings) -> None:
    """Refuse the conversion of a group that must stay classic. Raises: KafkaError GROUP_ID_NOT_FOUND."""
    why = ""
    if not settings.allows_upgrades:
        why = "online upgrade is disabled"
    elif not group.is_consumer_group:
        why = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.max_size:
        why = "the group size exceeds the consumer group maximum size"
    if why:
        raise _not_upgraded(group, why)


def upgraded(group: ClassicGroup, image: TopicsImage, hashes: TopicHashes) -> list[GroupRecord]:
    """Return the records of a consumer group with the members of a classic one.

    The last assignment is both the target and the current assignment. Raises: KafkaError GROUP_ID_NOT_FOUND.
    """
    group_id, epoch = group.group_id, group.generation_id
    members, targets, current = [], [], []
    names: set[str] = set()
    protocol_name = group.common_protocol() if group.members else ""
    for one in group.members.values():
        try:
            member = _consumer_member(one, group, protocol_name, image)
        except ProtocolError as error:
            logger.warning("group %s stays a classic one: %s", group_id, error)
            raise _not_upgraded(group, "the embedded consumer protocol is malformed") from error
        names |= member.topic_names
        target = {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}
        members.append(RECORDS.member(group_id, member))
        targets.append(RECORDS.target(group_id, member.member_id, target))
        current.append(RECORDS.current(group_id, member))
    epochs = [RECORDS.epoch(group_id, GroupEpoch(epoch, hashes.group_hash(names)))]
    return [*members, *epochs, *targets, RECORDS.target_epoch(group_id, epoch, 0), *current]


def _consumer_member(one: Member, group: ClassicGroup, protocol_name: str, image: TopicsImage) -> ConsumerGroupMember:
    """Return a member with the decoded subscription and assignment.

    Raises: ProtocolError; KafkaError GROUP_ID_NOT_FOUND if assignor data would be lost.
    """
    assigned: dict[UUID, Sequence[int]] = {}
    if one.assignment:
        assigned, user_data = read_assignment(one.assignment, image)
        if user_data:
            why = (
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade"
            )
            raise _not_upgraded(group, why)
    wanted = read_subscription(one.metadata(protocol_name), image)
    protocols = tuple(ClassicProtocol(name, data) for name, data in one.protocols)
    return ConsumerGroupMember(
        one.member_id,
        group.generation_id,
        group.generation_id,
        MemberState.STABLE,
        one.group_instance_id,
        wanted.rack_id,
        one.rebalance_timeout_ms,
        one.client_id,
        one.client_host,
        frozenset(wanted.topics),
        assigned=owned_at(group.generation_id, assigned),
        classic=ClassicMetadata(one.session_timeout_ms, protocols),
    )


def _not_upgraded(group: ClassicGroup, why: str) -> KafkaError:
    text = f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
    return KafkaError(Errors.GROUP_ID_NOT_FOUND, text)


def downgraded(
    group: ConsumerGroup,
    leaving: Collection[ConsumerGroupMember],
    joining: ConsumerGroupMember | None,
    image: TopicsImage,
    now_ms: int,
) -> ClassicGroup:
    """Return a stable classic group with the members of a consumer group, each with its target assignment.

    Args: ``leaving``: members that are left out; ``joining`` replaces the member with its instance id.
    Raises: NotDowngradedError.
    """
    replaced = None if joining is None else group.static_member(joining.instance_id)
    gone = {member.member_id for member in leaving}
    members: list[tuple[Member, str]] = []  # each with the id of the member whose target it gets
    for member in group.members.values():
        if member.member_id not in gone and member is not replaced:
            members.append((_classic_member(member), member.member_id))
    if joining is not None:
        members.append((_classic_member(joining), joining.member_id if replaced is None else replaced.member_id))
    if not frozenset.intersection(*(frozenset(name for name, _ in one.protocols) for one, _ in members)):
        raise NotDowngradedError(group, "its members have no protocol in common")
    classic = ClassicGroup(group.group_id, lock=group.lock, offsets=group.offsets)
    classic.adopt([one for one, _ in members], group.epoch, CONSUMER, now_ms)
    try:
        for one, target_of in members:
            version = read_version(one.metadata(classic.protocol_name))
            one.assignment = write_assignment(group.targets.get(target_of, NO_TARGET), version, image)
    except ProtocolError as error:
        raise NotDowngradedError(group, str(error)) from error
    return classic


def _classic_member(member: ConsumerGroupMember) -> Member:
    assert member.classic is not None
    return Member(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        [(one.name, one.metadata) for one in member.classic.protocols],
    )
