"""The script language of the sensor trace, performed on our sensors; and its random scripts.

A line is ``TIME_MS OPERATION ...``, optionally ``=> EXPECTED [+- TOLERANCE]``. The tool's own help explains it.
"""

import math
from collections.abc import Iterable, Iterator

from kbroker._core.clock import VirtualClock
from kbroker._core.metric import Metric
from kbroker._core.metric_config import MetricConfig, Quota
from kbroker._core.sensor import QuotaViolationError, Sensor
from kbroker._core.sensor_registry import SensorRegistry
from kbroker._core.stats import (
    Avg,
    CumulativeCount,
    CumulativeSum,
    Max,
    Meter,
    Min,
    Rate,
    SimpleRate,
    StatSpec,
    TokenBucket,
    Value,
    WindowedCount,
    WindowedSum,
)

SIMPLE = {
    "simple_rate": SimpleRate,
    "windowed_sum": WindowedSum,
    "windowed_count": WindowedCount,
    "avg": Avg,
    "max": Max,
    "min": Min,
    "value": Value,
    "cumulative_sum": CumulativeSum,
    "cumulative_count": CumulativeCount,
}


def stat_of(kind: str, unit: str = "seconds") -> StatSpec:
    """A stat by its name in the language; meters need their metric names and are made elsewhere."""
    if kind == "rate":
        return Rate(unit=unit)
    if kind == "count_rate":
        return Rate(WindowedCount(), unit)
    if kind == "token_bucket":
        return TokenBucket(unit)
    return SIMPLE[kind]()


def config_of(options: dict[str, str], given: MetricConfig) -> MetricConfig:
    """The options laid over a config."""
    changes: dict[str, object] = {}
    for key, value in options.items():
        if key in ("samples", "window_ms", "event_window"):
            changes[key] = int(value)
        elif key == "quota":
            changes["quota"] = None if value == "none" else Quota.upper(float(value))
        elif key == "lower":
            changes["quota"] = Quota.lower(float(value))
        elif key == "config_level":
            changes["record_level"] = value
    return given.replace(**changes)


def java_double(value: float) -> str:
    """A float so that equal texts mean equal bits, as `normal` makes the other side's text too."""
    return "NaN" if math.isnan(value) else repr(value)


class SensorScript:
    """One run of the language; `reset` begins anew."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.clock = VirtualClock(0)
        self.registry = SensorRegistry(clock=self.clock)
        self.sensors: dict[str, Sensor] = {}
        self.metrics: dict[str, Metric] = {}

    def run(self, lines: Iterable[str]) -> Iterator[tuple[str, str, str | None]]:
        """Yield (line, result, expectation or None) for every line that does something."""
        for text in lines:
            line = text.strip()
            if not line or line.startswith("#"):
                continue
            if line == "reset":
                self.reset()
                continue
            given, _, expected = line.partition(" => ")
            words = given.split()
            try:
                result = self.perform(int(words[0]), words[1], words[2:])
            except ValueError:
                result = "error IllegalArgumentException"
            yield given.strip(), result, expected.strip() or None

    def judged(self, action: object, *args: object) -> str:
        try:
            action(*args)  # type: ignore[operator]
        except QuotaViolationError as e:
            throttle = -1 if e.throttle_time_ms is None else e.throttle_time_ms
            return f"violation {e.metric.name} {java_double(e.value)} {java_double(e.bound)} {throttle}"
        return "ok"

    def perform(self, now: int, op: str, words: list[str]) -> str:
        self.clock.advance_ms(max(0, now - self.clock.epoch_ms()))
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        name = plain[0]
        if op == "sensor":
            parents = [self.sensors[p] for p in options.get("parents", "").split(",") if p]
            made = self.registry.sensor(
                name,
                config_of(options, MetricConfig()),
                parents=parents,
                inactive_expiration_ms=int(options["expiry_s"]) * 1000 if "expiry_s" in options else None,
                record_level=options.get("level", "INFO"),
            )
            self.sensors[name] = made
            return "ok"
        if op == "stat":
            return self.add_stat(name, plain[1], plain[2], options)
        if op == "record":
            check = not (len(plain) > 2 and plain[2] == "nocheck")
            return self.judged(self.sensors[name].record, float(plain[1]), now, check)
        if op == "check":
            return self.judged(self.sensors[name].check_quotas, now)
        if op == "strict":
            return self.judged(self.sensors[name].record_strict, float(plain[1]), now)
        if op == "read":
            return java_double(self.metrics[name].measure(now))
        if op == "window":
            return str(self.metrics[name].window_size_ms(now))
        if op == "throttle":
            cap = int(plain[1]) if len(plain) > 1 else None
            return str(self.metrics[name].throttle_time_ms(None, now, cap))
        if op == "config":
            self.metrics[name].config = config_of(options, self.metrics[name].config)
            return "ok"
        if op == "ring":
            found = self.metrics[name].samples()
            return " ".join(f"[{s},{e},{n},{java_double(v)}]" for s, e, n, v in found) or "empty"
        if op == "expired":
            return str(self.sensors[name].has_expired(now)).lower()
        if op == "remove":
            self.registry.remove_sensor(name)
            return "ok"
        if op == "exists":
            return str(self.registry.get_sensor(name) is not None).lower()
        raise AssertionError(op)

    def add_stat(self, sensor: str, name: str, kind: str, options: dict[str, str]) -> str:
        config = config_of(options, MetricConfig())
        unit = options.get("unit", "seconds")
        if kind in ("meter", "count_meter"):
            stat = WindowedCount() if kind == "count_meter" else None
            names = [f"{name}.rate", f"{name}.total"]
            added = self.sensors[sensor].add(None, Meter(names[0], names[1], stat, unit), config)
        else:
            names = [name]
            added = self.sensors[sensor].add(name, stat_of(kind, unit), config)
        for each in names:
            found = self.registry.get_metric(each)
            if found is not None:
                self.metrics[each] = found
        return str(added).lower()
