"""Random choices of one history that requests of several kinds share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from tests.support.histories.steps import ABSENT, TOPICS, epoch_of, named

One = TypeVar("One")
RACKS = (*[None] * 22, *["r"] * 6, "")  # of a member; the empty one is refused
NAMES = (*TOPICS, *TOPICS, ABSENT, "", "b a d")


class Draw:
    """Choices from a seed, and the members that earlier steps have named.

    Args:
        has_topics: members of consumer groups may have several topics.
        has_own_topic: members of share groups fetch from a topic of the history.
    """

    def __init__(self, seed: int, *, has_topics: bool = False, has_own_topic: bool = False) -> None:
        self.has_topics = has_topics
        self.has_own_topic = has_own_topic
        self.random = random.Random(seed)
        self.joined: set[tuple[Any, str]] = set()  # members of the newer protocols that have sent a join
        self._classic: dict[Any, list[str]] = {}
        self._members: dict[tuple[Any, str], list[str]] = {}
        self._count = 0

    def one(self, values: Sequence[One]) -> One:
        return self.random.choice(values)

    def happens(self, probability: float) -> bool:
        return self.random.random() < probability

    def rows(self, *counts: int) -> range:
        """Return a range of one of the lengths."""
        return range(self.one(counts))

    def group(self) -> Any:
        """Return the id of a group: mostly one of two, rarely the empty name or a third group."""
        return named(self.one("01")) if self.happens(0.97) else self.one(["", named("other")])

    def topic(self) -> str:
        return self.one(NAMES)

    def instance(self, probability: float = 0.33) -> str | None:
        return self.one(["i1", "i2"]) if self.happens(probability) else None

    # ---- members of classic groups

    def new_label(self, group: Any) -> str:
        """Return a label for a member that joins."""
        self._count += 1
        label = f"M{self._count}"
        self._classic.setdefault(group, []).append(label)
        return label

    def labels(self, group: Any) -> list[str]:
        return self._classic.get(group, [])

    def member(self, group: Any) -> str:
        """Return a label of the group or, rarely, of no member."""
        known = self.labels(group)
        return self.one(known) if known and self.happens(0.9) else "stranger"

    def generation(self, group: Any, member: str | None = None) -> Any:
        """Return the generation or epoch, rarely a wrong one."""
        if self.happens(0.8):
            return epoch_of(group, member)
        return self.one([epoch_of(group, member, -1), epoch_of(group, member, 1), -1, 0, -2])

    # ---- members of the newer protocols

    def newer_member(self, group: Any, kind: str) -> str:
        """Return the id of a member. Args: ``kind``: beginning of the ids of one protocol."""
        names = self._members.setdefault((group, kind), [])
        if not names or self.happens(0.2):
            names.append(f"{kind}-{len(names)}")
        return self.one(names)

    def epoch(self, group: Any, member: str) -> Any:
        """Return the epoch of the next heartbeat: 0 to join, mostly the last one afterwards."""
        if (group, member) not in self.joined or self.happens(0.08):
            self.joined.add((group, member))
            return 0
        if self.happens(0.75):
            return epoch_of(group, member)
        chosen = self.one([epoch_of(group, member, -1), epoch_of(group, member, 1), -1, -1, -2, -3, 0, 2**31 - 1])
        if chosen in (-1, -3):
            self.joined.discard((group, member))
        return chosen
