"""Lines and statistics of `kbroker perf`."""

import threading

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.cli.perf import Pace
from kbroker.cli.perf_reports import (
    Latencies,
    ProduceStats,
    consume_progress_line,
    histogram_lines,
    latency_lines,
    per_second,
)


def test_lines_of_a_producer() -> None:
    """Each interval has its own figures; the last line sums all intervals."""
    clock, lines = VirtualClock(), list[str]()
    stats = ProduceStats(4, 1000, clock, lines.append)
    for seconds in (0.001, 0.003):
        clock.advance_ms(500)
        stats.add(seconds, 1 << 20)
    clock.advance_ms(500)
    stats.add(0.008, 1 << 20)
    assert lines == ["2 records sent, 2.0 records/sec (2.00 MB/sec), 2.0 ms avg latency, 3.0 ms max latency."]
    assert stats.total_line() == (
        "3 records sent, 2.000000 records/sec (2.00 MB/sec), 4.00 ms avg latency, 8.00 ms max latency, "
        "3 ms 50th, 8 ms 95th, 8 ms 99th, 8 ms 99.9th."
    )


def test_many_latencies_are_sampled() -> None:
    """Count, mean and maximum include every latency; the quantiles here use every second latency."""
    latencies = Latencies(1_000_000)
    for number in range(1000):
        latencies.add(number / 1000)
    assert (latencies.count, latencies.max_s) == (1000, 0.999)
    assert sum(count for _, count in latencies.histogram()) == 500
    assert latencies.quantiles_ms()[0] == 500


def test_histogram() -> None:
    """The limits are 1, 2 and 5 in each decade; empty limits at both ends are left out."""
    latencies = Latencies(10)
    for ms in (0.5, 0.51, 0.9, 4.0):
        latencies.add(ms / 1000)
    assert latencies.histogram() == [(0.5, 1), (1.0, 2), (2.0, 0), (5.0, 1)]
    assert histogram_lines(latencies.histogram())[1:] == [
        "   latency  records",
        " <= 0.5 ms        1  " + "#" * 20,
        "   <= 1 ms        2  " + "#" * 40,
        "   <= 2 ms        0",
        "   <= 5 ms        1  " + "#" * 20,
    ]
    assert histogram_lines([]) == []
    assert latency_lines(latencies) == ["Avg latency: 1.4775 ms", "Percentiles: 50th = 0, 99th = 4, 99.9th = 4"]
    assert Latencies(1).document()["mean"] is None


def test_rates_of_no_time() -> None:
    """A duration of zero counts as a millisecond, and a joining member has fetched nothing."""
    assert per_second(3, 0) == 3000
    line = consume_progress_line(0, 100, (0, 0), (0, 0), 100)
    assert line.endswith(", 0, 0.0000, 0.0000, 0, 0.0000, 100, 0, 0.0000, 0.0000")


def test_pace() -> None:
    """A record waits for its scheduled time; a late record does not wait, and the next records catch up."""
    clock, waits = VirtualClock(), list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.advance_ns(round(seconds * 1e9))

    pace = Pace(10, clock, sleep)
    for number in range(3):
        pace.wait(number)
    clock.advance_ms(250)
    for number in range(3, 6):
        pace.wait(number)
    Pace(-1, clock, sleep).wait(1000)
    assert waits == [pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.05)]


def test_a_pace_of_centuries() -> None:
    """A wait is no longer than the system can sleep, however low the rate is."""
    waits = list[float]()
    Pace(1e-300, VirtualClock(), waits.append).wait(1)
    assert waits[0] <= threading.TIMEOUT_MAX
