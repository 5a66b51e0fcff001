"""JoinGroup: a member joins or rejoins; the response is sent when the group's rebalance ends."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.coordinator.classic_group import JoinResult
from kbroker.coordinator.classic_membership import JoinRequest
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> None:
    """Pass the join to the coordinator, which responds later.

    From v4 a new member without an instance id gets its member id first (MEMBER_ID_REQUIRED, KIP-394); from v9 a static
    leader that joins again gets SkipAssignment (KIP-814).
    """
    ctx.auth.require(request, checks.JOIN_GROUP, body["GroupId"])
    version = request.api_version
    session_ms = body["SessionTimeoutMs"]
    instance_id = body.get("GroupInstanceId")
    joining = JoinRequest(
        group_id=body["GroupId"],
        member_id=body["MemberId"],
        group_instance_id=instance_id,
        client_id=request.client_id,
        client_host=f"/{request.client_host}",
        rebalance_timeout_ms=body["RebalanceTimeoutMs"] if version >= 1 else session_ms,
        session_timeout_ms=session_ms,
        protocol_type=body["ProtocolType"],
        protocols=[(row["Name"], bytes(row["Metadata"])) for row in body["Protocols"]],
        requires_known_member_id=version >= 4 and instance_id is None,
        supports_skipping_assignment=version >= 9,
    )
    ctx.groups.join(joining, lambda result: request.complete(_response(result, request)))


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the response of a failed request, without membership."""
    return _response(JoinResult(error, body["MemberId"]), request)


def _response(result: JoinResult, request: RequestContext) -> Body:
    name = result.protocol_name
    return {
        "ErrorCode": int(result.error),
        "GenerationId": result.generation_id,
        "ProtocolType": result.protocol_type,
        "ProtocolName": "" if name is None and request.api_version < 7 else name,
        "Leader": result.leader_id,
        "SkipAssignment": result.skip_assignment,
        "MemberId": result.member_id,
        "Members": [
            {"MemberId": one.member_id, "GroupInstanceId": one.group_instance_id, "Metadata": one.metadata}
            for one in result.members
        ],
    }
