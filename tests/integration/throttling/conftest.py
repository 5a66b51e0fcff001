"""Broker with a virtual clock."""

from kbroker.testing import VirtualBroker
from tests.support.fixtures import fixture_of
from tests.support.throttling import SETTINGS

broker = fixture_of(VirtualBroker, SETTINGS, topics={"t": 2})
