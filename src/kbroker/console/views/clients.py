"""Clients that push their metrics (KIP-714): their latencies as they measure them, and all values of one client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.console.paging import part_of
from kbroker.console.requests import PageError, Query
from kbroker.console.site import Site, View, address
from kbroker.log.checkpoints import uuid_to_text
from kbroker.telemetry.decoder import has_decoder
from kbroker.telemetry.instances import ClientInstance
from kbroker.telemetry.series import Key, Value

VALUES = 200  # maximum number of values on a page
#: Latencies that the list shows: the maximum over all nodes of a client.
PRODUCE_LATENCY = "org.apache.kafka.producer.node.request.latency.avg"
FETCH_LATENCY = "org.apache.kafka.consumer.fetch.manager.fetch.latency.avg"
NODE_LATENCY = "org.apache.kafka.consumer.node.request.latency.avg"  # used for clients that do not measure fetches


class ClientRow(NamedTuple):
    """A client of the list. Times are in milliseconds, None if unknown; ``age_ms``: since its latest push."""

    href: str
    client_id: str
    principal: str
    software: str
    host: str
    produce_ms: float | None
    fetch_ms: float | None
    series: int
    age_ms: int | None
    interval_ms: int


class ValueRow(NamedTuple):
    """One value of a client."""

    name: str
    attributes: str
    value: str
    counts: bool


def clients(site: Site, query: Query) -> View:
    """Return a page of the clients whose names contain ``q``, the latest first."""
    wanted = query.text("q").strip().lower()
    service = site.context.telemetry_service.started
    found = [] if service is None else [_row(site, one) for one in reversed(service.manager.instances)]
    kept = [
        row
        for row in found
        if any(wanted in text.lower() for text in (row.client_id, row.principal, row.software, row.host))
    ]
    values = {
        "part": part_of(kept, query, "clients"),
        "q": query.text("q").strip(),
        "subscriptions": [] if service is None else service.manager.subscriptions,
        "is_served": has_decoder(),
    }
    return View("Clients", "clients.html", values)


def client(site: Site, query: Query) -> View:
    """Return one client with its latest values, whose names contain ``q``."""
    instance_id, wanted = query.needed("client"), query.text("q").strip()
    service = site.context.telemetry_service.started
    found = [] if service is None else service.manager.instances
    instance = next((one for one in found if uuid_to_text(one.uuid) == instance_id), None)
    if service is None or instance is None:
        raise PageError(404, f"Client instance {instance_id[:40]!r} does not exist; it may have ended.")
    rows = [_value(key, value) for key, value in sorted(service.series.of(instance.uuid).items())]
    kept = [row for row in rows if wanted.lower() in row.name.lower() or wanted.lower() in row.attributes.lower()]
    values = {
        "row": _row(site, instance),
        "instance_id": instance_id,
        "metrics": instance.requested.metrics,
        "q": wanted,
        "part": part_of(kept, query, "client", VALUES),
    }
    return View("Client", "client.html", values)


def _row(site: Site, one: ClientInstance) -> ClientRow:
    service = site.context.telemetry
    latest = service.series.of(one.uuid)
    pushed_ms = service.series.pushed_ms(one.uuid)
    facts = one.facts
    fetch_ms = _longest(latest, FETCH_LATENCY)
    return ClientRow(
        address("client", client=uuid_to_text(one.uuid)),
        facts.get("client_id") or "",
        one.principal,
        f"{facts.get('client_software_name') or ''} {facts.get('client_software_version') or ''}".strip(),
        facts.get("client_source_address") or "",
        _longest(latest, PRODUCE_LATENCY),
        _longest(latest, NODE_LATENCY) if fetch_ms is None else fetch_ms,
        len(latest),
        None if pushed_ms is None else site.clock.now_ms() - pushed_ms,
        one.requested.interval_ms,
    )


def _longest(latest: Mapping[Key, Value], wanted: str) -> float | None:
    return max((value.value for (name, _), value in latest.items() if name == wanted), default=None)


def _value(key: Key, value: Value) -> ValueRow:
    name, attributes = key
    number = value.value
    shown = f"{number:,.0f}" if number.is_integer() else f"{number:,.6g}"
    return ValueRow(name, ", ".join(f"{one} {text}" for one, text in attributes), shown, value.counts)
