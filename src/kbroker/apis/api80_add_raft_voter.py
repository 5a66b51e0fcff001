"""AddRaftVoter: one node is the whole quorum, and no voter can be added (kraft.version is 0).

Source: ``KafkaRaftClient.handleAddVoterRequest``, ``AddVoterHandler``.
"""

from __future__ import annotations

from kbroker.apis.raft_voters import refusal
from kbroker.common.errors import Errors
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

CONTROLLER_LISTENER = "CONTROLLER"


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Refuse, as Kafka does in such a cluster."""
    ctx.auth.require(request, checks.ADD_RAFT_VOTER)
    found = refusal(ctx, body, "Add")
    if found["ErrorCode"] == Errors.UNSUPPORTED_VERSION and not any(
        one["Name"] == CONTROLLER_LISTENER for one in body["Listeners"]
    ):
        text = f"Add voter request didn't include the endpoint for the default listener {CONTROLLER_LISTENER}"
        return {"ErrorCode": int(Errors.INVALID_REQUEST), "ErrorMessage": text}
    return found


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the error."""
    return {"ErrorCode": int(error), "ErrorMessage": error.message}
