"""Groups of one of the newer protocols: the operations of the coordinator that their kinds have in common.

A group that changes its kind has the lock and the offsets of the one that it replaces. It is built beside that one and
replaces it once the records are written: a request that fails changes nothing.
Source: ``GroupMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.coordinator import group_records
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.classic_membership import Membership
from kbroker.coordinator.group_map import GroupMap
from kbroker.coordinator.group_shard import Group
from kbroker.coordinator.internal_topic import KeyValue
from kbroker.coordinator.modern_group.group import ModernGroup
from kbroker.coordinator.modern_group.membership import GroupParts, ModernMembership
from kbroker.coordinator.modern_group.offset_commits import Commit
from kbroker.coordinator.modern_group.records import Formats, GroupRecord, encode
from kbroker.coordinator.modern_group.settings import ModernGroupSettings

logger = get_logger(__name__)


G = TypeVar("G", bound=ModernGroup)
S = TypeVar("S", bound=ModernGroupSettings)


class ModernGroups(Generic[G, S]):
    """Groups of one kind, in a map with those of the others. Base class; a subclass sets ``membership``.

    Args: ``classic``: the members of the classic groups that such groups become, or were.
    Threads: any; the caller holds the lock of the group that it passes.
    """

    membership: ModernMembership[G, S]

    def __init__(self, make: type[G], parts: GroupParts, settings: S, groups: GroupMap, classic: Membership) -> None:
        self._make = make
        self._clock = parts.clock
        self._groups = groups
        self._classic = classic
        self.image = parts.image
        self.settings = settings

    def found(self, group_id: str, group: Group | None) -> G:
        """Return the group if it is of this kind. Raises: KafkaError GROUP_ID_NOT_FOUND."""
        if group is None:
            raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, self._make):
            raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a {self._make.KIND} group.")
        return group

    def write(self, group: G, changes: Sequence[GroupRecord]) -> None:
        """Append the records to __consumer_offsets; the group replays them. Raises: KafkaError, nothing has changed."""
        old = group.predecessor
        rows: list[KeyValue] = []
        if old is not None and old.is_stored:
            rows.append((group_records.group_key(group.group_id), None))
        rows += encoded(changes, group.FORMATS)
        if rows:
            group.shard.append(rows)
        for record in changes:
            group.replay(record)
        if old is not None:
            group.predecessor = None
            self._groups.replace(old, group)
            self._classic.dismiss(old, Errors.REBALANCE_IN_PROGRESS)
            logger.info("group %s: converted to a %s group", group.group_id, group.KIND)

    def following(self, group: ClassicGroup) -> G:
        """Return a group that replaces a classic one when its first records are written."""
        following = self._make(group.group_id, group.lock, group.offsets)
        following.predecessor, following.shard = group, group.shard
        return following

    def to_classic(self, group: G) -> ClassicGroup:
        """Convert an empty group to a classic one. Raises: KafkaError; the group is then unchanged."""
        if group.is_stored:
            group.shard.append(self.tombstones(group))
        classic = ClassicGroup(group.group_id, lock=group.lock, offsets=group.offsets)
        self.replace(group, classic)
        return classic

    def replace(self, group: G, classic: ClassicGroup) -> None:
        """Put a classic group in the place of a group, which ends."""
        self.dismiss(group)
        self._groups.replace(group, classic)

    def tombstones(self, group: G) -> list[KeyValue]:
        """Return tombstones for all records of a group except its offsets."""
        return encoded(group.tombstones(), group.FORMATS)

    def resume(self, group: G) -> None:
        """Start the time-outs of a loaded group."""
        self.membership.resume(group)

    def dismiss(self, group: G) -> None:
        """End a group that is no longer served, or was deleted."""
        self.membership.dismiss(group)

    def remove_member(self, group: G, member_id: str) -> None:
        """Remove a member as if its session were over. Raises: KafkaError UNKNOWN_MEMBER_ID."""
        self.membership.fence(group, [group.member(member_id)], "it was removed by an operator")

    def check_commit(self, group: G, commit: Commit) -> None:
        """Refuse a commit from a client that may not commit these offsets. Raises: KafkaError."""
        raise NotImplementedError

    def check_fetch(self, group: G, member_id: str | None, member_epoch: int) -> None:
        """Check a fetch of offsets. Raises: KafkaError."""
        raise NotImplementedError


def encoded(changes: Sequence[GroupRecord], formats: Formats) -> list[KeyValue]:
    """Return keys and values of records. Raises: KafkaError for values that the formats cannot hold."""
    try:
        return [encode(record, formats) for record in changes]
    except ProtocolError as error:
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)) from error
