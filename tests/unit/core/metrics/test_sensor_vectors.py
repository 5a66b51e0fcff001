"""Rows of the sensor vectors (TB, RT, MT, SR, SE, QU, RP), exact; each test's docstring has their numbers."""

import math

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics import stats
from kbroker._core.metrics.metric import Metric
from kbroker._core.metrics.metric_config import MetricConfig, Quota
from kbroker._core.metrics.sensor import QuotaViolationError, Sensor, SensorRegistry
from tests.support.sensor_script import SIMPLE

WALL = 1_700_000_000_000


def one(stat: stats.StatSpec, config: MetricConfig, at: int = 0) -> tuple[Sensor, Metric]:
    """Return a sensor with one metric, and the metric."""
    sensor = Sensor("s", clock=VirtualClock(at))
    assert sensor.add("m", stat, config)
    return sensor, sensor.metrics["m"]


def bounded(samples: int, window_ms: int, bound: float) -> MetricConfig:
    return MetricConfig(samples, window_ms, quota=Quota.upper(bound))


def violation(sensor: Sensor, value: float, time_ms: int) -> QuotaViolationError:
    with pytest.raises(QuotaViolationError) as caught:
        sensor.record(value, time_ms)
    return caught.value


def test_token_bucket() -> None:
    """TB-1 to TB-4: a bucket is full at wall time, is refilled at the bound's rate and may be negative."""
    sensor, tokens = one(stats.TokenBucket(), bounded(10, 2000, 5))
    assert tokens.measure(WALL) == 100
    sensor.record(60, WALL)
    assert tokens.measure(WALL) == 40
    sensor.record(5, WALL + 2000)
    assert tokens.measure(WALL + 2000) == 45
    sensor.record(60, WALL + 4000, check=False)
    assert tokens.measure(WALL + 4000) == -5


def test_token_bucket_on_a_clock_that_begins_at_zero() -> None:
    """TB-5, TB-6: a bucket is empty at time 0."""
    _, tokens = one(stats.TokenBucket(), bounded(10, 2000, 5))
    assert tokens.measure(0) == 0
    assert tokens.measure(7000) == 35


def test_rate_without_prior_samples() -> None:
    """RT-1, RT-2: a rate assumes at least samples - 1 whole windows."""
    sensor, rate = one(stats.Rate(), MetricConfig(1, 1000))
    sensor.record(50, 0)
    assert rate.measure(999) == 50 / 0.999
    sensor, rate = one(stats.Rate(), MetricConfig(11, 11_000))
    sensor.record(50, 0)
    assert rate.measure(10_999) == 50 / 120.999


def test_rate_is_consistent_after_the_first_window() -> None:
    """RT-3, RT-4: a steady stream has a steady rate, and measuring twice changes nothing."""
    sensor, rate = one(stats.Rate(), MetricConfig(2, 1000))
    times = [0, 99, 199, 299, 399, 499, 599, 699, 799, 899, 999]
    for t in times:
        sensor.record(1, t)
    measured = []
    for t in times:
        sensor.record(1, t + 1100)
        first = rate.measure(t + 1100)
        assert first == rate.measure(t + 1100)
        assert 10 <= first <= 11
        measured.append(first)
    assert measured[:4] == [12 / 1.1, 13 / 1.199, 14 / 1.299, 15 / 1.399]


def test_time_windowing() -> None:
    """MT-1, MT-2: old samples are removed from the count."""
    sensor, count = one(stats.WindowedCount(), MetricConfig(2, 1))
    sensor.record(1, 0)
    sensor.record(1, 1)
    assert count.measure(1) == 2
    sensor.record(1, 2)
    assert count.measure(2) == 2


@pytest.mark.parametrize(
    ("stat", "last", "empty"),
    [
        *((stat, 50, math.nan) for stat in (stats.Max, stats.Min, stats.Avg)),
        *((stats.WindowedCount, 1, 0), (stats.WindowedSum, 50, 0)),
    ],
)
def test_no_data(stat: type[stats.StatSpec], last: int, empty: float) -> None:
    """MT-3 to MT-5: in a window without records extremes and means are NaN, sums and counts 0."""
    sensor, metric = one(stat(), MetricConfig(2, 100))
    sensor.record(50, 0)
    assert metric.measure(199) == last
    assert metric.measure(200) == pytest.approx(empty, abs=0, nan_ok=True)


def test_simple_stats() -> None:
    """MT-6 to MT-9: mean, extremes, count and rates of ten values in the default window."""
    sensor = Sensor("s", clock=VirtualClock(0))
    for name in ("avg", "max", "min", "windowed_count"):
        sensor.add(name, SIMPLE[name]())
    sensor.add(None, stats.Meter("rate", "total"))
    sensor.add(None, stats.Meter("occurrences", "occurred", stats.WindowedCount()))
    for value in range(10):
        sensor.record(value, 0)
    read = sensor.metrics
    assert read["occurrences"].measure(0) == 10 / 30
    values = [read[name].measure(2000) for name in ("avg", "max", "min", "windowed_count", "rate", "occurrences")]
    assert values == [4.5, 9, 0, 10, 1.40625, 0.3125]


def test_rate_windowing() -> None:
    """MT-10 to MT-12: the window grows with time, an idle rate falls to 0, totals are kept."""
    sensor = Sensor("s", MetricConfig(3, 30_000), clock=VirtualClock(0))
    sensor.add(None, stats.Meter("rate", "total"))
    sensor.add(None, stats.Meter("occurrences", "occurred", stats.WindowedCount()))
    sensor.record(100, 0)
    sensor.record(100, 30_000)
    read = sensor.metrics
    assert read["rate"].window_size_ms(75_000) == 75_000
    assert read["rate"].measure(75_000) == 200 / 75
    assert read["occurrences"].measure(75_000) == 2 / 75
    values = [read[n].measure(165_000) for n in ("rate", "occurrences", "total", "occurred")]
    assert values == [0, 0, 200, 2]


def test_quotas() -> None:
    """MT-13 to MT-15: a value equal to the bound is allowed, a violating value is recorded, a lower bound works too."""
    sensor = Sensor("s", clock=VirtualClock(0))
    sensor.add("up", stats.CumulativeSum(), MetricConfig(quota=Quota.upper(5)))
    sensor.add("low", stats.CumulativeSum(), MetricConfig(quota=Quota.lower(0)))
    sensor.record(5, 0)
    raised = violation(sensor, 1, 0)
    assert (raised.metric.name, raised.value, raised.bound, raised.throttle_time_ms) == ("up", 6, 5, None)
    assert sensor.metrics["up"].measure(0) == 6
    sensor.record(-6, 0)
    assert violation(sensor, -1, 0).metric.name == "low"


def test_quota_equality() -> None:
    """MT-16: quotas are equal if bound and direction are equal."""
    assert Quota.upper(10.5) != Quota.lower(10.5)
    assert Quota.lower(10.5) == Quota.lower(10.5)
    assert hash(Quota.lower(10.5)) == hash(Quota.lower(10.5))


def family(registry: SensorRegistry) -> dict[str, Sensor]:
    """Return p1 and p2, c1 below both, c2 below p1 and gc below c1, each with a count of its name."""
    made: dict[str, Sensor] = {}
    for name, parents in {"p1": [], "p2": [], "c1": ["p1", "p2"], "c2": ["p1"], "gc": ["c1"]}.items():
        made[name] = registry.sensor(name, parents=[made[p] for p in parents])
        made[name].add(f"n.{name}", stats.CumulativeCount())
    return made


def test_hierarchical_sensors() -> None:
    """MT-17: a record reaches every ancestor once by every path."""
    registry = SensorRegistry(clock=VirtualClock(0))
    made = family(registry)
    for sensor in made.values():
        sensor.record(1, 0)
    counts = {name: registry.metrics[f"n.{name}"].measure(0) for name in made}
    assert counts == {"gc": 1, "c1": 2, "c2": 1, "p2": 3, "p1": 4}


def test_bad_hierarchy_and_duplicate_names() -> None:
    """MT-18, MT-19: a sensor reached twice through parents, or one name on two sensors, is an argument error."""
    registry = SensorRegistry(clock=VirtualClock(0))
    made = family(registry)
    with pytest.raises(ValueError, match="'p1' is reached twice"):
        registry.sensor("bad", parents=[made["c1"], made["c2"]])
    assert registry.get_sensor("bad") is None
    with pytest.raises(ValueError, match="exists already"):
        made["p1"].add("n.p2", stats.Avg())
    made["p1"].record(1, 0)
    assert list(made["p1"].metrics) == ["n.p1"]


def test_remove_sensor() -> None:
    """MT-20: removal includes the metrics and all sensors below, and frees the names."""
    registry = SensorRegistry(clock=VirtualClock(0))
    made = family(registry)
    assert registry.remove_sensor("p1")
    assert list(registry.sensors) == ["p2"]
    assert list(registry.metrics) == ["n.p2"]
    assert [name for name, sensor in made.items() if sensor.is_removed] == ["p1", "c1", "c2", "gc"]
    assert not registry.remove_sensor("p1")
    assert registry.remove_sensor("p2")
    assert (len(registry.sensors), len(registry.metrics)) == (0, 0)
    assert family(registry)["gc"].add("again", stats.Avg())


def test_remove_inactive() -> None:
    """MT-21 to MT-23: a sensor expires after its idle time, and its names are free again."""
    clock = VirtualClock(0)
    registry = SensorRegistry(clock=clock, expires=True)
    s1 = registry.sensor("s1", inactive_expiration_ms=1000)
    s2 = registry.sensor("s2", inactive_expiration_ms=3000)
    s1.add("n1", stats.CumulativeCount())
    s2.add("n2", stats.CumulativeCount())
    assert registry.expire_inactive() == []
    clock.advance_ms(1000)
    assert registry.expire_inactive() == []
    clock.advance_ms(1)
    assert registry.expire_inactive() == ["s1"]
    assert list(registry.metrics) == ["n2"]
    s2.record(1)
    clock.advance_ms(2000)
    assert registry.expire_inactive() == []
    clock.advance_ms(1001)
    assert registry.expire_inactive() == ["s2"]
    assert registry.sensor("s2").add("n2", stats.CumulativeCount())


def test_simple_rate() -> None:
    """SR-1 to SR-6: the window is the time since the start of the oldest sample, at least one window."""
    sensor, rate = one(stats.SimpleRate(), MetricConfig(10, 1000))
    sensor.record(1000, 0)
    assert [rate.measure(t) for t in (0, 100, 200, 400, 1000)] == [1000] * 5
    assert [rate.measure(t) for t in (1200, 1400)] == [1000 / 1.2, 1000 / 1.4]
    sensor.record(1000, 1400)
    assert [rate.measure(t) for t in (1400, 2500)] == [2000 / 1.4, 800]
    sensor.record(1000, 2500)
    assert rate.measure(2500) == 1200
    assert rate.measure(9000) == 3000 / 9
    sensor.record(1000, 9000)
    assert rate.measure(9000) == 4000 / 9
    assert rate.measure(10_500) == 3000 / 9.1
    sensor.record(1000, 10_500)
    assert rate.measure(10_500) == 4000 / 9.1


@pytest.mark.parametrize(("configured", "recording"), [("INFO", [1, 0, 0]), ("DEBUG", [1, 1, 0]), ("TRACE", [1, 1, 1])])
def test_recording_level(configured: str, recording: list[int]) -> None:
    """SE-1 to SE-3: a sensor records if its level is at or below the configured level."""
    counted = []
    for level in ("INFO", "DEBUG", "TRACE"):
        sensor = Sensor("s", MetricConfig(record_level=configured), record_level=level, clock=VirtualClock(0))  # type: ignore[arg-type]
        sensor.add("n", stats.CumulativeCount(), MetricConfig(quota=Quota.upper(0.5)))
        if sensor.should_record:
            violation(sensor, 1, 0)
        else:
            sensor.record(1, 0)
        counted.append(sensor.metrics["n"].measure(0))
    assert counted == recording


def test_expired_sensor() -> None:
    """SE-4: an expired sensor accepts no more statistics."""
    clock = VirtualClock(0)
    sensor = Sensor("s", inactive_expiration_ms=60_000, clock=clock)
    assert sensor.add("first", stats.Avg())
    clock.advance_ms(61_000)
    assert not sensor.add("second", stats.Avg())
    assert list(sensor.metrics) == ["first"]


def test_strict_with_a_rate() -> None:
    """SE-5, SE-6: a strict record is rejected while the rate before it exceeds the bound."""
    sensor, rate = one(stats.Rate(), bounded(11, 1000, 2))
    sensor.record_strict(30, WALL)
    assert rate.measure(WALL) == 3
    assert rate.measure(WALL + 5000) == 3
    with pytest.raises(QuotaViolationError) as caught:
        sensor.record_strict(30, WALL + 5000)
    assert (caught.value.value, caught.value.throttle_time_ms) == (3, 5000)
    assert rate.measure(WALL + 5000) == 3
    assert sensor.last_record_time_ms == WALL


def test_strict_with_a_token_bucket() -> None:
    """SE-7, SE-8: a strict record is accepted with exactly 0 tokens."""
    sensor, tokens = one(stats.TokenBucket(), bounded(10, 1000, 2))
    sensor.record_strict(30, WALL)
    assert tokens.measure(WALL) == -10
    assert tokens.measure(WALL + 5000) == 0
    sensor.record_strict(30, WALL + 5000)
    assert tokens.measure(WALL + 5000) == -30
    with pytest.raises(QuotaViolationError) as caught:
        sensor.record_strict(30, WALL + 5000)
    assert (caught.value.value, caught.value.throttle_time_ms) == (-30, 15_000)
    assert tokens.measure(WALL + 5000) == -30


def test_a_new_config_holds_at_once() -> None:
    """SE-9: a replaced config applies to the next record, check and measurement, and the samples are kept."""
    sensor, rate = one(stats.Rate(), bounded(11, 1000, 5))
    assert violation(sensor, 60, 0).value == 6
    rate.config = bounded(11, 1000, 10)
    sensor.record(40, 0)
    sensor.check_quotas(0)
    assert rate.measure(0) == 10
    rate.config = MetricConfig(11, 1000)
    sensor.record(1000, 0)
    rate.config = MetricConfig(3, 1000)
    assert rate.measure(0) == 1100 / 2


def test_each_stat_has_its_own_config() -> None:
    """SE-10: every statistic of a sensor is recorded and measured by its own config."""
    sensor = Sensor("s", clock=VirtualClock(0))
    sensor.add("short", stats.Rate(), bounded(2, 1000, 100))
    sensor.add("long", stats.Rate(), bounded(11, 1000, 7))
    sensor.record(60, 0)
    assert sensor.metrics["short"].measure(0) == 60
    assert sensor.metrics["long"].measure(0) == 6
    raised = violation(sensor, 20, 0)
    assert (raised.metric.name, raised.value) == ("long", 8)
    assert sensor.metrics["short"].measure(2500) == 0
    assert sensor.metrics["long"].measure(2500) == 80 / 10.5


@pytest.mark.parametrize("samples", [10, 11])
def test_throttle_at_the_quota(samples: int) -> None:
    """QU-1: a rate equal to the quota has no delay."""
    _, rate = one(stats.Rate(), bounded(samples, 1000, 16.5))
    assert rate.throttle_time_ms(16.5, 0) == 0


def test_throttle_above_the_quota() -> None:
    """QU-2 to QU-4: the delay is the excess over the bound in windows of samples - 1, up to the caller's maximum."""
    _, rate = one(stats.Rate(), bounded(3, 1000, 50))
    assert rate.throttle_time_ms(100, 0) == 2000
    _, rate = one(stats.Rate(), bounded(2, 1000, 50))
    assert rate.throttle_time_ms(55, 0, 500) == 100
    assert rate.throttle_time_ms(55, 0, 50) == 50
    sensor, _ = one(stats.Rate(), bounded(11, 1000, 1000))
    assert sensor.record_and_throttle(100_000, 0) == 90_000
    assert sensor.record_and_throttle(0, 0, 1000) == 1000


def test_replication_quota() -> None:
    """RP-1 to RP-6: the quota is exceeded above the bound until time passes; the first check starts the window."""
    sensor, rate = one(stats.SimpleRate(), bounded(10, 1000, 100))
    sensor.check_quotas(0)
    for value in (1, 149):
        sensor.record(value, 1500, check=False)
    sensor.check_quotas(1500)
    assert violation(sensor, 1, 1500).value == 151 / 1.5
    sensor.check_quotas(2000)
    assert rate.measure(2000) == 75.5
    sensor.record(99, 2500)
    assert rate.measure(2500) == 100
    assert violation(sensor, 1, 2500).value == 100.4
    sensor.check_quotas(4500)
    assert rate.measure(4500) == 251 / 4.5


def test_mutation_burst() -> None:
    """P4: 560 mutations against 5/s with a burst of 500 leave -60 tokens, which are refilled after 12 s."""
    sensor, tokens = one(stats.TokenBucket(), bounded(100, 1000, 5))
    sensor.record_strict(560, WALL)
    assert tokens.measure(WALL) == -60
    with pytest.raises(QuotaViolationError) as caught:
        sensor.record_strict(1, WALL + 11_999)
    assert caught.value.throttle_time_ms == 1
    sensor.record_strict(1, WALL + 12_000)
