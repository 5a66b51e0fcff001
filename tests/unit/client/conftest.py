"""Fixtures of the client's tests: a scripted broker, and a clock that moves when somebody sleeps."""

from collections.abc import Iterator

import pytest

from kbroker.client.cluster import Cluster
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    fake = FakeBroker()
    yield fake
    fake.close()


class FakeTime:
    """Moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def cluster(broker: FakeBroker, fake_time: FakeTime) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, clock=fake_time.clock, sleep=fake_time.sleep, retry_timeout_s=5) as opened:
        yield opened
