"""Usage of a cluster between two looks."""

import pytest

from kbroker.client.usage import _rate


@pytest.mark.parametrize(
    ("now", "then", "interval_s", "rate"),
    [(30, 10, 2.0, 10.0), (5, 10, 2.0, 0.0), (30, None, 2.0, None), (30, 10, None, None), (30, 10, 0.0, None)],
)
def test_the_growth_per_second(now: int, then: int | None, interval_s: float | None, rate: float | None) -> None:
    """A value that was reset has not grown; without an earlier value, or time between them, the growth is unknown."""
    assert _rate(now, then, interval_s) == rate
