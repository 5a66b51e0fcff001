"""The share groups of a coordinator: their requests, and their share partitions in the share coordinator (KIP-932).

A change of share partitions has three steps: a record of the group states the intention, the share coordinator carries
it out, and another record of the group states the result. The group's lock is not held during the second step, which
may await a disk.
Source: ``GroupMetadataManager``, ``GroupCoordinatorService``, ``GroupCoordinatorShard``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.coordinator.classic_membership import Membership
from kbroker.coordinator.group_map import GroupMap
from kbroker.coordinator.internal_topic import NOTHING_WRITTEN, Written
from kbroker.coordinator.modern_group.group import ModernGroupState
from kbroker.coordinator.modern_group.member import JOIN_EPOCH, LEAVE_EPOCH
from kbroker.coordinator.modern_group.membership import GroupParts
from kbroker.coordinator.modern_group.records import Partitions
from kbroker.coordinator.modern_groups import Commit, ModernGroups
from kbroker.coordinator.share.persister import UNINITIALIZED_OFFSET
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.coordinator.share_group import records
from kbroker.coordinator.share_group.group import ShareGroup
from kbroker.coordinator.share_group.member import ShareGroupMember
from kbroker.coordinator.share_group.membership import HeartbeatRequest, HeartbeatResult, ShareGroupMembership, combined
from kbroker.coordinator.share_group.records import StatePartitions, TopicPartitions
from kbroker.coordinator.share_group.settings import ShareGroupSettings

if TYPE_CHECKING:
    from kbroker.coordinator.share.share_coordinator import ShareCoordinator

    #: Returns the coordinator of a share partition, or raises KafkaError.
    CoordinatorOf = Callable[[SharePartitionKey], ShareCoordinator]

logger = get_logger(__name__)

UNKNOWN_TOPIC = "<UNKNOWN>"


class DescribedShareGroup(NamedTuple):
    """Description of a share group."""

    group_id: str
    state: ModernGroupState
    epoch: int
    target_epoch: int
    members: Sequence[ShareGroupMember]


class ShareGroups(ModernGroups[ShareGroup, ShareGroupSettings]):
    """Share groups. Threads: any; a group's lock guards the whole group."""

    membership: ShareGroupMembership

    def __init__(
        self,
        parts: GroupParts,
        settings: ShareGroupSettings,
        groups: GroupMap,
        classic: Membership,
        coordinator_of: CoordinatorOf,
    ) -> None:
        super().__init__(ShareGroup, parts, settings, groups, classic)
        self._coordinator_of = coordinator_of
        self.membership = ShareGroupMembership(parts, self.write, settings, parts.sensors.share_rebalances)

    # ------------------------------------------------------------ members

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResult:
        """Add, update or remove a member, and initialize new share partitions; a failure of that is only logged.

        Raises: KafkaError; the group is then unchanged.
        """
        group_id, epoch = request.group_id, request.member_epoch
        with self._groups.locked(group_id, epoch == JOIN_EPOCH, ShareGroup) as group:
            if epoch == LEAVE_EPOCH:
                found = self.found(group_id, group)
                self.membership.fence(found, [found.member(request.member_id)], "it left")
                return HeartbeatResult(request.member_id, LEAVE_EPOCH)
            if group is None:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
            result = self.membership.heartbeat(self.found(group_id, group), request)
        if result.uninitialized:
            offsets = {
                one: dict.fromkeys(indexes, UNINITIALIZED_OFFSET) for one, indexes in result.uninitialized.items()
            }
            self._initialize(group_id, result.epoch, offsets)
        return result

    def describe(self, group_id: str) -> DescribedShareGroup:
        """Describe a group. Raises: KafkaError GROUP_ID_NOT_FOUND."""
        with self._groups.locked(group_id) as group:
            found = self.found(group_id, group)
            return DescribedShareGroup(
                group_id, found.state, found.epoch, found.target_epoch, list(found.members.values())
            )

    # ------------------------------------------------------------ share partitions

    def initialized(self, group_id: str) -> Partitions:
        """Return the initialized share partitions, none for a group that is unknown or of another kind."""
        with self._groups.locked(group_id) as group:
            state = group.state_partitions if isinstance(group, ShareGroup) else None
            return {} if state is None else {one: topic.partitions for one, topic in state.initialized.items()}

    def alter_offsets(
        self, group_id: str, offsets: Mapping[str, Mapping[int, int]]
    ) -> dict[tuple[str, int], KafkaError | None]:
        """Set start offsets of an empty group, created if necessary; return each partition's error or None.

        Raises: KafkaError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND for a group of another kind.
        """
        results: dict[tuple[str, int], KafkaError | None] = {}
        begun: dict[UUID, TopicPartitions] = {}
        starts: dict[UUID, dict[int, int]] = {}
        names: dict[UUID, str] = {}
        for name, by_partition in offsets.items():
            topic = self.image.get(name)
            for index, start in by_partition.items():
                if topic is None or index >= topic.partition_count:
                    results[name, index] = KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    results[name, index] = None
                    starts.setdefault(topic.topic_id, {})[index] = start
            if topic is not None:
                names[topic.topic_id] = name
                known = frozenset(starts.get(topic.topic_id, ()))
                begun[topic.topic_id] = TopicPartitions(name, known, self._clock.wall_ms())
        with self._groups.locked(group_id, True, ShareGroup) as group:
            found = self.found(group_id, group)
            if not found.is_empty:
                raise KafkaError(Errors.NON_EMPTY_GROUP)
            if begun:
                state = self.membership.initializing(found, begun)
                self.write(found, [records.state_partitions_record(group_id, state)])
            epoch = found.epoch
        errors = self._initialize(group_id, epoch, starts) if starts else {}
        for (topic_id, index), error in errors.items():
            results[names[topic_id], index] = error
        return results

    def delete_offsets(self, group_id: str, names: Sequence[str]) -> dict[str, KafkaError | UUID]:
        """Delete the share partitions of topics of an empty group; return the error or the id of each topic.

        Raises: KafkaError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
        """
        results: dict[str, KafkaError | UUID] = {}
        begun: dict[UUID, tuple[str, Collection[int]]] = {}
        with self._empty(group_id) as group:
            state = group.state_partitions
            if state is None:
                return {}
            initialized, deleting = dict(state.initialized), dict(state.deleting)
            for name in names:
                topic = self.image.get(name)
                if topic is None:
                    results[name] = KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
                elif topic.topic_id in initialized:
                    begun[topic.topic_id] = name, initialized.pop(topic.topic_id).partitions
                    deleting[topic.topic_id] = name
                elif topic.topic_id in deleting:
                    begun[topic.topic_id] = name, range(topic.partition_count)
                else:
                    text = "There is no offset information to delete."
                    results[name] = KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, text)
            # a concurrent alteration must not note partitions whose state is deleted
            initializing = {topic_id: one for topic_id, one in state.initializing.items() if topic_id not in begun}
            changed = StatePartitions(initializing, initialized, deleting)
            written = self.write(group, [records.state_partitions_record(group_id, changed)])
        written.await_disk()  # without this record, the group would wait for the state forever
        errors = self._delete(group_id, {topic_id: indexes for topic_id, (_, indexes) in begun.items()})
        for topic_id, (name, _) in begun.items():
            results[name] = errors.get(topic_id) or topic_id
        self._note_deleted(group_id, begun.keys() - errors.keys())
        return results

    def delete_states(self, group_id: str) -> None:
        """Delete all share partitions of an empty group, before the group itself.

        Raises: KafkaError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND; or the first error of the share coordinator: the
        deletion is tried again when the group is deleted again.
        """
        with self._empty(group_id) as group:
            state = group.state_partitions
            if state is None:
                return
            known = combined(state.initialized, state.initializing)
            for topic_id, name in state.deleting.items():
                topic = self.image.get_by_id(topic_id)
                if topic is not None:
                    every = TopicPartitions(name, frozenset(range(topic.partition_count)))
                    known = combined(known, {topic_id: every})
            deleting = {topic_id: one.name for topic_id, one in known.items()}
            written = self.write(group, [records.state_partitions_record(group_id, StatePartitions(deleting=deleting))])
        written.await_disk()
        errors = self._delete(group_id, {topic_id: one.partitions for topic_id, one in known.items()})
        self._note_deleted(group_id, known.keys() - errors.keys())
        for error in errors.values():
            raise error

    def topics_deleted(self, group: ShareGroup) -> None:
        """Remove topics that no longer exist from the share partitions of a group. Raises: KafkaError."""
        state = group.state_partitions or StatePartitions()
        self._remove(group, {one for rows in state for one in rows if self.image.get_by_id(one) is None})

    def _initialize(
        self, group_id: str, epoch: int, offsets: Mapping[UUID, Mapping[int, int]]
    ) -> dict[tuple[UUID, int], KafkaError]:
        """Initialize share partitions, then write which are initialized; return the errors of the others.

        A later heartbeat tries these again.
        """
        errors: dict[tuple[UUID, int], KafkaError] = {}
        done: dict[UUID, list[int]] = {}
        for topic_id, by_partition in offsets.items():
            for index, start in by_partition.items():
                try:
                    key = SharePartitionKey(group_id, topic_id, index)
                    self._coordinator_of(key).initialize(key, epoch, start)
                    done.setdefault(topic_id, []).append(index)
                except KafkaError as error:
                    errors[topic_id, index] = error
        written = NOTHING_WRITTEN
        try:
            with self._groups.locked(group_id) as group:
                if isinstance(group, ShareGroup):
                    written = self._note_initialized(group, offsets, done)
            written.await_disk()
        except KafkaError as error:
            errors = {(topic_id, index): error for topic_id in offsets for index in offsets[topic_id]} | errors
        if errors:
            (topic_id, index), first = next(iter(errors.items()))
            logger.warning(
                "group %s: partition %d of topic %s is not initialized: %s", group_id, index, topic_id, first
            )
        return errors

    def _note_initialized(
        self, group: ShareGroup, begun: Mapping[UUID, Collection[int]], done: Mapping[UUID, Collection[int]]
    ) -> Written:
        state = group.state_partitions or StatePartitions()
        initializing: dict[UUID, TopicPartitions] = {}
        added: dict[UUID, TopicPartitions] = {}
        now_ms = self._clock.wall_ms()
        for topic_id, one in state.initializing.items():  # without those that were deleted meanwhile
            if left := one.partitions.difference(begun.get(topic_id, ())):
                initializing[topic_id] = one._replace(partitions=left)
            if new := one.partitions.intersection(done.get(topic_id, ())):
                added[topic_id] = TopicPartitions(self._name(topic_id), new, now_ms)
        changed = state._replace(initializing=initializing, initialized=combined(state.initialized, added))
        return self.write(group, [records.state_partitions_record(group.group_id, changed)])

    def _delete(self, group_id: str, partitions: Mapping[UUID, Collection[int]]) -> dict[UUID, KafkaError]:
        """Delete share partitions; return the first error of each topic."""
        errors: dict[UUID, KafkaError] = {}
        for topic_id, indexes in partitions.items():
            for index in indexes:
                try:
                    key = SharePartitionKey(group_id, topic_id, index)
                    self._coordinator_of(key).delete(key)
                except KafkaError as error:
                    if self.image.get_by_id(topic_id) is not None:  # states are deleted with their topics
                        errors.setdefault(topic_id, error)
        return errors

    def _note_deleted(self, group_id: str, topic_ids: Collection[UUID]) -> None:
        """Remove topics without states; if a member has joined meanwhile, its heartbeats initialize them again."""
        with self._groups.locked(group_id) as group:
            if isinstance(group, ShareGroup):
                self._remove(group, topic_ids)

    def _remove(self, group: ShareGroup, topic_ids: Collection[UUID]) -> None:
        """Remove topics from the share partitions of a group. Raises: KafkaError."""
        state = group.state_partitions or StatePartitions()
        if any(topic_id in rows for rows in state for topic_id in topic_ids):
            left = ({one: row for one, row in rows.items() if one not in topic_ids} for rows in state)
            self.write(group, [records.state_partitions_record(group.group_id, StatePartitions._make(left))])

    @contextmanager
    def _empty(self, group_id: str) -> Iterator[ShareGroup]:
        """Yield a group without members, under its lock. Raises: KafkaError GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        with self._groups.locked(group_id) as group:
            found = self.found(group_id, group)
            if not found.is_empty:
                raise KafkaError(Errors.NON_EMPTY_GROUP)
            yield found

    def _name(self, topic_id: UUID) -> str:
        topic = self.image.get_by_id(topic_id)
        return UNKNOWN_TOPIC if topic is None else topic.name

    # ------------------------------------------------------------ for the coordinator

    def resume(self, group: ShareGroup) -> None:
        """Start the sessions of a loaded group, and remove topics that were deleted meanwhile."""
        super().resume(group)
        try:
            self.topics_deleted(group)
        except KafkaError as error:
            logger.warning("group %s: cannot remove deleted topics: %s", group.group_id, error)

    def check_commit(self, group: ShareGroup, commit: Commit) -> None:
        """Refuse a commit of offsets. Raises: KafkaError GROUP_ID_NOT_FOUND."""
        raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")

    def check_fetch(self, group: ShareGroup, member_id: str | None, member_epoch: int) -> None:
        """Accept any fetch of offsets: the group has none."""
