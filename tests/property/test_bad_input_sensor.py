"""Sensors, metrics, statistics and their registry: values, times, names and configs of any kind."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.metric import Metric, SampleView
from kbroker._core.metrics.metric_config import MetricConfig, Quota
from kbroker._core.metrics.sensor import QuotaViolationError, Sensor
from kbroker._core.metrics.sensor_charge import charge
from kbroker._core.metrics.sensor_registry import SensorRegistry
from kbroker._core.metrics.stats import (
    Avg,
    CumulativeCount,
    CumulativeSum,
    Max,
    Meter,
    Min,
    Percentiles,
    Rate,
    SimpleRate,
    StatSpec,
    TokenBucket,
    Value,
    WindowedCount,
    WindowedSum,
)
from kbroker.metrics.registry import MetricName, Metrics
from tests.support.bad_input import JUNK, OBJECTS, at_any_pace, attempt, refused, storm

PLAIN = (
    WindowedSum,
    WindowedCount,
    Avg,
    Max,
    Min,
    Rate,
    SimpleRate,
    TokenBucket,
    Value,
    CumulativeSum,
    CumulativeCount,
)
COMPOUND = (Meter("rate", "total"), Percentiles(400, 100.0, {"p50": 50.0, "p99": 99.0}))
STATS = st.one_of(st.sampled_from(PLAIN).map(lambda kind: kind()), st.sampled_from(COMPOUND))
LEVELS = st.one_of(st.sampled_from(["INFO", "DEBUG", "TRACE"]), JUNK)
VALUES = st.one_of(st.floats(), JUNK)
TIMES = st.one_of(st.none(), st.integers(-(2**60), 2**60), JUNK)
CONFIGS = st.one_of(
    st.none(),
    st.builds(
        MetricConfig,
        st.integers(1, 5),
        st.integers(1, 2000),
        event_window=st.one_of(st.none(), st.integers(1, 3)),
        quota=st.one_of(st.none(), st.builds(Quota, st.floats(), st.booleans())),
    ),
    JUNK,
)
NAMES = st.one_of(st.sampled_from(["m", "rate", None]), JUNK)
SENSOR_CALLS = {
    "record": [VALUES, TIMES, JUNK],
    "record_and_throttle": [VALUES, TIMES, TIMES],
    "record_strict": [VALUES, TIMES],
    "check_quotas": [TIMES],
    "has_expired": [TIMES],
    "add": [NAMES, st.one_of(STATS, JUNK), CONFIGS],
    "metrics": [],
    "parents": [],
    "should_record": [],
    "is_removed": [],
    "last_record_time_ms": [],
    "_mark_removed": [],
    "__init__": [],
}
METRIC_CALLS = {
    "measure": [TIMES],
    "window_size_ms": [TIMES],
    "throttle_time_ms": [st.one_of(st.none(), VALUES), TIMES, TIMES],
    "config": [],
    "is_rate": [],
    "name": [],
    "samples": [],
    "view": [],
    "histogram_view": [],
    "__init__": [],
}


@at_any_pace
@given(st.data())
def test_sensor(data: st.DataObject) -> None:
    """Any calls in any order leave a sensor, its parents and metrics that work; a violated quota is its own error."""
    clock = VirtualClock(0)
    parent = Sensor("parent", clock=clock)
    attempt(lambda: Sensor, data, [JUNK, CONFIGS], ())
    words = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "parents": st.one_of(st.just([parent]), OBJECTS),
                "inactive_expiration_ms": JUNK,
                "record_level": LEVELS,
                "clock": OBJECTS,
            },
        )
    )
    attempt(lambda: lambda: Sensor("s", **words), data, [], ())
    sensor = Sensor("s", MetricConfig(3, 100), parents=[parent], clock=clock)
    storm(data, sensor, SENSOR_CALLS, (QuotaViolationError,), longest=20)
    for metric in list(sensor.metrics.values())[:3]:
        storm(data, metric, METRIC_CALLS)
        attempt(lambda metric=metric: lambda config: setattr(metric, "config", config), data, [CONFIGS], ())
        storm(data, metric, METRIC_CALLS)
    sensor.record(1.0, check=False)


@at_any_pace
@given(st.data())
def test_metric_of_no_sensor(data: st.DataObject) -> None:
    """A metric made by hand has a name and nothing else, and a view of nothing shows nothing."""
    orphan = Metric("x")
    storm(data, orphan, METRIC_CALLS)
    assert refused(orphan.measure) is ValueError
    empty = SampleView()
    assert len(empty) == 0
    with pytest.raises(BufferError):
        memoryview(empty)


@at_any_pace
@given(st.data())
def test_views_outlive_everything(data: st.DataObject) -> None:
    """A view keeps its memory while samples come and go, configs grow and the sensor is forgotten."""
    sensor = Sensor("s", MetricConfig(2, 100), clock=VirtualClock(0))
    sensor.add("m", Rate())
    sensor.add(None, COMPOUND[1])
    sensor.record(1.0, 0)
    views = [sensor.metrics["m"].view(), sensor.metrics["p50"].histogram_view()]
    seen = [memoryview(view) for view in views]
    storm(data, sensor, {**SENSOR_CALLS, "record": [st.floats(), st.integers(0, 10_000)]}, (QuotaViolationError,))
    sensor.metrics["m"].config = MetricConfig(data.draw(st.integers(1, 5000)), 100)
    for n in range(200):
        sensor.record(1.0, n * 100, False)
    del sensor, views
    assert all(len(bytes(view)) == view.nbytes for view in seen)


@at_any_pace
@given(st.data())
def test_descriptions(data: st.DataObject) -> None:
    """Quotas, configs and statistics refuse what they cannot describe."""
    attempt(lambda: Quota, data, [VALUES, JUNK], ())
    storm(data, Quota.upper(1.0), {"acceptable": [VALUES], "__eq__": [JUNK], "__hash__": [], "bound": []})
    names = ("samples", "window_ms", "event_window", "quota", "record_level", "tags", "no_such")
    chosen = data.draw(st.dictionaries(st.sampled_from(names), JUNK, max_size=2))
    attempt(lambda: lambda: MetricConfig(**chosen), data, [], ())
    attempt(lambda: lambda: MetricConfig().replace(**chosen), data, [], ())
    for kind in (*PLAIN, StatSpec):
        attempt(lambda kind=kind: kind, data, [JUNK], ())
    attempt(lambda: lambda stat, unit, size: Rate(stat, unit, window_ms=size), data, [JUNK, JUNK, JUNK], ())
    attempt(lambda: Meter, data, [JUNK, JUNK, st.one_of(STATS, JUNK), JUNK], ())
    shapes = [JUNK, VALUES, st.one_of(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), JUNK)]
    attempt(lambda: Percentiles, data, shapes, ())
    edges = st.one_of(st.floats(), st.sampled_from([0, 1e300, -1e300, math.inf]))
    attempt(lambda: lambda low, high: Percentiles(400, high, {"p": 1.0}, smallest=low), data, [edges, edges], ())


@at_any_pace
@given(st.data())
def test_registry(data: st.DataObject) -> None:
    """Names that are none, parents that are not registered, removal of what is not there: told, and nothing left."""
    clock = VirtualClock(0)
    attempt(lambda: SensorRegistry, data, [CONFIGS, OBJECTS], ())
    registry = SensorRegistry(clock=clock, expires=True)
    first = registry.sensor("a", inactive_expiration_ms=10)
    words = data.draw(st.fixed_dictionaries({}, optional={"parents": OBJECTS, "record_level": LEVELS}))
    attempt(lambda: lambda name: registry.sensor(name, **words), data, [st.one_of(st.just("b"), JUNK)], ())
    calls = {
        "sensor": [st.one_of(st.sampled_from(["a", "c"]), JUNK), CONFIGS],
        "get_sensor": [NAMES], "get_metric": [NAMES], "remove_sensor": [st.one_of(st.just("a"), NAMES)],
        "expire_inactive": [TIMES], "sensors": [], "metrics": [], "config": [], "clock": [], "__init__": [],
    }  # fmt: skip
    storm(data, registry, calls, longest=20)
    assert refused(registry.sensor, "late", parents=[Sensor("stranger")]) is ValueError
    storm(data, first, SENSOR_CALLS, (QuotaViolationError,))
    for name in list(registry.sensors):
        assert registry.remove_sensor(name) or name not in registry.sensors
    assert (dict(registry.sensors), dict(registry.metrics)) == ({}, {})
    assert registry.sensor("a") is not first


@at_any_pace
@given(st.data())
def test_charge(data: st.DataObject) -> None:
    """Several sensors at once: lists, tuples, modes and delays of any kind; a refused call has recorded nothing."""
    sensor = Sensor("s", clock=VirtualClock(0))
    sensor.add("total", CumulativeSum())
    modes = st.one_of(st.sampled_from(["permissive", "strict", "unchecked"]), JUNK)
    one = st.one_of(
        st.tuples(st.one_of(st.just(sensor), JUNK), VALUES),
        st.tuples(st.just(sensor), VALUES, modes),
        st.tuples(st.just(sensor), VALUES, modes, JUNK),
        JUNK,
    )
    charges = data.draw(st.one_of(st.lists(one, max_size=20), JUNK))
    attempt(lambda: lambda time, clock: charge(charges, time, clock=clock), data, [TIMES, OBJECTS], ())
    before = sensor.metrics["total"].measure()
    for wrong in ([(sensor, 1.0), (sensor,)], [(sensor, 1.0), ("x", 1.0)], [(sensor, 1.0, "no")], [(sensor, 1)] * 17):
        refused(charge, wrong)
    after = sensor.metrics["total"].measure()
    assert after == before or (math.isnan(after) and math.isnan(before))


@at_any_pace
@given(st.data())
def test_metrics(data: st.DataObject) -> None:
    """The broker's registry over it: names, tags, gauges."""
    attempt(lambda: Metrics, data, [CONFIGS, OBJECTS], ())
    metrics = Metrics(clock=VirtualClock(0))
    name = metrics.metric_name("n", "g")
    calls = {
        "metric_name": [st.text(), st.text(), st.one_of(st.lists(st.text(), max_size=3), OBJECTS)],
        "get": [st.one_of(st.just(name), st.builds(MetricName, st.text(), st.text()))],
        "remove_sensor": [st.text()], "expire_inactive": [TIMES], "find": [st.text(), st.text()], "config": [],
        "remove_gauge": [st.just(name)], "add_gauge": [st.just(name), st.just(lambda: 1.0)], "__len__": [],
    }  # fmt: skip
    storm(data, metrics, calls, longest=20)
    assert metrics.get(metrics.metric_name("count", "kafka-metrics-count")) is not None


def test_numbers_out_of_range() -> None:
    """Beyond 64 bits is a ValueError, as everywhere else in the cores."""
    sensor = Sensor("s", MetricConfig(quota=Quota.upper(1.0)), clock=VirtualClock(0))
    sensor.add("m", Rate())
    assert refused(sensor.record, 1.0, 2**80) is ValueError
    assert refused(sensor.record, 1.0, "now") is TypeError
    assert refused(sensor.record_and_throttle, 1.0, 0, 2**80) is ValueError
    assert refused(sensor.metrics["m"].throttle_time_ms, 5.0, 0, "long") is TypeError
    assert refused(Sensor, "s", inactive_expiration_ms=2**80) is ValueError
    assert refused(Sensor, "s", inactive_expiration_ms="soon") is TypeError
    assert refused(charge, [(sensor, 1.0, "strict", 2**80)]) is ValueError
