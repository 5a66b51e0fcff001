"""Sampled statistics and token buckets compared with a simple model of their rules."""

import math
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.metric_config import MetricConfig, Quota
from kbroker._core.metrics.sensor import QuotaViolationError, Sensor, charge
from kbroker._core.metrics.stats import Avg, Max, Min, Rate, SimpleRate, TokenBucket, WindowedCount, WindowedSum

STATS = {
    "sum": WindowedSum,
    "count": WindowedCount,
    "avg": Avg,
    "max": Max,
    "min": Min,
    "rate": Rate,
    "simple": SimpleRate,
}


@dataclass
class ModelSample:
    start: int
    last: int
    values: list[float] = field(default_factory=list)


class ModelWindow:
    """Samples as lists of their values."""

    def __init__(self, samples: int, window: int, events: int) -> None:
        self.samples, self.window, self.events = samples, window, events
        self.ring: list[ModelSample] = []
        self.current = 0

    def record(self, value: float, now: int) -> None:
        if not self.ring:
            self.ring.append(ModelSample(now, now))
        sample = self.ring[self.current]
        if now - sample.start >= self.window or len(sample.values) >= self.events:
            self.current = (self.current + 1) % (self.samples + 1)
            sample = ModelSample(now, now)
            self.ring[self.current : self.current + 1] = [sample]
        sample.values.append(value)
        sample.last = now

    def purge(self, now: int) -> None:
        self.ring = [s if now - s.last < self.samples * self.window else ModelSample(now, now) for s in self.ring]

    def measure(self, kind: str, now: int) -> float:
        self.purge(now)
        values = [v for sample in self.ring for v in sample.values]
        if kind in ("sum", "count", "rate", "simple"):
            total = float(len(values) if kind == "count" else sum(values))
            if kind in ("sum", "count"):
                return total
            if not self.ring:
                self.ring.append(ModelSample(now, now))
            elapsed = now - min(s.start for s in self.ring)
            if kind == "simple":
                return total / (max(elapsed, self.window) / 1000)
            elapsed += max(0, self.samples - 1 - elapsed // self.window) * self.window
            return total / (max(elapsed, 1) / 1000)
        if not values:
            return math.nan
        return {"avg": sum(values) / len(values), "max": max(values), "min": min(values)}[kind]


steps = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 7, 99, 100, 101, 250, 300, 1000]), st.integers(-1000, 1000), st.booleans()),
    max_size=60,
)


@given(
    kind=st.sampled_from(sorted(STATS)),
    samples=st.sampled_from([1, 2, 3, 11]),
    events=st.sampled_from([1, 3, 1 << 40]),
    script=steps,
)
def test_sampled_stats(kind: str, samples: int, events: int, script: list[tuple[int, int, bool]]) -> None:
    """Sums, counts, averages, extremes and rates of whole numbers equal those of the model exactly."""
    sensor = Sensor("s", clock=VirtualClock(0))
    sensor.add("m", STATS[kind](), MetricConfig(samples, 100, event_window=events))
    model = ModelWindow(samples, 100, events)
    now = 1000
    for step, value, reads in script:
        now += step
        if reads:
            ours, theirs = sensor.metrics["m"].measure(now), model.measure(kind, now)
            assert ours == theirs or (math.isnan(ours) and math.isnan(theirs))
        else:
            sensor.record(value, now)
            model.record(float(value), now)
    assert [(s, e, n) for s, e, n, _ in sensor.metrics["m"].samples()] == [
        (s.start, s.last, len(s.values)) for s in model.ring
    ]


@given(script=steps, bound=st.integers(1, 1000))
def test_strict_token_bucket(script: list[tuple[int, int, bool]], bound: int) -> None:
    """A bucket refuses while it is below zero, for both ways of charging it, and has the tokens of the model."""
    sensor = Sensor("s", clock=VirtualClock(0))
    sensor.add("m", TokenBucket("milliseconds"), MetricConfig(10, 100, quota=Quota.upper(bound)))
    tokens, last, now = 0, 0, 0
    for step, value, in_one_call in script:
        now += step
        tokens, last = min(1000 * bound, tokens + bound * (now - last)), now
        weight = value * bound
        if in_one_call:
            accepted = charge([(sensor, weight, "strict")], now).accepted
        else:
            try:
                sensor.record_strict(weight, now)
                accepted = True
            except QuotaViolationError:
                accepted = False
        assert accepted == (tokens >= 0)
        if accepted:
            tokens = min(1000 * bound, tokens - weight)
        assert sensor.metrics["m"].measure(now) == tokens
