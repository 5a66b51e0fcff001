"""AddRaftVoter: one node is the whole quorum, and no voter can be added.

Source: ``KafkaRaftClient.handleAddVoterRequest``, ``AddVoterHandler``.
"""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.metadata.topics import ZERO_ID
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


def refusal(ctx: ApiContext, body: Body, verb: str) -> Body:
    """Return the response to a request to "Add" or "Remove" a voter. Kafka checks in the same order."""
    cluster_id = body["ClusterId"]
    if cluster_id is not None and cluster_id != ctx.cluster_id:
        text = f'The given id "{cluster_id}" doesn\'t match the cluster id "{ctx.cluster_id}"'
        return {"ErrorCode": int(Errors.INCONSISTENT_CLUSTER_ID), "ErrorMessage": text}
    if body["VoterId"] < 0 or body["VoterDirectoryId"] == ZERO_ID:
        text = f"{verb} voter request didn't include a valid voter"
        return {"ErrorCode": int(Errors.INVALID_REQUEST), "ErrorMessage": text}
    what = "adding" if verb == "Add" else "removing"
    why = "this broker is its only controller" if ctx.controller.kraft_version else "the kraft.version feature is 0"
    text = f"Cluster doesn't support {what} voter because {why}"
    return {"ErrorCode": int(Errors.UNSUPPORTED_VERSION), "ErrorMessage": text}
