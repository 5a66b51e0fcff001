"""A classic consumer group: its members, its state and the state transitions, without clock, log or timer.

Threads: ``ClassicGroup.lock``, which the caller holds, guards the whole group; callbacks run under it.
Source: ``ClassicGroup``, ``ClassicGroupMember``.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from kbroker.common.errors import Errors, ProtocolError
from kbroker.common.java.java_hash import hash_map_order
from kbroker.coordinator.group_offsets import GroupOffsets
from kbroker.coordinator.group_records import group_key
from kbroker.protocol import codec

if TYPE_CHECKING:
    from kbroker.coordinator.group_partition import GroupPartition

CONSUMER = "consumer"
VALUE_VERSION = 3  # version of the value of a group's record


class GroupState(enum.Enum):
    """States of a group, by the names in responses."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_FROM: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}


class JoinedMember(NamedTuple):
    """A member, as sent to the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """Response to a join."""

    error: Errors
    member_id: str
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


class SyncResult(NamedTuple):
    """Response to a sync."""

    error: Errors
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


JoinCallback = Callable[[JoinResult], None]
SyncCallback = Callable[[SyncResult], None]
Protocols = Sequence[tuple[str, bytes]]


@dataclass(eq=False)
class Member:
    """One member. ``protocols``: name and metadata, the preferred first."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    on_joined: JoinCallback | None = None
    on_synced: SyncCallback | None = None
    is_new: bool = False
    heartbeat_satisfied: bool = False

    @property
    def is_awaiting_join(self) -> bool:
        return self.on_joined is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """True if the member counts as alive: a delayed request proves that, except a member's very first join."""
        if not self.is_new and (self.on_joined is not None or self.on_synced is not None):
            return True
        return self.heartbeat_satisfied

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if the member does not support the protocol."""
        return next((data for name, data in self.protocols if name == protocol_name), b"")


@dataclass(eq=False)
class ClassicGroup:
    """A group and its offsets."""

    KIND: ClassVar[str] = "classic"  # in ListGroups
    group_id: str
    state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = -1
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_joins: set[str] = field(default_factory=set)
    pending_syncs: set[str] = field(default_factory=set)
    subscribed_topics: frozenset[str] | None = None
    new_member_added: bool = False
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    is_stored: bool = False  # the log has a record of the group itself
    is_known: bool = False  # a client has used it: even if empty, it stays until the next expiry of offsets
    lock: threading.RLock = field(default_factory=threading.RLock)
    shard: GroupPartition = field(init=False, repr=False)  # set when the group is put into a partition
    _awaiting_join: int = 0
    _supporters: dict[str, int] = field(default_factory=dict)

    # ------------------------------------------------------------ state

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Change the state. Raises: RuntimeError for an invalid transition."""
        if self.state not in _FROM[state]:
            raise RuntimeError(f"group {self.group_id}: invalid transition from {self.state.value} to {state.value}")
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in _FROM[GroupState.PREPARING_REBALANCE]

    @property
    def is_consumer_group(self) -> bool:
        """True if the members are consumers, with their metadata format."""
        return self.protocol_type == CONSUMER

    @property
    def is_dead(self) -> bool:
        """True if the group was dropped or replaced."""
        return self.state is GroupState.DEAD

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """True if the group can be dropped, because a rejected request created it."""
        return (
            not self.is_known
            and not self.is_stored
            and self.state is GroupState.EMPTY
            and not self.members
            and not self.pending_joins
            and not self.offsets
        )

    @property
    def rebalance_timeout_ms(self) -> int:
        """The maximum rebalance timeout of the members, 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # ------------------------------------------------------------ members

    def add(self, member: Member, protocol_type: str, on_joined: JoinCallback) -> None:
        """Add a member whose join is delayed."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._put(member)
        self.pending_joins.discard(member.member_id)
        self.await_join(member, on_joined)

    def _put(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self._count(member.protocols, 1)

    def restore(self, body: codec.Body) -> None:
        """Restore the state from the fields of the group's record."""
        self.is_stored = True
        self.generation_id = body["Generation"]
        self.state_timestamp_ms = body.get("CurrentStateTimestamp", -1)
        self.protocol_type = body["ProtocolType"] or None
        self.protocol_name = body["Protocol"]
        self.leader_id = body["Leader"]
        for row in body["Members"]:
            member = Member(
                row["MemberId"],
                row.get("GroupInstanceId"),
                row["ClientId"],
                row["ClientHost"],
                row.get("RebalanceTimeout") or row["SessionTimeout"],
                row["SessionTimeout"],
                [(body["Protocol"] or "", bytes(row["Subscription"]))],
                bytes(row["Assignment"]),
            )
            self._put(member)
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY
        self.subscribed_topics = self._subscribed_topics()

    def adopt(self, members: Iterable[Member], generation_id: int, protocol_type: str, now_ms: int) -> None:
        """Make this group the stable group of the given members."""
        self.generation_id = generation_id
        self.protocol_type = protocol_type
        for member in members:
            self._put(member)
        self.leader_id = next(iter(self.members), None)
        self.protocol_name = self.select_protocol()
        self.state = GroupState.STABLE
        self.state_timestamp_ms = now_ms
        self.subscribed_topics = self._subscribed_topics()

    def record(self, assignments: Mapping[str, bytes] | None = None) -> tuple[bytes, bytes]:
        """Return the group's record. ``assignments``: those about to be sent; None: the current ones."""
        rows = [
            {
                "MemberId": one.member_id,
                "GroupInstanceId": one.group_instance_id,
                "ClientId": one.client_id,
                "ClientHost": one.client_host,
                "RebalanceTimeout": one.rebalance_timeout_ms,
                "SessionTimeout": one.session_timeout_ms,
                "Subscription": one.metadata(self.protocol_name),
                "Assignment": one.assignment if assignments is None else assignments.get(one.member_id, b""),
            }
            for one in self.members.values()
        ]
        body = {
            "ProtocolType": self.protocol_type or "",
            "Generation": self.generation_id,
            "Protocol": self.protocol_name,
            "Leader": self.leader_id,
            "CurrentStateTimestamp": self.state_timestamp_ms,
            "Members": rows,
        }
        return group_key(self.group_id), codec.encode_versioned("GroupMetadataValue", VALUE_VERSION, body)

    def remove(self, member_id: str) -> None:
        """Remove a member; its delayed requests get UNKNOWN_MEMBER_ID."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
            self.respond_to_join(member, JoinResult(Errors.UNKNOWN_MEMBER_ID, ""))
            self.respond_to_sync(member, SyncResult(Errors.UNKNOWN_MEMBER_ID))
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def replace_static(self, group_instance_id: str, old_id: str, new_id: str) -> Member:
        """Give a static member its new id and return it; delayed requests under the old id get FENCED_INSTANCE_ID."""
        member = self.members.pop(old_id)
        self.respond_to_join(member, JoinResult(Errors.FENCED_INSTANCE_ID, old_id))
        self.respond_to_sync(member, SyncResult(Errors.FENCED_INSTANCE_ID))
        self.pending_syncs.discard(old_id)
        member.member_id = new_id
        member.is_new = False
        self.members[new_id] = member
        if self.leader_id == old_id:
            self.leader_id = new_id
        self.static_members[group_instance_id] = new_id
        return member

    def update(self, member: Member, protocols: Protocols, rebalance_ms: int, session_ms: int) -> None:
        """Take over the protocols and timeouts of a member that rejoins."""
        self._count(member.protocols, -1)
        self._count(protocols, 1)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_ms
        member.session_timeout_ms = session_ms

    def _count(self, protocols: Protocols, step: int) -> None:
        for name in {name for name, _ in protocols}:
            count = self._supporters.get(name, 0) + step
            if count:
                self._supporters[name] = count
            else:
                self._supporters.pop(name, None)

    def member_error(self, member_id: str, group_instance_id: str | None) -> Errors:
        """Return NONE if this is a member under its current id, else the error."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return Errors.UNKNOWN_MEMBER_ID
            if current != member_id:
                return Errors.FENCED_INSTANCE_ID
        return Errors.NONE if member_id in self.members else Errors.UNKNOWN_MEMBER_ID

    def accepts(self, member_id: str, max_size: int) -> bool:
        """Return whether another member fits (``group.max.size``); during a rebalance only delayed joins count."""
        member = self.members.get(member_id)
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.is_awaiting_join) or self._awaiting_join < max_size
        return member is not None or len(self.members) < max_size

    # ------------------------------------------------------------ delayed joins and syncs

    def await_join(self, member: Member, on_joined: JoinCallback) -> None:
        """Delay a join; an earlier delayed join of the member gets REBALANCE_IN_PROGRESS."""
        self.respond_to_join(member, JoinResult(Errors.REBALANCE_IN_PROGRESS, member.member_id))
        member.on_joined = on_joined
        self._awaiting_join += 1

    def respond_to_join(self, member: Member, result: JoinResult) -> bool:
        """Send the delayed response to a member's join; return False if none is delayed."""
        callback, member.on_joined = member.on_joined, None
        if callback is None:
            return False
        self._awaiting_join -= 1
        callback(result)
        return True

    def await_sync(self, member: Member, on_synced: SyncCallback) -> None:
        """Delay a sync; an earlier delayed sync of the member gets REBALANCE_IN_PROGRESS."""
        self.respond_to_sync(member, SyncResult(Errors.REBALANCE_IN_PROGRESS))
        member.on_synced = on_synced

    def respond_to_sync(self, member: Member, result: SyncResult) -> bool:
        """Send the delayed response to a member's sync; return False if none is delayed."""
        callback, member.on_synced = member.on_synced, None
        if callback is None:
            return False
        callback(result)
        return True

    @property
    def have_all_joined(self) -> bool:
        return len(self.members) == self._awaiting_join and not self.pending_joins

    @property
    def have_all_synced(self) -> bool:
        return not self.pending_syncs

    def not_yet_rejoined(self) -> list[Member]:
        return [member for member in self.members.values() if not member.is_awaiting_join]

    def current_members(self) -> list[JoinedMember]:
        """Return all members, as sent to the leader."""
        name = self.protocol_name
        return [JoinedMember(m.member_id, m.group_instance_id, m.metadata(name)) for m in self.members.values()]

    def join_result(
        self, member_id: str, *, with_members: bool | None = None, skip_assignment: bool = False
    ) -> JoinResult:
        """Return the response to the join of a member; the leader's response has the members."""
        if with_members is None:
            with_members = self.leader_id == member_id
        return JoinResult(
            Errors.NONE,
            member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or "",
            skip_assignment,
            self.current_members() if with_members else (),
        )

    # ------------------------------------------------------------ generations

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else choose another; return False if no member has joined."""
        leader = self.members.get(self.leader_id or "")
        if leader is None:
            return False
        if leader.is_awaiting_join:
            return True
        joined = next((one for one in self.members.values() if one.is_awaiting_join), None)
        if joined is None:
            return False
        self.leader_id = joined.member_id
        return True

    def next_generation(self, now_ms: int) -> None:
        """Begin a generation of the current members."""
        self.generation_id = 0 if self.generation_id == 2**31 - 1 else self.generation_id + 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self._subscribed_topics()
        self.pending_syncs.clear()
        self.transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether all current members support one of these protocols.

        A group that prepares a rebalance without members, and waits for new ones, accepts every protocol of its type.
        """
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        total = len(self.members)
        return self.protocol_type == protocol_type and any(self._supporters.get(name, 0) == total for name in names)

    def select_protocol(self) -> str:
        """Return the protocol most members prefer among those all support; at a tie the first in Kafka's hash map.

        Names in one slot of that map stay in the order of their first votes; in Kafka it depends on random member ids.
        """
        total = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                if self._supporters.get(name) == total:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(hash_map_order(votes), key=votes.__getitem__)

    def common_protocol(self) -> str:
        """Return the protocol of this generation if all members support it, else that of the next generation.

        A group without a generation has no protocol yet, and a member that joins a rebalance may not support the
        current one. The group must have members.
        """
        name = self.protocol_name
        return name if name is not None and self._supporters.get(name) == len(self.members) else self.select_protocol()

    def _subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics of the members' subscriptions; None if they cannot be decoded.

        As in Kafka, only the fields of version 0 are decoded, with which every version begins: some clients name a
        version whose later fields they do not send.
        """
        if not self.members or self.protocol_type != CONSUMER or self.protocol_name is None:
            return frozenset()
        topics: set[str] = set()
        try:
            for member in self.members.values():
                data = member.metadata(self.protocol_name)
                topics.update(codec.decode_versioned("ConsumerProtocolSubscription", data, read_as=0)[1]["Topics"])
        except ProtocolError:
            return None
        return frozenset(topics)

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to this topic; True if a consumer's subscription cannot be decoded."""
        if self.subscribed_topics is None:
            return self.is_consumer_group
        return topic in self.subscribed_topics
