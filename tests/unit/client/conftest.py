"""Fixtures of the client's tests: a scripted broker, and a clock that advances when the client sleeps."""

from collections.abc import Iterator

import pytest

from kbroker.client.cluster import Cluster
from tests.support.fake_broker import FakeBroker
from tests.support.fake_log import FakeTime
from tests.support.fixtures import fixture_of

broker = fixture_of(FakeBroker)
fake_time = fixture_of(FakeTime)


@pytest.fixture
def cluster(broker: FakeBroker, fake_time: FakeTime) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, clock=fake_time.clock, sleep=fake_time.sleep, retry_timeout_s=5) as opened:
        yield opened
