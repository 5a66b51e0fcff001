"""Sensors beyond the vectors: delays, several limits at once, views of samples, threads, invalid arguments."""

import gc
import math
import threading
import weakref

import numpy as np
import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics import stats
from kbroker._core.metrics.metric import Metric, SampleView
from kbroker._core.metrics.metric_config import MetricConfig, Quota
from kbroker._core.metrics.sensor import QuotaViolationError, Sensor, SensorRegistry, charge
from kbroker.metrics.registry import Metrics
from tests.support.sensor_script import SIMPLE

WALL = 1_700_000_000_000


def sensor_of(stat: stats.StatSpec, config: MetricConfig | None = None, name: str = "s") -> Sensor:
    sensor = Sensor(name, clock=VirtualClock(WALL))
    assert sensor.add(None if stat.parts else "m", stat, config)
    return sensor


def rate_limited(bound: float, name: str = "s") -> Sensor:
    return sensor_of(stats.Rate(), MetricConfig(11, 1000, quota=Quota.upper(bound)), name)


def bucket_limited(bound: float, name: str = "s") -> Sensor:
    return sensor_of(stats.TokenBucket(), MetricConfig(10, 1000, quota=Quota.upper(bound)), name)


def read(sensor: Sensor, time_ms: int = WALL) -> float:
    return sensor.metrics["m"].measure(time_ms)


def test_a_refused_charge_records_nothing() -> None:
    """If one strict limit rejects the charge, no sensor of the call is changed, and the result has its delay."""
    rate, bucket = rate_limited(100), bucket_limited(1)
    bucket.record(12, WALL, check=False)
    response = charge([(rate, 5000), (bucket, 1, "strict")], WALL)
    assert response == (False, 2000, (0, 2000), (False, True))
    assert (read(rate), read(bucket), rate.last_record_time_ms) == (0, -2, WALL)


def test_an_accepted_charge_records_all_and_returns_the_longest_delay() -> None:
    """Permissive limits are recorded before their check; the result has the largest delay, each within its maximum."""
    first, second, bucket = rate_limited(100), rate_limited(50), bucket_limited(1)
    response = charge([(first, 2000), (second, 2000, "permissive", 1000), (bucket, 30, "strict"), (None, 1)], WALL)
    assert response == (True, 10_000, (10_000, 1000, 0, 0), (True, True, False, False))
    assert (read(first), read(second), read(bucket)) == (200, 200, -20)


def test_a_negative_charge_gives_back() -> None:
    """A negative weight is deducted from the recorded sum, and an unchecked charge never returns a delay."""
    rate, bucket = rate_limited(100), bucket_limited(10)
    assert charge([(rate, 3000), (bucket, 130)], WALL).throttle_times_ms == (20_000, 3000)
    assert charge([(rate, -3000, "unchecked"), (bucket, -30, "unchecked")], WALL).throttle_time_ms == 0
    assert (read(rate), read(bucket)) == (0, 0)
    assert charge([(rate, 5000, "unchecked")], WALL) == (True, 0, (0,), (False,))


def test_one_sensor_charged_twice() -> None:
    """A sensor that occurs twice in a call is locked once and charged twice."""
    bucket = bucket_limited(10)
    assert charge([(bucket, 100, "strict"), (bucket, 50, "strict")], WALL).accepted
    assert read(bucket) == -50


def test_parents_of_charged_sensors() -> None:
    """Parents record accepted weights, and a parent's own limit counts in the result."""
    parent = rate_limited(10, "parent")
    child = Sensor("child", parents=[parent], clock=VirtualClock(WALL))
    child.add("m", stats.CumulativeSum())
    assert charge([(child, 300)], WALL) == (True, 20_000, (20_000,), (True,))
    assert (read(parent), read(child)) == (30, 300)
    strict = charge([(parent, 1, "strict"), (child, 1)], WALL)
    assert not strict.accepted
    assert (read(parent), read(child)) == (30, 300)


def test_a_violation_by_a_parent_names_its_metric() -> None:
    """The error of a parent's check has the parent's metric, and the child's record is kept."""
    grandparent = rate_limited(10, "grandparent")
    parent = Sensor("parent", parents=[grandparent], clock=VirtualClock(WALL))
    child = Sensor("child", parents=[parent], clock=VirtualClock(WALL))
    child.add("m", stats.CumulativeSum())
    with pytest.raises(QuotaViolationError, match=r"'m' violated quota. Actual: 30.0, Threshold: 10.0") as caught:
        child.record(300, WALL)
    assert caught.value.metric is grandparent.metrics["m"]
    assert read(child) == 300


def test_parents_are_not_reached_by_a_value_that_raises() -> None:
    """A value whose check raises is not recorded by the parents; without a check it is."""
    parent = sensor_of(stats.CumulativeSum(), name="parent")
    child = Sensor("child", parents=[parent], clock=VirtualClock(WALL))
    child.add("m", stats.Rate(), MetricConfig(11, 1000, quota=Quota.upper(1)))
    with pytest.raises(QuotaViolationError):
        child.record(100, WALL)
    assert read(parent) == 0
    child.record(100, WALL, check=False)
    assert read(parent) == 100


def test_no_delay_follows_from_a_sum() -> None:
    """A violated metric other than a rate or a bucket has no delay: an error in one call, None in the other."""
    total = sensor_of(stats.CumulativeSum(), MetricConfig(quota=Quota.upper(5)))
    with pytest.raises(ValueError, match="no delay follows from 'm'"):
        total.record_and_throttle(6, WALL)
    assert charge([(total, 1)], WALL) == (True, 0, (None,), (True,))
    with pytest.raises(ValueError, match="is not a rate"):
        total.metrics["m"].throttle_time_ms(6, WALL)
    with pytest.raises(ValueError, match="has no quota"):
        sensor_of(stats.Rate()).metrics["m"].throttle_time_ms(6, WALL)


def test_token_bucket_without_a_quota() -> None:
    """Without a quota a bucket records nothing and measures the largest int64."""
    bucket = sensor_of(stats.TokenBucket())
    bucket.record(5, WALL)
    assert read(bucket) == float(2**63 - 1)
    bucket.metrics["m"].config = MetricConfig(10, 1000, quota=Quota.upper(1))
    assert read(bucket) == 10


def test_a_changed_bound_holds_for_the_time_since_the_last_touch() -> None:
    """A new bound applies to the refill for the whole time since the last record."""
    bucket = bucket_limited(10)
    bucket.record(200, WALL, check=False)
    bucket.metrics["m"].config = MetricConfig(10, 1000, quota=Quota.upper(20))
    assert read(bucket, WALL + 4000) == -20


def test_nan_violates_a_quota() -> None:
    """A mean without data is NaN, which violates its quota."""
    mean = sensor_of(stats.Avg(), MetricConfig(quota=Quota.upper(5)))
    with pytest.raises(QuotaViolationError):
        mean.check_quotas(WALL)


def test_event_window_and_own_window() -> None:
    """A sample may also be complete after a number of events, and a rate may have its own sample length."""
    counted = sensor_of(stats.WindowedSum(), MetricConfig(2, 1000, event_window=2))
    for value in range(7):
        counted.record(value, WALL)
    assert [s[2:] for s in counted.metrics["m"].samples()] == [(1, 6.0), (2, 5.0), (2, 9.0)]
    own = sensor_of(stats.Rate(window_ms=500), MetricConfig(11, 1000))
    own.record(50, WALL)
    assert own.metrics["m"].window_size_ms(WALL) == 5000
    assert read(own, WALL + 5499) == 50 / 5.499
    assert read(own, WALL + 5500) == 0


def test_value_and_units() -> None:
    """A Value measures its last record; rates and buckets use their unit."""
    last = sensor_of(stats.Value())
    last.record(7, WALL)
    last.record(-3, WALL)
    assert read(last) == -3
    config = MetricConfig(11, 1000)
    units = ("nanoseconds", "microseconds", "milliseconds", "seconds", "minutes", "hours", "days")
    measured = []
    for unit in units:
        sensor = sensor_of(stats.Rate(unit=unit), config)  # type: ignore[arg-type]
        sensor.record(1, WALL)
        measured.append(read(sensor))
    assert measured == [1 / 1e10, 1 / 1e7, 1 / 1e4, 1 / 10, 1 / (1e4 / 6e4), 1 / (1e4 / 3.6e6), 1 / (1e4 / 8.64e7)]


def test_fewer_and_more_samples_than_before() -> None:
    """A config with another number of samples keeps the samples in the ring, which grows if necessary."""
    sensor = sensor_of(stats.Rate(), MetricConfig(2, 1000))
    metric = sensor.metrics["m"]
    for i in range(3):
        sensor.record(1, WALL + i * 1000)
    metric.config = MetricConfig(5, 1000)
    for i in range(3, 8):
        sensor.record(1, WALL + i * 1000)
    assert sorted(s[0] - WALL for s in metric.samples()) == [2000, 3000, 4000, 5000, 6000, 7000]
    metric.config = MetricConfig(1, 1000)
    for i in range(8, 12):
        sensor.record(1, WALL + i * 1000)
    assert len(metric.samples()) == 6
    assert read(sensor, WALL + 11_000) == 1 / 0.001


def test_percentiles_constant() -> None:
    """Percentiles are lower edges of histogram bins; values outside the range count in the outermost bins."""
    spec = stats.Percentiles(400, 100, {"p25": 25, "p50": 50, "p75": 75, "p100": 100}, smallest=0)
    sensor = sensor_of(spec, MetricConfig(50, 1000))
    read_all = [sensor.metrics[n] for n in ("p25", "p50", "p75", "p100")]
    assert all(math.isnan(m.measure(WALL)) for m in read_all)
    for value in range(100):
        sensor.record(value, WALL)
    assert [m.measure(WALL) for m in read_all] == [25, 50, 75, math.inf]
    for far in (-5, 1e9, math.nan):
        sensor.record(far, WALL)
    assert sensor.metrics["p25"].measure(WALL) == 23
    counts = np.asarray(sensor.metrics["p50"].histogram_view())
    assert (counts.shape, counts.dtype, counts[0, 0], counts[0, 99]) == ((1, 100), np.float32, 3, 2)  # type: ignore[comparison-overlap]
    assert math.isnan(sensor.metrics["p50"].measure(WALL + 50_000))
    assert counts.sum() == 0


def test_percentiles_linear() -> None:
    """Linear bins grow in width from 0, so that small values are distinguished more finely."""
    sensor = sensor_of(stats.Percentiles(40, 1000, {"p10": 10, "p90": 90}, bucketing="linear"), MetricConfig(2, 1000))
    for value in range(1000):
        sensor.record(value, WALL)
    scale = 1000 / 45
    edges = [scale * (b * (b + 1.0)) / 2.0 for b in range(10)]
    p10, p90 = sensor.metrics["p10"].measure(WALL), sensor.metrics["p90"].measure(WALL)
    assert p10 in edges
    assert p90 in edges
    assert p10 <= 100 < edges[edges.index(p10) + 1]
    assert p90 <= 900 < edges[edges.index(p90) + 1]


def test_views_show_the_samples_without_copying() -> None:
    """numpy reads the samples in place: later records appear, and writing is forbidden."""
    sensor = rate_limited(1e9)
    for i in range(3):
        sensor.record(10, WALL + i * 1000)
    view = sensor.metrics["m"].view()
    array = np.asarray(view)
    assert array.dtype.names == ("value", "event_count", "start_ms", "last_event_ms")
    assert array["value"].tolist() == [10, 10, 10]
    assert array["start_ms"].tolist() == [WALL, WALL + 1000, WALL + 2000]
    assert not array.flags.writeable
    sensor.record(5, WALL + 2999)
    assert array["value"].tolist() == [10, 10, 15]
    assert array["event_count"].tolist() == [1, 1, 2]
    assert len(view) == 3
    assert memoryview(view).readonly


def test_views_outlive_their_sensor_and_a_growing_ring() -> None:
    """A view keeps its memory after its sensor is deleted and after the ring is reallocated."""
    sensor = rate_limited(1e9)
    sensor.record(10, WALL)
    metric = sensor.metrics["m"]
    array = np.asarray(metric.view())
    metric.config = MetricConfig(1000, 1000)
    sensor.record(10, WALL)
    assert array["value"].tolist() == [10]
    assert np.asarray(metric.view())["value"].tolist() == [20]
    del sensor, metric
    gc.collect()
    assert array["value"].tolist() == [10]


def test_what_has_no_samples_has_no_view() -> None:
    """Totals and buckets have no samples and no view, and a view cannot be constructed directly."""
    for stat in (stats.CumulativeSum(), stats.TokenBucket(), stats.Value()):
        metric = sensor_of(stat).metrics["m"]
        assert metric.samples() == []
        with pytest.raises(ValueError, match="no samples"):
            metric.view()
    with pytest.raises(ValueError, match="no histogram"):
        sensor_of(stats.Rate()).metrics["m"].histogram_view()
    with pytest.raises(BufferError):
        memoryview(SampleView())


def test_records_and_checks_in_many_threads() -> None:
    """SE-11: ten threads record and check one sensor; no thread fails and every record counts."""
    sensor = Sensor("s", MetricConfig(100, 1))
    sensor.add("m", stats.Rate(), MetricConfig(100, 1, quota=Quota.upper(1e12)))
    sensor.add("n", stats.CumulativeCount())
    failed: list[BaseException] = []
    start = threading.Barrier(10)

    def work() -> None:
        try:
            start.wait()
            for i in range(2000):
                sensor.record(1, WALL + i // 20, check=False)
                sensor.check_quotas(WALL + i // 20)
        except BaseException as e:
            failed.append(e)

    run_all(work, 10)
    assert failed == []
    assert sensor.metrics["n"].measure() == 20_000


def run_all(work: object, count: int) -> None:
    threads = [threading.Thread(target=work, name=f"recorder-{i}") for i in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_strict_charges_of_many_threads_stay_whole() -> None:
    """A strict check and its record are atomic, so the accepted weights add up to the tokens used."""
    first, second = bucket_limited(1, "first"), bucket_limited(1, "second")
    accepted: list[int] = []
    start = threading.Barrier(8)

    def work(order: list[Sensor]) -> None:
        start.wait()
        mine = 0
        for _ in range(500):
            mine += charge([(sensor, 1, "strict") for sensor in order], WALL).accepted
        accepted.append(mine)

    orders = iter([[first, second], [second, first]] * 4)
    run_all(lambda: work(next(orders)), 8)
    assert sum(accepted) == 11
    assert (read(first), read(second)) == (-1, -1)


def test_adding_and_expiring_in_many_threads() -> None:
    """Sensors created, recorded, removed and expired by many threads leave no metric behind."""
    registry = SensorRegistry(clock=VirtualClock(WALL), expires=True)
    start = threading.Barrier(6)

    def work() -> None:
        start.wait()
        for i in range(300):
            sensor = registry.sensor(f"s{i % 7}", inactive_expiration_ms=10)
            sensor.add(f"m{i % 7}", stats.Rate())
            sensor.record(1, WALL + 1)
            if i % 3 == 0:
                registry.expire_inactive(WALL + 100)
            if i % 5 == 0:
                registry.remove_sensor(f"s{i % 7}")

    run_all(work, 6)
    registry.expire_inactive(WALL + 100_000)
    assert (dict(registry.sensors), dict(registry.metrics)) == ({}, {})


def test_a_contended_record_waits_for_the_lock() -> None:
    """A record that has to wait for the lock is not lost."""
    sensor = sensor_of(stats.CumulativeSum())
    run_all(lambda: sensor._record_repeatedly(200_000, 1.0, WALL), 2)
    assert read(sensor) == 400_000


def test_an_expired_sensor_stays_in_a_registry_that_does_not_expire() -> None:
    """Sensors expire only in a registry that was created with expiry."""
    registry = SensorRegistry(clock=VirtualClock(0))
    registry.sensor("s", inactive_expiration_ms=0)
    assert registry.expire_inactive(10) == []
    assert registry.get_sensor("s") is not None


def test_the_registry_returns_what_it_has() -> None:
    """A second call for a name returns the same sensor and ignores its other arguments."""
    registry = SensorRegistry(clock=VirtualClock(0))
    made = registry.sensor("s", record_level="TRACE")
    assert registry.sensor("s", MetricConfig(record_level="TRACE"), record_level="INFO") is made
    assert not made.should_record
    outsider = Sensor("outsider")
    with pytest.raises(ValueError, match="parent 'outsider' is not registered here"):
        registry.sensor("child", parents=[outsider])


def test_a_removed_sensor_takes_no_metrics() -> None:
    """A removed sensor registers no more names."""
    registry = SensorRegistry(clock=VirtualClock(0))
    made = registry.sensor("s")
    made.add("m", stats.Rate())
    metric = made.metrics["m"]
    registry.remove_sensor("s")
    assert not made.add("n", stats.Rate())
    made.record(5, 0)
    assert metric.measure(0) == 5 / 30
    assert dict(registry.metrics) == {}


def test_a_meter_keeps_its_config_for_recording() -> None:
    """A compound stat records by its original config, and measurements use a replaced config."""
    sensor = Sensor("s", clock=VirtualClock(0))
    config = MetricConfig(2, 1000, quota=Quota.upper(5))
    assert sensor.add(None, stats.Meter("rate", "total"), config)
    assert sensor.add(None, stats.Meter("rate", "total"), config)
    with pytest.raises(QuotaViolationError) as caught:
        sensor.record(100, 0)
    assert caught.value.metric.name == "total"
    sensor.metrics["rate"].config = MetricConfig(11, 1000)
    assert sensor.metrics["rate"].measure(0) == 10
    for i in range(1, 13):
        sensor.record(0, i * 1000, check=False)
    assert len(sensor.metrics["rate"].samples()) == 3


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: MetricConfig(0), ValueError),
        (lambda: MetricConfig(100_001), ValueError),
        (lambda: MetricConfig(2, 0), ValueError),
        (lambda: MetricConfig(2, 2**63), ValueError),
        (lambda: MetricConfig(2, 1000, event_window=0), ValueError),
        (lambda: MetricConfig(quota=5), TypeError),  # type: ignore[arg-type]
        (lambda: MetricConfig("2"), TypeError),  # type: ignore[arg-type]
        (lambda: MetricConfig(2.5), TypeError),  # type: ignore[arg-type]
        (lambda: MetricConfig(2, 1000.5), TypeError),  # type: ignore[arg-type]
        (lambda: MetricConfig(record_level="FINE"), ValueError),  # type: ignore[arg-type]
        (lambda: MetricConfig().replace(bound=5), TypeError),  # type: ignore[call-arg]
        (lambda: Quota.upper("x"), TypeError),  # type: ignore[arg-type]
        (lambda: stats.Rate(unit="fortnights"), ValueError),  # type: ignore[arg-type]
        (lambda: stats.Rate(stats.CumulativeSum()), ValueError),
        (lambda: stats.Rate("sum"), TypeError),  # type: ignore[arg-type]
        (lambda: stats.Rate(window_ms=0), ValueError),
        (lambda: stats.Meter("a", "a"), ValueError),
        (lambda: stats.Percentiles(4, 1, {"a": 1}), ValueError),
        (lambda: stats.Percentiles(8, math.nan, {"a": 1}), ValueError),
        (lambda: stats.Percentiles(8, 0, {"a": 1}), ValueError),
        (lambda: stats.Percentiles(8, 1, {}), ValueError),
        (lambda: stats.Percentiles(8, 1, {"a": 101}), ValueError),
        (lambda: stats.Percentiles(8, 2, {"a": 1}, smallest=1, bucketing="linear"), ValueError),
        (lambda: stats.Percentiles(8, 2, {"a": 1}, bucketing="cubic"), ValueError),  # type: ignore[arg-type]
        (lambda: stats.StatSpec(), TypeError),
        (lambda: Sensor(None), TypeError),  # type: ignore[arg-type]
        (lambda: Sensor("s", 5), TypeError),  # type: ignore[arg-type]
        (lambda: Sensor("s", parents=["p"]), TypeError),  # type: ignore[list-item]
        (lambda: Sensor("s", clock=5), TypeError),  # type: ignore[arg-type]
        (lambda: Sensor("s", inactive_expiration_ms=-1), ValueError),
        (lambda: Sensor("s", record_level=None), ValueError),  # type: ignore[arg-type]
        (lambda: Sensor("s").add(None, stats.Rate()), TypeError),
        (lambda: Sensor("s").add("m", stats.Meter("a", "b")), TypeError),
        (lambda: Sensor("s").add([], stats.Rate()), TypeError),  # type: ignore[arg-type]
        (lambda: Sensor("s").add("m", None), TypeError),  # type: ignore[arg-type]
        (lambda: Sensor("s").add("m", stats.Rate(), 5), TypeError),  # type: ignore[arg-type]
        (lambda: Sensor("s").record("x"), TypeError),  # type: ignore[arg-type]
        (lambda: Sensor("s").record(1, 2**60 + 1), ValueError),
        (lambda: Sensor("s").record(1, 2**70), ValueError),
        (lambda: Sensor("s").record(1, 1.5), TypeError),  # type: ignore[arg-type]
        (lambda: Metric("m").measure(), ValueError),
        (lambda: Metric("m").config, ValueError),
        (lambda: Metric("m").view(), ValueError),
        (lambda: SensorRegistry(5), TypeError),  # type: ignore[arg-type]
        (lambda: SensorRegistry(clock=5), TypeError),  # type: ignore[arg-type]
        (lambda: charge([(1, 1)]), TypeError),  # type: ignore[list-item]
        (lambda: charge([(Sensor("s"),)]), ValueError),  # type: ignore[list-item]
        (lambda: charge([(Sensor("s"), 1, "maybe")]), ValueError),  # type: ignore[list-item]
        (lambda: charge([(Sensor("s"), 1, "strict", -1)]), ValueError),
        (lambda: charge([(None, 1)] * 17), ValueError),
    ],
)
def test_bad_arguments(call: object, error: type[Exception]) -> None:
    """An invalid argument is a TypeError or a ValueError with a message."""
    with pytest.raises(error, match=r"\w"):
        call()  # type: ignore[operator]


def test_extreme_times_and_values_are_harmless() -> None:
    """Infinite and NaN values and times at both ends give a result without a crash."""
    for kind in (*SIMPLE.values(), stats.Rate, stats.TokenBucket):
        sensor = sensor_of(kind(), MetricConfig(11, 1 << 40, quota=Quota.upper(5)))
        for value in (math.inf, -math.inf, math.nan, 1e308, -0.0):
            for time_ms in (WALL, 2**60, -(2**60), 0):
                sensor.record(value, time_ms, check=False)
                sensor.metrics["m"].measure(time_ms)
                if kind in (stats.Rate, stats.TokenBucket):
                    assert isinstance(sensor.metrics["m"].throttle_time_ms(None, time_ms), int)


def test_a_deep_family_is_refused() -> None:
    """Sensors may be nested 64 deep; deeper nesting is an argument error, not a stack overflow."""
    sensor = Sensor("root")
    for i in range(64):
        sensor = Sensor(f"s{i}", parents=[sensor])
    sensor.record(1)
    with pytest.raises(ValueError, match="64 deep"):
        Sensor("deeper", parents=[sensor])


def test_a_registry_is_freed_with_its_sensors() -> None:
    """A registry, its sensors and its metrics are freed without a reference, in any order."""
    metrics = Metrics(clock=VirtualClock(0))

    class Marker:
        def number(self) -> float:
            return 0.0

    marker = Marker()
    gone = weakref.ref(marker)
    sensor = metrics.sensor("s")
    sensor.add(metrics.metric_name("m", "g"), stats.Rate())
    metrics.add_gauge(metrics.metric_name("gauge", "g"), marker.number)
    del marker
    metric = sensor.metrics[metrics.metric_name("m", "g")]
    del metrics, sensor
    gc.collect()
    assert gone() is None
    assert metric.measure(0) == 0
