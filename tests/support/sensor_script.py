"""Language of sensor scripts and its interpreter for kbroker's sensors; java/SensorOracle.java is Kafka's.

A script is a list of lines of words separated by one space; NAME=VALUE words may be in any order. Each line has one
result, except lines that begin with the first two words:

    fresh                                   delete all sensors and set the clock to 0
    at MS                                   set the clock
    sensor NAME [parents=A,B] [expires_s=N] [level=L] [CONFIG]
    stat SENSOR METRIC KIND [unit=U] [CONFIG]   `true` if it was added; a meter is METRIC.rate and METRIC.total
    record SENSOR VALUE                     record, then check the quotas
    record_unchecked SENSOR VALUE
    record_strict SENSOR VALUE              check, then record
    check SENSOR
    value METRIC                            present value
    window_ms METRIC                        window of a rate
    throttle_ms METRIC [MAX_MS]             for the present value
    samples METRIC                          start,last event,events,value of each; changes nothing
    configure METRIC [CONFIG]               values that are not given stay
    remove SENSOR / is_known SENSOR / is_expired SENSOR

CONFIG: samples=N window_ms=N event_window=N record_level=L at_most=BOUND at_least=BOUND (a quota; `none` removes it).
Results: `ok`; a value; `violation METRIC VALUE BOUND THROTTLE_MS`; `refused` for a bad argument. A float is written as
the 16 hexadecimal digits of its bits; all NaNs are written alike.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics import stats
from kbroker._core.metrics.metric import Metric
from kbroker._core.metrics.metric_config import MetricConfig, Quota
from kbroker._core.metrics.sensor import QuotaViolationError, Sensor, SensorRegistry

SIMPLE = {
    "avg": stats.Avg, "cumulative_count": stats.CumulativeCount, "cumulative_sum": stats.CumulativeSum,
    "max": stats.Max, "min": stats.Min, "simple_rate": stats.SimpleRate, "value": stats.Value,
    "windowed_count": stats.WindowedCount, "windowed_sum": stats.WindowedSum,
}  # fmt: skip
KINDS = ("rate", "count_rate", "token_bucket", *SIMPLE)
WITHOUT_RESULT = ("fresh", "at")


def bits(value: float) -> str:
    """Return the bits of a float as Java's doubleToLongBits does."""
    return "7ff8000000000000" if math.isnan(value) else struct.pack(">d", value).hex()


def stat_of(kind: str, unit: Any) -> stats.StatSpec:
    if kind == "rate":
        return stats.Rate(unit=unit)
    if kind == "count_rate":
        return stats.Rate(stats.WindowedCount(), unit)
    if kind == "token_bucket":
        return stats.TokenBucket(unit)
    return SIMPLE[kind]()


def laid_over(given: MetricConfig, named: dict[str, str]) -> MetricConfig:
    changes: dict[str, Any] = {k: int(named[k]) for k in ("samples", "window_ms", "event_window") if k in named}
    if "record_level" in named:
        changes["record_level"] = named["record_level"]
    for word, quota in (("at_most", Quota.upper), ("at_least", Quota.lower)):
        if word in named:
            changes["quota"] = None if named[word] == "none" else quota(float(named[word]))
    return given.replace(**changes)


class SensorScript:
    """Interpreter of scripts with kbroker's sensors."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._now = 0  # may go back: a thread may read the clock before and record after another
        self._clock = VirtualClock(0)
        self._registry = SensorRegistry(clock=self._clock)
        self._sensors: dict[str, Sensor] = {}
        self._metrics: dict[str, Metric] = {}

    def results(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the result of each line that has one."""
        for line in lines:
            operation, *words = line.split(" ")
            if operation == "fresh":
                self._begin()
            elif operation == "at":
                self._now = int(words[0])
                self._clock.advance_ms(max(0, self._now - self._clock.epoch_ms()))
            else:
                named = dict(word.split("=", 1) for word in words if "=" in word)
                yield self._result(operation, [word for word in words if "=" not in word], named)

    def _result(self, operation: str, words: list[str], named: dict[str, str]) -> str:
        try:
            return str(getattr(self, f"_do_{operation}")(named, *words) or "ok")
        except QuotaViolationError as violation:
            delay = "-" if violation.throttle_time_ms is None else violation.throttle_time_ms
            return f"violation {violation.metric.name} {bits(violation.value)} {bits(violation.bound)} {delay}"
        except ValueError:
            return "refused"

    def _do_sensor(self, named: dict[str, Any], name: str) -> None:
        self._sensors[name] = self._registry.sensor(
            name,
            laid_over(MetricConfig(), named),
            parents=[self._sensors[parent] for parent in named.get("parents", "").split(",") if parent],
            inactive_expiration_ms=int(named["expires_s"]) * 1000 if "expires_s" in named else None,
            record_level=named.get("level", "INFO"),
        )

    def _do_stat(self, named: dict[str, Any], sensor: str, name: str, kind: str) -> str:
        config, unit = laid_over(MetricConfig(), named), named.get("unit", "seconds")
        names = [f"{name}.rate", f"{name}.total"] if kind.endswith("meter") else [name]
        if len(names) == 2:
            counted = stats.WindowedCount() if kind == "count_meter" else None
            is_added = self._sensors[sensor].add(None, stats.Meter(names[0], names[1], counted, unit), config)
        else:
            is_added = self._sensors[sensor].add(name, stat_of(kind, unit), config)
        self._metrics |= {each: metric for each in names if (metric := self._registry.get_metric(each)) is not None}
        return str(is_added).lower()

    def _do_record(self, named: dict[str, str], sensor: str, value: str) -> None:
        self._sensors[sensor].record(float(value), self._now, True)

    def _do_record_unchecked(self, named: dict[str, str], sensor: str, value: str) -> None:
        self._sensors[sensor].record(float(value), self._now, False)

    def _do_record_strict(self, named: dict[str, str], sensor: str, value: str) -> None:
        self._sensors[sensor].record_strict(float(value), self._now)

    def _do_check(self, named: dict[str, str], sensor: str) -> None:
        self._sensors[sensor].check_quotas(self._now)

    def _do_value(self, named: dict[str, str], metric: str) -> str:
        return bits(self._metrics[metric].measure(self._now))

    def _do_window_ms(self, named: dict[str, str], metric: str) -> str:
        return str(self._metrics[metric].window_size_ms(self._now))

    def _do_throttle_ms(self, named: dict[str, str], metric: str, most: str | None = None) -> str:
        return str(self._metrics[metric].throttle_time_ms(None, self._now, None if most is None else int(most)))

    def _do_samples(self, named: dict[str, str], metric: str) -> str:
        return " ".join(f"{s},{e},{n},{bits(v)}" for s, e, n, v in self._metrics[metric].samples()) or "-"

    def _do_configure(self, named: dict[str, str], metric: str) -> None:
        self._metrics[metric].config = laid_over(self._metrics[metric].config, named)

    def _do_remove(self, named: dict[str, str], sensor: str) -> None:
        self._registry.remove_sensor(sensor)

    def _do_is_known(self, named: dict[str, str], sensor: str) -> str:
        return str(self._registry.get_sensor(sensor) is not None).lower()

    def _do_is_expired(self, named: dict[str, str], sensor: str) -> str:
        return str(self._sensors[sensor].has_expired(self._now)).lower()
