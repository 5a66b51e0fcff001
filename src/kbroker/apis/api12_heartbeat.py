"""Heartbeat: a member says that it lives, and hears of a rebalance."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Prolong the session."""
    ctx.auth.require(request, checks.HEARTBEAT, body["GroupId"])
    try:
        member = body["MemberId"], body.get("GroupInstanceId"), body["GenerationId"]
        error = ctx.groups.heartbeat(body["GroupId"], *member)
    except KafkaError as refused:
        if refused.error is not Errors.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        error = Errors.NONE  # as Kafka: the member goes on, and its next heartbeat meets the loaded group
    return failure(body, error, request)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """The code is all there is."""
    return {"ErrorCode": int(error)}
