"""A share group: its members, its epochs, the target assignment, and its share partitions.

The state changes only by ``replay`` of a record that has been written or loaded.
Threads: a group's lock, which the caller holds, guards the whole group.
Source: ``ShareGroup``, ``GroupMetadataManager.replay``.
"""

from __future__ import annotations

import threading
from types import MappingProxyType

from kbroker.coordinator.group_offsets import GroupOffsets
from kbroker.coordinator.modern_group.group import ModernGroup, ModernGroupState, count_change
from kbroker.coordinator.modern_group.records import Partitions
from kbroker.coordinator.share_group import records
from kbroker.coordinator.share_group.member import ShareGroupMember
from kbroker.coordinator.share_group.records import StatePartitions


class ShareGroup(ModernGroup):
    """A share group. ``state_partitions``: its share partitions, None before the first one is initialized."""

    KIND = "share"
    FORMATS, RECORDS, MEMBER = records.FORMATS, records.RECORDS, ShareGroupMember
    UNASSIGNED = MappingProxyType({"member_epoch": -1, "previous_member_epoch": -1, "assigned": {}})
    HAS_OFFSETS = False
    members: dict[str, ShareGroupMember]
    targets: dict[str, Partitions]

    def __init__(self, group_id: str, lock: threading.RLock | None = None, offsets: GroupOffsets | None = None) -> None:
        super().__init__(group_id, lock, offsets)
        self.subscribers: dict[str, int] = {}  # number of members by topic name
        self.state_partitions: StatePartitions | None = None
        self.assigned_check: tuple[int, int, StatePartitions | None] | None = None  # see ``ShareGroupMembership``

    def _state_with_members(self) -> ModernGroupState:
        return ModernGroupState.STABLE

    @property
    def is_unused(self) -> bool:
        """True if the group can be dropped, because a rejected request created it."""
        return super().is_unused and self.state_partitions is None

    def subscribers_with(self, old: ShareGroupMember | None, new: ShareGroupMember | None) -> dict[str, int]:
        """Return the number of subscribers by topic after a change of a member."""
        found = dict(self.subscribers)
        _count(found, old, new)
        return found

    def _set_member(self, member_id: str, old: ShareGroupMember | None, new: ShareGroupMember | None) -> None:
        _count(self.subscribers, old, new)
        if new is None:
            del self.members[member_id]
        else:
            self.members[member_id] = new

    def _replay_other(self, kind: int, name: str, value: StatePartitions | None) -> None:
        if kind == records.STATE_PARTITIONS:
            self.state_partitions = value


def _count(counts: dict[str, int], old: ShareGroupMember | None, new: ShareGroupMember | None) -> None:
    before = frozenset() if old is None else old.topic_names
    after = frozenset() if new is None else new.topic_names
    count_change(counts, before - after, after - before)
