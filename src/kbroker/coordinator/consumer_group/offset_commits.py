"""Checks of requests that commit and fetch the offsets of a consumer group.

Source: ``ConsumerGroup.validateOffsetCommit``, ``validateOffsetFetch``; KIP-848, KIP-1251.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.member import ConsumerGroupMember
from kbroker.coordinator.modern_group.topics_image import TopicsImage

FIRST_WITH_MEMBER_EPOCH = 9  # version of OffsetCommit


def check_commit(
    group: ConsumerGroup,
    image: TopicsImage,
    member_id: str,
    instance_id: str | None,
    member_epoch: int,
    places: Iterable[tuple[str, int]],
    api_version: int,
    is_transactional: bool,
) -> None:
    """Refuse a commit from a client that is not the member owning the partitions.

    An older epoch than the member's is accepted for partitions that it owned then and still owns or is revoking.
    Raises: KafkaError UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH (ILLEGAL_GENERATION for members of the classic protocol and
    in transactions), UNSUPPORTED_VERSION.
    """
    if member_epoch < 0 and not group.members:
        return
    if is_transactional and member_epoch < 0 and not member_id and instance_id is None:
        return
    member = group.member(member_id)
    if not is_transactional and not member.uses_classic_protocol and api_version < FIRST_WITH_MEMBER_EPOCH:
        text = "OffsetCommit version 9 or above must be used by members using the consumer group protocol"
        raise KafkaError(Errors.UNSUPPORTED_VERSION, text)
    if member_epoch == member.member_epoch:
        return
    code = Errors.ILLEGAL_GENERATION if is_transactional else _stale(member)
    if member_epoch > member.member_epoch:
        text = f"Received member epoch {member_epoch} is newer than current member epoch {member.member_epoch}."
        raise KafkaError(code, text)
    for name, partition in places:
        topic = image.get(name)
        assigned_at = None if topic is None else member.assignment_epoch(topic.topic_id, partition)
        if assigned_at is None:
            raise KafkaError(code, f"Partition {name}-{partition} is not assigned or pending revocation for member.")
        if member_epoch < assigned_at:
            text = f"Received member epoch {member_epoch} is older than assignment epoch {assigned_at} for partition "
            raise KafkaError(code, f"{text}{name}-{partition}.")


def check_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> None:
    """Check a fetch. Raises: KafkaError UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH (ILLEGAL_GENERATION)."""
    if member_id is None and member_epoch < 0:
        return
    member = group.member(member_id or "")
    if member_epoch != member.member_epoch:
        text = f"The received member epoch {member_epoch} does not match the expected one {member.member_epoch}."
        raise KafkaError(_stale(member), text)


def _stale(member: ConsumerGroupMember) -> Errors:
    return Errors.ILLEGAL_GENERATION if member.uses_classic_protocol else Errors.STALE_MEMBER_EPOCH
