"""Fixtures of several commands: a scripted broker with quotas, and another time zone."""

import time
from collections.abc import Iterator

import pytest

from tests.support.fixtures import fixture_of
from tests.support.quota_broker import QuotaBroker

broker = fixture_of(QuotaBroker)


@pytest.fixture
def in_another_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set local time to three and a half hours before UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "<-0330>3:30")
        time.tzset()
        yield
    time.tzset()
