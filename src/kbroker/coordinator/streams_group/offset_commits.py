"""Checks of requests that commit and fetch the offsets of a streams group.

Source: ``StreamsGroup.validateOffsetCommit``, ``validateOffsetFetch``; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.streams_group.group import StreamsGroup
from kbroker.coordinator.streams_group.member import StreamsGroupMember

FIRST_WITH_MEMBER_EPOCH = 9  # version of OffsetCommit


def check_commit(
    group: StreamsGroup,
    member_id: str,
    instance_id: str | None,
    member_epoch: int,
    places: Iterable[tuple[str, int]],
    api_version: int,
    is_transactional: bool,
) -> None:
    """Refuse a commit from a client that is not the member with the tasks of the partitions.

    An older epoch than the member's is accepted for tasks that it had then and still has or is revoking.
    Raises: KafkaError UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH (ILLEGAL_GENERATION in transactions), UNSUPPORTED_VERSION.
    """
    if member_epoch < 0 and not group.members:
        return
    if is_transactional and member_epoch == -1 and not member_id and instance_id is None:
        return
    member: StreamsGroupMember = group.member(member_id)
    if not is_transactional and api_version < FIRST_WITH_MEMBER_EPOCH:
        text = "OffsetCommit version 9 or above must be used by members using the streams group protocol"
        raise KafkaError(Errors.UNSUPPORTED_VERSION, text)
    if member_epoch == member.member_epoch:
        return
    code = Errors.ILLEGAL_GENERATION if is_transactional else Errors.STALE_MEMBER_EPOCH
    if member_epoch > member.member_epoch:
        text = f"Received member epoch {member_epoch} is newer than current member epoch {member.member_epoch}."
        raise KafkaError(code, text)
    if group.topology is None:
        raise KafkaError(code, "Topology is not available for offset commit validation.")
    for topic, partition in places:
        reader = group.readers.get(topic)
        if reader is None:
            raise KafkaError(code, f"Topic {topic} is not in the topology.")
        tasks = member.assigned.active.get(reader, {}), member.pending_revocation.active.get(reader, {})
        assigned_at = next((one[partition] for one in tasks if partition in one), None)
        if assigned_at is None:
            raise KafkaError(code, f"Task {reader}-{partition} is not assigned or pending revocation for member.")
        if member_epoch < assigned_at:
            text = f"Received member epoch {member_epoch} is older than assignment epoch {assigned_at} for task "
            raise KafkaError(code, f"{text}{reader}-{partition}.")


def check_fetch(group: StreamsGroup, member_id: str | None, member_epoch: int) -> None:
    """Check a fetch. Raises: KafkaError UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH."""
    if member_id is None and member_epoch < 0:
        return
    member: StreamsGroupMember = group.member(member_id or "")
    if member_epoch != member.member_epoch:
        text = f"The received member epoch {member_epoch} does not match the expected member epoch "
        raise KafkaError(Errors.STALE_MEMBER_EPOCH, f"{text}{member.member_epoch}.")
