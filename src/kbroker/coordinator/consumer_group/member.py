"""A member of a consumer group: its subscription, its partitions, and its progress towards the target assignment.

Members are immutable: a change makes a new one, which replaces the old one when its record is written.
Source: ``ConsumerGroupMember``, ``MemberState``; KIP-848, KIP-1251.
"""

from __future__ import annotations

import binascii
import enum
import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

Owned = Mapping[UUID, Mapping[int, int]]  # by topic id and partition: the epoch at which it was assigned
NOTHING_OWNED: Owned = MappingProxyType({})

Target = Mapping[UUID, frozenset[int]]  # by topic id: partitions
NO_TARGET: Target = MappingProxyType({})


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class MemberState(enum.IntEnum):
    """Progress of a member towards the target assignment, by Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # the member must revoke partitions first
    UNRELEASED_PARTITIONS = 2  # other members must revoke partitions first
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        """Return the state of a number; UNKNOWN for one of a later release."""
        return cls(number) if number in (0, 1, 2) else cls.UNKNOWN


class ClassicProtocol(NamedTuple):
    """A protocol that a member of the classic protocol supports, with its subscription."""

    name: str
    metadata: bytes


class ClassicMetadata(NamedTuple):
    """State of a member that uses the classic protocol. ``protocols``: the preferred first."""

    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]

    @property
    def names(self) -> frozenset[str]:
        """The supported protocols, each once."""
        return frozenset(one.name for one in self.protocols)


class ConsumerGroupMember(NamedTuple):
    """A member. ``classic``: None for a member of the consumer protocol; ``assigned``: its partitions;
    ``pending_revocation``: the partitions that it still has to revoke.
    """

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = ""
    server_assignor: str | None = None
    assigned: Owned = NOTHING_OWNED
    pending_revocation: Owned = NOTHING_OWNED
    classic: ClassicMetadata | None = None

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    @property
    def must_revoke(self) -> bool:
        """True if the rebalance time-out applies; members of the classic protocol have other time-outs."""
        return self.state is MemberState.UNREVOKED_PARTITIONS and not self.uses_classic_protocol

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Return whether the member has exactly the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """Return the epoch at which the member got a partition that it owns or revokes; None for any other."""
        for owned in (self.assigned, self.pending_revocation):
            epoch = owned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    def at(
        self,
        member_epoch: int,
        state: MemberState,
        assigned: Owned,
        pending_revocation: Owned,
        previous_epoch: int | None = None,
    ) -> ConsumerGroupMember:
        """Return the member at another epoch with other partitions; ``previous_epoch``: by default the current one."""
        return self._replace(
            member_epoch=member_epoch,
            previous_member_epoch=self.member_epoch if previous_epoch is None else previous_epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending_revocation,
        )


def new_member_id() -> str:
    """Return a random member id, in the form of Kafka's ids: 22 characters, the first of which is not a dash."""
    while True:
        text = binascii.b2a_base64(uuid.uuid4().bytes, newline=False).translate(_URL_SAFE).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def owned_at(epoch: int, partitions: Mapping[UUID, Iterable[int]]) -> Owned:
    """Return partitions with the same assignment epoch for all of them."""
    return {topic_id: dict.fromkeys(indexes, epoch) for topic_id, indexes in partitions.items()}
