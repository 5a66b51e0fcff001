"""Members of the classic protocol in a consumer group: they join, sync, send heartbeats and leave as usual.

Such a member gets its assignment by SyncGroup after each join; the response to a heartbeat requests a new join.
Callers hold the lock of a group that is not dead.
Source: ``GroupMetadataManager`` (``classicGroupJoinToConsumerGroup`` and the methods beside it); KIP-848.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.coordinator.classic_group import JoinResult, SyncResult
from kbroker.coordinator.classic_membership import JoinRequest, LeavingMember, SyncRequest
from kbroker.coordinator.consumer_group.embedded_protocol import read_subscription, read_version, write_assignment
from kbroker.coordinator.consumer_group.group import CONSUMER, ConsumerGroup
from kbroker.coordinator.consumer_group.member import (
    ClassicMetadata,
    ClassicProtocol,
    ConsumerGroupMember,
    MemberState,
    new_member_id,
)
from kbroker.coordinator.consumer_group.membership import ConsumerGroupMembership, check_instance
from kbroker.coordinator.modern_group import timers
from kbroker.coordinator.modern_group.group import TargetAssignment
from kbroker.coordinator.modern_group.records import GroupRecord


class ClassicMembers:
    """Requests of members of the classic protocol to a consumer group that is not empty."""

    def __init__(self, membership: ConsumerGroupMembership) -> None:
        self._membership = membership

    # ------------------------------------------------------------ join

    def join(self, group: ConsumerGroup, request: JoinRequest) -> JoinResult:
        """Add a member or reconcile it with the target assignment.

        A client that requires a member id first gets it with MEMBER_ID_REQUIRED, and is not added.
        Raises: KafkaError; the group is then unchanged.
        """
        membership = self._membership
        names = [name for name, _ in request.protocols]
        if not membership.settings.allows_classic_members:
            text = (
                f"Cannot join the consumer group {group.group_id} with the classic protocol because the group "
                "migration is disabled."
            )
            raise KafkaError(Errors.INCONSISTENT_GROUP_PROTOCOL, text)
        is_unknown = not request.member_id
        member_id = request.member_id or new_member_id()
        membership.check_room(group, member_id)
        if not group.supports_classic_protocols(request.protocol_type, names):
            raise KafkaError(Errors.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported.")
        if is_unknown and request.requires_known_member_id:
            return JoinResult(Errors.MEMBER_ID_REQUIRED, member_id)
        changes: list[GroupRecord] = []
        instance_id = request.group_instance_id
        if instance_id is None:
            member = group.members.get(member_id) or ConsumerGroupMember(member_id)
        else:
            member = membership.static_member(group, member_id, instance_id, is_unknown, changes, is_classic=True)
        return self._join(group, request, member, changes)

    def _join(
        self, group: ConsumerGroup, request: JoinRequest, member: ConsumerGroupMember, changes: list[GroupRecord]
    ) -> JoinResult:
        membership = self._membership
        replaced = group.static_member(request.group_instance_id)
        downgrades = replaced is not None and not replaced.uses_classic_protocol and self._may_downgrade(group)
        try:
            wanted = read_subscription(request.protocols[0][1], membership.image)
        except ProtocolError as error:
            text = "Malformed embedded consumer protocol in subscription deserialization."
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, text) from error
        protocols = tuple(ClassicProtocol(name, data) for name, data in request.protocols)
        updated = member._replace(
            instance_id=request.group_instance_id or member.instance_id,
            rack_id=wanted.rack_id or member.rack_id,
            rebalance_timeout_ms=(
                member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
            ),
            topic_names=frozenset(wanted.topics),
            topic_regex="",
            client_id=request.client_id,
            client_host=request.client_host,
            classic=ClassicMetadata(request.session_timeout_ms, protocols),
        )
        if downgrades:
            epoch, _, has_changed = membership.subscribe(group, member, updated, changes)
            rebalances = group.target_epoch < epoch
            if not rebalances:
                target = TargetAssignment(group.target_epoch, group.target(updated))
                updated = membership.reconcile(group, updated, target, has_changed, wanted.owned, changes)
            membership.downgrade(group, (), changes, updated, rebalances)
        else:
            updated, _ = membership.follow(group, member, updated, wanted.owned, changes)
            membership.write(group, changes)
            membership.timers.cancel(group, timers.JOIN, updated.member_id)
            membership.timers.cancel(group, timers.REBALANCE, updated.member_id)  # begun under the consumer protocol
            membership.await_heartbeat(group, updated.member_id, request.session_timeout_ms)
            membership.expire_later(
                group, timers.SYNC, updated.member_id, request.rebalance_timeout_ms, "it did not sync", if_absent=False
            )
            membership.regexes.after_heartbeat(group)
        return JoinResult(Errors.NONE, updated.member_id, updated.member_epoch, CONSUMER, request.protocols[0][0], "")

    def _may_downgrade(self, group: ConsumerGroup) -> bool:
        """Return whether replacing the last member of the consumer protocol converts the group."""
        settings = self._membership.settings
        if group.classic_member_count != len(group.members) - 1:
            return False
        return settings.allows_downgrades and len(group.members) <= settings.classic_max_size

    # ------------------------------------------------------------ sync and heartbeat

    def sync(self, group: ConsumerGroup, request: SyncRequest) -> SyncResult:
        """Return the assignment of a member; extend its session, and end the wait for its sync. Raises: KafkaError."""
        membership = self._membership
        member, classic = self._member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        name = classic.protocols[0].name
        if request.protocol_type is not None and request.protocol_type != CONSUMER:
            text = f"The protocol type {request.protocol_type} is not equal to the group protocol type {CONSUMER}."
            raise KafkaError(Errors.INCONSISTENT_GROUP_PROTOCOL, text)
        if request.protocol_name is not None and request.protocol_name != name:
            text = f"The protocol name {request.protocol_name} is not that of the join response, {name}."
            raise KafkaError(Errors.INCONSISTENT_GROUP_PROTOCOL, text)
        if group.target_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._await_join(group, member)
            raise KafkaError(Errors.REBALANCE_IN_PROGRESS)
        membership.timers.cancel(group, timers.SYNC, member.member_id)
        membership.await_heartbeat(group, member.member_id, classic.session_timeout_ms)
        try:  # the upgrade has read the metadata of the common protocol, which may be another one
            version = read_version(classic.protocols[0].metadata)
        except ProtocolError as error:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, "Malformed embedded consumer protocol.") from error
        assignment = write_assignment(member.assigned, version, membership.image)
        return SyncResult(Errors.NONE, request.protocol_type, request.protocol_name, assignment)

    def heartbeat(self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int) -> Errors:
        """Extend a session; return REBALANCE_IN_PROGRESS if the member must join again in time. Raises: KafkaError."""
        member, classic = self._member(group, member_id, instance_id)
        _check_generation(member, generation_id)
        self._membership.await_heartbeat(group, member.member_id, classic.session_timeout_ms)
        is_free = member.state is MemberState.UNRELEASED_PARTITIONS and not group.is_waiting_for_partitions(member)
        is_behind = member.member_epoch < group.target_epoch or self._membership.lacks_target(group)
        if is_behind or member.state is MemberState.UNREVOKED_PARTITIONS or is_free:
            self._await_join(group, member)
            return Errors.REBALANCE_IN_PROGRESS
        return Errors.NONE

    def _await_join(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        self._membership.expire_later(
            group, timers.JOIN, member.member_id, member.rebalance_timeout_ms, "it did not join again", if_absent=True
        )

    def _member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerGroupMember, ClassicMetadata]:
        """Return the member and its classic metadata. Raises: KafkaError UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = check_instance(group.static_member(instance_id), member_id, instance_id)
        if member.classic is None:
            text = f"Member {member.member_id} does not use the classic protocol."
            raise KafkaError(Errors.UNKNOWN_MEMBER_ID, text)
        return member, member.classic

    # ------------------------------------------------------------ leave

    def leave(self, group: ConsumerGroup, leaving: Sequence[LeavingMember]) -> list[Errors]:
        """Remove members, of either protocol; return one error code each, in order. Raises: KafkaError."""
        errors = []
        found: dict[str, ConsumerGroupMember] = {}
        for member_id, instance_id in leaving:
            try:
                if instance_id is None:
                    member = group.member(member_id)
                else:
                    present = group.static_member(instance_id)
                    known_id = member_id or (present.member_id if present is not None else "")
                    member = check_instance(present, known_id, instance_id)
            except KafkaError as error:
                errors.append(error.error)
            else:
                errors.append(Errors.NONE)
                found[member.member_id] = member
        self._membership.fence(group, list(found.values()), "it left")
        return errors


def _check_generation(member: ConsumerGroupMember, generation_id: int) -> None:
    if member.member_epoch != generation_id:
        text = f"The request generation id {generation_id} is not equal to the member epoch {member.member_epoch}."
        raise KafkaError(Errors.ILLEGAL_GENERATION, text)
