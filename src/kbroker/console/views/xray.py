"""The X-ray: activity of the broker at this moment."""

from __future__ import annotations

from kbroker.console.requests import Query
from kbroker.console.site import Site, View

SHOWN = 50  # connections, and operations of each purgatory


def xray(site: Site, query: Query) -> View:
    """Return a snapshot: muted connections, delayed operations, threads, queues and memory."""
    return View("X-ray", "xray.html", {"found": site.broker.xray(limit=SHOWN)})
