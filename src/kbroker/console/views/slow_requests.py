"""The slowest recent requests, each with the time of its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kbroker.console.request_tail import LoggedRequest, latest_requests
from kbroker.console.requests import Query
from kbroker.console.site import Site, View

SHOWN = 50

#: Sort orders of requests.
ORDERS: Mapping[str, tuple[str, Callable[[LoggedRequest], float]]] = {
    "total": ("total time", lambda one: one.total_ms),
    "work": ("time without waiting for records or quotas", lambda one: one.work_ms),
    "throttle": ("delay by a quota", lambda one: one.throttle_ms),
    "queue": ("time in the request queue", lambda one: one.queue_ms),
}
#: The stages of a request in their order: class of the colour, name, field.
STAGES = (
    ("f1", "request queue", "queue_ms"),
    ("f3", "handler", "local_ms"),
    ("f0", "waiting for records or a flush", "remote_ms"),
    ("f2", "throttle", "throttle_ms"),
    ("f4", "response queue", "response_queue_ms"),
    ("f5", "sending", "send_ms"),
)


class Stage(NamedTuple):
    """A part of a request's line; ``start`` and ``width`` in percent of the longest one shown."""

    colour: str
    name: str
    ms: float
    start: float
    width: float


class SlowRequest(NamedTuple):
    """A request and its line."""

    request: LoggedRequest
    stages: list[Stage]


def slow_requests(site: Site, query: Query) -> View:
    """Return the requests of clients whose names contain ``q``, optionally of one API, the slowest first."""
    order, wanted, api = query.choice("by", ORDERS, "total"), query.text("q").strip(), query.text("api")
    tail = latest_requests(site)
    weight = ORDERS[order][1]
    found = [
        one
        for one in tail.requests
        if (not api or one.api == api)
        and (wanted.lower() in one.client_id.lower() or wanted.lower() in one.principal.lower())
    ]
    slowest = sorted(found, key=lambda one: -weight(one))[:SHOWN]
    longest = max((one.total_ms for one in slowest), default=0.0)
    values = {
        "rows": [SlowRequest(one, _stages(one, longest)) for one in slowest],
        "problem": tail.problem,
        "source": tail.source,
        "looked_at": len(tail.requests),
        "oldest_ms": min((one.time_ms for one in tail.requests), default=None),
        "q": wanted,
        "api": api,
        "apis": sorted({one.api for one in tail.requests} | ({api} if api else set())),
        "by": order,
        "orders": {name: text for name, (text, _) in ORDERS.items()},
        "stages": STAGES,
    }
    return View("Slowest requests", "slow_requests.html", values)


def _stages(one: LoggedRequest, longest: float) -> list[Stage]:
    stages, start = [], 0.0
    for colour, name, field in STAGES:
        ms = getattr(one, field)
        if ms > 0:
            width = 100 * ms / longest
            stages.append(Stage(colour, name, ms, start, width))
            start += width
    return stages
