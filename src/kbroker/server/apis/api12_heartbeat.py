"""Heartbeat: a member says that it lives, and hears of a rebalance."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.server.context import ApiContext, Body, RequestContext


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Prolong the session."""
    error = ctx.groups.heartbeat(body["GroupId"], body["MemberId"], body.get("GroupInstanceId"), body["GenerationId"])
    return failure(body, error, request)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """The code is all there is."""
    return {"ErrorCode": int(error)}
