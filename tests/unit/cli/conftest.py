"""What tests of several commands need."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest


@pytest.fixture
def in_another_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's clock shows three and a half hours less than UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "<-0330>3:30")
        time.tzset()
        yield
    time.tzset()
