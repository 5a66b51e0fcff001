"""LeaveGroup: one member, or from v3 several, each with its own code."""

from __future__ import annotations

from kbroker.coordinator.classic_membership import LeavingMember
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Remove the members separately: several, each with an error, from v3 on; before that the one member."""
    ctx.auth.require(request, checks.LEAVE_GROUP, body["GroupId"])
    if request.api_version < 3:
        (error,) = ctx.groups.leave(body["GroupId"], [LeavingMember(body["MemberId"], None)])
        return {"ErrorCode": int(error)}
    rows = body["Members"]
    errors = ctx.groups.leave(body["GroupId"], [LeavingMember(row["MemberId"], row["GroupInstanceId"]) for row in rows])
    members = [
        {"MemberId": row["MemberId"], "GroupInstanceId": row["GroupInstanceId"], "ErrorCode": int(error)}
        for row, error in zip(rows, errors, strict=True)
    ]
    return {"ErrorCode": 0, "Members": members}
