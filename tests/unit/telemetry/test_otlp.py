"""Decoded pushes: values, attributes, delta sums, and bounds."""

import math
import sys

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from kbroker.telemetry import decoder, otlp
from kbroker.telemetry.otlp import (
    MAX_ATTRIBUTES,
    MAX_NAME,
    MAX_POINTS,
    MAX_RESOURCES,
    Point,
    add_attributes,
    parse,
    points,
)
from tests.support.telemetry import CUMULATIVE, counter, gauges


def test_gauges() -> None:
    """Attributes of the point and the resource are sorted by name, and numbers become strings."""
    message = parse(gauges({"a.b": 1.5, "c": 2}, {"node_id": 1, "topic": "t"}, resource="r").SerializeToString())
    attributes = (("client_rack", "r"), ("node_id", "1"), ("topic", "t"))
    assert list(points(message)) == [
        Point("a.b", attributes, 1.5, False, False),
        Point("c", attributes, 2, False, False),
    ]


def test_sums() -> None:
    """Sums with delta temporality are deltas; a monotonic sum is a counter."""
    assert list(points(counter("n", 3))) == [Point("n", (), 3, True, True)]
    assert list(points(counter("n", 3, CUMULATIVE))) == [Point("n", (), 3, False, True)]


def test_histograms_and_summaries() -> None:
    """A histogram or summary gives the number of values and their sum."""
    message = MetricsData()
    metrics = message.resource_metrics.add().scope_metrics.add().metrics
    histogram = metrics.add(name="h").histogram
    histogram.aggregation_temporality = 1
    histogram.data_points.add(count=2, sum=7.5)
    metrics.add(name="e").exponential_histogram.data_points.add(count=1, sum=2)
    metrics.add(name="s").summary.data_points.add(count=4, sum=8)
    metrics.add(name="nothing")
    assert list(points(message)) == [
        Point("h.count", (), 2, True, True),
        Point("h.sum", (), 7.5, True, False),
        Point("e.count", (), 1, False, True),
        Point("e.sum", (), 2, False, False),
        Point("s.count", (), 4, False, True),
        Point("s.sum", (), 8, False, False),
    ]


def test_bounds() -> None:
    """Names and attributes are truncated, infinite values and NaN are omitted, and the number of points is limited."""
    long = "n" * (MAX_NAME + 1)
    many = {f"{number:02d}": number for number in range(MAX_ATTRIBUTES + 1)}
    (point,) = points(gauges({long: 1}, many))
    assert len(point.name) == MAX_NAME
    assert len(point.attributes) == MAX_ATTRIBUTES
    assert list(points(gauges({"nan": math.nan, "inf": math.inf}))) == []
    message = gauges({"a": 0})
    data = message.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    for number in range(MAX_POINTS + 5):
        data.add(as_double=number)
    assert len(list(points(message))) == MAX_POINTS


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x7f", b"no metrics at all"])
def test_other_data(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected metrics in OTLP"):
        parse(data)


def test_too_many_resources() -> None:
    """Resources are limited: with the client's attributes in each, a push of 1 MiB would become 100 MiB."""
    assert len(parse(b"\x0a\0" * MAX_RESOURCES).resource_metrics) == MAX_RESOURCES
    with pytest.raises(ValueError, match="at most 10000 resources in a push, found 10001"):
        parse(b"\x0a\0" * (MAX_RESOURCES + 1))


def test_attributes_for_an_endpoint() -> None:
    """Attributes of the broker replace the client's attributes of the same name; others are kept."""
    for client_id, expected in (("c", [("client_id", "c")]), (None, [])):
        message = gauges({"a": 1}, resource="r")
        message.resource_metrics[0].resource.attributes.add(key="client_id").value.string_value = "forged"
        add_attributes(message, {"client_id": client_id})
        found = [(one.key, one.value.string_value) for one in message.resource_metrics[0].resource.attributes]
        assert found == [("client_rack", "r"), *expected]


def test_the_decoder_is_found_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check finds both required packages without importing them."""
    assert decoder.has_decoder()
    decoder.has_decoder.cache_clear()
    with monkeypatch.context() as changed:
        changed.setattr(sys, "path", [])
        assert not decoder.has_decoder()
    decoder.has_decoder.cache_clear()
    assert otlp.__name__ not in decoder.__dict__
