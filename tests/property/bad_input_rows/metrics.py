"""Rows of the metrics: sensors, metrics, statistics and their registry."""

import math

from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics import stats
from kbroker._core.metrics.metric import Metric, SampleView
from kbroker._core.metrics.metric_config import MetricConfig, Quota
from kbroker._core.metrics.sensor import QuotaViolationError, Sensor, SensorRegistry, charge
from kbroker.metrics.registry import MetricName, Metrics
from tests.support import sensor_script
from tests.support.bad_input import JUNK, OBJECTS, Call, Life, Object, Refusal, Row, Storm, attempt, refused

PLAIN = (*sensor_script.SIMPLE.values(), stats.Rate, stats.TokenBucket)
COMPOUND = (stats.Meter("rate", "total"), stats.Percentiles(400, 100.0, {"p50": 50.0, "p99": 99.0}))
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
    "record": [VALUES, TIMES, JUNK], "record_and_throttle": [VALUES, TIMES, TIMES], "record_strict": [VALUES, TIMES],
    "check_quotas": [TIMES], "has_expired": [TIMES], "add": [NAMES, st.one_of(STATS, JUNK), CONFIGS], "metrics": [],
    "parents": [], "should_record": [], "is_removed": [], "last_record_time_ms": [], "_mark_removed": [],
    "__init__": [],
}  # fmt: skip
METRIC_CALLS = {
    "measure": [TIMES], "window_size_ms": [TIMES], "throttle_time_ms": [st.one_of(st.none(), VALUES), TIMES, TIMES],
    "config": [], "is_rate": [], "name": [], "samples": [], "view": [], "histogram_view": [], "__init__": [],
}  # fmt: skip
MEASURE = Storm(METRIC_CALLS)
QUOTA = (QuotaViolationError,)


def sensor(data: st.DataObject) -> Life:
    """Yield a sensor, then its metrics with a changed config; the sensor records after any calls."""
    clock = VirtualClock(0)
    parent = Sensor("parent", clock=clock)
    made = Sensor("s", MetricConfig(3, 100), parents=[parent], clock=clock)
    yield made
    found = list(made.metrics.values())[:3]
    for n in range(3):
        metric = found[n] if n < len(found) else None
        yield metric
        if metric is not None:
            attempt(data, lambda *given, metric=metric: setattr(metric, "config", *given), [CONFIGS])
        yield metric
    made.record(1.0, check=False)


def orphan(data: st.DataObject) -> Life:
    """Yield a metric without a sensor; a view without a metric is empty."""
    yield Metric("x")
    assert len(SampleView()) == 0


def viewed_sensor(data: st.DataObject) -> Life:
    """Yield a sensor whose views keep their memory while samples change, configs grow and the sensor is dropped."""
    made = Sensor("s", MetricConfig(2, 100), clock=VirtualClock(0))
    made.add("m", stats.Rate())
    made.add(None, COMPOUND[1])
    made.record(1.0, 0)
    views = [made.metrics["m"].view(), made.metrics["p50"].histogram_view()]
    seen = [memoryview(view) for view in views]
    yield made
    made.metrics["m"].config = MetricConfig(data.draw(st.integers(1, 5000)), 100)
    for n in range(200):
        made.record(1.0, n * 100, False)
    del made, views
    assert all(len(bytes(view)) == view.nbytes for view in seen)


def quota(data: st.DataObject) -> Life:
    yield Quota.upper(1.0)


REGISTRY_CALLS = {
    "sensor": [st.one_of(st.sampled_from(["a", "c"]), JUNK), CONFIGS],
    "get_sensor": [NAMES], "get_metric": [NAMES], "remove_sensor": [st.one_of(st.just("a"), NAMES)],
    "expire_inactive": [TIMES], "sensors": [], "metrics": [], "config": [], "clock": [], "__init__": [],
}  # fmt: skip


def registry(data: st.DataObject) -> Life:
    """Yield a registry and a sensor; invalid names, unknown parents and removals of unknown sensors are refused."""
    made = SensorRegistry(clock=VirtualClock(0), expires=True)
    first = made.sensor("a", inactive_expiration_ms=10)
    words = data.draw(st.fixed_dictionaries({}, optional={"parents": OBJECTS, "record_level": LEVELS}))
    attempt(data, made.sensor, [st.one_of(st.just("b"), JUNK)], (), words)
    yield made
    assert refused(made.sensor, "late", parents=[Sensor("stranger")]) is ValueError
    yield first
    for name in list(made.sensors):
        assert made.remove_sensor(name) or name not in made.sensors
    assert (dict(made.sensors), dict(made.metrics)) == ({}, {})
    assert made.sensor("a") is not first


def charges(mine: Sensor) -> st.SearchStrategy[object]:
    modes = st.one_of(st.sampled_from(["permissive", "strict", "unchecked"]), JUNK)
    one = st.one_of(
        st.tuples(st.one_of(st.just(mine), JUNK), VALUES),
        st.tuples(st.just(mine), VALUES, modes),
        st.tuples(st.just(mine), VALUES, modes, JUNK),
        JUNK,
    )
    return st.one_of(st.lists(one, max_size=20), JUNK)


def charged(data: st.DataObject) -> Life:
    """Charge several sensors at once with items of any kind; a refused call records nothing."""
    made = Sensor("s", clock=VirtualClock(0))
    made.add("total", stats.CumulativeSum())
    items = data.draw(charges(made))
    attempt(data, lambda time, clock: charge(items, time, clock=clock), [TIMES, OBJECTS])  # type: ignore[arg-type]
    before = made.metrics["total"].measure()
    for wrong in ([(made, 1.0), (made,)], [(made, 1.0), ("x", 1.0)], [(made, 1.0, "no")], [(made, 1)] * 17):
        refused(charge, wrong)
    after = made.metrics["total"].measure()
    assert after == before or (math.isnan(after) and math.isnan(before))
    yield from ()


def metrics(data: st.DataObject) -> Life:
    """Yield the broker's registry of metrics with names, tags and gauges."""
    made = Metrics(clock=VirtualClock(0))
    yield made
    assert made.get(made.metric_name("count", "kafka-metrics-count")) is not None


KNOWN = Metrics(clock=VirtualClock(0)).metric_name("n", "g")
METRICS_CALLS = {
    "metric_name": [st.text(), st.text(), st.one_of(st.lists(st.text(), max_size=3), OBJECTS)],
    "get": [st.one_of(st.just(KNOWN), st.builds(MetricName, st.text(), st.text()))],
    "remove_sensor": [st.text()], "expire_inactive": [TIMES], "find": [st.text(), st.text()], "config": [],
    "add_gauge": [st.just(KNOWN), st.just(lambda: 1.0)], "__len__": [],
}  # fmt: skip
CONFIG_WORDS = dict.fromkeys(("samples", "window_ms", "event_window", "quota", "record_level", "tags", "no_such"), JUNK)
SHAPES = [JUNK, VALUES, st.one_of(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), JUNK)]
EDGES = st.one_of(st.floats(), st.sampled_from([0, 1e300, -1e300, math.inf]))
SENSOR_WORDS = {
    "parents": st.one_of(st.builds(lambda: [Sensor("parent", clock=VirtualClock(0))]), OBJECTS),
    "inactive_expiration_ms": JUNK, "record_level": LEVELS, "clock": OBJECTS,
}  # fmt: skip

ROWS: list[Row] = [
    Call("Sensor()", Sensor, [JUNK, CONFIGS]),
    Call("Sensor(...)", lambda **words: Sensor("s", **words), named=SENSOR_WORDS),
    Object("Sensor", sensor, [Storm(SENSOR_CALLS, QUOTA, 20), *[MEASURE] * 6]),
    Object("Metric of no sensor", orphan, [MEASURE]),
    Object(
        "views outlive everything",
        viewed_sensor,
        [Storm({**SENSOR_CALLS, "record": [st.floats(), st.integers(0, 10_000)]}, QUOTA)],
    ),
    Call("Quota()", Quota, [VALUES, JUNK]),
    Object("Quota", quota, [Storm({"acceptable": [VALUES], "__eq__": [JUNK], "__hash__": [], "bound": []})]),
    Call("MetricConfig(...)", MetricConfig, named=CONFIG_WORDS),
    Call("MetricConfig.replace", lambda **words: MetricConfig().replace(**words), named=CONFIG_WORDS),
    *[Call(f"{kind.__name__}()", kind, [JUNK]) for kind in (*PLAIN, stats.StatSpec)],
    Call("Rate(...)", lambda stat, unit, size, *more: stats.Rate(stat, unit, *more, window_ms=size), [JUNK] * 3),
    Call("Meter()", stats.Meter, [JUNK, JUNK, st.one_of(STATS, JUNK), JUNK]),
    Call("Percentiles()", stats.Percentiles, SHAPES),
    Call(
        "Percentiles(smallest)",
        lambda low, high, *more: stats.Percentiles(400, high, {"p": 1.0}, *more, smallest=low),
        [EDGES, EDGES],
    ),
    Call("SensorRegistry()", SensorRegistry, [CONFIGS, OBJECTS]),
    Object("SensorRegistry", registry, [Storm(REGISTRY_CALLS, longest=20), Storm(SENSOR_CALLS, QUOTA)]),
    Object("charge", charged, []),
    Call("Metrics()", Metrics, [CONFIGS, OBJECTS]),
    Object("Metrics", metrics, [Storm(METRICS_CALLS, longest=20)]),  # type: ignore[arg-type]
]


def limited() -> Sensor:
    """Return a sensor with a quota and a metric."""
    made = Sensor("s", MetricConfig(quota=Quota.upper(1.0)), clock=VirtualClock(0))
    made.add("m", stats.Rate())
    return made


REFUSALS: dict[str, list[Refusal]] = {
    # a number beyond 64 bits is a ValueError, as everywhere in the cores
    "Sensor": [
        Refusal(ValueError, lambda: limited().record(1.0, 2**80)),
        Refusal(TypeError, lambda: limited().record(1.0, "now")),  # type: ignore[arg-type]
        Refusal(ValueError, lambda: limited().record_and_throttle(1.0, 0, 2**80)),
        Refusal(TypeError, lambda: limited().metrics["m"].throttle_time_ms(5.0, 0, "long")),  # type: ignore[arg-type]
        Refusal(ValueError, lambda: Sensor("s", inactive_expiration_ms=2**80)),
        Refusal(TypeError, lambda: Sensor("s", inactive_expiration_ms="soon")),  # type: ignore[arg-type]
        Refusal(ValueError, lambda: charge([(limited(), 1.0, "strict", 2**80)])),
    ],
    "Metric": [
        Refusal(ValueError, lambda: Metric("x").measure()),
        Refusal(BufferError, lambda: memoryview(SampleView())),
    ],
}
