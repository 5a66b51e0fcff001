"""Delayed fetches of the native handler."""

from kbroker._core.clock import VirtualClock
from tests.native import delayed_fetches


def test_a_stop_frees_the_fetches_that_it_completes() -> None:
    """Each delayed fetch is completed once and then freed, although the stop takes it out of the purgatory."""
    assert delayed_fetches.complete(VirtualClock(), 3) == (3, 3)
