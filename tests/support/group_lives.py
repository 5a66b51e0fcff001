"""Random lives of a group of a newer protocol and its clients: the part that all kinds of groups share.

Clients apply their assignment after some time and then report their partitions. They join, leave, go silent, lose
responses and join again; topics grow; writes fail; the broker is killed.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_shard import GroupShard

SESSION_MS = 45_000
LOST = (Errors.FENCED_MEMBER_EPOCH, Errors.UNKNOWN_MEMBER_ID, Errors.FENCED_INSTANCE_ID)


def _refuse(*_: object) -> None:
    raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)


@dataclass(kw_only=True)
class LiveClient(ABC):
    """Client. A subclass has the client's assignment, and ``given``: an assignment that is not applied yet."""

    member_id: str
    epoch: int = 0
    silent_since_ms: int | None = None
    has_news: bool = False  # a change must be reported to the coordinator

    @abstractmethod
    def take(self) -> None:
        """Apply the assignment."""

    @abstractmethod
    def places(self) -> Iterable[tuple[str, int]]:
        """Return the partitions or tasks that must belong to this client only."""


C = TypeVar("C", bound=LiveClient)


class GroupLife(ABC, Generic[C]):
    """Group and its clients."""

    bench: Any

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clients: dict[str, C] = {}
        self.made = 0

    @abstractmethod
    def new_client(self, member_id: str) -> C:
        """Return a client that has not joined yet."""

    @abstractmethod
    def beat(self, client: C) -> None:
        """Send a heartbeat; the response may be lost."""

    @abstractmethod
    def leave(self) -> None:
        """Have a client leave the group."""

    @abstractmethod
    def grow(self) -> None:
        """Create a topic or add partitions to one."""

    def live(self, steps: int) -> None:
        """Make random steps."""
        rare = [self.come, self.leave, self.fall_silent, self.grow, self.kill, self.fail, self.wait]
        for _ in range(steps):
            self.random.choice([*rare, *[self.act] * 12])()
            self.check()

    def settle(self) -> None:
        """Remove silent clients and wait until the others have applied a full assignment."""
        self.clients = {client.member_id: client for client in self.heard()}
        if not self.clients:
            self.come()
        for _ in range(90):
            self.bench.after(1000)
            for client in self.clients.values():
                client.take()
                self.beat(client)
                self.check()

    def check(self) -> None:
        """Check that no two clients with a session use the same partition."""
        users: dict[tuple[str, int], str] = {}
        for client in self.heard():
            for place in client.places():
                assert place not in users, f"{place} is used by {users[place]} and {client.member_id}"
                users[place] = client.member_id

    def heard(self) -> list[C]:
        return [client for client in self.clients.values() if client.silent_since_ms is None]

    def come(self) -> None:
        if len(self.clients) < 6:
            self.made += 1
            client = self.new_client(f"m{self.made}")
            self.clients[client.member_id] = client
            self.beat(client)

    def act(self) -> None:
        if heard := self.heard():
            client = self.random.choice(heard)
            if self.random.random() < 0.6:
                client.take()
            self.beat(client)

    def fall_silent(self) -> None:
        heard = self.heard()
        if heard and self.random.random() < 0.3:
            self.random.choice(heard).silent_since_ms = self.bench.clock.now_ms()

    def kill(self) -> None:
        if self.random.random() < 0.4:
            self.bench = self.bench.restart()

    def fail(self) -> None:
        """Make a few writes fail."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupShard, "append", _refuse)
            for _ in range(3):
                self.act()

    def wait(self) -> None:
        """Advance the clock and remove silent clients whose sessions have expired."""
        self.bench.after(self.random.choice([100, 1000, 3000]))
        for client in list(self.clients.values()):
            if client.silent_since_ms is not None and self.bench.clock.now_ms() - client.silent_since_ms > SESSION_MS:
                del self.clients[client.member_id]
            elif client.silent_since_ms is None and client.epoch > 0 and self.random.random() < 0.8:
                client.take()
                self.beat(client)
