"""Tests of the metric registry by name, group and tags."""

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.metric_config import MetricConfig
from kbroker._core.metrics.stats import CumulativeSum, Rate
from kbroker.metrics.registry import MetricName, Metrics


def test_metric_names() -> None:
    """A name from a flat list of tags equals the name from a mapping; an invalid list is refused (MT-24)."""
    flat = MetricName.of("name", "group", ["key1", "v1", "key2", "v2"], "one")
    mapped = MetricName.of("name", "group", {"key2": "v2", "key1": "v1"}, "two")
    assert flat == mapped
    assert hash(flat) == hash(mapped)
    assert str(flat) == "group:name{key1=v1, key2=v2}"
    with pytest.raises(ValueError, match="a value for every key, got 1 items"):
        MetricName.of("name", "group", ["key1"])
    with pytest.raises(ValueError, match="given twice"):
        MetricName.of("name", "group", ["a", "1", "a", "2"])


def test_default_tags() -> None:
    """Default tags are merged into the names of the registry; an explicit tag overrides its default."""
    metrics = Metrics(MetricConfig(tags={"broker": "1", "zone": "a"}), VirtualClock(0))
    assert metrics.metric_name("n", "g", {"zone": "b"}).tag_map == {"broker": "1", "zone": "b"}


def test_the_built_in_count() -> None:
    """The count metric includes itself."""
    metrics = Metrics(clock=VirtualClock(0))
    count = metrics.get(metrics.metric_name("count", "kafka-metrics-count"))
    assert count is not None
    assert count.measure() == 1
    metrics.sensor("s").add(metrics.metric_name("m", "g"), Rate())
    assert count.measure() == len(metrics) == 2
    metrics.remove_sensor("s")
    assert count.measure() == 1


def test_finding() -> None:
    """Metrics are found by their full name, or by name and group with any tags."""
    metrics = Metrics(clock=VirtualClock(0))
    for user in ("a", "b"):
        metrics.sensor(user).add(metrics.metric_name("byte-rate", "Produce", {"user": user}), Rate())
    metrics.sensor("q").add(metrics.metric_name("queue-size", "Produce"), CumulativeSum())
    assert {m.name.tag_map["user"] for m in metrics.find("byte-rate", "Produce")} == {"a", "b"}  # type: ignore[attr-defined]
    assert metrics.metric_name("byte-rate", "Produce", ["user", "a"]) in metrics
    assert metrics.metric_name("byte-rate", "Produce") not in metrics
    assert [str(name) for name, _ in metrics.items()][1:] == [
        "Produce:byte-rate{user=a}",
        "Produce:byte-rate{user=b}",
        "Produce:queue-size{}",
    ]


def test_gauges() -> None:
    """A gauge calls its function at every measurement, and its name is unique."""
    metrics = Metrics(clock=VirtualClock(0))
    name = metrics.metric_name("free", "pool")
    values = iter([3, 4])
    gauge = metrics.add_gauge(name, lambda: next(values))
    assert (gauge.measure(), gauge.measure(5)) == (3, 4)
    with pytest.raises(ValueError, match=r"pool:free\{\} exists already"):
        metrics.add_gauge(name, lambda: 0)
    assert metrics.get(name) is gauge


def test_expiry() -> None:
    """An expiring registry removes idle sensors with their metrics."""
    clock = VirtualClock(0)
    metrics = Metrics(clock=clock, expires=True)
    metrics.sensor("s", inactive_expiration_ms=3_600_000).add(metrics.metric_name("m", "g"), Rate())
    clock.advance_ms(3_600_001)
    assert metrics.expire_inactive() == ["s"]
    assert len(metrics) == 1
    assert metrics.get_sensor("s") is None


def test_metrics_that_are_removed_while_they_are_listed() -> None:
    """The list has the metrics of the time of the call."""
    metrics = Metrics()
    removed: list[str] = []

    class Name(MetricName):
        def __hash__(self) -> int:
            if removed:
                metrics.remove_sensor(removed.pop())
            return super().__hash__()

    for name in "ab":
        metrics.sensor(name).add(Name(name, "g"), Rate())
    removed.append("b")
    assert {name.name for name, _ in metrics.items()} == {"a", "b", "count"}
