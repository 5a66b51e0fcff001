"""Random operations of consumer groups: no partition ever has two users, and in the end each has one."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from kbroker.common.errors import KafkaError
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.modern_group.settings import Limits
from tests.support.consumer_groups import ConsumerGroupBench
from tests.support.fake_image import FakeImage
from tests.support.group_lives import LOST, GroupLife, LiveClient

Used = set[tuple[str, int]]


@dataclass(kw_only=True)
class Client(LiveClient):
    """Client of the consumer protocol. ``used``: partitions that it currently reads."""

    topics: list[str]
    assignor: str | None
    instance: str | None = None
    used: Used = field(default_factory=set)
    given: Used | None = None
    says_all: bool = False  # after a lost response

    def take(self) -> None:
        if self.given is not None:
            self.used, self.given, self.has_news = self.given, None, True

    def places(self) -> Used:
        return self.used

    def owned(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for topic, partition in self.used:
            rows.setdefault(topic, []).append(partition)
        return rows


class Life(GroupLife[Client]):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        interval_ms = self.random.choice([0, 1000])
        settings = ConsumerGroupSettings(assignment_interval=Limits(interval_ms, 0, 15_000))
        self.bench = ConsumerGroupBench(FakeImage(t0=self.random.randint(1, 8), t1=3), settings)
        self.away: set[str] = set()  # instance ids of static members that will return

    def new_client(self, member_id: str) -> Client:
        topics = self.random.choice([["t0", "t1"], ["t0"], ["t1", "later"]])
        client = Client(member_id=member_id, topics=topics, assignor=self.random.choice([None, "uniform", "range"]))
        if self.away and self.random.random() < 0.7:
            client.instance = self.away.pop()
        elif self.random.random() < 0.3:
            client.instance = f"i{self.made}"
        return client

    def beat(self, client: Client) -> None:
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

    def grow(self) -> None:
        image = self.bench.image
        if image.get("later") is None:
            image.create("later", 2)
        elif self.random.random() < 0.3:
            topic = image.get("t0")
            assert topic is not None
            image.grow("t0", topic.partition_count + 1)

    def settle(self) -> None:
        super().settle()
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
    life.live(120)
    life.settle()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 1100))
def test_many_random_lives(seed: int) -> None:
    life = Life(seed)
    life.live(400)
    life.settle()
