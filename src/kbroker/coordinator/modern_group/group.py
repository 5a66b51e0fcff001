"""The part of a group's state that consumer, share and streams groups have in common.

Source: ``ModernGroup``.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kbroker._core.timer.purgatory import DelayedOperation
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_offsets import GroupOffsets
from kbroker.coordinator.modern_group.records import Formats, GroupRecord, GroupRecords

if TYPE_CHECKING:
    from kbroker.coordinator.classic_group import ClassicGroup
    from kbroker.coordinator.group_partition import GroupPartition

FIRST_EPOCH = 1


class ModernGroupState(enum.Enum):
    """States of a group, by the names in responses. Only streams groups are ever not ready."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"  # topics are missing, or have wrong numbers of partitions
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class TargetAssignment(NamedTuple):
    """The target assignment of one member."""

    epoch: int
    target: Any


def count_change(counts: dict[str, int], removed: Iterable[str], added: Iterable[str]) -> None:
    """Decrement the counts of removed names, and increment those of added ones; a count of 0 is removed."""
    for name in removed:
        left = counts.get(name, 0) - 1
        if left > 0:
            counts[name] = left
        else:
            counts.pop(name, None)
    for name in added:
        counts[name] = counts.get(name, 0) + 1


class ModernGroup:
    """A group of one of the newer protocols, and its offsets. Base class of the kinds of such groups.

    The state changes only by ``replay`` of a record that has been written or loaded.

    Args: ``lock``, ``offsets`` of the group that it replaces.
    Threads: ``lock``, which the caller holds, guards the whole group.
    """

    KIND: ClassVar[str]  # type in ListGroups, and protocol type
    FORMATS: ClassVar[Formats]  # formats of its records
    RECORDS: ClassVar[GroupRecords]
    MEMBER: ClassVar[type[Any]]
    UNASSIGNED: ClassVar[Mapping[str, Any]]  # fields of a member after the tombstone of its assignment
    HAS_OFFSETS: ClassVar[bool] = True  # it has committed offsets, and is deleted once they have expired
    shard: GroupPartition  # set when the group is put into a partition

    def __init__(self, group_id: str, lock: threading.RLock | None = None, offsets: GroupOffsets | None = None) -> None:
        self.group_id = group_id
        self.lock = threading.RLock() if lock is None else lock
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.is_dead = False
        self.predecessor: ClassicGroup | None = None  # the classic group that the first records replace
        self.is_stored = False  # the log has a record of the group itself
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.assignment_took_ms = 0
        self.assignment_pause_ms = 0  # pause after two slow target assignments
        self.members: dict[str, Any] = {}
        self.targets: dict[str, Any] = {}  # target assignments by member id
        self.refresh_deadline_ms = 0  # time at which the topics are read again, changed or not
        self.refresh_epoch = 0
        self.refresh_version = -1  # version of the topics when they were read
        self.timers: dict[tuple[str, str], DelayedOperation] = {}  # by kind and member id

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_unused(self) -> bool:
        """True if the group can be dropped, because a rejected request created it."""
        return not self.is_dead and not self.members and not self.is_stored and not self.offsets

    @property
    def protocol_type(self) -> str:
        return self.KIND

    @property
    def state(self) -> ModernGroupState:
        """The state, as in responses."""
        if self.is_dead:
            return ModernGroupState.DEAD
        return self._state_with_members() if self.members else ModernGroupState.EMPTY

    def _state_with_members(self) -> ModernGroupState:
        if self.epoch > self.target_epoch:
            return ModernGroupState.ASSIGNING
        if any(not member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ModernGroupState.RECONCILING
        return ModernGroupState.STABLE

    def member(self, member_id: str) -> Any:
        """Return a member. Raises: KafkaError UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            raise KafkaError(Errors.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return found

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to this topic; not implemented by groups without offsets."""
        raise NotImplementedError

    def tombstones(self) -> Sequence[GroupRecord]:
        """Return tombstones for all records of the group except its offsets."""
        return self.RECORDS.group_tombstones(self.group_id, self.members)

    def may_assign(self, interval_ms: int, now_ms: int) -> bool:
        """Return whether the target assignment is older than the interval, or the clock was set back to before it.

        True without an assignment or an interval.
        """
        if not self.target_timestamp_ms or not interval_ms:
            return True
        return not self.target_timestamp_ms <= now_ms < self.target_timestamp_ms + interval_ms

    def target_changes(self, epoch: int, targets: Mapping[str, Any], now_ms: int) -> list[GroupRecord]:
        """Return the records of a target assignment: those of the members for which it is new, then its own."""
        kinds, group_id, present = self.RECORDS, self.group_id, self.targets
        changes = [kinds.target(group_id, one, target) for one, target in targets.items() if present.get(one) != target]
        return [*changes, kinds.target_epoch(group_id, epoch, now_ms)]

    # ------------------------------------------------------------ changes

    def replay(self, record: GroupRecord) -> None:
        """Apply a record that was written or loaded."""
        (kind, _, name), value = record
        kinds = self.RECORDS
        if kind == kinds.metadata_kind:
            self.is_stored = value is not None
            if value is not None:
                self._replay_epoch(value)
        elif kind == kinds.target_epoch_kind:
            self.target_epoch, self.target_timestamp_ms = (-1, 0) if value is None else value
        elif kind == kinds.target_kind:
            if value is None:
                self.targets.pop(name, None)
            else:
                self.targets[name] = value
        elif kind == kinds.member_kind:
            self._replay_member(name, value)
        elif kind == kinds.current_kind:
            self._replay_assignment(name, value)
        else:
            self._replay_other(kind, name, value)

    def _replay_epoch(self, value: Any) -> None:
        self.epoch, self.metadata_hash = value

    def _replay_member(self, member_id: str, subscription: Any) -> None:
        old = self.members.get(member_id)
        if subscription is not None:
            present = self.RECORDS.assignment_of(self.MEMBER(member_id) if old is None else old)
            if self.RECORDS.assignment_of(subscription) != present:
                subscription = subscription._replace(**present._asdict())
            self._set_member(member_id, old, subscription)
        elif old is not None:
            self._set_member(member_id, old, None)

    def _replay_assignment(self, member_id: str, assignment: Any) -> None:
        old = self.members.get(member_id)
        if assignment is not None:
            present = self.MEMBER(member_id) if old is None else old
            self._set_member(member_id, old, present._replace(**assignment._asdict()))
        elif old is not None:
            self._set_member(member_id, old, old._replace(**self.UNASSIGNED))

    def _set_member(self, member_id: str, old: Any, new: Any) -> None:
        """Replace a member, and update the state derived from members; None: no member, before or after."""
        raise NotImplementedError

    def _replay_other(self, kind: int, name: str, value: Any) -> None:
        """Apply a record of a kind that only this kind of group has."""
        raise NotImplementedError
