"""Console pages about clients that push their metrics."""

import re
from collections.abc import Iterator
from urllib.parse import quote
from uuid import UUID

import pytest

from kbroker.broker import Broker
from kbroker.console.app import Console
from kbroker.console.views.clients import FETCH_LATENCY, NODE_LATENCY, PRODUCE_LATENCY
from kbroker.log.checkpoints import uuid_to_text
from kbroker.telemetry.manager import Client
from kbroker.telemetry.otlp import Point
from tests.integration.test_client_telemetry import subscribe
from tests.integration.test_console import MARKUP, text
from tests.support.console import SETTINGS, ask, pages_of, served
from tests.support.fixtures import fixture_of

broker = fixture_of(served, SETTINGS)


@pytest.fixture
def pages(broker: Broker) -> Iterator[Console]:
    with pages_of(broker) as made:
        yield made


def push(broker: Broker, number: int, client_id: str, *points: Point) -> str:
    """Push points as a client; return the address of the client's page."""
    service = broker.context.telemetry
    facts = {"client_id": client_id, "client_software_name": client_id, "client_source_address": "10.0.0.7"}
    service.manager.get_subscription(UUID(int=number), Client(facts, f"User:{client_id}", "", lambda: True))
    service.series.put(UUID(int=number), points, broker.clock.now_ms())
    return f"client?client={uuid_to_text(UUID(int=number))}"


def gauge(name: str, value: float, *attributes: tuple[str, str]) -> Point:
    return Point(name, attributes, value, False, False)


def test_without_clients(pages: Console, broker: Broker) -> None:
    """Without a subscription, the page explains how to create one and does not start the telemetry service."""
    assert "No client metrics subscription" in text(ask(pages, "clients"))
    assert broker.context.telemetry_service.started is None
    assert ask(pages, "client?client=AAAAAAAAAAAAAAAAAAAABw").status == 404


def test_latencies(pages: Console, broker: Broker) -> None:
    """The list shows the largest latency over the nodes of a client; a client's page shows all values."""
    subscribe(broker, "all", metrics="a,b", interval_ms="60000")
    nodes = [gauge(PRODUCE_LATENCY, 2.5, ("node.id", "1")), gauge(PRODUCE_LATENCY, 25, ("node.id", "2"))]
    mine = push(broker, 7, "orders", *nodes, Point("a.total", (), 1_234_567, True, True))
    push(broker, 8, "billing", gauge(FETCH_LATENCY, 71_000))
    push(broker, 9, "other", gauge(NODE_LATENCY, 83_000))
    page = text(ask(pages, "clients"))
    assert "all</bdi> (2 metrics, every 1 min 0 s)" in page
    assert [page.index(one) for one in ("other", "billing", "orders")] == sorted(
        page.index(one) for one in ("other", "billing", "orders")
    )
    assert "25 ms" in page
    assert "2.5 ms" not in page
    assert "1 min 11 s" in page
    assert "1 min 23 s" in page
    found = text(ask(pages, "clients?q=ORD"))
    assert ("orders" in found, "billing" in found) == (True, False)
    page = text(ask(pages, mine))
    assert "1,234,567" in page
    assert "node.id 2" in page
    assert "a.total" not in text(ask(pages, f"{mine}&q=latency"))


def test_names_with_markup(pages: Console, broker: Broker) -> None:
    """Texts that a client chooses cannot add markup to a page."""
    subscribe(broker, MARKUP[:20], metrics=MARKUP.replace(",", ""), interval_ms="60000")
    mine = push(broker, 7, MARKUP, gauge(MARKUP, 1, (MARKUP, MARKUP)))
    for path in ("clients", f"clients?q={quote(MARKUP)}", mine, f"{mine}&q={quote(MARKUP)}", f"client?client={MARKUP}"):
        page = text(ask(pages, path))
        assert "<script>alert" not in page, path
        assert "\u202e" not in re.sub(r'value="[^"]*"|href="[^"]*"', "", page), path
