"""A share group: its members, its epochs, the target assignment, and its share partitions.

The state changes only by ``replay`` of a record that has been written or loaded.
Threads: everything of a group is guarded by its lock, which the caller holds.
Source: ``ShareGroup``, ``GroupMetadataManager.replay``.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence

from kbroker.coordinator.group_offsets import GroupOffsets
from kbroker.coordinator.modern_group.group import ModernGroup
from kbroker.coordinator.modern_group.records import GroupEpoch, GroupRecord
from kbroker.coordinator.share_group import records
from kbroker.coordinator.share_group.member import ShareGroupMember, Target
from kbroker.coordinator.share_group.records import CurrentAssignment, StatePartitions


class ShareGroupState(enum.Enum):
    """States of a share group, by the names in responses."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroup(ModernGroup):
    """A share group. ``state_partitions``: its share partitions, None before the first one is initialized."""

    KIND = "share"
    FORMATS = records.FORMATS
    HAS_OFFSETS = False
    members: dict[str, ShareGroupMember]

    def __init__(self, group_id: str, lock: threading.RLock | None = None, offsets: GroupOffsets | None = None) -> None:
        super().__init__(group_id, lock, offsets)
        self.targets: dict[str, Target] = {}
        self.subscribers: dict[str, int] = {}  # number of members by topic name
        self.state_partitions: StatePartitions | None = None
        self.assigned_check: tuple[int, int, StatePartitions | None] | None = None  # see ``ShareGroupMembership``

    @property
    def state(self) -> ShareGroupState:
        """The state, as in responses."""
        if self.is_dead:
            return ShareGroupState.DEAD
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """True if the group can be dropped, because a rejected request created it."""
        return super().is_unused and self.state_partitions is None

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to this topic."""
        return topic in self.subscribers

    def subscribers_with(self, old: ShareGroupMember | None, new: ShareGroupMember | None) -> dict[str, int]:
        """Return the number of subscribers by topic after a change of a member."""
        found = dict(self.subscribers)
        _count(found, old, new)
        return found

    def replay(self, record: GroupRecord) -> None:
        """Apply a record that was written or loaded."""
        (kind, _, name), value = record
        if kind == records.METADATA:
            self.is_stored = value is not None
            if isinstance(value, GroupEpoch):
                self.epoch, self.metadata_hash = value
        elif kind == records.TARGET_METADATA:
            self.replay_target_epoch(value)
        elif kind == records.TARGET_MEMBER:
            if value is None:
                self.targets.pop(name, None)
            else:
                self.targets[name] = value
        elif kind == records.MEMBER:
            self._replay_member(name, value)
        elif kind == records.CURRENT_ASSIGNMENT:
            self._replay_assignment(name, value)
        elif kind == records.STATE_PARTITIONS:
            self.state_partitions = value

    def tombstones(self) -> Sequence[GroupRecord]:
        """Return tombstones for all records of the group."""
        return records.group_tombstones(self.group_id, self.members)

    def _replay_member(self, member_id: str, new: ShareGroupMember | None) -> None:
        old = self.members.get(member_id)
        _count(self.subscribers, old, new)
        if new is None:
            self.members.pop(member_id, None)
        else:
            has = ShareGroupMember(member_id) if old is None else old
            self.members[member_id] = new._replace(
                member_epoch=has.member_epoch,
                previous_member_epoch=has.previous_member_epoch,
                assigned=has.assigned,
            )

    def _replay_assignment(self, member_id: str, value: CurrentAssignment | None) -> None:
        old = self.members.get(member_id)
        if value is None:
            if old is not None:
                self.members[member_id] = old._replace(member_epoch=-1, previous_member_epoch=-1, assigned={})
            return
        epoch, previous, assigned = value
        member = ShareGroupMember(member_id) if old is None else old
        self.members[member_id] = member._replace(member_epoch=epoch, previous_member_epoch=previous, assigned=assigned)


def _count(counts: dict[str, int], old: ShareGroupMember | None, new: ShareGroupMember | None) -> None:
    before = frozenset() if old is None else old.topic_names
    after = frozenset() if new is None else new.topic_names
    if before == after:
        return
    for name in before - after:
        if counts[name] == 1:
            del counts[name]
        else:
            counts[name] -= 1
    for name in after - before:
        counts[name] = counts.get(name, 0) + 1
