"""The members of streams groups: heartbeats, by which they join, follow the target assignment and leave; fencing.

A request's changes are first a list of records. Once they are written, the group replays them, then the timers are set
and the response is sent: a change that cannot be written has no effect.
Lock order: a group's lock, then the purgatory's own. Callers hold the lock of a group that is not dead.
Source: ``GroupMetadataManager`` (streams groups); KIP-1071.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.coordinator.modern_group.group import TargetAssignment
from kbroker.coordinator.modern_group.member import JOIN_EPOCH, is_subset
from kbroker.coordinator.modern_group.membership import ModernMembership, other_epoch
from kbroker.coordinator.modern_group.records import GroupRecord
from kbroker.coordinator.streams_group import records, target_assignment
from kbroker.coordinator.streams_group.endpoints import EndpointPartitions, endpoint_partitions
from kbroker.coordinator.streams_group.group import StreamsGroup
from kbroker.coordinator.streams_group.internal_topics import ConfiguredTopology, Status, TopicProblem, configure
from kbroker.coordinator.streams_group.member import Endpoint, StreamsGroupMember
from kbroker.coordinator.streams_group.reconciliation import reconcile
from kbroker.coordinator.streams_group.records import NO_VALID_TOPOLOGY, RECORDS, GroupEpoch
from kbroker.coordinator.streams_group.settings import StreamsGroupSettings
from kbroker.coordinator.streams_group.tasks import NO_TARGET, AssignedTasks, TargetTasks, Tasks
from kbroker.coordinator.streams_group.topology import InternalTopic, StreamsTopology

logger = get_logger(__name__)

INITIAL_REBALANCE = "initial rebalance"  # kind of the time-out of a new group


class HeartbeatRequest(NamedTuple):
    """A heartbeat. None, or -1 for the time-out, means unchanged. ``topology``: the fields of the request."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Mapping[str, Any] | None = None
    active: Tasks | None = None
    standby: Tasks | None = None
    warmup: Tasks | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] | None = None
    shuts_down: bool = False
    endpoint_epoch: int = 0
    client_id: str = ""
    client_host: str = ""

    @property
    def owned(self) -> TargetTasks | None:
        """The tasks that the member reports; None if it reports none."""
        if self.active is None or self.standby is None or self.warmup is None:
            return None
        return TargetTasks(self.active, self.standby, self.warmup)


class HeartbeatResult(NamedTuple):
    """Response to a heartbeat.

    ``assigned``: None if it is unchanged; ``endpoints``: None if the member has them; ``missing``: the internal
    topics to create.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assigned: AssignedTasks | None = None
    endpoint_epoch: int = 0
    endpoints: Sequence[EndpointPartitions] | None = None
    statuses: Sequence[TopicProblem] = ()
    missing: Mapping[str, InternalTopic] = {}


class StreamsGroupMembership(ModernMembership[StreamsGroup, StreamsGroupSettings]):
    """Changes of the membership of streams groups."""

    # ------------------------------------------------------------ heartbeat

    def heartbeat(self, group: StreamsGroup, request: HeartbeatRequest) -> HeartbeatResult:
        """Add a member, or reconcile its tasks. Raises: KafkaError; the records of the group are then unchanged."""
        group_id, member_id = group.group_id, request.member_id
        is_new_group, is_converted = not group.is_stored, group.predecessor is not None
        joins = request.member_epoch == JOIN_EPOCH
        if joins:
            self.check_room(group, member_id)
            member = group.members.get(member_id) or StreamsGroupMember(member_id)
        else:
            member = group.member(member_id)
            check_epoch(member, request)
        changes: list[GroupRecord] = []
        statuses: list[TopicProblem] = []
        updated = _updated(member, request)
        bumps = updated != member
        if bumps:
            changes.append(RECORDS.member(group_id, updated))
        topology = self._topology(group, request, changes)
        _add_staleness(group, updated, statuses)
        version = self.image.version
        metadata_hash, configured = group.metadata_hash, group.configured
        is_refresh = configured is None or group.topology is None or self.is_refresh_due(group)
        if configured is None or is_refresh:
            metadata_hash, configured = self._configured(group, topology)
        validated = NO_VALID_TOPOLOGY
        if configured.is_ready:
            validated = topology.epoch
            for tasks in (request.active, request.standby, request.warmup):
                _check_tasks(configured, tasks or {})
        configs = self.settings.assignment_configs(group_id)
        bumps = bumps or metadata_hash != group.metadata_hash or validated != group.validated_topology_epoch
        bumps = bumps or configs != group.assignment_configs
        epoch = group.epoch
        if bumps:
            epoch += 1
            changes.append(RECORDS.epoch(group_id, GroupEpoch(epoch, metadata_hash, validated, configs)))
        delay_ms = self.settings.initial_rebalance_delay_ms(group_id) if group.is_empty else 0
        is_delayed = bool(delay_ms) or self._is_rebalance_delayed(group)
        target = self._target(group, epoch, updated, configured, configs, changes, statuses, is_delayed)
        before, updated = updated, self._reconciled(group, updated, target, request.owned, changes)
        self.write(group, changes)
        if is_refresh:
            self.note_refresh(group, epoch, version)
        if bumps:
            self.rebalances.record()
            logger.info("group %s: epoch %d", group_id, epoch)
        if delay_ms:
            self.timers.set_if_absent(group, INITIAL_REBALANCE, "", delay_ms, lambda: self._first_target(group))
        self.watch_reconciliation(group, before, updated)
        self.await_heartbeat(group, member_id)
        if request.shuts_down:
            group.request_shutdown(member_id)
        result = self._result(group, request, member, updated, configured, statuses)
        if not is_new_group:
            return result
        group.endpoint_epoch = 0  # as in Kafka, where the group exists only once its records are written
        return result if is_converted else result._replace(endpoint_epoch=0)

    def _result(
        self,
        group: StreamsGroup,
        request: HeartbeatRequest,
        member: StreamsGroupMember,
        updated: StreamsGroupMember,
        configured: ConfiguredTopology,
        statuses: list[TopicProblem],
    ) -> HeartbeatResult:
        """Return the response after the changes of a heartbeat; increase the endpoint epoch if tasks have changed."""
        has_changed = request.member_epoch == JOIN_EPOCH or member.assigned != updated.assigned
        if has_changed and updated.endpoint is not None:
            group.endpoint_epoch += 1
        # A member that reports fewer tasks may have missed a response, as when a broker is killed. Kafka 4.3 does not
        # repeat the assignment: the other tasks would stay idle until the next rebalance.
        shows = has_changed or (request.owned is not None and not request.owned.covers(updated.assigned))
        endpoints = None
        if group.endpoint_epoch != request.endpoint_epoch:
            endpoints = endpoint_partitions(group, updated, self.image)
        if configured.problem is not None:
            statuses.append(configured.problem)
        if group.shutdown_member_id is not None:
            text = (
                f"Streams group member {group.shutdown_member_id} encountered a fatal error and requested a shutdown "
                "for the entire application."
            )
            statuses.append(TopicProblem(Status.SHUTDOWN_APPLICATION, text))
        return HeartbeatResult(
            updated.member_id,
            updated.member_epoch,
            self.settings.heartbeat_interval_ms(group.group_id),
            updated.assigned if shows else None,
            group.endpoint_epoch,
            endpoints,
            statuses,
            configured.missing,
        )

    def check_room(self, group: StreamsGroup, member_id: str) -> None:
        """Refuse any join to a full group, even a member's, as in Kafka. Raises: KafkaError GROUP_MAX_SIZE_REACHED."""
        super().check_room(group, "")

    # ------------------------------------------------------------ topology

    def _topology(self, group: StreamsGroup, request: HeartbeatRequest, changes: list[GroupRecord]) -> StreamsTopology:
        """Return the topology of the group; that of the first member is added to ``changes``.

        Raises: KafkaError INVALID_REQUEST; UNKNOWN_SERVER_ERROR if neither group nor member has one, as in Kafka.
        """
        present = group.topology
        if request.topology is None:
            if present is None:
                text = "The topology is null and the group topology is also null."
                raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, text)
            return present
        found = StreamsTopology.of(request.topology)
        if present is None:
            changes.append(records.topology_record(group.group_id, found))
            return found
        if present.epoch <= found.epoch and present != found:
            raise KafkaError(Errors.INVALID_REQUEST, "Topology updates are not supported yet.")
        return present

    def _configured(self, group: StreamsGroup, topology: StreamsTopology) -> tuple[int, ConfiguredTopology]:
        """Read the topics, and configure the topology again if they have changed; also return their hash."""
        value, configured = self.refreshed_hash(group, topology.required_topics), group.configured
        if configured is None or group.topology is None or value != group.metadata_hash:
            configured = group.configured = configure(topology, self.image)
            if configured.problem is not None:
                logger.info("group %s: %s", group.group_id, configured.problem.text)
        return value, configured

    # ------------------------------------------------------------ assignment

    def _is_rebalance_delayed(self, group: StreamsGroup) -> bool:
        return (INITIAL_REBALANCE, "") in group.timers

    def _target(
        self,
        group: StreamsGroup,
        epoch: int,
        updated: StreamsGroupMember,
        configured: ConfiguredTopology,
        configs: Mapping[str, str],
        changes: list[GroupRecord],
        statuses: list[TopicProblem],
        is_delayed: bool,
    ) -> TargetAssignment:
        """Return the target assignment of a member; make a new one if it is due."""
        if is_delayed:
            text = "Assignment delayed due to the configured initial rebalance delay."
            statuses.append(TopicProblem(Status.ASSIGNMENT_DELAYED, text))
            return TargetAssignment(group.target_epoch, NO_TARGET)
        if group.target_epoch < epoch:
            if self.may_assign(group):
                return self._assign(group, epoch, updated, configured, configs, changes)
            text = "Assignment delayed due to the configured assignment interval."
            statuses.append(TopicProblem(Status.ASSIGNMENT_DELAYED, text))
        return TargetAssignment(group.target_epoch, group.target(updated.member_id))

    def _assign(
        self,
        group: StreamsGroup,
        epoch: int,
        updated: StreamsGroupMember | None,
        configured: ConfiguredTopology,
        configs: Mapping[str, str],
        changes: list[GroupRecord],
    ) -> TargetAssignment:
        began_ms = self.clock.now_ms()
        target, rows = target_assignment.assign(group, epoch, updated, configured, configs, self.clock.wall_ms())
        self.note_assignment(group, began_ms)
        changes += rows
        logger.info("group %s: a target assignment for epoch %d was made", group.group_id, epoch)
        return target

    def _first_target(self, group: StreamsGroup) -> None:
        """Make the target assignment of a new group once its members have had time to join."""
        if group.is_empty or group.configured is None or group.epoch <= group.target_epoch:
            return
        changes: list[GroupRecord] = []
        try:
            if self.may_assign(group):
                self._assign(group, group.epoch, None, group.configured, group.assignment_configs, changes)
                self.write(group, changes)
        except KafkaError as error:  # the next heartbeat makes it
            logger.warning("group %s: cannot make the first target assignment: %s", group.group_id, error)

    def _reconciled(
        self,
        group: StreamsGroup,
        member: StreamsGroupMember,
        target: TargetAssignment,
        owned: TargetTasks | None,
        changes: list[GroupRecord],
    ) -> StreamsGroupMember:
        """Return a member reconciled with a target assignment as far as possible now; add its record to ``changes``."""
        if member.is_reconciled_to(target.epoch):
            return member
        following = reconcile(group, member, target.epoch, target.target, owned)
        if following != member:
            changes.append(RECORDS.current(group.group_id, following))
        return following

    # ------------------------------------------------------------ leave

    def leave(self, group: StreamsGroup, request: HeartbeatRequest) -> HeartbeatResult:
        """Remove a member; note its request, if any, to shut down the application. Raises: KafkaError."""
        if request.shuts_down:
            group.request_shutdown(request.member_id)
        self.fence(group, [group.member(request.member_id)], "it left")
        return HeartbeatResult(request.member_id, request.member_epoch)

    def fence(self, group: StreamsGroup, members: Collection[StreamsGroupMember], reason: str) -> None:
        """Remove members. Raises: KafkaError; the group is then unchanged."""
        changes = self.member_tombstones(group, members, reason)
        value = GroupEpoch(
            group.epoch + 1, group.metadata_hash, group.validated_topology_epoch, group.assignment_configs
        )
        changes.append(RECORDS.epoch(group.group_id, value))
        self.write_removal(group, members, changes)


def check_epoch(member: StreamsGroupMember, request: HeartbeatRequest) -> None:
    """Check the epoch of a heartbeat. Raises: KafkaError FENCED_MEMBER_EPOCH.

    The previous epoch is accepted from a member that reports only assigned tasks: the response with the current
    epoch may be lost.
    """
    epoch, present = request.member_epoch, member.member_epoch
    if epoch == present:
        return
    assigned = member.assigned
    if (
        epoch < present
        and epoch == member.previous_member_epoch
        and is_subset(request.active, assigned.active)
        and is_subset(request.standby, assigned.standby)
        and is_subset(request.warmup, assigned.warmup)
    ):
        return
    raise other_epoch("streams", epoch, present)


def _check_tasks(configured: ConfiguredTopology, tasks: Tasks) -> None:
    """Check that reported tasks exist. Raises: KafkaError INVALID_REQUEST."""
    for one, partitions in tasks.items():
        count = configured.task_counts.get(one)
        if count is None:
            raise KafkaError(Errors.INVALID_REQUEST, f"Subtopology {one} does not exist in the topology.")
        for partition in sorted(partitions):
            if not 0 <= partition < count:
                text = f"Task {partition} for subtopology {one} is invalid. Number of tasks for this subtopology: "
                raise KafkaError(Errors.INVALID_REQUEST, f"{text}{count}")


def _add_staleness(group: StreamsGroup, member: StreamsGroupMember, statuses: list[TopicProblem]) -> None:
    if group.topology is not None and member.topology_epoch < group.topology.epoch:
        text = (
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
            f"{group.topology.epoch}."
        )
        statuses.append(TopicProblem(Status.STALE_TOPOLOGY, text))


def _updated(member: StreamsGroupMember, request: HeartbeatRequest) -> StreamsGroupMember:
    """Return the member with the fields of a heartbeat."""
    timeout_ms, topology = request.rebalance_timeout_ms, request.topology
    return member._replace(
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=member.topology_epoch if topology is None else topology["Epoch"],
        client_id=request.client_id,
        client_host=request.client_host,
        process_id=member.process_id if request.process_id is None else request.process_id,
        client_tags=member.client_tags if request.client_tags is None else request.client_tags,
        endpoint=member.endpoint if request.endpoint is None else request.endpoint,
    )
