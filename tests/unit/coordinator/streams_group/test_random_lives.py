"""Random lives of streams groups: whatever happens, no task is active in two members, and in the end all are assigned.

Members act as clients do: they take over what they are assigned some time later, and report then what they have. They
come, leave, go silent, lose responses and join again; the input grows; writes fail; the broker is killed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_shard import GroupShard
from kbroker.coordinator.modern_group.settings import Limits
from kbroker.coordinator.streams_group.settings import StreamsGroupSettings
from tests.support.consumer_groups import FakeImage
from tests.support.streams_groups import Beat, StreamsGroupBench, subtopology, topology

SESSION_MS = 45_000
SHAPE = topology(subtopology("0", ["t"], ["store"]), subtopology("1", ["u"]))
Tasks = dict[str, list[int]]
LOST = (Errors.FENCED_MEMBER_EPOCH, Errors.UNKNOWN_MEMBER_ID)


def _refuse(*_: object) -> None:
    raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)


@dataclass
class Client:
    """A client: what it runs now, and ``given``, what it was assigned and has not taken over yet."""

    member_id: str
    process: str
    epoch: int = 0
    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    given: tuple[Tasks, Tasks] | None = None
    silent_since_ms: int | None = None
    has_news: bool = False

    def take(self) -> None:
        """Take over what was assigned."""
        if self.given is not None:
            (self.active, self.standby), self.given, self.has_news = self.given, None, True


class Life:
    """One group and its clients."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        settings = StreamsGroupSettings(
            assignment_interval=Limits(self.random.choice([0, 1000]), 0, 15_000),
            initial_rebalance_delay=Limits(self.random.choice([0, 3000]), 0, 15_000),
            standby_replicas=Limits(self.random.choice([0, 1, 2]), 0, 2),
        )
        count = self.random.randint(1, 6)
        self.bench = StreamsGroupBench(FakeImage(t=count, store=count, u=2), settings)
        self.clients: dict[str, Client] = {}
        self.made = 0

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
        """Of clients that are heard, no two run an active task."""
        runners: dict[tuple[str, int], str] = {}
        for client in self.clients.values():
            if client.silent_since_ms is None:
                for place in ((one, index) for one, indexes in client.active.items() for index in indexes):
                    assert place not in runners, f"{place} is active in {runners[place]} and {client.member_id}"
                    runners[place] = client.member_id

    def heard(self) -> list[Client]:
        return [client for client in self.clients.values() if client.silent_since_ms is None]

    def come(self) -> None:
        if len(self.clients) < 6:
            self.made += 1
            client = Client(f"m{self.made}", self.random.choice("pqr"))
            self.clients[client.member_id] = client
            self.beat(client)

    def act(self) -> None:
        if heard := self.heard():
            client = self.random.choice(heard)
            if self.random.random() < 0.6:
                client.take()
            self.beat(client)

    def beat(self, client: Client) -> None:
        """A heartbeat; its response may be lost."""
        try:
            if client.epoch == 0:
                found = self.bench.join(client.member_id, SHAPE, timeout_ms=30_000, process=client.process)
            elif client.has_news:
                found = self.bench.beat(client.member_id, client.epoch, active=client.active, standby=client.standby)
            else:
                found = self.bench.beat(client.member_id, client.epoch)
        except KafkaError as error:
            if error.error in LOST:  # it abandons its tasks and joins again
                client.epoch, client.active, client.standby, client.given, client.has_news = 0, {}, {}, None, False
            return
        if client.epoch and self.random.random() < 0.1:
            client.has_news = True  # the response was lost: the next heartbeat reports everything
            return
        self.hear(client, found)

    @staticmethod
    def hear(client: Client, found: Beat) -> None:
        client.epoch, client.has_news = found.epoch, False
        if found.active is not None and found.standby is not None:
            client.given = found.active, found.standby

    def leave(self) -> None:
        if heard := self.heard():
            client = self.random.choice(heard)
            if client.epoch and self.bench.refused(client.member_id, -1) in (Errors.NONE, *LOST):
                del self.clients[client.member_id]

    def fall_silent(self) -> None:
        heard = self.heard()
        if heard and self.random.random() < 0.3:
            self.random.choice(heard).silent_since_ms = self.bench.clock.now_ms()

    def grow(self) -> None:
        if self.random.random() < 0.2:
            count = self.bench.image.get("u")
            assert count is not None
            self.bench.image.grow("u", min(6, count.partition_count + 1))

    def kill(self) -> None:
        if self.random.random() < 0.3:
            self.bench = self.bench.restart()

    def fail(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupShard, "append", _refuse)
            self.act()

    def wait(self) -> None:
        """Time goes by; silent clients are over once their sessions are."""
        self.bench.after(self.random.choice([500, 3000]))
        for client in list(self.clients.values()):
            if client.silent_since_ms is not None and self.bench.clock.now_ms() - client.silent_since_ms > SESSION_MS:
                del self.clients[client.member_id]
            elif client.silent_since_ms is None and client.epoch and self.random.random() < 0.8:
                client.take()
                self.beat(client)

    def settle(self) -> None:
        """The rest of the clients work without faults until nothing changes."""
        for client in list(self.clients.values()):
            if client.silent_since_ms is not None:
                del self.clients[client.member_id]
        if not self.clients:
            self.come()
        for _ in range(60):
            self.bench.after(1000)
            for client in self.clients.values():
                client.take()
                try:
                    if client.epoch:
                        found = self.bench.beat(
                            client.member_id, client.epoch, active=client.active, standby=client.standby
                        )
                    else:
                        found = self.bench.join(client.member_id, SHAPE, process=client.process)
                    self.hear(client, found)
                except KafkaError:  # it was fenced
                    client.epoch, client.active, client.standby, client.given = 0, {}, {}, None
                self.check()


@pytest.mark.parametrize("seed", range(40))
def test_no_task_is_active_twice(seed: int) -> None:
    life = Life(seed)
    for _ in range(150):
        life.step()
    life.settle()
    assert life.bench.state() == "Stable"
    image = life.bench.image
    counts = {one: topic.partition_count for one, name in (("0", "t"), ("1", "u")) if (topic := image.get(name))}
    active = Counter((one, index) for c in life.clients.values() for one, some in c.active.items() for index in some)
    assert active == Counter((one, index) for one, count in counts.items() for index in range(count))
    for client in life.clients.values():
        for other in life.clients.values():
            if client.process == other.process:
                for one, indexes in client.standby.items():
                    assert not set(indexes) & set(other.active.get(one, ())), "a standby task is beside the active one"
