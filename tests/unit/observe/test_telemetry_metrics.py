"""Client metrics at the metrics port: names, labels, kinds, and bounds on the number of series."""

import re
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log.checkpoints import uuid_to_text
from kbroker.metrics.exposition import Exposition
from kbroker.metrics.registry import Metrics
from kbroker.observe import telemetry_metrics
from kbroker.observe.metric_table import families
from kbroker.observe.telemetry_metrics import client_families
from kbroker.telemetry.otlp import Point
from kbroker.telemetry.series import ClientSeries
from tests.support.fixtures import fixture_of
from tests.support.telemetry import Rig

rig = fixture_of(lambda: Rig(VirtualClock()))


class Service:
    def __init__(self, rig: Rig) -> None:
        self.manager = rig.manager
        self.series = ClientSeries(1 << 20)
        self.forwarder = self.log = None


def text_of(service: Any, limit: int = 100, accept: str = "") -> str:
    ctx: Any = SimpleNamespace(telemetry_service=SimpleNamespace(started=service))
    exposition = Exposition(Metrics(), limit)
    for family in families(telemetry_metrics.ROWS, ctx):
        exposition.add(family)
    exposition.add_source(partial(client_families, ctx))
    return exposition.text(accept)[0].decode()


def pushed(rig: Rig, service: Service, number: int, client_id: str, *points: Point) -> None:
    rig.get(UUID(int=number), rig.client(client_id))
    service.series.put(UUID(int=number), points, 0)


def test_values_of_clients(rig: Rig) -> None:
    """A gauge and a counter have the labels of the client and of the point; a forged client label is dropped."""
    service = Service(rig)
    attributes = (("client_id", "forged"), ("node.id", "1"), ("9", "x"), ("!", "x"))
    pushed(
        rig, service, 7, "orders", Point("a.latency.avg", attributes, 2.5, False, False),
        Point("b.total", (), 3, True, True),
    )  # fmt: skip
    labels = f'client_id="orders",client_instance_id="{uuid_to_text(UUID(int=7))}"'
    text = text_of(service)
    assert f'kbroker_client_a_latency_avg{{{labels},node_id="1"}} 2.5\n' in text
    assert f"kbroker_client_b_total{{{labels}}} 3.0\n" in text
    assert "# TYPE kbroker_client_b_total counter" in text
    assert "kbroker_telemetry_series 2.0" in text


def test_attributes_in_another_order(rig: Rig) -> None:
    """Spellings of attributes that sort differently give one series, or the scraper would refuse the page."""
    service = Service(rig)
    first, second = (("B", "1"), ("a", "2")), (("a", "2"), ("b", "1"))
    pushed(rig, service, 7, "c", *(Point("x", each, 3, False, False) for each in (first, second)))
    assert re.findall(r"(?m)^kbroker_client_x\{.*(?=client_id)", text_of(service)) == ['kbroker_client_x{a="2",b="1",']


@pytest.mark.parametrize("name", ["", "é", "total"])
def test_a_name_without_words(rig: Rig, name: str) -> None:
    """A client chooses the name of a counter, and no name makes a scrape fail."""
    service = Service(rig)
    pushed(rig, service, 7, "c", Point(name, (), 1, True, True))
    assert "kbroker_client_total{" in text_of(service)


def test_each_value_repeats_the_client(rig: Rig) -> None:
    """A long client id is cut, or the values of a few clients would be gigabytes."""
    service = Service(rig)
    pushed(rig, service, 7, "c" * 32_767, Point("a", (), 1, False, False))
    assert f'client_id="{"c" * 256}"' in text_of(service)


def test_the_series_of_a_metric_are_bounded(rig: Rig) -> None:
    """The series of the most recently active clients are shown."""
    service = Service(rig)
    for number in range(5):
        pushed(rig, service, 10 + number, f"c{number}", Point("a", (), number, False, False))
    assert re.findall(r'kbroker_client_a\{client_id="(c\d)"', text_of(service, 2)) == ["c4", "c3"]


def test_the_number_of_metrics_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client cannot fill the page with metric names."""
    monkeypatch.setattr(telemetry_metrics, "MAX_FAMILIES", 3)
    service = Service(rig)
    pushed(rig, service, 7, "c", *(Point(f"name.{word}", (), 1, False, False) for word in "abcdef"))
    assert len(set(re.findall(r"^kbroker_client_\w+", text_of(service), re.MULTILINE))) == 3


def test_one_name_has_one_kind(rig: Rig) -> None:
    """Names that Prometheus cannot distinguish, and one name with two kinds, give one family without duplicates."""
    service = Service(rig)
    pushed(rig, service, 7, "c", Point("a.b", (), 1, False, False), Point("a-b", (), 2, False, False),
           Point("n.total", (), 1, False, False), Point("n", (), 2, True, True))  # fmt: skip
    text = text_of(service)
    assert len(re.findall(r"^kbroker_client_a_b\{", text, re.MULTILINE)) == 1
    assert len(re.findall(r"^kbroker_client_n_total\{", text, re.MULTILINE)) == 1


def test_openmetrics_has_one_type_for_a_name(rig: Rig) -> None:
    """In OpenMetrics a gauge x beside a counter x_total would make the page invalid: the first of them is shown."""
    service = Service(rig)
    pushed(rig, service, 7, "c", Point("x", (), 1, False, False), Point("x.total", (), 2, True, True),
           Point("y", (), 1, False, False), Point("y.total", (), 2, False, False))  # fmt: skip
    text = text_of(service, accept="application/openmetrics-text; version=1.0.0")
    types = re.findall("^# TYPE kbroker_client_(.*)$", text, re.MULTILINE)
    assert types == ["x gauge", "y gauge", "y_total gauge"]


def test_without_telemetry() -> None:
    """A scrape does not start telemetry."""
    assert "kbroker_telemetry_series 0.0" in text_of(None)
