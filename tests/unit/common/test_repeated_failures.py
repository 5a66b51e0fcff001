"""A failure that repeats is logged once a minute, with how often; different causes do not hide each other."""

from kbroker._core.clock import VirtualClock
from kbroker.common.repeated_failures import REPEAT_MS, RepeatedFailures, how_often


class Failures:
    """Each line is the cause and how often it failed."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.lines: list[tuple[str, int]] = []
        self.repeated = RepeatedFailures(self.clock)

    def fail(self, cause: str, count: int = 1) -> None:
        self.repeated.note(cause, lambda times: self.lines.append((cause, times)), count)


def test_the_first_failure_is_logged_at_once_and_the_next_ones_a_minute_later() -> None:
    """Twelve failures in the first minute are two lines, and the second says how many it stands for."""
    failures = Failures()
    for _ in range(13):
        failures.fail("disk")
        failures.repeated.write_late()
        failures.clock.advance_ms(5000)
    assert failures.lines == [("disk", 1), ("disk", 12)]


def test_other_causes_are_logged_at_once() -> None:
    """A full disk must not hide what else fails."""
    failures = Failures()
    for cause in ("disk", "network", "disk", "network"):
        failures.fail(cause, 3)
    assert failures.lines == [("disk", 3), ("network", 3)]


def test_what_was_counted_is_logged_when_nothing_more_fails() -> None:
    """The last failures of a storm are reported, though none comes after them; and no line is written for nothing."""
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
