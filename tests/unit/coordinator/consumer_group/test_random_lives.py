"""Random lives of consumer groups: whatever happens, no partition is used by two members, and in the end all are used.

Members act as clients do: they take over what they are assigned some time later, and say then what they have. They
come, leave, go silent, lose responses and join again; topics are made and grow; writes fail; the broker is killed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.group_shard import GroupShard
from kbroker.coordinator.modern_group.settings import Limits
from tests.support.consumer_groups import ConsumerGroupBench, FakeImage

SESSION_MS = 45_000
Used = set[tuple[str, int]]
LOST = (Errors.FENCED_MEMBER_EPOCH, Errors.UNKNOWN_MEMBER_ID, Errors.FENCED_INSTANCE_ID)


def _refuse(*_: object) -> None:
    raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)


@dataclass
class Client:
    """A client: ``used`` is what it reads now, ``given`` what it was assigned and has not taken over yet."""

    member_id: str
    topics: list[str]
    assignor: str | None
    instance: str | None = None
    epoch: int = 0
    used: Used = field(default_factory=set)
    given: Used | None = None
    silent_since_ms: int | None = None
    has_news: bool = False
    says_all: bool = False  # a response was lost

    def owned(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for topic, partition in self.used:
            rows.setdefault(topic, []).append(partition)
        return rows


class Life:
    """One group and its clients."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        interval_ms = self.random.choice([0, 1000])
        settings = ConsumerGroupSettings(assignment_interval=Limits(interval_ms, 0, 15_000))
        self.bench = ConsumerGroupBench(FakeImage(t0=self.random.randint(1, 8), t1=3), settings)
        self.clients: dict[str, Client] = {}
        self.made = 0
        self.away: set[str] = set()  # instance ids of static members that will come back

    def step(self) -> None:
        actions = [
            self.come,
            *[self.act] * 12,
            self.leave,
            self.fall_silent,
            self.grow,
            self.kill,
            self.fail,
            self.wait,
        ]
        self.random.choice(actions)()
        self.check()

    def check(self) -> None:
        """Of clients that are heard, no two use a partition."""
        users: dict[tuple[str, int], str] = {}
        for client in self.clients.values():
            if client.silent_since_ms is None:
                for place in client.used:
                    assert place not in users, f"{place} is used by {users[place]} and {client.member_id}"
                    users[place] = client.member_id

    def come(self) -> None:
        if len(self.clients) < 6:
            self.made += 1
            topics = self.random.choice([["t0", "t1"], ["t0"], ["t1", "later"]])
            client = Client(f"m{self.made}", topics, self.random.choice([None, "uniform", "range"]))
            if self.away and self.random.random() < 0.7:
                client.instance = self.away.pop()
            elif self.random.random() < 0.3:
                client.instance = f"i{self.made}"
            self.clients[client.member_id] = client
            self.beat(client)

    def act(self) -> None:
        heard = [client for client in self.clients.values() if client.silent_since_ms is None]
        if heard:
            client = self.random.choice(heard)
            if client.given is not None and self.random.random() < 0.6:
                client.used, client.given, client.has_news = client.given, None, True
            self.beat(client)

    def beat(self, client: Client) -> None:
        """A heartbeat; its response may be lost."""
        full: dict[str, Any] = {"topics": client.topics, "timeout_ms": 30_000, "assignor": client.assignor}
        joins = client.epoch == 0
        try:
            says_all = joins or client.says_all
            says = says_all or client.has_news or self.random.random() < 0.1
            beat = self.bench.beat(
                client.member_id,
                client.epoch,
                has=client.owned() if says else None,
                instance=client.instance,
                **(full if says_all else {}),
            )
        except KafkaError as error:
            if error.error in LOST:
                client.epoch, client.used, client.given = 0, set(), None
                client.has_news = client.says_all = False
            return
        if self.random.random() < 0.05 and not joins:
            client.says_all = True
            return
        client.epoch = beat.epoch
        client.has_news = client.has_news and not says
        client.says_all = False
        if beat.has is not None:
            given = {(topic, partition) for topic, some in beat.has.items() for partition in some}
            client.given = given if given != client.used else None

    def leave(self) -> None:
        if len(self.clients) > 1 and self.random.random() < 0.3:
            client = self.clients.pop(self.random.choice(list(self.clients)))
            if client.epoch > 0 and client.silent_since_ms is None:
                if client.instance is not None and self.random.random() < 0.7:
                    self.bench.refused(client.member_id, -2, instance=client.instance)
                    self.away.add(client.instance)
                else:
                    self.bench.refused(client.member_id, -1, instance=client.instance)

    def fall_silent(self) -> None:
        if len(self.clients) > 1 and self.random.random() < 0.2:
            self.random.choice(list(self.clients.values())).silent_since_ms = 0

    def grow(self) -> None:
        image = self.bench.image
        if image.get("later") is None:
            image.create("later", 2)
        elif self.random.random() < 0.3:
            topic = image.get("t0")
            assert topic is not None
            image.grow("t0", topic.partition_count + 1)

    def kill(self) -> None:
        if self.random.random() < 0.5:
            self.bench = self.bench.restart()

    def fail(self) -> None:
        """Nothing can be written for a moment."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupShard, "append", _refuse)
            for _ in range(3):
                self.act()

    def wait(self) -> None:
        self.bench.after(self.random.choice([100, 1000, 1000, 5000]))

    def settle(self) -> None:
        """Silent members are removed, and the others get all there is."""
        self.clients = {client.member_id: client for client in self.clients.values() if client.silent_since_ms is None}
        if not self.clients:
            self.come()
        for _ in range(90):
            self.bench.after(1000)
            for client in self.clients.values():
                if client.given is not None:
                    client.used, client.given, client.has_news = client.given, None, True
                self.beat(client)
                self.check()
        wanted = {topic for client in self.clients.values() for topic in client.topics}
        image = self.bench.image
        whole = {
            (one.name, partition)
            for name in wanted
            if (one := image.get(name)) is not None
            for partition in range(one.partition_count)
        }
        assert set().union(*(client.used for client in self.clients.values())) == whole
        assert self.bench.described().state.value == "Stable"
        assert {one.member.member_id for one in self.bench.described().members} == set(self.clients)


@pytest.mark.parametrize("seed", range(12))
def test_no_partition_has_two_users_and_all_are_used_in_the_end(seed: int) -> None:
    life = Life(seed)
    for _ in range(120):
        life.step()
    life.settle()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 1100))
def test_many_random_lives(seed: int) -> None:
    life = Life(seed)
    for _ in range(400):
        life.step()
    life.settle()
