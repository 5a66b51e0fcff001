"""Limits of log lines: one a minute about a repeated failure, ten a second about requests."""

import logging

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.limited_log import MAX_CAUSES, REPEAT_MS, RateLimitedLogger, RepeatedFailures, cause_of, how_often


class Failures:
    """Failures whose lines are pairs of cause and number."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.lines: list[tuple[str, int]] = []
        self.repeated = RepeatedFailures(self.clock)

    def fail(self, cause: str, count: int = 1) -> None:
        self.repeated.note(cause, lambda times: self.lines.append((cause, times)), count)


def test_the_first_failure_is_logged_at_once_and_the_next_ones_a_minute_later() -> None:
    """Thirteen failures in a minute are logged as two lines; the second has the number of failures after the first."""
    failures = Failures()
    for _ in range(13):
        failures.fail("disk")
        failures.repeated.write_late()
        failures.clock.advance_ms(5000)
    assert failures.lines == [("disk", 1), ("disk", 12)]


def test_other_causes_are_logged_at_once() -> None:
    """A full disk does not hide other failures."""
    failures = Failures()
    for cause in ("disk", "network", "disk", "network"):
        failures.fail(cause, 3)
    assert failures.lines == [("disk", 3), ("network", 3)]


def test_a_message_has_the_number_of_failures_at_its_end() -> None:
    failures = Failures()
    lines: list[str] = []
    for word in ("first", "second", "third"):
        failures.repeated.log("disk", lambda form, *args: lines.append(form % args), "%s: %d is full", word, 7)
    failures.clock.advance_ms(REPEAT_MS)
    failures.repeated.write_late()
    assert lines == ["first: 7 is full", "third: 7 is full (2 times since the last such line)"]


def test_messages_that_differ_in_numbers_have_one_cause() -> None:
    assert cause_of("a snapshot of 7 bytes, 33169620992 are free") == cause_of("a snapshot of 9 bytes, 332 are free")
    assert cause_of("connection refused") != cause_of("connection reset")


def test_causes_beyond_the_limit_share_one() -> None:
    """Causes beyond the limit share a line, and causes older than a minute no longer count."""
    clock = VirtualClock()
    failures = RepeatedFailures(clock)
    lines: list[int] = []
    for cause in range(MAX_CAUSES + 50):
        failures.note(cause, lines.append)
    assert len(lines) == MAX_CAUSES + 1
    clock.advance_ms(REPEAT_MS)
    failures.note("new", lines.append)
    assert lines[MAX_CAUSES + 1 :] == [49, 1]


def test_causes_beyond_the_limit_hide_no_earlier_failures() -> None:
    """A new cause takes the place of an old one only after the failures since the old one's line are logged."""
    failures = Failures()
    for cause in range(MAX_CAUSES):
        failures.fail(str(cause), 2)
        failures.fail(str(cause), 3)
    failures.lines.clear()
    failures.clock.advance_ms(REPEAT_MS)
    failures.fail("new")
    assert failures.lines == [*((str(cause), 3) for cause in range(MAX_CAUSES)), ("new", 1)]


def test_what_was_counted_is_logged_when_nothing_more_fails() -> None:
    """The last failures of a series are reported though none follows, and no line reports zero failures."""
    failures = Failures()
    failures.fail("disk")
    failures.fail("disk")
    failures.clock.advance_ms(REPEAT_MS - 1)
    failures.repeated.write_late()
    assert failures.lines == [("disk", 1)]
    failures.clock.advance_ms(1)
    failures.repeated.write_late()
    assert failures.lines == [("disk", 1), ("disk", 1)]
    failures.fail("disk")
    assert len(failures.lines) == 2, "two lines within a minute"
    for _ in range(5):
        failures.clock.advance_ms(REPEAT_MS)
        failures.repeated.write_late()
    assert len(failures.lines) == 3
    failures.fail("disk")
    assert failures.lines[3:] == [("disk", 1)]


def test_the_end_of_the_line() -> None:
    """One failure needs no number."""
    assert how_often(1) == ""
    assert how_often(12) == " (12 times since the last such line)"


def test_so_many_lines_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """At most ten lines a second are written of each message; its next line reports the number left out."""
    clock = VirtualClock()
    log = RateLimitedLogger(logging.getLogger("bounded"), clock)
    with caplog.at_level(logging.INFO):
        for number in range(1000):
            log.info("line %d", number)
        assert caplog.messages == [f"line {number}" for number in range(10)]
        log.info("other %d", 1)
        clock.advance_ms(1000)
        log.info("line %d", 1000)
        log.info("line %d", 1001)
        log.info("other %d", 2)
    assert caplog.messages[10:] == [
        "other 1",
        "990 lines like the next were left out",
        "line 1000",
        "line 1001",
        "other 2",
    ]
