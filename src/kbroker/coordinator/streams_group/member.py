"""A member of a streams group: its process, its tasks, and its progress towards the target assignment.

Members are immutable: a change makes a new one, which replaces the old one when its record is written.
Source: ``StreamsGroupMember``, ``MemberState``; KIP-1071.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from kbroker.coordinator.streams_group.tasks import NOTHING_ASSIGNED, AssignedTasks


class MemberState(enum.IntEnum):
    """Progress of a member towards the target assignment, by Kafka's numbers."""

    STABLE = 1
    UNREVOKED_TASKS = 2  # the member must revoke tasks first
    UNRELEASED_TASKS = 3  # other members must revoke tasks first
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        """Return the state of a number; UNKNOWN for one of a later release."""
        return cls(number) if number in (1, 2, 3) else cls.UNKNOWN


class Endpoint(NamedTuple):
    """Address at which an application serves interactive queries."""

    host: str
    port: int


class StreamsGroupMember(NamedTuple):
    """A member. ``pending_revocation``: the tasks that it still has to revoke; ``client_tags``: sorted by key."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] = ()
    assigned: AssignedTasks = NOTHING_ASSIGNED
    pending_revocation: AssignedTasks = NOTHING_ASSIGNED

    @property
    def must_revoke(self) -> bool:
        return self.state is MemberState.UNREVOKED_TASKS

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Return whether the member has exactly the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def at(self, member_epoch: int) -> StreamsGroupMember:
        """Return the member at another epoch; the current epoch becomes the previous one."""
        return self._replace(member_epoch=member_epoch, previous_member_epoch=self.member_epoch)
