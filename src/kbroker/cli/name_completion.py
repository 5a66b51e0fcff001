"""Shell completion of names, from the broker that the command line names; none if it does not respond."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from kbroker.cli.options import DEFAULT_BOOTSTRAP, connect

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

PATIENCE_S = 1.0


def topic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics that begin with the typed text; internal ones only after a typed underscore."""

    def names(cluster: Cluster) -> list[str]:
        return [t.name for t in cluster.fetch_metadata(None) if not t.is_internal or incomplete.startswith("_")]

    return _starting(ctx, incomplete, names)


def group_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups that begin with the typed text."""

    def names(cluster: Cluster) -> list[str]:
        from kbroker.client.groups import Groups

        return [group.group_id for group in Groups(cluster).list_groups()]

    return _starting(ctx, incomplete, names)


def _starting(ctx: click.Context, incomplete: str, names: Callable[[Cluster], list[str]]) -> list[str]:
    from kbroker.client.connection import BrokerConnectionError
    from kbroker.common.errors import KafkaError

    bootstrap = ctx.params.get("bootstrap_server") or DEFAULT_BOOTSTRAP
    patience = {"connect_timeout_s": PATIENCE_S, "request_timeout_s": PATIENCE_S, "retry_timeout_s": PATIENCE_S}
    try:
        with connect(bootstrap, **patience) as cluster:
            return sorted(name for name in names(cluster) if name.startswith(incomplete))
    except (KafkaError, BrokerConnectionError, OSError, click.UsageError):
        return []  # an error would disturb the command line
