"""Checks of requests that commit and fetch the offsets of a group of a newer protocol: the part that the kinds share.

Source: ``validateOffsetCommit`` and ``validateOffsetFetch`` of ``ConsumerGroup`` and ``StreamsGroup``; KIP-848,
KIP-1071, KIP-1251.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.modern_group.group import ModernGroup

FIRST_WITH_MEMBER_EPOCH = 9  # version of OffsetCommit
NO_EPOCH = -1  # of a client outside the group


class Commit(NamedTuple):
    """The facts of a commit of offsets that a group checks."""

    member_id: str
    instance_id: str | None
    member_epoch: int
    places: Iterable[TopicPartition]
    api_version: int
    is_transactional: bool


class Assigned(NamedTuple):
    """The partition or task that a member reads a partition with, and the epoch at which the member got it.

    Without an epoch, ``name`` is the reason for which the member may not commit the partition's offset.
    """

    name: str
    epoch: int | None = None


def check_commit(
    group: ModernGroup, commit: Commit, stale: Callable[[Any], Errors], assigned: Callable[[Any, str, int], Assigned]
) -> None:
    """Refuse a commit from a client that is not the member to which the partitions are assigned.

    An older epoch than the member's is accepted for partitions that it had then and still has or is revoking.

    Args: ``stale``: the code for another epoch than a member's, ILLEGAL_GENERATION if it uses the classic protocol;
    ``assigned`` finds the assignment of a partition to a member.
    Raises: KafkaError UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION; the code of ``stale``, in a transaction
    ILLEGAL_GENERATION.
    """
    epoch = commit.member_epoch
    if epoch < 0 and not group.members:
        return
    if commit.is_transactional and epoch == NO_EPOCH and not commit.member_id and commit.instance_id is None:
        return
    member = group.member(commit.member_id)
    code = stale(member)
    if commit.is_transactional:
        code = Errors.ILLEGAL_GENERATION
    elif code is Errors.STALE_MEMBER_EPOCH and commit.api_version < FIRST_WITH_MEMBER_EPOCH:
        text = f"OffsetCommit version 9 or above must be used by members using the {group.KIND} group protocol"
        raise KafkaError(Errors.UNSUPPORTED_VERSION, text)
    if epoch == member.member_epoch:
        return
    if epoch > member.member_epoch:
        text = f"Received member epoch {epoch} is newer than current member epoch {member.member_epoch}."
        raise KafkaError(code, text)
    for topic, partition in commit.places:
        name, assigned_at = assigned(member, topic, partition)
        if assigned_at is None:
            raise KafkaError(code, name)
        if epoch < assigned_at:
            text = f"Received member epoch {epoch} is older than assignment epoch {assigned_at} for {name}."
            raise KafkaError(code, text)


def check_fetch(group: ModernGroup, member_id: str | None, member_epoch: int, stale: Callable[[Any], Errors]) -> None:
    """Check a fetch of offsets; ``stale`` as for ``check_commit``. Raises: KafkaError UNKNOWN_MEMBER_ID or its code."""
    if member_id is None and member_epoch < 0:
        return
    member = group.member(member_id or "")
    if member_epoch != member.member_epoch:
        text = f"The received member epoch {member_epoch} does not match the expected member epoch "
        raise KafkaError(stale(member), f"{text}{member.member_epoch}.")
