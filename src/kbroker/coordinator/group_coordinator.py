"""The group coordinator: classic, consumer, share and streams groups, and the offsets of groups.

Lock order: groups' locks, then ``GroupShard.lock``. Records are appended under the group's lock, so that they are in
the order of its changes; no disk is awaited under it.
Source: ``GroupCoordinator``, ``GroupCoordinatorService``.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker._core.clock import BaseClock
from kbroker._core.timer.purgatory import Purgatory
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import OFFSETS_TOPIC
from kbroker.coordinator.classic_group import (
    ClassicGroup,
    GroupState,
    JoinCallback,
    JoinResult,
    SyncCallback,
    SyncResult,
)
from kbroker.coordinator.classic_membership import JoinRequest, LeavingMember, Membership, SyncRequest
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.consumer_groups import ConsumerGroups
from kbroker.coordinator.group_map import GroupMap
from kbroker.coordinator.group_sensors import GroupSensors
from kbroker.coordinator.group_shard import Group, GroupShard
from kbroker.coordinator.internal_topic import InternalTopic
from kbroker.coordinator.modern_group.group import ModernGroup
from kbroker.coordinator.modern_group.membership import GroupParts
from kbroker.coordinator.modern_group.topics_image import TopicsImage
from kbroker.coordinator.modern_groups import ModernGroups
from kbroker.coordinator.offset_metadata_manager import OffsetMetadataManager
from kbroker.coordinator.partition_replay import PartitionReplay
from kbroker.coordinator.runtime import CoordinatorRuntime
from kbroker.coordinator.share_group.group import ShareGroup
from kbroker.coordinator.share_group.settings import ShareGroupSettings
from kbroker.coordinator.share_groups import ShareGroups
from kbroker.coordinator.streams_group.group import StreamsGroup
from kbroker.coordinator.streams_group.settings import StreamsGroupSettings
from kbroker.coordinator.streams_groups import StreamsGroups
from kbroker.metrics.registry import Metrics

if TYPE_CHECKING:
    from kbroker.coordinator.share_groups import CoordinatorOf

__all__ = ["OFFSETS_TOPIC", "DescribedGroup", "DescribedMember", "GroupCoordinator", "GroupSettings", "ListedGroup"]

logger = get_logger(__name__)


class GroupSettings(NamedTuple):
    """Kafka's group settings, in milliseconds and members."""

    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3000
    max_size: int = 2**31 - 1
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    consumer: ConsumerGroupSettings = ConsumerGroupSettings()
    streams: StreamsGroupSettings = StreamsGroupSettings()
    share: ShareGroupSettings = ShareGroupSettings()


class DescribedMember(NamedTuple):
    """Description of a member of a classic group.

    ``metadata``: empty unless the group is stable; ``assignment``: the latest one, in any state of the group.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """Description of a classic group."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: Sequence[DescribedMember]


class ListedGroup(NamedTuple):
    """Entry of a list of groups."""

    group_id: str
    protocol_type: str
    state: enum.Enum
    group_type: str


class GroupCensus(NamedTuple):
    """Number of groups by type and state, and of their committed offsets."""

    states: Mapping[tuple[str, enum.Enum], int]
    offsets: int


class GroupCoordinator:
    """All groups of the broker.

    ``offsets`` commits and returns offsets; ``consumer_groups``, ``share_groups`` and ``streams_groups`` serve groups
    of these kinds; ``joins`` and ``heartbeats`` are the purgatories of rebalances and sessions.

    Args: ``topic``: ``__consumer_offsets``; ``clock``: drives sessions, rebalances and expiry; ``image``: the topics
    that groups can subscribe to; ``share_coordinator_of``: returns the coordinator of a share partition.
    Threads: any. ``joins.run_reaper`` and ``run_heartbeat_reaper`` each need a thread (or ``advance`` in tests).
    """

    def __init__(
        self,
        clock: BaseClock,
        topic: InternalTopic,
        settings: GroupSettings,
        image: TopicsImage,
        metrics: Metrics,
        share_coordinator_of: CoordinatorOf,
    ) -> None:
        self._clock = clock
        self._topic = topic
        sensors = GroupSensors(metrics)
        self._settings = settings
        self.runtime = CoordinatorRuntime(topic, OFFSETS_TOPIC, "groups", self, clock)
        self.joins = Purgatory("Rebalance", clock)
        self.heartbeats = Purgatory("Heartbeat", clock)
        self._membership = Membership(
            clock,
            self.save,
            self.joins,
            self.heartbeats,
            initial_delay_ms=self._settings.initial_rebalance_delay_ms,
            max_size=self._settings.max_size,
            sensors=sensors,
        )
        self._groups = GroupMap(self.runtime)
        parts, known = GroupParts(clock, self.heartbeats, image, sensors), (self._groups, self._membership)
        consumer = replace(self._settings.consumer, classic_max_size=self._settings.max_size)
        self.consumer_groups = ConsumerGroups(parts, consumer, *known)
        self.share_groups = ShareGroups(parts, self._settings.share, *known, share_coordinator_of)
        self.streams_groups = StreamsGroups(parts, self._settings.streams, *known)
        self._kinds: Mapping[str, ModernGroups[Any, Any]] = {
            ConsumerGroup.KIND: self.consumer_groups,
            ShareGroup.KIND: self.share_groups,
            StreamsGroup.KIND: self.streams_groups,
        }
        retention_ms = self._settings.offsets_retention_ms
        self.offsets = OffsetMetadataManager(
            clock, self._groups, self._membership.touch, retention_ms, self._kinds, sensors, image
        )

    def _dismiss(self, group: Group, error: Errors) -> None:
        if isinstance(group, ModernGroup):
            self._kinds[group.KIND].membership.dismiss(group)
        else:
            self._membership.dismiss(group, error)

    # ------------------------------------------------------------ start and end

    def start(self) -> None:
        """Load groups and offsets from the log; loaded members must send a request within their session timeout."""
        self.runtime.load_all()
        groups = self._groups.all()
        if groups:
            offsets = sum(len(group.offsets.committed) for group in groups)
            logger.info("loaded %d groups and %d committed offsets", len(groups), offsets)

    def build(self, index: int, epoch: int, replay: PartitionReplay) -> GroupShard:
        """Return the groups of a partition: see ``Coordinator``."""
        shard = GroupShard(self._topic, index, epoch, self._clock, self._dismiss)
        shard.replay(replay, self.runtime.index_of)
        return shard

    def resume(self, shard: GroupShard) -> None:
        """Start the sessions of a partition's members: see ``Coordinator``."""
        with shard.lock:
            groups = list(shard.groups.values())
        for group in groups:
            with group.lock:
                if group.is_dead:
                    continue
                if isinstance(group, ModernGroup):
                    self._kinds[group.KIND].resume(group)
                else:
                    self._membership.resume(group)

    def run_heartbeat_reaper(self) -> None:
        """Expire sessions until closed; blocks, so it needs its own thread."""
        self.consumer_groups.membership.regexes.background.has_thread = True
        self.heartbeats.run_reaper()

    @property
    def is_idle(self) -> bool:
        """True if no join, sync or session is due or being expired, so that both reapers wait."""
        return self.joins.is_idle and self.heartbeats.is_idle

    def advance(self) -> None:
        """Run due operations on this thread; for tests with a virtual clock and no reapers."""
        while self.joins.advance(0) or self.heartbeats.advance(0):
            pass

    def close(self) -> None:
        """Complete all delayed requests with NOT_COORDINATOR and end the reapers. Idempotent."""
        self._groups.close()
        self.joins.close()
        self.heartbeats.close()

    # ------------------------------------------------------------ membership

    def join(self, request: JoinRequest, on_joined: JoinCallback) -> None:
        """Add a member, or keep it in the group; ``on_joined`` is called once, now or later, by any thread."""
        settings = self._settings
        error = Errors.NONE
        if not request.group_id:
            error = Errors.INVALID_GROUP_ID
        elif not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            error = Errors.INVALID_SESSION_TIMEOUT
        if error is not Errors.NONE:
            on_joined(JoinResult(error, request.member_id))
            return
        with self._groups.locked(request.group_id, create=not request.member_id) as group:
            if isinstance(group, ModernGroup):
                if not group.is_empty or isinstance(group, ShareGroup):
                    on_joined(self._join_consumer_group(group, request))
                    return
                if not request.member_id and not (request.protocol_type and request.protocols):
                    on_joined(JoinResult(Errors.INCONSISTENT_GROUP_PROTOCOL, ""))  # before the group is converted
                    return
                group = None if request.member_id else self._kinds[group.KIND].to_classic(group)
            if group is None:
                on_joined(JoinResult(Errors.UNKNOWN_MEMBER_ID, request.member_id))
            else:
                self._membership.join(group, request, on_joined)

    def _join_consumer_group(self, group: ModernGroup, request: JoinRequest) -> JoinResult:
        if not isinstance(group, ConsumerGroup):
            return JoinResult(Errors.INCONSISTENT_GROUP_PROTOCOL, "")
        try:
            return self.consumer_groups.classic_members.join(group, request)
        except KafkaError as error:
            return JoinResult(error.error, "")

    def sync(self, request: SyncRequest, on_synced: SyncCallback) -> None:
        """Send a member its assignment; ``on_synced`` is called once, now or later, by any thread."""
        if not request.group_id:
            on_synced(SyncResult(Errors.INVALID_GROUP_ID))
            return
        with self._groups.locked(request.group_id) as group:
            if group is None or group.is_empty:
                on_synced(SyncResult(Errors.UNKNOWN_MEMBER_ID))
            elif isinstance(group, ModernGroup):
                on_synced(self._sync_consumer_group(group, request))
            else:
                self._membership.sync(group, request, on_synced)

    def _sync_consumer_group(self, group: ModernGroup, request: SyncRequest) -> SyncResult:
        if not isinstance(group, ConsumerGroup):
            return SyncResult(Errors.UNKNOWN_MEMBER_ID)
        try:
            return self.consumer_groups.classic_members.sync(group, request)
        except KafkaError as error:
            return SyncResult(error.error)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int) -> Errors:
        """Extend a session; return the error. Raises: KafkaError if the group's partition is not served."""
        if not group_id:
            return Errors.INVALID_GROUP_ID
        with self._groups.locked(group_id) as group:
            if group is None:
                return Errors.UNKNOWN_MEMBER_ID
            if isinstance(group, ConsumerGroup):
                try:
                    return self.consumer_groups.classic_members.heartbeat(
                        group, member_id, group_instance_id, generation_id
                    )
                except KafkaError as error:
                    return error.error
            if not isinstance(group, ClassicGroup):
                return Errors.UNKNOWN_MEMBER_ID
            return self._membership.heartbeat(group, member_id, group_instance_id, generation_id)

    def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[Errors]:
        """Remove members; return one error code for each. Raises: KafkaError INVALID_GROUP_ID."""
        if not group_id:
            raise KafkaError(Errors.INVALID_GROUP_ID)
        with self._groups.locked(group_id) as group:
            if group is None:
                return [Errors.UNKNOWN_MEMBER_ID] * len(leaving)
            if isinstance(group, ConsumerGroup):
                return self.consumer_groups.classic_members.leave(group, leaving)
            if not isinstance(group, ClassicGroup):
                return [Errors.UNKNOWN_MEMBER_ID] * len(leaving)
            return self._membership.leave(group, leaving)

    def topic_deleted(self, name: str) -> bool:
        """Remove a deleted topic from all groups; if it is ``__consumer_offsets``, drop all groups.

        Returns: False if some offsets could not be deleted; `offsets.delete_topics` deletes them later.
        """
        if name == OFFSETS_TOPIC:
            self.runtime.topic_deleted()
            return True
        is_done = True
        for group_id in self._groups.ids():
            try:
                with self._groups.locked(group_id) as group:
                    if isinstance(group, ShareGroup):
                        self.share_groups.topics_deleted(group)
                self.offsets.delete_topic(group_id, name)
            except KafkaError as error:
                is_done = False
                logger.warning(
                    "group %s: the offsets of the deleted topic %s will be deleted later: %s", group_id, name, error
                )
        return is_done

    # ------------------------------------------------------------ administration

    def describe(self, group_id: str) -> DescribedGroup | None:
        """Describe a classic group; None if there is none. Raises: KafkaError GROUP_ID_NOT_FOUND for another kind."""
        with self._groups.locked(group_id) as group:
            if group is None:
                return None
            if isinstance(group, ModernGroup):
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
            stable = group.state is GroupState.STABLE
            members = [
                DescribedMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(group.protocol_name) if stable else b"",
                    member.assignment,
                )
                for member in group.members.values()
            ]
            protocol_name = group.protocol_name or "" if stable else ""
            return DescribedGroup(group_id, group.state, group.protocol_type or "", protocol_name, members)

    def list_groups(self) -> list[ListedGroup]:
        """Return all groups. Raises: KafkaError COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded."""
        self.runtime.check_loaded()
        found = []
        for group_id in self._groups.ids():
            try:
                with self._groups.locked(group_id) as group:
                    if group is not None:
                        found.append(ListedGroup(group_id, group.protocol_type or "", group.state, group.KIND))
            except KafkaError as error:
                if error.error is not Errors.NOT_COORDINATOR:  # another broker lists this group
                    raise
        return found

    def census(self) -> GroupCensus:
        """Count the groups in each state; the time grows with the number of members."""
        states: Counter[tuple[str, enum.Enum]] = Counter()
        offsets = 0
        for group in self._groups.all():
            with group.lock:
                if group.is_dead:
                    continue
                offsets += len(group.offsets.committed)
                states[group.KIND, group.state] += 1
        return GroupCensus(states, offsets)

    def delete(self, group_id: str) -> None:
        """Delete a group that has no members.

        When this returns the deletion is in the log, and on disk if the topic's settings require it.
        Raises: KafkaError GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        if isinstance(self._groups.find(group_id), ShareGroup):
            self.share_groups.delete_states(group_id)
        with self._groups.locked(group_id) as group:
            if group is None:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND)
            if not group.is_empty:
                raise KafkaError(Errors.NON_EMPTY_GROUP)
            written = self.offsets.bury(group)
        written.await_disk()

    def remove_member(self, group_id: str, member_id: str) -> None:
        """Remove a member of a group of a newer protocol, as if its session had expired.

        Raises: KafkaError GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID.
        """
        with self._groups.locked(group_id) as group:
            if not isinstance(group, ModernGroup):
                text = "not found" if group is None else "is a classic group"
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} {text}.")
            member = group.member(member_id)
            self._kinds[group.KIND].membership.fence(group, [member], "it was removed by an operator")

    def save(self, group: ClassicGroup, assignments: Mapping[str, bytes] | None = None) -> None:
        """Write a group, with the assignments about to be sent or the current ones. Raises: KafkaError."""
        group.shard.append([group.record(assignments)])
        group.is_stored = True
