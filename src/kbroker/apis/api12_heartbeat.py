"""Heartbeat: keeps a member's session alive and reports pending rebalances."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Extend the session."""
    ctx.auth.require(request, checks.HEARTBEAT, body["GroupId"])
    try:
        member = body["MemberId"], body.get("GroupInstanceId"), body["GenerationId"]
        error = ctx.groups.heartbeat(body["GroupId"], *member)
    except KafkaError as refused:
        if refused.error is not Errors.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        error = Errors.NONE  # as in Kafka: the member continues, and its next heartbeat reaches the loaded group
    return {"ErrorCode": int(error)}
