"""Broker with a virtual clock, and a client of it."""

from collections.abc import Iterator

import pytest

from kbroker.testing import VirtualBroker
from tests.support.client import Client
from tests.support.throttling import SETTINGS


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker(SETTINGS) as running:
        running.create_topic("t", 2)
        yield running


@pytest.fixture
def client(broker: VirtualBroker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as connection:
        yield connection
