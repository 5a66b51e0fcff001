"""ListPartitionReassignments: with one broker there is never a reassignment in progress."""

from __future__ import annotations

from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return no partition, whether the named ones exist or not."""
    ctx.auth.require(request, checks.LIST_PARTITION_REASSIGNMENTS)
    return {"ErrorCode": 0, "ErrorMessage": None, "Topics": []}
