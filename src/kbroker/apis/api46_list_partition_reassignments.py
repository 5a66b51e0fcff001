"""ListPartitionReassignments: with one broker nothing is ever on its way to another."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Name no partition, whether those asked for exist or not."""
    ctx.auth.require(request, checks.LIST_PARTITION_REASSIGNMENTS)
    return {"ErrorCode": 0, "ErrorMessage": None, "Topics": []}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """The error, and no partition."""
    return {"ErrorCode": int(error), "ErrorMessage": error.message, "Topics": []}
