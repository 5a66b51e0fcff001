"""Random operations of streams groups: no task is ever active in two members, and in the end all are assigned."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.modern_group.settings import Limits
from kbroker.coordinator.streams_group.settings import StreamsGroupSettings
from tests.support.fake_image import FakeImage
from tests.support.group_lives import LOST, GroupLife, LiveClient
from tests.support.streams_groups import StreamsGroupBench, subtopology, topology

SHAPE = topology(subtopology("0", ["t"], ["store"]), subtopology("1", ["u"]))
Tasks = dict[str, list[int]]


@dataclass(kw_only=True)
class Client(LiveClient):
    """Client of the streams protocol with its tasks; ``given``: assigned tasks that it has not started."""

    process: str
    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    given: tuple[Tasks, Tasks] | None = None

    def take(self) -> None:
        if self.given is not None:
            (self.active, self.standby), self.given, self.has_news = self.given, None, True

    def places(self) -> list[tuple[str, int]]:
        return [(one, index) for one, indexes in self.active.items() for index in indexes]


class Life(GroupLife[Client]):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        settings = StreamsGroupSettings(
            assignment_interval=Limits(self.random.choice([0, 1000]), 0, 15_000),
            initial_rebalance_delay=Limits(self.random.choice([0, 3000]), 0, 15_000),
            standby_replicas=Limits(self.random.choice([0, 1, 2]), 0, 2),
        )
        count = self.random.randint(1, 6)
        self.bench = StreamsGroupBench(FakeImage(t=count, store=count, u=2), settings)

    def new_client(self, member_id: str) -> Client:
        return Client(member_id=member_id, process=self.random.choice("pqr"))

    def beat(self, client: Client) -> None:
        try:
            if client.epoch == 0:
                found = self.bench.join(client.member_id, SHAPE, timeout_ms=30_000, process=client.process)
            elif client.has_news:
                found = self.bench.beat(client.member_id, client.epoch, active=client.active, standby=client.standby)
            else:
                found = self.bench.beat(client.member_id, client.epoch)
        except KafkaError as error:
            if error.error in LOST:  # the member abandons its tasks and rejoins
                client.epoch, client.active, client.standby, client.given, client.has_news = 0, {}, {}, None, False
            return
        if client.epoch and self.random.random() < 0.1:
            client.has_news = True  # after a lost response the next heartbeat reports everything
            return
        client.epoch, client.has_news = found.epoch, False
        if found.active is not None and found.standby is not None:
            client.given = found.active, found.standby

    def leave(self) -> None:
        if heard := self.heard():
            client = self.random.choice(heard)
            if client.epoch and self.bench.refused(client.member_id, -1) in (Errors.NONE, *LOST):
                del self.clients[client.member_id]

    def grow(self) -> None:
        if self.random.random() < 0.2:
            count = self.bench.image.get("u")
            assert count is not None
            self.bench.image.grow("u", min(6, count.partition_count + 1))


@pytest.mark.parametrize("seed", range(40))
def test_no_task_is_active_twice(seed: int) -> None:
    life = Life(seed)
    life.live(150)
    life.settle()
    assert life.bench.state() == "Stable"
    image = life.bench.image
    counts = {one: topic.partition_count for one, name in (("0", "t"), ("1", "u")) if (topic := image.get(name))}
    active = Counter(place for client in life.clients.values() for place in client.places())
    assert active == Counter((one, index) for one, count in counts.items() for index in range(count))
    for client in life.clients.values():
        for other in life.clients.values():
            if client.process == other.process:
                for one, indexes in client.standby.items():
                    assert not set(indexes) & set(other.active.get(one, ())), "a standby task is beside the active one"
