"""Progress bar and lines of a command on the virtual clock, and their absence with --quiet."""

import io
import signal

from kbroker._core.clock import VirtualClock
from kbroker.cli.pipeline_jobs import stop_signals
from kbroker.cli.progress_display import ProgressDisplay, Watch
from kbroker.testing.waiting import wait_until
from tests.support.errors import raising


def display(*, is_terminal: bool, quiet: bool = False) -> tuple[ProgressDisplay, io.StringIO, VirtualClock]:
    stream, clock = io.StringIO(), VirtualClock()
    return ProgressDisplay(quiet=quiet, stream=stream, is_terminal=is_terminal, clock=clock), stream, clock


def test_a_bar_with_rate_and_time_left() -> None:
    """The bar is redrawn on one line at most five times a second, and erased at the end."""
    shown, stream, clock = display(is_terminal=True)
    with shown.step("compacting", 100, "files") as step:
        step.at(10)
        assert stream.getvalue() == ""  # a short step has no bar
        clock.advance_ms(2_000)
        step.at(25)
        expected = "\r\x1b[2Kcompacting  [######..................]   25%  25 of 100 files  12/s  6.0 s left"
        assert stream.getvalue() == expected
        clock.advance_ms(100)
        step.at(26)
        assert stream.getvalue() == expected
        shown("compacted 1 hours")
        assert stream.getvalue() == f"{expected}\r\x1b[2Kcompacted 1 hours\n"
        clock.advance_ms(2_000)
        step.advance(74)
    assert stream.getvalue().endswith("[########################]  100%  100 of 100 files  24/s  0 ms left\r\x1b[2K")


def test_plain_lines_where_there_is_no_terminal() -> None:
    """A line is printed every ten seconds, with a time left only if there is a total."""
    shown, stream, clock = display(is_terminal=False)
    with shown.step("reading", unit="rows") as step:
        for second in range(1, 26):
            clock.advance_ms(1_000)
            step.advance(40 if second > 10 else 0)
    begun, later = stream.getvalue().splitlines()
    assert begun == "reading  0 rows  10.0 s"
    assert later == "reading  400 rows  20/s"


def test_quiet_is_nothing() -> None:
    shown, stream, clock = display(is_terminal=True, quiet=True)
    with shown.step("reading", 10) as step:
        clock.advance_ms(60_000)
        step.at(5)
        shown("a line")
    assert stream.getvalue() == ""


def test_an_inner_step_is_shown_until_it_ends() -> None:
    """The outer step is not drawn until the inner step has ended."""
    shown, stream, clock = display(is_terminal=True)
    with shown.step("outer", 2) as outer:
        with shown.step("inner", 4) as inner:
            clock.advance_ms(5_000)
            outer.at(1)
            assert stream.getvalue() == ""
            inner.at(2)
            assert "inner" in stream.getvalue()
        outer.at(1)
    assert "outer" in stream.getvalue()


def test_a_watch_shows_what_it_hears_of() -> None:
    """Steps start and end with the values of the source; an error of the source ends only the watch."""
    shown, stream, clock = display(is_terminal=True)
    answers = [None, ("stage 1", 1.0, 4.0), ("stage 1", 2.0, 4.0), None, ("stage 2", 3.0, 8.0), ("stage 2", 4.0, 8.0)]
    asked = 0

    def ask() -> tuple[str, float, float] | None:
        nonlocal asked
        asked += 1
        clock.advance_ms(1_500)
        if asked > len(answers):
            raise ConnectionError
        return answers[asked - 1]

    watch = Watch(shown, ask, "tasks")
    wait_until(lambda: asked > len(answers))
    watch.close()
    assert "stage 1" in stream.getvalue()
    assert "4 of 8 tasks" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")


def test_a_signal_while_a_line_is_printed() -> None:
    """The signal handler interrupts the thread that holds the display's lock, and prints after that thread's line."""

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            if "batch 7" in text:
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    stream = Interrupted()
    shown = ProgressDisplay(stream=stream, is_terminal=False, clock=VirtualClock())
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGALRM, raising(AssertionError("the handler waits for the thread that it has interrupted")))
    signal.setitimer(signal.ITIMER_REAL, 5)  # ends a test whose handler waits for the lock forever
    try:
        with stop_signals(shown) as stopping:
            assert not stopping()
            shown("batch 7: 10 rows")
            assert stopping()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "a second signal ends the process"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert stream.getvalue() == "batch 7: 10 rows\nstopping after this batch\n"
    assert signal.getsignal(signal.SIGINT) is before
