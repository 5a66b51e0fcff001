"""DescribeCluster: the nodes of the cluster, and the one to which clients send changes."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.requests.cluster import controller_id, registered_nodes
from kbroker.requests.context import OPERATIONS_NOT_ASKED, ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

BROKERS, CONTROLLERS = 1, 2


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe the cluster to a client that requests brokers; a broker's listener refuses other endpoint types."""
    kind = body["EndpointType"]
    if kind == CONTROLLERS:
        text = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        return {"ErrorCode": int(Errors.MISMATCHED_ENDPOINT_TYPE), "ErrorMessage": text}
    if kind != BROKERS:
        text = f"Unsupported endpoint type {kind}"
        return {"ErrorCode": int(Errors.UNSUPPORTED_ENDPOINT_TYPE), "ErrorMessage": text}
    nodes = registered_nodes(ctx, request.listener)
    live = [one for one in nodes.values() if not one.is_fenced]
    operations = OPERATIONS_NOT_ASKED
    if body["IncludeClusterAuthorizedOperations"]:
        may_see = ctx.auth.allows(request, checks.DESCRIBE_CLUSTER)
        operations = ctx.auth.operations(request, checks.CLUSTER) if may_see else 0
    return {
        "ErrorCode": 0,
        "EndpointType": BROKERS,
        "ClusterId": ctx.cluster_id,
        "ControllerId": controller_id(ctx, [one.node_id for one in live]),
        "Brokers": [
            {"BrokerId": one.node_id, "Host": one.host, "Port": one.port, "Rack": one.rack, "IsFenced": one.is_fenced}
            for one in (nodes.values() if body.get("IncludeFencedBrokers") else live)
        ],
        "ClusterAuthorizedOperations": operations,
    }
