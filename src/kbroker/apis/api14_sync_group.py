"""SyncGroup: the leader sends the assignments, each member gets its own; responses wait for the leader."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.classic_group import SyncResult
from kbroker.coordinator.classic_membership import SyncRequest
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body | None:
    """Pass the sync to the coordinator, which responds later. Raises: KafkaError, from v5 also without a protocol."""
    protocol_type, protocol_name = body.get("ProtocolType"), body.get("ProtocolName")
    if request.api_version >= 5 and (protocol_type is None or protocol_name is None):
        raise KafkaError(Errors.INCONSISTENT_GROUP_PROTOCOL)
    ctx.auth.require(request, checks.SYNC_GROUP, body["GroupId"])
    syncing = SyncRequest(
        group_id=body["GroupId"],
        generation_id=body["GenerationId"],
        member_id=body["MemberId"],
        group_instance_id=body.get("GroupInstanceId"),
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments={row["MemberId"]: bytes(row["Assignment"]) for row in body["Assignments"]},
    )
    ctx.groups.sync(syncing, lambda result: request.complete(_response(result)))
    return None


def _response(result: SyncResult) -> Body:
    return {
        "ErrorCode": int(result.error),
        "ProtocolType": result.protocol_type,
        "ProtocolName": result.protocol_name,
        "Assignment": result.assignment,
    }
