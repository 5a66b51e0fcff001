"""Many throttled channels beside one client that is not: the bench of 10,000, reduced."""

from __future__ import annotations

import statistics

import pytest

from bench.neighbours.throttled import measure


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_throttled_channels_cost_others_nothing() -> None:
    """2,000 muted channels with a request in each socket: another client's p99 stays what it was with them idle."""
    ratios = measure(channels=2000, pairs=3, seconds=2.0)
    assert ratios
    assert statistics.median(ratios) < 1.5, ratios
