"""Reconciliation of a member with its target assignment: partitions to keep, to revoke, and to wait for.

A member revokes all partitions outside its target before its epoch rises; free partitions of the target are added at
once, the others when their owners have revoked them.
Source: ``CurrentAssignmentBuilder``; KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.consumer_group.group import NOT_OWNED, ConsumerGroup
from kbroker.coordinator.consumer_group.member import ConsumerGroupMember, MemberState, Owned, Target
from kbroker.coordinator.consumer_group.records import ResolvedRegex
from kbroker.coordinator.modern_group.topics_image import TopicsImage

Reported = Mapping[UUID, Iterable[int]]  # partitions that a member reports to own

IN_UNKNOWN_STATE = (
    "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
)


class Reconciliation(NamedTuple):
    """Input of a reconciliation. ``reported``: None if the heartbeat reported no partitions."""

    group: ConsumerGroup
    image: TopicsImage
    target_epoch: int
    target: Target
    has_subscription_changed: bool
    reported: Reported | None


def reconcile(member: ConsumerGroupMember, given: Reconciliation) -> ConsumerGroupMember:
    """Return the member after the next step; the same one if nothing changes.

    Raises: KafkaError FENCED_MEMBER_EPOCH for a member in a state of a later release.
    """
    if member.state is MemberState.STABLE:
        if member.member_epoch != given.target_epoch:
            return _next_assignment(member, member.member_epoch, given)
        return _without_unsubscribed(member, given) if given.has_subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns(member.pending_revocation, given.reported):
            return _without_unsubscribed(member, given) if given.has_subscription_changed else member
        return _next_assignment(member, member.member_epoch, given)
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        return _next_assignment(member, member.member_epoch, given)
    if given.reported is None or given.reported:
        raise KafkaError(Errors.FENCED_MEMBER_EPOCH, IN_UNKNOWN_STATE)
    return _next_assignment(member, given.target_epoch, given)


def subscribed_topics(member: ConsumerGroupMember, resolved: Mapping[str, ResolvedRegex]) -> frozenset[str]:
    """Return the topics of a member: by name, and those that match its regular expression."""
    found = resolved.get(member.topic_regex or "") if member.topic_regex else None
    return member.topic_names if found is None else member.topic_names | found.topics


def _owns(owned: Owned, reported: Reported | None) -> bool:
    """Return whether the member still owns one of these partitions; True if its heartbeat does not report any list."""
    if reported is None:
        return True
    return any(partition in owned.get(topic_id, ()) for topic_id, some in reported.items() for partition in some)


def _is_subscribed(names: frozenset[str], image: TopicsImage, topic_id: UUID) -> bool:
    topic = image.get_by_id(topic_id)
    return topic is not None and topic.name in names


def _without_unsubscribed(member: ConsumerGroupMember, given: Reconciliation) -> ConsumerGroupMember:
    """Return the member revoking the topics it no longer subscribes to, without any other change."""
    names = subscribed_topics(member, given.group.resolved)
    lost = [one for one in member.assigned if not _is_subscribed(names, given.image, one)]
    if not lost:
        return member
    assigned = {one: owned for one, owned in member.assigned.items() if one not in lost}
    pending = dict(member.pending_revocation)
    for topic_id in lost:
        pending[topic_id] = {**pending.get(topic_id, {}), **member.assigned[topic_id]}
    if _owns(pending, given.reported):
        return member.at(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, assigned, pending)
    return member.at(member.member_epoch, member.state, assigned, member.pending_revocation)


def _has_target(member: ConsumerGroupMember, names: frozenset[str], given: Reconciliation) -> bool:
    """Return whether the member has exactly its target assignment, and subscribes to all of it."""
    return [*member.assigned] == [*given.target] and all(
        owned.keys() == wanted and _is_subscribed(names, given.image, topic_id)
        for (topic_id, owned), wanted in zip(member.assigned.items(), given.target.values(), strict=True)
    )


def _next_assignment(member: ConsumerGroupMember, member_epoch: int, given: Reconciliation) -> ConsumerGroupMember:
    names = subscribed_topics(member, given.group.resolved)
    if _has_target(member, names, given):  # the usual case in a large group: only the epoch rises
        return member.at(given.target_epoch, MemberState.STABLE, member.assigned, {}, previous_epoch=member_epoch)
    assigned: dict[UUID, dict[int, int]] = {}
    pending: dict[UUID, dict[int, int]] = {}
    added: dict[UUID, list[int]] = {}
    has_unreleased = False
    for topic_id in dict.fromkeys([*given.target, *member.assigned]):
        present = member.assigned.get(topic_id, {})
        wanted = given.target.get(topic_id, frozenset())
        if wanted and not _is_subscribed(names, given.image, topic_id):
            wanted = frozenset()
        kept = {partition: epoch for partition, epoch in present.items() if partition in wanted}
        revoked = {partition: epoch for partition, epoch in present.items() if partition not in wanted}
        own = member.pending_revocation.get(topic_id, {})
        free = []
        for partition in sorted(wanted):
            if partition in kept:
                continue
            if partition in own or given.group.partition_epoch(topic_id, partition) == NOT_OWNED:
                free.append(partition)
            else:
                has_unreleased = True
        if kept:
            assigned[topic_id] = kept
        if revoked:
            pending[topic_id] = revoked
        if free:
            added[topic_id] = free
    if pending and _owns(pending, given.reported):
        return member.at(member_epoch, MemberState.UNREVOKED_PARTITIONS, assigned, pending)
    for topic_id, partitions in added.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, given.target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
    return member.at(given.target_epoch, state, assigned, {}, previous_epoch=member_epoch)
