"""Groups of one of the newer protocols: the operations of the coordinator that their kinds have in common.

A group that changes its kind is replaced by a new group with its lock and its offsets, once the records of the new
group are written: a request that fails changes nothing.
Source: ``GroupMetadataManager``; ``validateOffsetCommit`` and ``validateOffsetFetch`` of ``ConsumerGroup`` and
``StreamsGroup``; KIP-848, KIP-1071, KIP-1251.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator import group_records
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.classic_membership import Membership
from kbroker.coordinator.group_map import GroupMap
from kbroker.coordinator.group_shard import Group
from kbroker.coordinator.internal_topic import NOTHING_WRITTEN, KeyValue, Written
from kbroker.coordinator.modern_group.group import ModernGroup
from kbroker.coordinator.modern_group.membership import GroupParts, ModernMembership
from kbroker.coordinator.modern_group.records import Formats, GroupRecord, encode
from kbroker.coordinator.modern_group.settings import ModernGroupSettings

logger = get_logger(__name__)

FIRST_WITH_MEMBER_EPOCH = 9  # version of OffsetCommit
NO_EPOCH = -1  # epoch of a client outside the group


class Commit(NamedTuple):
    """The facts of a commit of offsets that a group checks. ``member_epoch``: the generation in a classic group."""

    member_id: str
    instance_id: str | None
    member_epoch: int
    places: Iterable[TopicPartition]
    api_version: int
    is_transactional: bool


class Assigned(NamedTuple):
    """Assigned partition or task through which a member reads a partition, and the epoch at which the member got it.

    Without an epoch, ``name`` is the reason why the member may not commit the partition's offset.
    """

    name: str
    epoch: int | None = None


G = TypeVar("G", bound=ModernGroup)
S = TypeVar("S", bound=ModernGroupSettings)


class ModernGroups(Generic[G, S]):
    """Groups of one kind, in a map of all groups. Base class; a subclass sets ``membership``.

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

    def write(self, group: G, changes: Sequence[GroupRecord]) -> Written:
        """Append the records to __consumer_offsets; the group replays them. Raises: KafkaError and changes nothing.

        Returns: the write, which may not be on disk yet: most changes need no wait, as members repeat their heartbeats.
        """
        old = group.predecessor
        rows: list[KeyValue] = []
        if old is not None and old.is_stored:
            rows.append((group_records.group_key(group.group_id), None))
        rows += encoded(changes, group.FORMATS)
        written = group.shard.append(rows) if rows else NOTHING_WRITTEN
        for record in changes:
            group.replay(record)
        if old is not None:
            group.predecessor = None
            self._groups.replace(old, group)
            self._classic.dismiss(old, Errors.REBALANCE_IN_PROGRESS)
            logger.info("group %s: converted to a %s group", group.group_id, group.KIND)
        return written

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
        """End a group, and replace it by a classic group."""
        self.membership.dismiss(group)
        self._groups.replace(group, classic)

    def tombstones(self, group: G) -> list[KeyValue]:
        """Return tombstones for all records of a group except its offsets."""
        return encoded(group.tombstones(), group.FORMATS)

    def resume(self, group: G) -> None:
        """Start the time-outs of a loaded group."""
        self.membership.resume(group)

    # ------------------------------------------------------------ offsets

    def check_commit(self, group: G, commit: Commit) -> None:
        """Refuse a commit from a client that is not the member to which the partitions are assigned.

        An older epoch than the member's is accepted for partitions that it had then and still has or is revoking.
        Accepted without a member: a negative epoch in an empty group, and a transaction that names no member.

        Raises: KafkaError UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION; the code of ``stale``, in a transaction
        ILLEGAL_GENERATION.
        """
        epoch = commit.member_epoch
        if epoch < 0 and not group.members:
            return
        if commit.is_transactional and epoch == NO_EPOCH and not commit.member_id and commit.instance_id is None:
            return
        member = group.member(commit.member_id)
        code = self.stale(member)
        if commit.is_transactional:
            code = Errors.ILLEGAL_GENERATION
        elif code is Errors.STALE_MEMBER_EPOCH and commit.api_version < FIRST_WITH_MEMBER_EPOCH:
            text = f"OffsetCommit version 9 or above must be used by members using the {group.KIND} group protocol"
            raise KafkaError(Errors.UNSUPPORTED_VERSION, text)
        if epoch == member.member_epoch:
            return
        if epoch > member.member_epoch:
            text = f"Received member epoch {epoch} is newer than current member epoch {member.member_epoch}."
            raise KafkaError(code, text)
        for topic, partition in commit.places:
            name, assigned_at = self.assigned(group, member, topic, partition)
            if assigned_at is None:
                raise KafkaError(code, name)
            if epoch < assigned_at:
                text = f"Received member epoch {epoch} is older than assignment epoch {assigned_at} for {name}."
                raise KafkaError(code, text)

    def check_fetch(self, group: G, member_id: str | None, member_epoch: int) -> None:
        """Check a fetch of offsets; one without a member id and with a negative epoch is always accepted.

        Raises: KafkaError UNKNOWN_MEMBER_ID, or the code of ``stale``.
        """
        if member_id is None and member_epoch < 0:
            return
        member = group.member(member_id or "")
        if member_epoch != member.member_epoch:
            text = f"The received member epoch {member_epoch} does not match the expected member epoch "
            raise KafkaError(self.stale(member), f"{text}{member.member_epoch}.")

    def stale(self, member: Any) -> Errors:
        """Return the code for an epoch other than a member's: ILLEGAL_GENERATION if it uses the classic protocol."""
        return Errors.STALE_MEMBER_EPOCH

    def assigned(self, group: G, member: Any, topic: str, partition: int) -> Assigned:
        """Return the assignment of a partition to a member; not implemented by groups without offsets."""
        raise NotImplementedError


def encoded(changes: Sequence[GroupRecord], formats: Formats) -> list[KeyValue]:
    """Return keys and values of records. Raises: KafkaError for values that the formats cannot hold."""
    try:
        return [encode(record, formats) for record in changes]
    except ProtocolError as error:
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)) from error
