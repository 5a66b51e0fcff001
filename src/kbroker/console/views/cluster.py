"""The cluster: its brokers and controllers, and the state of a member."""

from __future__ import annotations

from kbroker.client.cluster_description import describe_cluster
from kbroker.console.requests import Query
from kbroker.console.site import Site, View


def cluster(site: Site, query: Query) -> View:
    """Return brokers, controllers and features, with links to the configs and loggers of each broker.

    A member describes the cluster from its own metadata while it cannot reach the controllers.
    """
    member = site.context.member if site.has_broker else None
    trouble = "" if member is None else member.trouble
    has_quorum = not trouble
    name = f"cluster {has_quorum}"
    found = site.remember_metadata(name, lambda: describe_cluster(site.cluster, has_quorum))
    values = {
        "found": found,
        "member": member,
        "trouble": trouble,
        "obstacle": "" if member is None else member.obstacle,
        "own_id": site.context.node_id if site.has_broker else None,
        "place": site.parts.place,
    }
    return View("Cluster", "cluster.html", values)
