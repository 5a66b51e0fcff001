"""The overview of the broker's state, the X-ray, and the page of live charts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import kbroker
from kbroker.common.units import counted
from kbroker.console.history import Rates
from kbroker.console.requests import Query
from kbroker.console.site import Json, Site, View

XRAY_ROWS = 50  # maximum number of connections, and of operations of each purgatory


class Notice(NamedTuple):
    """Notice for operators. ``page``: page with details, empty without one."""

    text: str
    page: str = ""


def overview(site: Site, query: Query) -> View:
    """Return current figures and notices."""
    parts = site.broker.parts
    views = parts.ctx.topics.all()
    logs = [log for view in views for log in view.partitions]
    groups = site.context.group_service.started
    values = {
        "version": kbroker.__version__,
        "node_id": site.context.node_id,
        "cluster_id": site.context.cluster_id,
        "listeners": site.broker.bound_listeners,
        "now_ms": site.clock.epoch_ms(),
        "latest": site.local.history.latest,
        "topics": sum(not view.is_internal for view in views),
        "partitions": sum(len(view.partitions) for view in views if not view.is_internal),
        "size_bytes": sum(log.size_bytes for log in logs if log is not None),
        "has_groups": groups is not None,
        "waiting_fetches": parts.native_apis.waiting_fetches,
        "waiting_produces": parts.native_apis.waiting_produces,
        "queued": len(parts.requests) + len(parts.python_requests),
        "throttled_now": _throttled_now(site),
        "quota_entities": site.context.quota_entities.count,
        "notices": _notices(site, logs),
        "may_edit": site.parts.may_edit,
    }
    return View("Overview", "overview.html", values)


def _throttled_now(site: Site) -> int:
    quotas = site.context.quotas
    managers = (quotas.produce, quotas.fetch, quotas.request, quotas.controller_mutation)
    return sum(manager.queue_size for manager in managers)


def _notices(site: Site, logs: list[Any]) -> list[Notice]:
    parts = site.broker.parts
    found = []
    for folder, why in parts.logs.offline_dirs.items():
        found.append(Notice(f"The log folder {folder} can no longer be written: {why}"))
    offline = sum(log is None for view in parts.ctx.topics.all() for log in view.hosted(site.context.node_id))
    if offline:
        found.append(Notice(f"{counted(offline, 'partition')} offline: log not opened.", "topics"))
    damaged = sum(log is not None and log.damage_offset is not None for log in logs)
    if damaged:
        way_out = "stop the broker and run kbroker log verify --repair"
        found.append(Notice(f"{counted(damaged, 'partition')} damaged, appends refused; {way_out}."))
    failed = sum(log is not None and log.is_failed for log in logs)
    if failed:
        text = f"{counted(failed, 'partition')} refusing appends until a restart, after a failed write or sync."
        found.append(Notice(text))
    if parts.logs.lost_offsets:
        found.append(Notice(f"{counted(parts.logs.lost_offsets, 'offset')} known before this start not found."))
    return found


def xray(site: Site, query: Query) -> View:
    """Return a snapshot: muted connections, delayed operations, threads, queues and memory."""
    return View("X-ray", "xray.html", {"found": site.broker.xray(limit=XRAY_ROWS)})


def alive(site: Site, query: Query) -> Json:
    """Respond to pages without live parts, which check that the broker is up."""
    return Json({"started_ms": site.parts.started_ms})


def throughput(site: Site, query: Query) -> View:
    """Return the charts, whose values come from ``rates``."""
    return View("Throughput", "throughput.html", {"latest": site.local.history.latest})


def rates(site: Site, query: Query) -> Json:
    """Return the rates of the last ten minutes, or those after ``since``: one list for each line of the charts."""
    since_ms = query.integer("since", 0, 0, 2**62)
    found = site.local.history.rates(since_ms)
    return Json({"columns": {name: [_plain(one[i]) for one in found] for i, name in enumerate(Rates._fields)}})


def _plain(value: float) -> float | None:
    """Return a number that JSON can represent, rounded to the digits of a chart; None for NaN."""
    return None if math.isnan(value) else round(value, 2)
