"""Statistics of `kbroker perf`, and their report in the format of Kafka's tools."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from kbroker._core.clock import BaseClock

MIB = 1024 * 1024
MAX_SAMPLES = 500_000
QUANTILES = (0.5, 0.95, 0.99, 0.999)
BAR_CHARACTERS = 40
_STEPS = (1, 2, 5)  # upper limits of a histogram's rows in each decade
FIELDS = "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"  # noqa: E501  as Kafka prints it


class Latencies:
    """Latencies in seconds: number, sum, maximum, and samples, fewer than 2 * MAX_SAMPLES of ``expected`` latencies."""

    def __init__(self, expected: int) -> None:
        self.count = 0
        self.total_s = self.max_s = 0.0
        self._samples: list[float] = []
        self._every = max(1, expected // min(max(expected, 1), MAX_SAMPLES))

    def add(self, seconds: float) -> None:
        """Count a latency."""
        if self.count % self._every == 0:
            self._samples.append(seconds)
        self.count += 1
        self.total_s += seconds
        self.max_s = max(self.max_s, seconds)

    def mean_ms(self) -> float:
        """Return the mean in milliseconds; NaN without any latency, as Kafka's tool prints."""
        return self.total_s / self.count * 1000 if self.count else float("nan")

    def quantiles_ms(self) -> list[float]:
        """Return the quantiles of the samples, by the rank that Kafka's tools use; zeros without samples."""
        ordered = sorted(self._samples)
        size = len(ordered)
        return [ordered[min(int(share * size), size - 1)] * 1000 if size else 0.0 for share in QUANTILES]

    def histogram(self) -> list[tuple[float, int]]:
        """Return (upper limit in milliseconds, number of samples) from the first to the last limit with samples."""
        limits = [step * 10.0**power for power in range(-3, 7) for step in _STEPS]
        counts = [0] * len(limits)
        for seconds in self._samples:
            counts[next((i for i, limit in enumerate(limits) if seconds * 1000 <= limit), len(limits) - 1)] += 1
        used = [i for i, count in enumerate(counts) if count]
        return [(limits[i], counts[i]) for i in range(used[0], used[-1] + 1)] if used else []

    def document(self) -> dict[str, Any]:
        """Return the latencies as JSON, in milliseconds."""
        p50, p95, p99, p999 = self.quantiles_ms()
        return {
            "mean": self.mean_ms() if self.count else None,
            "max": self.max_s * 1000,
            "p50": p50,
            "p95": p95,
            "p99": p99,
            "p99.9": p999,
            "histogram": [{"up_to": limit, "records": count} for limit, count in self.histogram()],
        }


class ProduceStats:
    """Acknowledged records, with the lines of kafka-producer-perf-test.

    Args: ``print_line``: called with a line after each interval.
    """

    def __init__(
        self, expected: int, interval_ms: int, clock: BaseClock, print_line: Callable[[str], None] = click.echo
    ) -> None:
        self.latencies = Latencies(expected)
        self.byte_count = 0
        self._clock = clock
        self._print_line = print_line
        self._interval_ms = interval_ms
        self._begun_ms = clock.now_ms()
        self._new_window()

    def _new_window(self) -> None:
        self._window_begun_ms = self._clock.now_ms()
        self._window = Latencies(MAX_SAMPLES)
        self._window_bytes = 0

    def add(self, seconds: float, size_bytes: int) -> None:
        """Count an acknowledged record."""
        for latencies in (self.latencies, self._window):
            latencies.add(seconds)
        self.byte_count += size_bytes
        self._window_bytes += size_bytes
        if self._clock.now_ms() - self._window_begun_ms >= self._interval_ms:
            self._print_line(self._window_line())
            self._new_window()

    def _window_line(self) -> str:
        window, elapsed_ms = self._window, self._clock.now_ms() - self._window_begun_ms
        return (
            f"{window.count} records sent, {per_second(window.count, elapsed_ms):.1f} records/sec "
            f"({per_second(self._window_bytes, elapsed_ms) / MIB:.2f} MB/sec), {window.mean_ms():.1f} ms avg latency, "
            f"{window.max_s * 1000:.1f} ms max latency."
        )

    def elapsed_ms(self) -> int:
        """Return the milliseconds since this object was created."""
        return self._clock.now_ms() - self._begun_ms

    def total_line(self) -> str:
        """Return the last line of Kafka's tool."""
        elapsed_ms, found = self.elapsed_ms(), self.latencies
        p50, p95, p99, p999 = map(int, found.quantiles_ms())
        return (
            f"{found.count} records sent, {per_second(found.count, elapsed_ms):f} records/sec "
            f"({per_second(self.byte_count, elapsed_ms) / MIB:.2f} MB/sec), {found.mean_ms():.2f} ms avg latency, "
            f"{found.max_s * 1000:.2f} ms max latency, {p50} ms 50th, {p95} ms 95th, {p99} ms 99th, {p999} ms 99.9th."
        )


def consume_line(begin_ms: int, end_ms: int, byte_count: int, record_count: int, join_ms: int) -> str:
    """Return the last line of kafka-consumer-perf-test. Args: ``begin_ms``, ``end_ms``: since the epoch."""
    fetch_ms = end_ms - begin_ms - join_ms
    mib = byte_count / MIB
    return (
        f"{_time(begin_ms)}, {_time(end_ms)}, {mib:.4f}, {per_second(mib, end_ms - begin_ms):.4f}, {record_count}, "
        f"{per_second(record_count, end_ms - begin_ms):.4f}, {join_ms}, {fetch_ms}, {per_second(mib, fetch_ms):.4f}, "
        f"{per_second(record_count, fetch_ms):.4f}"
    )


def consume_progress_line(
    end_ms: int, elapsed_ms: int, total: tuple[int, int], window: tuple[int, int], join_ms: int
) -> str:
    """Return a line of kafka-consumer-perf-test --show-detailed-stats. Args: ``total``, ``window``: bytes, records."""
    fetch_ms = elapsed_ms - join_ms
    mib = window[0] / MIB
    rates = (per_second(mib, fetch_ms), per_second(window[1], fetch_ms)) if fetch_ms > 0 else (0.0, 0.0)
    return (
        f"{_time(end_ms)}, 0, {total[0] / MIB:.4f}, {per_second(mib, elapsed_ms):.4f}, {total[1]}, "
        f"{per_second(window[1], elapsed_ms):.4f}, {join_ms}, {fetch_ms}, {rates[0]:.4f}, {rates[1]:.4f}"
    )


def latency_lines(latencies: Latencies) -> list[str]:
    """Return the last lines of kafka-e2e-latency."""
    p50, _, p99, p999 = map(int, latencies.quantiles_ms())
    return [f"Avg latency: {latencies.mean_ms():.4f} ms", f"Percentiles: 50th = {p50}, 99th = {p99}, 99.9th = {p999}"]


def histogram_lines(rows: Sequence[tuple[float, int]]) -> list[str]:
    """Return a histogram of latencies: upper limit, number, bar."""
    if not rows:
        return []
    largest = max(count for _, count in rows)
    width = len(f"{largest:,}")
    lines = ["", f"{'latency':>10}  {'records':>{max(width, 7)}}"]
    for limit, count in rows:
        bar = "#" * -(-count * BAR_CHARACTERS // largest)
        lines.append(f"{f'<= {limit:g} ms':>10}  {count:>{max(width, 7)},}  {bar}".rstrip())
    return lines


def per_second(amount: float, elapsed_ms: float) -> float:
    """Return a rate; an elapsed time of less than one millisecond counts as one."""
    return amount * 1000 / max(elapsed_ms, 1)


def _time(epoch_ms: int) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(epoch_ms / 1000))}:{epoch_ms % 1000:03}"
