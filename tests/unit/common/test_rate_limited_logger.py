"""Lines that strangers cause do not become a storm."""

import logging

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.rate_limited_logger import RateLimitedLogger


def test_so_many_lines_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """Ten lines in a second; the next one after it says how many were left out."""
    clock = VirtualClock()
    log = RateLimitedLogger(logging.getLogger("bounded"), clock)
    with caplog.at_level(logging.INFO):
        for number in range(1000):
            log.info("line %d", number)
        assert caplog.messages == [f"line {number}" for number in range(10)]
        clock.advance_ms(1000)
        log.info("later")
        log.info("again")
    assert caplog.messages[10:] == ["990 lines like the next were left out", "later", "again"]
