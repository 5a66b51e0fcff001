"""A member of a share group: its subscription and its partitions, which it may share with other members.

Members are immutable: a change makes a new one, which replaces the old one when its record is written.
Source: ``ShareGroupMember``, ``ShareGroupAssignmentBuilder``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

Target = Mapping[UUID, frozenset[int]]  # by topic id: partitions
NO_TARGET: Target = MappingProxyType({})

JOIN_EPOCH = 0  # in a heartbeat: the member joins
LEAVE_EPOCH = -1  # in a heartbeat: the member leaves


class ShareGroupMember(NamedTuple):
    """A member."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    member_epoch: int = 0
    previous_member_epoch: int = 0
    assigned: Target = NO_TARGET

    @property
    def must_revoke(self) -> bool:
        """False: other members may have its partitions too."""
        return False
