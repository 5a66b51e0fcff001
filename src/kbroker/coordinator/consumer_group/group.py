"""A consumer group: its members, its epochs, the target assignment, and the state derived from them.

The state changes only by ``replay`` of a record that has been written or loaded.
Threads: ``ConsumerGroup.lock``, which the caller holds, guards the whole group.
Source: ``ConsumerGroup``, ``ModernGroup``, ``GroupMetadataManager.replay``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from kbroker.common.java.java_hash import timeline_map_order
from kbroker.common.loggers import get_logger
from kbroker.coordinator.consumer_group import records
from kbroker.coordinator.consumer_group.member import NO_TARGET, ConsumerGroupMember, Owned, Target
from kbroker.coordinator.consumer_group.records import ResolvedRegex
from kbroker.coordinator.group_offsets import GroupOffsets
from kbroker.coordinator.modern_group.group import ModernGroup, count_change
from kbroker.coordinator.modern_group.records import GroupRecord

logger = get_logger(__name__)

CONSUMER = "consumer"
NOT_OWNED = -1


class Subscribers(NamedTuple):
    """Number of members that subscribe to each topic by its name, and of regular expressions that match it."""

    by_name: dict[str, int]
    by_regex: dict[str, int]

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all members."""
        return frozenset(self.by_name).union(self.by_regex)

    def copy(self) -> Subscribers:
        """Return the same numbers, to be changed."""
        return Subscribers(dict(self.by_name), dict(self.by_regex))

    def change_member(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> None:
        """Update the numbers for a change of a member."""
        before = frozenset() if old is None else old.topic_names
        after = frozenset() if new is None else new.topic_names
        if before is not after:
            count_change(self.by_name, before - after, after - before)

    def change_regex(self, old: ResolvedRegex | None, new: ResolvedRegex | None) -> None:
        """Update the numbers for a new result of a regular expression."""
        count_change(self.by_regex, () if old is None else old.topics, () if new is None else new.topics)


class ConsumerGroup(ModernGroup):
    """A group of the consumer protocol."""

    KIND = CONSUMER
    FORMATS, RECORDS, MEMBER = records.FORMATS, records.RECORDS, ConsumerGroupMember
    UNASSIGNED = MappingProxyType(
        {"member_epoch": -1, "previous_member_epoch": -1, "assigned": {}, "pending_revocation": {}}
    )
    members: dict[str, ConsumerGroupMember]
    targets: dict[str, Target]

    def __init__(self, group_id: str, lock: threading.RLock | None = None, offsets: GroupOffsets | None = None) -> None:
        super().__init__(group_id, lock, offsets)
        self.static_members: dict[str, str] = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        self.subscribers = Subscribers({}, {})
        self.regex_subscribers: dict[str, int] = {}
        self.assignors: dict[str, int] = {}  # number of members that prefer each
        self.classic_protocols: dict[str, int] = {}  # number of members of the classic protocol that support each
        self.classic_member_count = 0
        self.has_partition_metadata = False  # a record from before 4.1 that is still to be deleted
        self.is_resolving = False  # regular expressions are being matched
        self._partition_epochs: dict[UUID, dict[int, int]] = {}
        self._latest_names: frozenset[str] = frozenset()  # most members have the same topics: they share the set

    # ------------------------------------------------------------ properties

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        """Return the member of an instance id, if there is one."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to this topic."""
        return topic in self.subscribers.by_name or topic in self.subscribers.by_regex

    def target(self, member: ConsumerGroupMember) -> Target:
        """Return the target assignment of a member; a returning static member has that of its instance id."""
        member_id: str | None = member.member_id
        if member.instance_id is not None:
            member_id = self.static_members.get(member.instance_id)
        return NO_TARGET if member_id is None else self.targets.get(member_id, NO_TARGET)

    def partition_epoch(self, topic_id: UUID, partition: int) -> int:
        """Return the epoch of the member that owns or revokes a partition; NOT_OWNED if there is none."""
        return self._partition_epochs.get(topic_id, {}).get(partition, NOT_OWNED)

    def is_waiting_for_partitions(self, member: ConsumerGroupMember) -> bool:
        """Return whether another member still owns a partition of its target assignment."""
        return any(
            partition not in member.assigned.get(topic_id, {})
            and self.partition_epoch(topic_id, partition) != NOT_OWNED
            for topic_id, partitions in self.targets.get(member.member_id, NO_TARGET).items()
            for partition in partitions
        )

    def supports_classic_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether the members of the classic protocol support one of these protocols."""
        if protocol_type != CONSUMER:
            return False
        if not self.members:
            return any(True for _ in names)
        return any(self.classic_protocols.get(name, 0) == self.classic_member_count for name in names)

    def are_others_classic(self, leaving: Iterable[ConsumerGroupMember]) -> bool:
        """Return whether all members but these use the classic protocol."""
        gone = list(leaving)
        classic = sum(member.uses_classic_protocol for member in gone)
        return self.classic_member_count - classic == len(self.members) - len(gone)

    # ------------------------------------------------------------ effects of a change

    def subscribers_with(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> Subscribers:
        """Return the subscribers by topic after a change of a member."""
        found = self.subscribers.copy()
        found.change_member(old, new)
        regex = _regex(old)
        if regex and regex != _regex(new) and self.regex_subscribers.get(regex) == 1:
            found.change_regex(self.resolved.get(regex), None)
        return found

    def topics_with(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> frozenset[str]:
        """Return the topics of all members after a change of a member."""
        if old.topic_names <= new.topic_names and old.topic_regex == new.topic_regex:  # no topic is lost
            return self.subscribers.topics.union(new.topic_names)
        return self.subscribers_with(old, new).topics

    def subscribers_without(self, members: Iterable[ConsumerGroupMember], regexes: Iterable[str]) -> Subscribers:
        """Return the subscribers by topic without these members and regular expressions."""
        found = self.subscribers.copy()
        for member in members:
            found.change_member(member, None)
        for regex in regexes:
            found.change_regex(self.resolved.get(regex), None)
        return found

    def is_homogeneous(self) -> bool:
        """Return whether all members subscribe to the same topics, by their names or by one regular expression."""
        return _is_homogeneous(self.regex_subscribers, self.subscribers, len(self.members))

    def is_homogeneous_with(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> bool:
        """Return ``is_homogeneous`` after a change of a member."""
        regexes = dict(self.regex_subscribers)
        _count(regexes, _regex(old), _regex(new))
        count = len(self.members)
        if new.member_id not in self.members and self.static_member(new.instance_id) is None:
            count += 1
        return _is_homogeneous(regexes, self.subscribers_with(old, new), count)

    def preferred_assignor(
        self, old: ConsumerGroupMember | None = None, new: ConsumerGroupMember | None = None
    ) -> str | None:
        """Return the assignor that most members select after a member's change; None if no member selects one.

        At a tie it is the first in Kafka's hash map. The names of Kafka's assignors are in one slot of that map, and
        the name that was added last is the first of the slot.
        """
        counts = dict(self.assignors)
        _count(counts, old and old.server_assignor, None)
        added = None if new is None or new.server_assignor in counts else new.server_assignor
        _count(counts, None, new and new.server_assignor)
        names = sorted(timeline_map_order(counts), key=lambda name: name != added)
        return max(names, key=counts.__getitem__, default=None)

    # ------------------------------------------------------------ changes

    def _replay_other(self, kind: int, name: str, value: ResolvedRegex | None) -> None:
        if kind == records.REGULAR_EXPRESSION:
            self.subscribers.change_regex(self.resolved.pop(name, None), value)
            if value is not None:
                self.resolved[name] = value
        elif kind == records.PARTITION_METADATA:
            self.has_partition_metadata = value is not None

    def tombstones(self) -> Sequence[GroupRecord]:
        """Return tombstones for all records of the group except its offsets."""
        return records.group_tombstones(self.group_id, self.members, self.resolved)

    def _set_member(self, member_id: str, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> None:
        if new is None:
            del self.members[member_id]
        else:
            if new.topic_names is not self._latest_names:
                if new.topic_names == self._latest_names:
                    new = new._replace(topic_names=self._latest_names)
                self._latest_names = new.topic_names
            self.members[member_id] = new
        self.subscribers.change_member(old, new)
        _count(self.regex_subscribers, _regex(old), _regex(new))
        _count(self.assignors, old and old.server_assignor, new and new.server_assignor)
        if old is not None:
            for owned in (old.assigned, old.pending_revocation):
                self._release(owned, old.member_epoch)
            if old.classic is not None:
                self.classic_member_count -= 1
                for name in old.classic.names:
                    _count(self.classic_protocols, name, None)
            if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
                del self.static_members[old.instance_id]
        if new is not None:
            for owned in (new.assigned, new.pending_revocation):
                self._own(owned, new.member_epoch)
            if new.classic is not None:
                self.classic_member_count += 1
                for name in new.classic.names:
                    _count(self.classic_protocols, None, name)
            if new.instance_id is not None:
                self.static_members[new.instance_id] = member_id

    def _release(self, owned: Owned, epoch: int) -> None:
        for topic_id, partitions in owned.items():
            epochs = self._partition_epochs.get(topic_id, {})
            for partition in partitions:
                if epochs.get(partition) == epoch:
                    del epochs[partition]
            if not epochs:
                self._partition_epochs.pop(topic_id, None)

    def _own(self, owned: Owned, epoch: int) -> None:
        for topic_id, partitions in owned.items():
            epochs = self._partition_epochs.setdefault(topic_id, {})
            for partition in partitions:
                present = epochs.get(partition)
                if present is None or present < epoch:
                    epochs[partition] = epoch
                else:
                    logger.error(
                        "group %s: %s-%d is owned at epoch %d by two members",
                        self.group_id,
                        topic_id,
                        partition,
                        present,
                    )


def _is_homogeneous(regex_subscribers: Mapping[str, int], subscribers: Subscribers, member_count: int) -> bool:
    by_name, by_regex = subscribers
    if not regex_subscribers:
        return by_regex.keys() <= by_name.keys() and all(count == member_count for count in by_name.values())
    if next(iter(regex_subscribers.values())) != member_count:
        return False
    return not by_name and all(count == 1 for count in by_regex.values())


def _regex(member: ConsumerGroupMember | None) -> str | None:
    return (member.topic_regex or None) if member is not None else None


def _count(counts: dict[str, int], old: str | None, new: str | None) -> None:
    if old != new:
        count_change(counts, () if old is None else (old,), () if new is None else (new,))
