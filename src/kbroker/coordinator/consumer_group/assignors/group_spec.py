"""Input and output of an assignor.

Source: ``GroupSpecImpl``, ``MemberSubscriptionAndAssignmentImpl``, ``SubscribedTopicDescriberImpl``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from kbroker.common.java.java_hash import hash_map_order
from kbroker.coordinator.consumer_group.member import Target


class MemberSpec(NamedTuple):
    """A member. ``topics``: ids of the existing topics that it subscribes to."""

    instance_id: str | None
    topics: frozenset[UUID]
    target: Target  # the member's current target assignment


class GroupSpec(NamedTuple):
    """A group. ``owned``: partitions in the current targets, by topic; ``partition_counts`` of every topic."""

    members: Mapping[str, MemberSpec]
    is_homogeneous: bool
    owned: Mapping[UUID, frozenset[int] | set[int]]
    partition_counts: Mapping[UUID, int]

    def member_ids(self) -> list[str]:
        """Return the member ids in the order of Kafka's assignors."""
        return hash_map_order(self.members)


Assignor = Callable[[GroupSpec], Mapping[str, Target]]
