"""The brokers of the cluster."""

from __future__ import annotations

from kbroker.common.security.acls import Operation
from kbroker.console.requests import Query
from kbroker.console.site import Site, View


def brokers(site: Site, query: Query) -> View:
    """Return the cluster's brokers, with the way to their configs and loggers."""
    with site.needs(Operation.DESCRIBE):
        found = site.admin.describe_cluster()
    return View("Brokers", "brokers.html", {"found": found, "place": site.parts.place})
