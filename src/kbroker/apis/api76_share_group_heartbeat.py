"""ShareGroupHeartbeat: a member of a share group joins, subscribes, follows its assignment, and leaves (KIP-932)."""

from __future__ import annotations

from kbroker.apis.group_heartbeats import accepted, check_texts, invalid
from kbroker.apis.share_group_requests import MAX_MEMBER_ID_LENGTH, are_enabled
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.modern_group.member import JOIN_EPOCH, LEAVE_EPOCH
from kbroker.coordinator.modern_group.records import partition_rows
from kbroker.coordinator.share_group.membership import HeartbeatRequest
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Check the request, then pass it to the coordinator of groups. Errors have a text."""
    if not are_enabled(ctx):
        raise KafkaError(Errors.UNSUPPORTED_VERSION)
    try:
        ctx.auth.require(request, checks.SHARE_GROUP_HEARTBEAT_GROUP, body["GroupId"])
        if not 0 < len(body["MemberId"]) <= MAX_MEMBER_ID_LENGTH:
            return {"ErrorCode": int(Errors.INVALID_REQUEST)}
        names = set(body["SubscribedTopicNames"] or ())
        if len(ctx.auth.allowed(request, checks.SHARE_GROUP_HEARTBEAT, names)) < len(names):
            return {"ErrorCode": int(checks.SHARE_GROUP_HEARTBEAT.error)}
        _check(body)
        result = ctx.groups.share_groups.heartbeat(
            HeartbeatRequest(
                body["GroupId"],
                body["MemberId"],
                body["MemberEpoch"],
                body["RackId"],
                body["SubscribedTopicNames"],
                request.client_id,
                f"/{request.client_host}",
            )
        )
    except KafkaError as error:
        return error_fields(error)
    assignment = None if result.assigned is None else {"TopicPartitions": partition_rows(result.assigned)}
    return {**accepted(result), "Assignment": assignment}


def _check(body: Body) -> None:
    """Check the request. Raises: KafkaError INVALID_REQUEST, in Kafka's order and words."""
    check_texts(body, "MemberId", "GroupId", "RackId")
    if body["MemberEpoch"] == JOIN_EPOCH:
        if not body["SubscribedTopicNames"]:
            raise invalid("SubscribedTopicNames must be set in first request.")
    elif body["MemberEpoch"] < LEAVE_EPOCH:
        raise invalid("MemberEpoch is invalid.")
