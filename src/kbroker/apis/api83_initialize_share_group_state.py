"""InitializeShareGroupState: creates or replaces the state of share partitions."""

from __future__ import annotations

from kbroker.apis.share_state_requests import each_partition, failure
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

__all__ = ["failure", "handle"]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Initialize each partition."""
    return each_partition(
        ctx,
        body,
        request,
        checks.INITIALIZE_SHARE_GROUP_STATE,
        lambda coordinator, key, row: coordinator.initialize(key, row["StateEpoch"], row["StartOffset"]),
        omits_empty_topics=True,
    )
