"""A member of a share group: its subscription and its partitions, which it may share with other members.

Members are immutable: a change makes a new one, which replaces the old one when its record is written.
Source: ``ShareGroupMember``, ``ShareGroupAssignmentBuilder``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from kbroker.coordinator.modern_group.records import Partitions

NO_TARGET: Partitions = MappingProxyType({})


class ShareGroupMember(NamedTuple):
    """A member."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    member_epoch: int = 0
    previous_member_epoch: int = 0
    assigned: Partitions = NO_TARGET

    @property
    def must_revoke(self) -> bool:
        """False: other members may have its partitions too."""
        return False
